//! When the next request may be sent: five at once, then one a second, and none before the time that the server names.

use std::time::{Duration, Instant};

const BURST: u32 = 5;
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// When all of the burst will be there again.
    whole: Instant,
    not_before: Instant,
}

impl Pace {
    pub(super) fn beginning(first: Instant) -> Self {
        Self { whole: first, not_before: first }
    }

    /// When the next one may be sent; it may be past.
    pub(super) fn next(&self) -> Instant {
        let of_burst = self.whole.checked_sub(INTERVAL * (BURST - 1)).unwrap_or(self.whole);
        self.not_before.max(of_burst)
    }

    /// One is sent.
    pub(super) fn take(&mut self, now: Instant) {
        self.whole = self.whole.max(now) + INTERVAL;
    }

    pub(super) fn pause(&mut self, until: Instant) {
        self.not_before = self.not_before.max(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many are sent at this moment.
    fn sent(pace: &mut Pace, now: Instant) -> usize {
        let mut sent = 0;
        while pace.next() <= now {
            pace.take(now);
            sent += 1;
        }
        sent
    }

    #[test]
    fn five_at_once_and_then_one_a_second() {
        let start = Instant::now();
        let second = |number| start + INTERVAL * number;
        let mut pace = Pace::beginning(second(10));
        assert_eq!(sent(&mut pace, second(9)), 0, "nodes that start together do not send together");
        assert_eq!(sent(&mut pace, second(10)), 5);
        assert_eq!(pace.next(), second(11));
        assert_eq!(sent(&mut pace, second(13)), 3);
        assert_eq!(sent(&mut pace, second(1000)), 5);
    }

    #[test]
    fn nothing_is_sent_before_the_time_that_the_server_names() {
        let start = Instant::now();
        let mut pace = Pace::beginning(start);
        pace.pause(start + INTERVAL * 30);
        pace.pause(start + INTERVAL * 7);
        assert_eq!(pace.next(), start + INTERVAL * 30);
        assert_eq!(sent(&mut pace, start + INTERVAL * 30), 5);
    }
}
