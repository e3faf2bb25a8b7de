//! The account of what the kernel programs saw: received = emitted + throttled + lost + what still waits. And that of what
//! was emitted: each event is delivered, or another one tells that it was discarded.

use std::borrow::BorrowMut;

use crate::daemon::Daemon;
use crate::event::Event;
use crate::lock::is_exclusive;
use crate::patience::wait_until;
use crate::scrape::Scrape;

/// What became of the records of one hook.
#[derive(Debug)]
pub struct Balance {
    /// Counted in the kernel.
    pub received: f64,
    /// Have become events of their own, or of refused unmounts are part of one that counts several.
    pub emitted: f64,
    /// Over a budget, of the kernel's or of the daemon's.
    pub throttled: f64,
    /// Not written for want of room.
    pub lost: f64,
    /// What may be in one of these and not in `received`: what was emitted before it was over a budget, and where others do
    /// something meanwhile, what the kernel's programs count as something else.
    pub twice: f64,
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
        let throttled = deletions.throttled + throttled(&metrics, &["umount", "remove", "unknown"]);
        let lost = deletions.lost + lost(&metrics, "mount") + lost(&metrics, "remove");
        Self {
            received: deletions.received + metrics.count("kevtmon_kernel_mount_busy_total", &[]),
            emitted: deletions.emitted + metrics.count("kevtmon_mount_busy_total", &[]),
            throttled,
            lost,
            twice: match is_exclusive() {
                true => 0.0,
                false => throttled + lost + metrics.count("kevtmon_kernel_mount_unproven_total", &[]),
            },
        }
    }

    /// What is over the budget of the daemon has become no event, and is counted as what happened all the same. Of which
    /// kind it was, only the summaries show: see [`assert_told`].
    fn deletions(metrics: &Scrape, lanes: &[&str]) -> Self {
        let counted = [("permanent", "admin"), ("permanent", "collateral"), ("unknown", "collateral")];
        let received = counted.map(|(state, origin)| {
            let labels = [("state", state), ("origin", origin)];
            metrics.count("kevtmon_kernel_neighbor_deletions_total", &labels)
        });
        Self {
            received: received.iter().sum(),
            emitted: metrics.count("kevtmon_events_total", &[("kind", "neighbor.deleted")]),
            throttled: throttled(metrics, lanes)
                + folded_deletions(metrics).min(throttled(metrics, &["events"])),
            lost: lost(metrics, "neighbor"),
            twice: 0.0,
        }
    }

    /// Of requests that set the entry of a known gateway, while it was no permanent one.
    #[must_use]
    pub fn of_gateway_sets(daemon: &Daemon) -> Self {
        let metrics = daemon.metrics();
        Self {
            received: metrics.count("kevtmon_kernel_gateway_sets_total", &[("origin", "admin")]),
            emitted: metrics.count("kevtmon_events_total", &[("kind", "neighbor.added")]),
            throttled: throttled(&metrics, &["gateway-set"]),
            lost: metrics.count("kevtmon_events_lost_total", &[("reason", "gateway-set-ring-full")]),
            twice: 0.0,
        }
    }

    /// Of calls that were refused because a mount is busy: each is an event, is counted by one, or is summed up. Says
    /// nothing where some of the output was discarded.
    #[must_use]
    pub fn of_refusals(daemon: &Daemon) -> Self {
        let (metrics, events) = (daemon.metrics(), daemon.events());
        // What completes another event is about the same attempt, and is summed up like any other beyond the budget.
        let is_later = |event: &&Event| event.kind() == "mount.busy" && event.has("/completes");
        let later = events.iter().filter(is_later).count();
        let is_folded = |event: &&Event| {
            event.text("/throttled/lane") == "events" && event.text("/throttled/kind") == "mount.busy"
        };
        let folded = events.iter().filter(is_folded).filter_map(|event| event.number("/throttled/count"));
        let folded = folded.sum::<u64>() as f64;
        Self {
            received: metrics.count("kevtmon_kernel_mount_busy_total", &[]),
            emitted: metrics.count("kevtmon_events_total", &[("kind", "mount.busy")]) - later as f64
                + metrics.count("kevtmon_events_total", &[("kind", "mount.refused")])
                + metrics.count("kevtmon_mount_busy_ignored_total", &[]),
            throttled: throttled(&metrics, &["umount", "remove"]) + folded,
            lost: lost(&metrics, "mount") + lost(&metrics, "remove"),
            twice: folded,
        }
    }

    /// What waits or is missing. Less than nothing where others were over a budget, too.
    #[must_use]
    pub fn rest(&self) -> f64 {
        self.received - self.emitted - self.throttled - self.lost
    }

    fn is_settled(&self) -> bool {
        (-self.twice - 0.5..0.5).contains(&self.rest())
    }
}

/// Deletions that happened and became no event.
fn folded_deletions(metrics: &Scrape) -> f64 {
    metrics.count("kevtmon_neighbor_deletions_total", &[])
        - metrics.count("kevtmon_events_total", &[("kind", "neighbor.deleted")])
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
        last.0.insert(of(daemon)).is_settled().then_some(())
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
/// began again, or begins with what it missed since the run before.
///
/// # Panics
/// When one is missing from the output.
pub fn assert_accounted_for(stream: &[Event]) {
    let mut last = before(stream);
    for event in stream {
        let count = discarded_with(event).max(1);
        assert_eq!(event.number("/seq"), Some(last + count), "{event} after number {last}");
        last += count;
    }
}

/// The last number of the run before.
fn before(stream: &[Event]) -> u64 {
    let first = stream.first().filter(|event| event.text("/lost/source") == "daemon");
    first.and_then(|event| event.number("/seq")).map_or(0, |seq| seq - 1)
}

/// How many events of the sink this one stands for.
fn discarded_with(event: &Event) -> u64 {
    match event.text("/lost/source").starts_with("sink.") {
        true => event.text("/lost/count").parse().expect("a count"),
        false => 0,
    }
}

/// All that was lost or over a budget by then is summed up in the output, by what it was; the latter unless some of the
/// output was discarded.
fn assert_told(by_then: &Scrape, stream: &[Event]) {
    let sum = |fits: &dyn Fn(&Event) -> bool, count: &str| {
        let counts = stream.iter().filter(|event| fits(event)).filter_map(|event| {
            let number = event.number(count);
            number.or_else(|| event.text(count).parse().ok())
        });
        counts.sum::<u64>() as f64
    };
    let lost = by_then.samples.iter().filter(|sample| sample.name == "kevtmon_events_lost_total");
    for (reason, counted) in lost.filter_map(|sample| Some((sample.labels.get("reason")?, sample.value))) {
        // How many runs were skipped is not known.
        if reason.ends_with("-ring-full") {
            let told = sum(&|event| event.text("/lost/reason") == reason, "/lost/count");
            assert!(told >= counted, "{told} of {counted} lost are told: {reason}");
        }
    }
    // These may be among what was discarded.
    if stream.iter().any(|event| discarded_with(event) > 0) {
        return;
    }
    // The kernel's lanes together: where there are too many sources to tell them apart, all of them are one.
    let is_folded = |event: &Event| event.text("/throttled/lane") == "events";
    let is_of_kernel = |event: &Event| !is_folded(event) && event.text("/throttled/lane") != "namespaces";
    let told = sum(&is_of_kernel, "/throttled/count");
    let counted = throttled(by_then, &["namespace", "owner", "unknown", "umount", "remove", "exec"]);
    assert!(told >= counted, "{told} of {counted} records over budgets are told");
    let (told, counted) = (sum(&is_folded, "/throttled/count"), throttled(by_then, &["events"]));
    assert!(told >= counted, "{told} of {counted} events over budgets are told");
    let is_deletion = |event: &Event| is_folded(event) && event.text("/throttled/kind") == "neighbor.deleted";
    let (told, counted) = (sum(&is_deletion, "/throttled/count"), folded_deletions(by_then));
    assert!(told >= counted, "{told} of {counted} deletions that became no event are told");
}

/// Waits until all that the kernel counted is accounted for, stops the daemon, and checks its whole output.
///
/// # Panics
/// When an event is missing from it.
pub fn stop_and_account(daemon: impl BorrowMut<Daemon>) {
    account(daemon, Balance::of_all);
}

/// As [`stop_and_account`], where neighbor entries were changed without end: of what the ring had no room for, nobody knows how many
/// were deletions.
///
/// # Panics
/// When an event is missing from it.
pub fn stop_and_account_beside_changes(daemon: impl BorrowMut<Daemon>) {
    account(daemon, |daemon| {
        let balance = Balance::of_all(daemon);
        Balance { twice: balance.twice + balance.lost, ..balance }
    });
}

fn account(mut daemon: impl BorrowMut<Daemon>, of: impl Fn(&Daemon) -> Balance) {
    let daemon = daemon.borrow_mut();
    wait_for_balance(daemon, of);
    let by_then = daemon.metrics();
    daemon.stop();
    assert_whole(&by_then, &daemon.wait_for_end_of_output());
}

/// As [`stop_and_account`], of one that has had many unmounts refused: none of them was dropped in silence.
///
/// # Panics
/// When a refusal or an event is missing.
pub fn stop_and_account_for_refusals(mut daemon: impl BorrowMut<Daemon>) {
    let daemon = daemon.borrow_mut();
    // What completes another one, or sums some up, may be among what was discarded.
    if daemon.events().iter().all(|event| discarded_with(event) == 0) {
        wait_for_balance(daemon, Balance::of_refusals);
    }
    stop_and_account(daemon);
}

/// As [`stop_and_account`], of one whose standard output nobody reads as JSON: by its store, which keeps everything.
///
/// # Panics
/// When an event is missing from it.
pub fn stop_and_account_by_store(mut daemon: impl BorrowMut<Daemon>) {
    let daemon = daemon.borrow_mut();
    // Where the disk was busy it is opened late, and begins with what it missed.
    let is_open = || daemon.metrics().sum("kevtmon_source_up", &[("source", "store")]) == Some(1.0);
    wait_until("the store is open", || is_open().then_some(()));
    let by_then = balanced(daemon);
    daemon.stop();
    let mut stored = daemon.find(&["events", "--since", "1h"]);
    // A query answers in the order of times.
    stored.sort_by_key(|event| event.number("/seq"));
    assert_whole(&by_then, &stored);
}

fn balanced(daemon: &Daemon) -> Scrape {
    wait_for_balance(daemon, Balance::of_all);
    daemon.metrics()
}

fn assert_whole(by_then: &Scrape, stream: &[Event]) {
    assert_accounted_for(stream);
    let emitted = by_then.count("kevtmon_events_total", &[]);
    let last = stream.last().and_then(|event| event.number("/seq")).unwrap_or_default();
    let numbers = (last - before(stream)) as f64;
    assert!(numbers >= emitted, "{numbers} numbers were given, and {emitted} events were emitted");
    assert_told(by_then, stream);
}
