//! Wall-clock times of events, the way back to the boot clock, and durations as text.

use jiff::SignedDuration;

/// What to add to a boot time to get wall-clock time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WallClock {
    pub offset_ns: i64,
}

impl WallClock {
    /// RFC 3339, UTC, nanoseconds. A time outside the calendar is a broken clock: it shows as the epoch.
    pub fn text(self, at: u64) -> String {
        let since_epoch = i128::from(at) + i128::from(self.offset_ns);
        let time = jiff::Timestamp::from_nanosecond(since_epoch).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        format!("{time:.9}")
    }

    /// The time of the day, as in `12:00:03 UTC`.
    pub fn time_of_day(self, at: u64) -> String {
        format!("{} UTC", self.text(at).get(11..19).unwrap_or_default())
    }

    /// The boot time of a text; `None` if it is no time, or one before the boot.
    pub fn boot_ns(self, text: &str) -> Option<u64> {
        let time: jiff::Timestamp = text.parse().ok()?;
        u64::try_from(time.as_nanosecond() - i128::from(self.offset_ns)).ok()
    }
}

/// The largest unit that fits, and one more where it is small: `42 s`, `1 h 20 min`, `3 d`.
pub fn span(span: SignedDuration) -> String {
    let seconds = span.as_secs().max(0);
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600, seconds / 60);
    match (days, hours, minutes) {
        (2.., ..) => format!("{days} d"),
        (1, ..) => with(days, "d", hours % 24, "h"),
        (0, 1.., _) => with(hours, "h", minutes % 60, "min"),
        (0, 0, 1..) => format!("{minutes} min"),
        _ => format!("{seconds} s"),
    }
}

fn with(large: i64, unit: &str, small: i64, small_unit: &str) -> String {
    if small == 0 { format!("{large} {unit}") } else { format!("{large} {unit} {small} {small_unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_reads_back_to_the_nanosecond() {
        let clock = WallClock { offset_ns: 1_700_000_000_000_000_000 };
        let text = clock.text(123_456_789);
        assert_eq!(text, "2023-11-14T22:13:20.123456789Z");
        assert_eq!(clock.time_of_day(123_456_789), "22:13:20 UTC");
        assert_eq!(clock.boot_ns(&text), Some(123_456_789));
        assert_eq!(clock.boot_ns("1999-01-01T00:00:00Z"), None);
        assert_eq!(clock.boot_ns("yesterday"), None);
    }
}
