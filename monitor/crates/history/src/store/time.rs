//! Times of events as numbers: nanoseconds since the epoch, which sort and compare.

use jiff::Timestamp;

/// Nanoseconds since the epoch; the epoch itself for what is no time.
pub(super) fn nanos(rfc3339: &str) -> i64 {
    rfc3339.parse::<Timestamp>().map_or(0, of)
}

/// Nanoseconds since the epoch.
pub(super) fn of(time: Timestamp) -> i64 {
    i64::try_from(time.as_nanosecond()).unwrap_or(i64::MAX)
}

/// As in the JSON of events.
pub(super) fn text(nanos: i64) -> String {
    let time = Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{time:.9}")
}

pub(super) fn now() -> i64 {
    of(Timestamp::now())
}
