//! Comparisons of passwords: each takes a core for a while, and anybody who reaches the port can ask for one.
//!
//! So one is made at a time, on a thread of its own, and after one that failed none for four times as long: guessing takes a
//! fifth of a core at most. Few wait, and of one address even fewer, so that who guesses leaves places to others. Who was
//! right once is compared by a digest from then on, and waits for nobody.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use kevtmon_types::lock::lock;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::users::{Claim, Comparison, Users};

/// Comparisons that wait or are made, of all addresses, and of one.
const WAITING: usize = 16;
const WAITING_OF_ONE: usize = 2;
/// Pause after a wrong password, in times of what it took.
const REST: u32 = 4;

/// What becomes of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Right,
    /// It is not.
    Wrong,
    /// Too many are being compared.
    Busy,
}

#[derive(Debug, Default)]
pub(super) struct Attempts {
    turn: Arc<tokio::sync::Mutex<()>>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    waiting: BTreeMap<IpAddr, usize>,
    /// By user, the hash and the proof of the password that was right last.
    right: BTreeMap<String, (String, [u8; 32])>,
}

impl Attempts {
    /// Compares a claim that comes from an address.
    pub(super) async fn compare(&self, users: &Users, claim: Claim, from: IpAddr) -> Outcome {
        let user = claim.user.clone();
        let Some(comparison) = users.comparison(claim) else { return Outcome::Wrong };
        let proof = comparison.proof();
        // Both are digests: how long it takes to tell them apart says nothing of the password.
        let right = lock(&self.state).right.get(&user).cloned();
        if right.is_some_and(|(hash, right)| users.has(&user, &hash) && right == proof) {
            return Outcome::Right;
        }
        let Some(place) = Place::take(&self.state, from) else { return Outcome::Busy };
        let hash = comparison.hash().to_owned();
        let (told, outcome) = oneshot::channel();
        // Goes on without the client: who hangs up does not spare itself the pause.
        tokio::spawn(make(Arc::clone(&self.turn), place, comparison, told));
        if !outcome.await.unwrap_or(false) {
            return Outcome::Wrong;
        }
        lock(&self.state).right.insert(user, (hash, proof));
        Outcome::Right
    }

    /// Forgets who was right, but for those of whom the hash is the same: they would have to wait behind who guesses.
    pub(super) fn keep(&self, users: &Users) {
        lock(&self.state).right.retain(|user, (hash, _)| users.has(user, hash));
    }
}

async fn make(
    turn: Arc<tokio::sync::Mutex<()>>,
    place: Place,
    comparison: Comparison,
    told: oneshot::Sender<bool>,
) {
    let turn = turn.lock_owned().await;
    if told.is_closed() {
        return;
    }
    let began = Instant::now();
    let is_right = spawn_blocking(move || comparison.is_right()).await.unwrap_or(false);
    let took = began.elapsed();
    drop(place);
    // The client may be gone.
    let _ = told.send(is_right);
    if !is_right {
        sleep(took * REST).await;
    }
    drop(turn);
}

/// One that waits or is made.
struct Place {
    state: Arc<Mutex<State>>,
    from: IpAddr,
}

impl Place {
    fn take(state: &Arc<Mutex<State>>, from: IpAddr) -> Option<Self> {
        let mut locked = lock(state);
        let all: usize = locked.waiting.values().sum();
        let own = locked.waiting.get(&from).copied().unwrap_or(0);
        if all >= WAITING || own >= WAITING_OF_ONE {
            return None;
        }
        locked.waiting.insert(from, own + 1);
        Some(Self { state: Arc::clone(state), from })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut locked = lock(&self.state);
        let left = locked.waiting.get(&self.from).map_or(0, |count| count.saturating_sub(1));
        if left == 0 {
            locked.waiting.remove(&self.from);
        } else {
            locked.waiting.insert(self.from, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::web_config::tests::{PASSWORD, claim, users, users_of};

    const FROM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn other(number: u8) -> IpAddr {
        IpAddr::from([198, 51, 100, number])
    }

    #[tokio::test]
    async fn a_password_is_right_or_wrong_and_so_is_that_of_an_unknown_user() {
        let (attempts, users) = (Attempts::default(), users());
        for (user, password, expected) in [
            ("ada", PASSWORD, Outcome::Right),
            ("ada", PASSWORD, Outcome::Right),
            ("ada", "wrong", Outcome::Wrong),
            ("ada", "", Outcome::Wrong),
            ("bob", PASSWORD, Outcome::Wrong),
        ] {
            let outcome = attempts.compare(&users, claim(user, password), FROM).await;
            assert_eq!(outcome, expected, "{user} {password}");
        }
        assert!(lock(&attempts.state).waiting.is_empty());
    }

    #[tokio::test]
    async fn few_wait_and_of_one_address_fewer_and_who_was_right_waits_for_nobody() {
        let (attempts, users) = (Attempts::default(), Arc::new(users()));
        assert_eq!(attempts.compare(&users, claim("ada", PASSWORD), FROM).await, Outcome::Right);
        let attempts = Arc::new(attempts);
        // None is made before this is dropped.
        let turn = Arc::clone(&attempts.turn).lock_owned().await;
        let guess = |from| {
            let (attempts, users) = (Arc::clone(&attempts), Arc::clone(&users));
            tokio::spawn(async move { attempts.compare(&users, claim("ada", "wrong"), from).await })
        };
        let waiting = || lock(&attempts.state).waiting.values().sum::<usize>();
        let mut guesses = Vec::new();
        for number in 0..u8::try_from(WAITING / WAITING_OF_ONE).unwrap() {
            guesses.extend((0..WAITING_OF_ONE).map(|_| guess(other(number))));
            while waiting() < guesses.len() {
                tokio::task::yield_now().await;
            }
            assert_eq!(guess(other(number)).await.unwrap(), Outcome::Busy, "more of one address");
        }
        assert_eq!(waiting(), WAITING);
        assert_eq!(guess(FROM).await.unwrap(), Outcome::Busy, "more of all");
        assert_eq!(attempts.compare(&users, claim("ada", PASSWORD), FROM).await, Outcome::Right);
        drop(turn);
        for guess in guesses {
            assert_eq!(guess.await.unwrap(), Outcome::Wrong);
        }
        assert_eq!(waiting(), 0);
    }

    #[tokio::test]
    async fn who_was_right_is_so_until_the_hash_is_another_one_whatever_else_changes() {
        let hash = |password: &str| bcrypt::hash(password, 4).unwrap();
        let (ada, bob) = (hash(PASSWORD), hash("other"));
        let (attempts, both) = (Attempts::default(), users_of(&format!("ada: {ada}\nbob: {ada}")));
        for user in ["ada", "bob"] {
            assert_eq!(attempts.compare(&both, claim(user, PASSWORD), FROM).await, Outcome::Right, "{user}");
        }
        let changed = users_of(&format!("ada: {ada}\nbob: {bob}\neve: {bob}"));
        attempts.keep(&changed);
        {
            // Nothing is compared before this is dropped.
            let _turn = Arc::clone(&attempts.turn).lock_owned().await;
            assert_eq!(attempts.compare(&changed, claim("ada", PASSWORD), FROM).await, Outcome::Right);
        }
        assert_eq!(attempts.compare(&changed, claim("bob", PASSWORD), FROM).await, Outcome::Wrong);
        assert_eq!(lock(&attempts.state).right.keys().collect::<Vec<_>>(), ["ada"]);
        // One that was compared with users from before is noted when there are others already.
        assert_eq!(attempts.compare(&both, claim("bob", PASSWORD), FROM).await, Outcome::Right);
        let alone = users_of(&format!("ada: {ada}"));
        assert_eq!(
            attempts.compare(&alone, claim("bob", PASSWORD), FROM).await,
            Outcome::Wrong,
            "it is gone"
        );
    }

    #[tokio::test]
    async fn a_guess_whose_client_is_gone_is_not_made() {
        let (attempts, users) = (Arc::new(Attempts::default()), Arc::new(users()));
        let turn = Arc::clone(&attempts.turn).lock_owned().await;
        let guess = {
            let (attempts, users) = (Arc::clone(&attempts), Arc::clone(&users));
            tokio::spawn(async move { attempts.compare(&users, claim("ada", "wrong"), FROM).await })
        };
        let waiting = || lock(&attempts.state).waiting.values().sum::<usize>();
        while waiting() == 0 {
            tokio::task::yield_now().await;
        }
        guess.abort();
        assert!(guess.await.is_err());
        assert_eq!(waiting(), 1, "its place is taken until it would have been its turn");
        drop(turn);
        while waiting() > 0 {
            tokio::task::yield_now().await;
        }
        // Its end lets the next one begin at once.
        assert_eq!(attempts.compare(&users, claim("ada", PASSWORD), FROM).await, Outcome::Right);
    }
}
