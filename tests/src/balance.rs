//! The account of what the kernel programs saw: received = emitted + throttled + lost + what still waits. And that of what
//! was emitted: each event is delivered, or another one tells that it was discarded.

use crate::daemon::Daemon;
use crate::event::Event;
use crate::patience::wait_until;
use crate::scrape::Scrape;

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
    /// Of deletions of permanent neighbor entries, and of those that may have been; nothing else may be over the budget of
    /// sources that are not told apart.
    #[must_use]
    pub fn of_deletions(daemon: &Daemon) -> Self {
        Self::deletions(&daemon.metrics(), &["namespace", "owner", "unknown"])
    }

    /// Of these deletions and of all refused unmounts, up to the daemon; whether each of the latter is told or counted by
    /// another event, [`Self::of_refusals`] says.
    #[must_use]
    pub fn of_all(daemon: &Daemon) -> Self {
        let metrics = daemon.metrics();
        let deletions = Self::deletions(&metrics, &["namespace", "owner"]);
        Self {
            received: deletions.received + metrics.count("kevtmon_kernel_mount_busy_total", &[]),
            emitted: deletions.emitted + metrics.count("kevtmon_mount_busy_total", &[]),
            throttled: deletions.throttled + throttled(&metrics, &["umount", "unknown"]),
            lost: deletions.lost + lost(&metrics, "mount"),
        }
    }

    /// What is over the budget of the daemon has become no event, and is counted as what happened all the same.
    fn deletions(metrics: &Scrape, lanes: &[&str]) -> Self {
        let counted = [("permanent", "admin"), ("permanent", "collateral"), ("unknown", "collateral")];
        let received = counted.map(|(state, origin)| {
            let labels = [("state", state), ("origin", origin)];
            metrics.count("kevtmon_kernel_neighbor_deletions_total", &labels)
        });
        Self {
            received: received.iter().sum(),
            emitted: metrics.count("kevtmon_neighbor_deletions_total", &[]),
            throttled: throttled(metrics, lanes),
            lost: lost(metrics, "neighbor"),
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
            throttled: throttled(&metrics, &["umount", "unknown", "events"]),
            lost: lost(&metrics, "mount"),
        }
    }

    /// What waits or is missing. Less than nothing where others were over a budget, too.
    #[must_use]
    pub fn rest(&self) -> f64 {
        self.received - self.emitted - self.throttled - self.lost
    }
}

fn throttled(metrics: &Scrape, lanes: &[&str]) -> f64 {
    lanes.iter().map(|lane| metrics.count("kevtmon_events_throttled_total", &[("lane", lane)])).sum()
}

/// Records of a hook, of unprivileged users and of others.
fn lost(metrics: &Scrape, hook: &str) -> f64 {
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

/// Each number stands for an event, or for one that an event tells to be discarded, from the first one on: the daemon
/// began anew.
///
/// # Panics
/// When one is missing from the output.
pub fn assert_accounted_for(stream: &[Event]) {
    let mut last = 0;
    for event in stream {
        let is_gap = event.text("/lost/source").starts_with("sink.");
        let count = if is_gap { event.text("/lost/count").parse().expect("a count") } else { 1 };
        assert_eq!(event.number("/seq"), Some(last + count), "{event} after number {last}");
        last += count;
    }
}

/// Waits until all that the kernel counted is accounted for, stops the daemon, and checks its whole output.
///
/// # Panics
/// When an event is missing from it.
pub fn stop_and_account(mut daemon: Daemon) {
    wait_for_balance(&daemon, Balance::of_all);
    let emitted = daemon.metrics().count("kevtmon_events_total", &[]);
    daemon.stop();
    let stream = daemon.wait_for_end_of_output();
    assert_accounted_for(&stream);
    let last = stream.last().and_then(|event| event.number("/seq")).unwrap_or_default();
    assert!(last as f64 >= emitted, "the last number is {last}, and {emitted} events were emitted");
}
