//! Times and durations as text. The current time is an argument; no clock is read.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use kevtmon_event::span;

/// Less than this in the future is a moment after the query.
const JUST_NOW: SignedDuration = SignedDuration::from_secs(-2);

/// How long ago; a time in the future means that the clock was set.
pub fn age(time: Timestamp, now: Timestamp) -> String {
    let passed = now.duration_since(time);
    if passed < JUST_NOW { "in the future".to_owned() } else { format!("{} ago", span(passed)) }
}

/// The current time and time zone, to show a time.
#[derive(Debug, Clone)]
pub struct Clock {
    pub now: Timestamp,
    /// The reader's time zone.
    pub zone: TimeZone,
}

impl Clock {
    /// Local time to the second, with the date unless it is today's.
    pub fn local(&self, time: Timestamp) -> String {
        let (local, today) = (time.to_zoned(self.zone.clone()), self.now.to_zoned(self.zone.clone()));
        let form = if local.date() == today.date() { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" };
        local.strftime(form).to_string()
    }

    pub fn local_and_age(&self, time: Timestamp) -> String {
        format!("{} ({})", self.local(time), age(time, self.now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-02T03:04:05Z";

    #[test]
    fn an_age_is_as_exact_as_it_is_of_use() {
        let now: Timestamp = NOW.parse().unwrap();
        for (seconds, text) in [
            (0, "0 s ago"),
            (59, "59 s ago"),
            (200, "3 min ago"),
            (3_600, "1 h ago"),
            (4_800, "1 h 20 min ago"),
            (90_000, "1 d 1 h ago"),
            (300_000, "3 d ago"),
            (-1, "0 s ago"),
            (-5, "in the future"),
        ] {
            assert_eq!(age(now - SignedDuration::from_secs(seconds), now), text);
        }
    }

    #[test]
    fn the_date_stands_only_where_it_is_another_day() {
        let clock = Clock { now: NOW.parse().unwrap(), zone: TimeZone::fixed(jiff::tz::offset(2)) };
        assert_eq!(clock.local_and_age("2026-01-02T03:00:05Z".parse().unwrap()), "05:00:05 (4 min ago)");
        assert_eq!(clock.local("2026-01-01T21:59:59Z".parse().unwrap()), "2026-01-01 23:59:59");
        assert_eq!(clock.local("2026-01-01T22:00:00Z".parse().unwrap()), "00:00:00");
    }
}
