//! Waiting for a condition that nothing announces: how long a test is ready to wait, and nothing about how long it takes.

use std::thread;
use std::time::{Duration, Instant};

use tokio::time::{interval, timeout};

/// How long a test waits for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(2);

/// Looks until the condition holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::park_timeout(PAUSE);
    }
}

/// As [`eventually`], for a test in a runtime.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let mut looks = interval(PAUSE);
    let reached = async {
        while !condition() {
            looks.tick().await;
        }
    };
    assert!(timeout(PATIENCE, reached).await.is_ok(), "never: {what}");
}
