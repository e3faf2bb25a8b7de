//! Parses times as people write them. The current time is an argument; no clock is read.

use jiff::{SignedDuration, Timestamp};
use thiserror::Error;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{given:?} is not a time: expected how long ago, as in 90s, 15m, 1h30m or 2d, or a time with its zone, as in 2026-01-02T03:04:05Z"
)]
pub struct InvalidTime {
    pub given: String,
}

/// Parses how long ago it was, or a time with its zone.
///
/// # Errors
/// When it is neither, or outside the calendar.
pub fn parse(text: &str, now: Timestamp) -> Result<Timestamp, InvalidTime> {
    let ago = duration(text).and_then(|ago| now.checked_sub(ago).ok());
    ago.or_else(|| text.parse().ok()).ok_or_else(|| InvalidTime { given: text.to_owned() })
}

/// Numbers and units, `1h30m`; at least one.
fn duration(text: &str) -> Option<SignedDuration> {
    let mut rest = text.trim();
    let mut seconds: i64 = 0;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: i64 = rest[..digits].parse().ok()?;
        let unit = rest[digits..].bytes().take_while(u8::is_ascii_alphabetic).count();
        let scale = match &rest[digits..digits + unit] {
            "s" => 1,
            "m" | "min" => 60,
            "h" => 3_600,
            "d" => 86_400,
            "w" => 604_800,
            _ => return None,
        };
        seconds = seconds.checked_add(number.checked_mul(scale)?)?;
        rest = &rest[digits + unit..];
    }
    (!text.trim().is_empty()).then(|| SignedDuration::from_secs(seconds))
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
