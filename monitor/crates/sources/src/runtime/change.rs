//! A change of one container as a runtime's event stream reports it, and the time of it.

use kevtmon_observation::ContainerFacts;
use kevtmon_types::clock::{BootNs, boot_now};
use nix::time::{ClockId, clock_gettime};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    Created,
    /// Its process was started.
    Started,
    Died,
    /// The kernel killed a process of it for want of memory; it may go on.
    OutOfMemory,
    Paused,
    Unpaused,
    Removed,
    /// Its network changed, which matters only while it runs.
    Network,
    /// The same: it lost one. Of a container that was never started, this tells that its start has failed.
    Disconnected,
    /// Anything else: an inspect shows what.
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// 64 hex digits.
    pub id: String,
    pub kind: ChangeKind,
    /// Wall clock, nanoseconds.
    pub wall: i64,
    /// Attributes of the container that the event carries, if any; the state in them is ignored.
    pub facts: Option<ContainerFacts>,
    /// Exit code, of an event that tells it.
    pub exit_code: Option<i32>,
}

/// Now on the wall clock, nanoseconds.
pub(super) fn wall_now() -> i64 {
    clock_gettime(ClockId::CLOCK_REALTIME)
        .map_or(0, |t| t.tv_sec().saturating_mul(1_000_000_000).saturating_add(t.tv_nsec()))
}

/// A time of the wall clock on the boot clock; one from the future, after the clock was set, is now.
pub(super) fn boot_time(wall: i64) -> BootNs {
    let age = u64::try_from(wall_now().saturating_sub(wall)).unwrap_or(0);
    boot_now().saturating_sub(age)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_the_wall_clock_becomes_one_of_the_boot_clock() {
        const SECOND: i64 = 1_000_000_000;
        const SLEW: u64 = 1_000_000;
        let before = boot_now();
        let second_later = boot_time(wall_now() - SECOND) + SECOND.unsigned_abs();
        assert!((before - SLEW..=boot_now() + SLEW).contains(&second_later));
        assert!(boot_time(i64::MAX) <= boot_now());
        assert_eq!(boot_time(i64::MIN), 0);
    }
}
