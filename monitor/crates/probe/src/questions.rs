//! How often whoever acts may have [ancestors](super::lineage) read, for which all observations behind wait.
//!
//! Anybody can act as another process each time. So a user has a budget, and of root each control group, since root of a
//! container is root, too; and who can be many of them is bounded by the budget of all.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kevtmon_observation::TaskFacts;

/// After a wait in vain none is begun for the same account for this long, so that nobody can stop the ring by processes
/// that hang.
pub(super) const PAUSE: Duration = Duration::from_secs(5);
/// Of one account. A question takes a fraction of a millisecond.
const ACCOUNT: Rate = Rate::new(Duration::from_millis(25), 32);
/// Of all users who are not root together, and of all control groups of root's.
const USERS: Rate = Rate::new(Duration::from_millis(25), 64);
const GROUPS: Rate = Rate::new(Duration::from_millis(5), 256);
/// Waits in vain of all together.
const IN_VAIN: Rate = Rate::new(Duration::from_millis(2500), 2);
/// Accounts are looked through when there are more of them; by the rates no more than that can have asked just now.
const ACCOUNTS: usize = 1024;

/// One comes back after each interval; a burst is the time in which all of it comes back.
struct Rate {
    interval: Duration,
    burst: Duration,
}

impl Rate {
    const fn new(interval: Duration, burst: u32) -> Self {
        Self { interval, burst: interval.saturating_mul(burst) }
    }
}

/// Whose question it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Account {
    /// A user who is not root.
    User(u32),
    /// Control groups of root's: of a v1 controller, and in the v2 hierarchy.
    Group(u32, u32),
}

impl Account {
    pub(super) fn of(task: &TaskFacts) -> Self {
        match task.uid {
            0 => Self::Group(task.place.cgroup_v1, task.place.cgroup_v2),
            uid => Self::User(uid),
        }
    }
}

/// When nothing of a burst will be used up any more.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    empty: Instant,
}

impl Bucket {
    fn after_one(self, now: Instant, rate: &Rate) -> Option<Self> {
        let empty = self.empty.max(now) + rate.interval;
        (empty - now <= rate.burst).then_some(Self { empty })
    }

    /// One that has something again after `pause`.
    fn exhausted(now: Instant, pause: Duration, rate: &Rate) -> Self {
        Self { empty: now + pause + rate.burst.saturating_sub(rate.interval) }
    }
}

#[derive(Debug)]
pub(super) struct Questions {
    accounts: BTreeMap<Account, Bucket>,
    users: Bucket,
    groups: Bucket,
    in_vain: Bucket,
}

impl Questions {
    pub(super) fn new(now: Instant) -> Self {
        let whole = Bucket { empty: now };
        Self { accounts: BTreeMap::new(), users: whole, groups: whole, in_vain: whole }
    }

    /// Whether this account has a question left now, which is taken.
    pub(super) fn take(&mut self, account: Account, now: Instant) -> bool {
        let (of_all, rate) = match account {
            Account::User(_) => (&mut self.users, &USERS),
            Account::Group(..) => (&mut self.groups, &GROUPS),
        };
        let own = self.accounts.get(&account).copied().unwrap_or(Bucket { empty: now });
        let taken = own.after_one(now, &ACCOUNT).zip(of_all.after_one(now, rate));
        let (Some((own, all)), Some(_)) = (taken, self.in_vain.after_one(now, &IN_VAIN)) else {
            return false;
        };
        *of_all = all;
        self.put(account, own, now);
        true
    }

    /// The answer did not come in time.
    pub(super) fn was_in_vain(&mut self, account: Account, now: Instant) {
        self.put(account, Bucket::exhausted(now, PAUSE, &ACCOUNT), now);
        if let Some(one_more) = self.in_vain.after_one(now, &IN_VAIN) {
            self.in_vain = one_more;
        }
    }

    /// Nobody has any for a while.
    pub(super) fn pause(&mut self, now: Instant) {
        self.in_vain = Bucket::exhausted(now, PAUSE, &IN_VAIN);
    }

    fn put(&mut self, account: Account, bucket: Bucket, now: Instant) {
        if self.accounts.len() >= ACCOUNTS {
            self.accounts.retain(|_, bucket| bucket.empty > now);
        }
        self.accounts.insert(account, bucket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BURST: usize = 32;

    fn taken(questions: &mut Questions, accounts: impl Iterator<Item = Account>, now: Instant) -> usize {
        accounts.filter(|account| questions.take(*account, now)).count()
    }

    #[test]
    fn a_user_or_a_control_group_of_roots_uses_up_only_its_own_questions() {
        for (greedy, other) in [
            (Account::User(1000), Account::User(1001)),
            (Account::User(1000), Account::Group(0, 7)),
            (Account::Group(0, 8), Account::Group(0, 7)),
            (Account::Group(8, 0), Account::Group(7, 0)),
        ] {
            let now = Instant::now();
            let mut questions = Questions::new(now);
            assert_eq!(taken(&mut questions, [greedy; 1000].into_iter(), now), BURST);
            assert_eq!(taken(&mut questions, [other; 1000].into_iter(), now), BURST);
            let later = now + Duration::from_millis(250);
            assert_eq!(taken(&mut questions, [greedy; 1000].into_iter(), later), 10);
        }
    }

    #[test]
    fn whoever_can_be_many_has_the_questions_of_all_like_him_and_takes_no_memory() {
        let now = Instant::now();
        let mut questions = Questions::new(now);
        assert_eq!(taken(&mut questions, (1..100_000).map(Account::User), now), 64);
        assert_eq!(taken(&mut questions, (1..100_000).map(|group| Account::Group(0, group)), now), 256);
        let seconds = (1..100).map(|second| now + Duration::from_secs(second));
        for (second, now) in (1..).zip(seconds) {
            taken(&mut questions, (0..1000).map(|group| Account::Group(second, group)), now);
            assert!(questions.accounts.len() <= ACCOUNTS);
        }
    }

    #[test]
    fn a_wait_in_vain_stops_its_account_and_many_stop_all() {
        let now = Instant::now();
        let mut questions = Questions::new(now);
        let [hanging, again, other] = [1, 2, 3].map(Account::User);
        questions.was_in_vain(hanging, now);
        assert!(!questions.take(hanging, now) && questions.take(other, now));
        questions.was_in_vain(again, now);
        assert!(!questions.take(other, now), "nobody has a wait left");
        let later = now + IN_VAIN.interval;
        assert!(!questions.take(hanging, later) && questions.take(other, later));
        let later = now + PAUSE;
        assert!(questions.take(hanging, later));
        questions.pause(later);
        assert!(!questions.take(other, later + PAUSE - Duration::from_millis(1)));
        assert!(questions.take(other, later + PAUSE));
    }
}
