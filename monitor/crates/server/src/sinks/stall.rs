//! Notices a sink that does not come back from its work, as where a disk does not answer: its own thread cannot tell.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kevtmon_observation::{SourceKind, SourceStatus};

/// Work that takes longer has got stuck.
const STUCK: Duration = Duration::from_secs(10);

/// Whether a sink is up, by what it last reported itself.
#[derive(Debug, Clone, Default)]
pub struct Liveness(Arc<AtomicBool>);

impl Liveness {
    /// The sink has reported this.
    pub fn set(&self, is_up: bool) {
        self.0.store(is_up, Ordering::Release);
    }

    fn is_up(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What was told of one sink.
#[derive(Debug)]
pub(super) struct Stall {
    source: &'static str,
    liveness: Liveness,
    is_told: bool,
}

impl Stall {
    pub(super) fn new(source: &'static str, liveness: Liveness) -> Self {
        Self { source, liveness, is_told: false }
    }

    /// Its status, if that has changed; `since` is when it began with what it is at.
    pub(super) fn look(&mut self, since: Option<Instant>, now: Instant) -> Option<SourceStatus> {
        let is_stuck = since.is_some_and(|since| now.saturating_duration_since(since) >= STUCK);
        if is_stuck == std::mem::replace(&mut self.is_told, is_stuck) {
            return None;
        }
        if is_stuck {
            let reason = format!("the disk has not answered for {} s", STUCK.as_secs());
            tracing::warn!(
                sink = self.source,
                "{reason}; events wait until it does, and are discarded when the queue is full"
            );
            return Some(SourceStatus::down(SourceKind::Sink, self.source, reason));
        }
        tracing::info!(sink = self.source, "the disk answers again");
        // What has failed meanwhile is told by the sink itself.
        self.liveness.is_up().then(|| SourceStatus::up(SourceKind::Sink, self.source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stuck_is_told_once_and_so_is_that_it_goes_on() {
        let liveness = Liveness::default();
        liveness.set(true);
        let mut stall = Stall::new("store", liveness.clone());
        let (began, now) = (Instant::now(), Instant::now() + STUCK);
        assert_eq!(stall.look(None, now), None);
        assert_eq!(stall.look(Some(began + Duration::from_secs(1)), now), None, "it may be at work");
        let down = stall.look(Some(began), now).unwrap();
        assert!(!down.up && down.reason.unwrap().contains("10 s"));
        assert_eq!(stall.look(Some(began), now), None);
        assert!(stall.look(None, now).unwrap().up);
        assert!(!stall.look(Some(began), now).unwrap().up);
        liveness.set(false);
        assert_eq!(stall.look(Some(now), now), None, "it has failed, and says why");
    }
}
