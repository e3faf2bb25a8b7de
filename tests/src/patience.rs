//! Waiting for a condition: how long a test is ready to wait, and nothing about how long things take.

use std::time::{Duration, Instant};

/// How long a test waits for something that must happen: `KEVTMON_TEST_PATIENCE` in seconds, else 60.
#[must_use]
pub fn patience() -> Duration {
    let seconds = std::env::var("KEVTMON_TEST_PATIENCE").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(60))
}

/// Looks again and again until there is an answer; panics with `what` when patience ends.
pub fn wait_until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within_patience(look).unwrap_or_else(|| panic!("waited in vain: {what}"))
}

/// Looks again and again until there is an answer, or patience ends.
pub fn within_patience<T>(look: impl FnMut() -> Option<T>) -> Option<T> {
    within(patience(), look)
}

/// The same until a time is over that is promised: waiting any longer would be of no use.
pub fn within<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + limit;
    loop {
        let answer = look();
        if answer.is_some() || Instant::now() >= deadline {
            return answer;
        }
        pause();
    }
}

/// The time between two looks at a condition that nothing announces.
#[expect(clippy::disallowed_methods, reason = "the pause between two looks of a bounded wait")]
fn pause() {
    std::thread::sleep(Duration::from_millis(10));
}

/// Waits until an expression is true: `eventually!(path.exists(), "{path:?} appears")`.
#[macro_export]
macro_rules! eventually {
    ($condition:expr, $($what:tt)+) => {
        $crate::patience::wait_until(&format!($($what)+), || ($condition).then_some(()))
    };
}
