//! How fast connections are accepted: any user of the node can make one after another, and each costs a wake-up and an answer.
//!
//! None is refused for it, as the next may be the health check that decides whether the daemon is restarted. Beyond a rate
//! they are accepted in batches, all that wait by then, so that who asks again after each answer is answered once in a
//! batch, and a health check waits for one pause at most.

use std::time::Duration;

use kevtmon_types::bucket::{Bucket, Price};
use kevtmon_types::clock::{BootNs, MS};

/// Connections that are accepted at once when they come, on average and at most one after another.
const PRICE: Price = Price { of_one: 10 * MS, of_all: 1000 * MS };
pub(super) const PAUSE: Duration = Duration::from_millis(20);

#[derive(Default)]
pub(super) struct Pace {
    bucket: Bucket,
    /// Those that waited when the last pause ended, and were not accepted yet.
    batch: usize,
}

impl Pace {
    /// Whether the next connection may be accepted as soon as it comes; counts it. Else a pause comes first.
    pub(super) fn may_accept(&mut self, now: BootNs) -> bool {
        if self.batch > 0 {
            self.batch -= 1;
            return true;
        }
        self.bucket.take(now, PRICE)
    }

    /// A pause has ended, and so many connections wait; they may be accepted. Of none, the next one that comes.
    pub(super) fn paused(&mut self, waiting: usize) {
        // The first one follows without a question.
        self.batch = waiting.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_types::clock::SECOND;

    use super::*;

    /// How many connections are accepted in ten seconds, and in how many of the pauses, if so many clients connect again at
    /// once whenever they are answered.
    fn accepted(clients: usize) -> (usize, usize) {
        let mut now = 0;
        let mut pace = Pace::default();
        let (mut accepted, mut pauses) = (0, 0);
        while now < 10 * SECOND {
            if !pace.may_accept(now) {
                now += 20 * MS;
                pauses += 1;
                pace.paused(clients);
            }
            accepted += 1;
            now += MS / 100;
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
        let mut pace = Pace::default();
        assert!((0..3600).all(|second| pace.may_accept(second * SECOND)));
        assert!((0..50).all(|_| pace.may_accept(3600 * SECOND)));
    }

    #[test]
    fn after_a_pause_in_which_nothing_came_the_next_one_is_accepted_when_it_comes() {
        let mut pace = Pace::default();
        while pace.may_accept(0) {}
        pace.paused(0);
        assert!(pace.may_accept(SECOND));
    }
}
