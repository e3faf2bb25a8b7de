//! Readers that have nothing to do: the next job is theirs, until they have waited for too long.

use std::time::Duration;

use tokio::time::Instant;

use super::child::Child;

/// A reader that had nothing to do for this long is ended: longer than between two of the looks that never cease, since to start
/// one costs more than most of what it reads.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 5 } else { 65 });

#[derive(Debug)]
struct Idle {
    child: Child,
    background: bool,
    since: Instant,
}

/// All that are idle, in the order in which they became so.
#[derive(Debug, Default)]
pub(super) struct IdleReaders(Vec<Idle>);

impl IdleReaders {
    /// The one of this kind that was used last.
    pub(super) fn take(&mut self, background: bool) -> Option<Child> {
        let place = self.0.iter().rposition(|idle| idle.background == background)?;
        Some(self.0.remove(place).child)
    }

    pub(super) fn put(&mut self, child: Child, background: bool) {
        self.0.push(Idle { child, background, since: Instant::now() });
    }

    /// Those that are to end.
    pub(super) fn take_expired(&mut self, now: Instant) -> impl Iterator<Item = Child> + use<> {
        let is_expired = |idle: &mut Idle| now - idle.since >= PATIENCE;
        let expired: Vec<_> = self.0.extract_if(.., is_expired).collect();
        expired.into_iter().map(|idle| idle.child)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Their process ids.
    #[cfg(test)]
    pub(super) fn ids(&self) -> Vec<u32> {
        self.0.iter().map(|idle| idle.child.id()).collect()
    }
}
