//! The account of what the kernel programs saw: received = emitted + throttled + lost + what still waits. And that of what
//! was emitted: each event is delivered, or another one tells that it was discarded.

use crate::daemon::Daemon;
use crate::event::Event;
use crate::patience::wait_until;

/// What became of the records of one hook.
#[derive(Debug)]
pub struct Balance {
    /// Counted in the kernel.
    pub received: f64,
    /// Have become events, or are part of one that counts several.
    pub emitted: f64,
    /// Over a budget, of the kernel's or of the daemon's.
    pub throttled: f64,
    /// Not written for want of room.
    pub lost: f64,
}

impl Balance {
    /// Of deletions of permanent neighbor entries, and of those that may have been; nothing else may be over a budget.
    #[must_use]
    pub fn of_deletions(daemon: &Daemon) -> Self {
        let metrics = daemon.metrics();
        let counted = [("permanent", "admin"), ("permanent", "collateral"), ("unknown", "collateral")];
        let received = counted.map(|(state, origin)| {
            let labels = [("state", state), ("origin", origin)];
            metrics.count("kevtmon_kernel_neighbor_deletions_total", &labels)
        });
        Self {
            received: received.iter().sum(),
            emitted: metrics.count("kevtmon_events_total", &[("kind", "neighbor.deleted")]),
            throttled: throttled(daemon, &["namespace", "owner", "unknown", "events"]),
            lost: lost(daemon, "neighbor"),
        }
    }

    /// Of unmounts that were refused; no others may be over a budget.
    #[must_use]
    pub fn of_refusals(daemon: &Daemon) -> Self {
        let metrics = daemon.metrics();
        // What completes another event is about the same attempt.
        let is_later = |event: &Event| event.kind() == "mount.busy" && event.has("/completes");
        let later = daemon.events().iter().filter(|event| is_later(event)).count();
        Self {
            received: metrics.count("kevtmon_kernel_mount_busy_total", &[]),
            emitted: metrics.count("kevtmon_events_total", &[("kind", "mount.busy")]) - later as f64
                + metrics.count("kevtmon_mount_busy_ignored_total", &[]),
            throttled: throttled(daemon, &["umount", "unknown", "events"]),
            lost: lost(daemon, "mount"),
        }
    }

    /// What waits or is missing. Less than nothing where others were over a budget, too.
    #[must_use]
    pub fn rest(&self) -> f64 {
        self.received - self.emitted - self.throttled - self.lost
    }
}

fn throttled(daemon: &Daemon, lanes: &[&str]) -> f64 {
    let metrics = daemon.metrics();
    lanes.iter().map(|lane| metrics.count("kevtmon_events_throttled_total", &[("lane", lane)])).sum()
}

/// Records of a hook, of unprivileged users and of others.
fn lost(daemon: &Daemon, hook: &str) -> f64 {
    let metrics = daemon.metrics();
    let of = |reason: String| metrics.count("kevtmon_events_lost_total", &[("reason", &reason)]);
    of(format!("{hook}-ring-full")) + of(format!("{hook}-users-ring-full"))
}

/// Waits until nothing waits any more and everything that was counted in the kernel is accounted for, and returns that.
///
/// # Panics
/// When it is not in time.
pub fn wait_for_balance(daemon: &Daemon, of: impl Fn(&Daemon) -> Balance) -> Balance {
    let mut last = Shown(None);
    wait_until("received = emitted + throttled + lost", || {
        last.0.insert(of(daemon)).rest().abs().lt(&0.5).then_some(())
    });
    last.0.take().expect("it was read")
}

/// Is printed where it was waited for in vain.
struct Shown(Option<Balance>);

#[expect(clippy::print_stderr, reason = "what a failed test shows")]
impl Drop for Shown {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the last account: {:?}", self.0);
        }
    }
}

/// Each number stands for an event, or for one that an event tells to be discarded.
///
/// # Panics
/// When one is missing from the output.
pub fn assert_accounted_for(stream: &[Event]) {
    let number = |event: &Event| event.number("/seq").expect("a number");
    for pair in stream.windows(2) {
        let distance = number(&pair[1]) - number(&pair[0]);
        let is_gap = pair[1].text("/lost/source").starts_with("sink.");
        let expected = if is_gap { pair[1].text("/lost/count").parse().expect("a count") } else { 1 };
        assert_eq!(distance, expected, "{} then {}", pair[0], pair[1]);
    }
}

/// Stops the daemon, and checks its whole output.
///
/// # Panics
/// When an event is missing from it.
pub fn stop_and_account(mut daemon: Daemon) {
    daemon.stop();
    assert_accounted_for(&daemon.wait_for_end_of_output());
}
