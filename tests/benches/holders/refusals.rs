//! What it costs that the unmounts of fifty busy volumes are refused 200 times a second, and whether each still has its holder.

use kevtmon_tests::busy_volumes::{BusyVolumes, VOLUMES};
use kevtmon_tests::daemon::kubelet_roots;
use kevtmon_tests::limits::Limits;
use kevtmon_tests::usage::Usage;

/// Attempts on each volume: half a minute.
const ROUNDS: u32 = 120;

/// Adds whether the daemon takes no more than it may.
pub(crate) fn measure(limits: &mut Limits) {
    let busy = BusyVolumes::new();
    let usage = Usage::new();
    let daemon = usage.launch().config(&kubelet_roots(&busy.kubelet_root())).start();
    let before = usage.processor_seconds();
    let took = busy.refuse(ROUNDS).as_secs_f64();
    let share = (usage.processor_seconds() - before) / took;
    let events = daemon.events();
    let named = busy.iter().filter(|volume| events.iter().any(|event| volume.is_named(event))).count();
    let scans = daemon.metrics().count("kevtmon_holders_scan_seconds_count", &[]);
    println!(
        "{VOLUMES} busy volumes, {:.0} refused unmounts a second for {took:.0} s: {scans} scans",
        f64::from(ROUNDS) * VOLUMES as f64 / took
    );
    limits.at_most("processor, of a core", 20.0, 100.0 * share, "%");
    limits.all("volumes whose holder is named", VOLUMES, named);
}
