//! How fast connections are accepted: any user of the node can make one after another, and each costs a wake-up and an answer.
//!
//! None is refused for it, as the next may be the health check that decides whether the daemon is restarted. Beyond a rate
//! they are accepted in batches, all that wait by then, so that who asks again after each answer is answered once in a
//! batch, and a health check waits for one pause at most.

use std::time::{Duration, Instant};

/// Connections that are accepted at once when they come, on average and at most one after another.
const INTERVAL: Duration = Duration::from_millis(10);
const BURST: u32 = 100;
pub(super) const PAUSE: Duration = Duration::from_millis(20);

pub(super) struct Pace {
    /// When as many may come at once as at the beginning.
    unused: Instant,
    /// Those that waited when the last pause ended, and were not accepted yet.
    batch: usize,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self { unused: now, batch: 0 }
    }

    /// Whether the next connection may be accepted as soon as it comes; counts it. Else a pause comes first.
    pub(super) fn may_accept(&mut self, now: Instant) -> bool {
        if self.batch > 0 {
            self.batch -= 1;
            return true;
        }
        let next = self.unused.max(now) + INTERVAL;
        let may = next <= now + INTERVAL * BURST;
        if may {
            self.unused = next;
        }
        may
    }

    /// A pause has ended, and so many connections wait; they may be accepted. Of none, the next one that comes.
    pub(super) fn paused(&mut self, waiting: usize) {
        // The first one follows without a question.
        self.batch = waiting.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many connections are accepted in ten seconds, and in how many of the pauses, if so many clients connect again at
    /// once whenever they are answered.
    fn accepted(clients: usize) -> (usize, usize) {
        let begin = Instant::now();
        let mut now = begin;
        let mut pace = Pace::new(begin);
        let (mut accepted, mut pauses) = (0, 0);
        while now < begin + Duration::from_secs(10) {
            if !pace.may_accept(now) {
                now += PAUSE;
                pauses += 1;
                pace.paused(clients);
            }
            accepted += 1;
            now += Duration::from_micros(10);
        }
        (accepted, pauses)
    }

    #[test]
    fn who_asks_again_after_each_answer_is_answered_once_in_a_pause() {
        let (one, pauses) = accepted(1);
        assert!((900..1700).contains(&one), "{one} in {pauses} pauses");
        let (eight, _) = accepted(8);
        assert!(eight < 8 * 800, "{eight}");
    }

    #[test]
    fn all_that_wait_are_accepted_together() {
        let (many, pauses) = accepted(1000);
        assert!(many > pauses * 900, "{many} in {pauses} pauses");
    }

    #[test]
    fn what_a_node_asks_for_waits_for_nothing() {
        let begin = Instant::now();
        let mut pace = Pace::new(begin);
        assert!((0..3600).all(|second| pace.may_accept(begin + Duration::from_secs(second))));
        assert!((0..50).all(|_| pace.may_accept(begin + Duration::from_secs(3600))));
    }

    #[test]
    fn after_a_pause_in_which_nothing_came_the_next_one_is_accepted_when_it_comes() {
        let begin = Instant::now();
        let mut pace = Pace::new(begin);
        while pace.may_accept(begin) {}
        pace.paused(0);
        assert!(pace.may_accept(begin + Duration::from_secs(1)));
    }
}
