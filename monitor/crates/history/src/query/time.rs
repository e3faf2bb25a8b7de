//! Parses times as people write them. The current time is an argument; no clock is read.

use jiff::{Span, SpanRelativeTo, Timestamp};
use thiserror::Error;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{given:?} is not a time: expected how long ago, as in 90s, 15m, 1h30m or 2d, or a time with its zone, as in 2026-01-02T03:04:05Z"
)]
pub struct InvalidTime {
    pub given: String,
}

/// Parses how long ago it was, or a time with its zone.
pub fn parse(text: &str, now: Timestamp) -> Result<Timestamp, InvalidTime> {
    let ago = text.trim().parse::<Span>().ok().filter(|ago| !ago.is_negative());
    let ago = ago.and_then(|ago| ago.to_duration(SpanRelativeTo::days_are_24_hours()).ok());
    let time = ago.and_then(|ago| now.checked_sub(ago).ok()).or_else(|| text.parse().ok());
    time.ok_or_else(|| InvalidTime { given: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-02T03:04:05Z";

    fn ago(text: &str) -> Option<i64> {
        let now: Timestamp = NOW.parse().unwrap();
        parse(text, now).ok().map(|time| now.duration_since(time).as_secs())
    }

    #[test]
    fn a_duration_is_that_long_ago() {
        for (text, seconds) in [
            ("90s", 90),
            ("15m", 900),
            ("15min", 900),
            ("1h30m", 5_400),
            ("2d", 172_800),
            ("1w", 604_800),
            ("0s", 0),
        ] {
            assert_eq!(ago(text), Some(seconds), "{text}");
        }
    }

    #[test]
    fn a_time_with_its_zone_is_itself() {
        assert_eq!(ago("2026-01-02T03:04:00Z"), Some(5));
        assert_eq!(ago("2026-01-02T04:04:00+01:00"), Some(5));
    }

    #[test]
    fn anything_else_is_refused_with_examples() {
        for text in
            ["", " ", "h", "1", "1x", "yesterday", "-1h", "1h-", "99999999999999999999s", "9999999w", "é"]
        {
            assert_eq!(ago(text), None, "{text}");
        }
        let error = parse("soon", Timestamp::UNIX_EPOCH).unwrap_err().to_string();
        assert!(error.contains("soon") && error.contains("1h30m"), "{error}");
    }
}
