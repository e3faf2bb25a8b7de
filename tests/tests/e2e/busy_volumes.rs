//! Many volumes that are busy at once, each tried to be unmounted without end: every attempt counts, and every volume has its holder.

use std::time::Duration;

use kevtmon_tests::balance::stop_and_account_for_refusals;
use kevtmon_tests::busy_volumes::{BusyVolumes, VOLUMES};
use kevtmon_tests::daemon::{Daemon, kubelet_roots, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::lock::Exclusive;
use nix::mount::{MntFlags, umount2};

/// Attempts on each: the last ones begin after [`SCAN_INTERVAL`].
const ROUNDS: u32 = 43;
/// Who holds a mount is looked at once in this time, of attempts that have no event of their own.
const SCAN_INTERVAL: Duration = Duration::from_secs(10);

/// Refused unmounts, as the kernel's programs and the daemon have counted them.
fn counted(daemon: &Daemon) -> [f64; 2] {
    let (metrics, umount) = (daemon.metrics(), [("syscall", "umount2")]);
    ["kevtmon_kernel_mount_busy_total", "kevtmon_mount_busy_total"].map(|name| metrics.count(name, &umount))
}

/// What counts all that the kernel does, or needs a quiet machine.
mod alone {
    use super::*;

    #[test]
    fn of_fifty_volumes_tried_without_end_each_attempt_counts_and_each_holder_is_named() {
        // Others would have unmounts refused, too.
        let _exclusive = Exclusive::take();
        let mut busy = BusyVolumes::new();
        let mut daemon = launch().config(&kubelet_roots(&busy.kubelet_root())).start();
        let before = counted(&daemon);
        let took = busy.refuse(ROUNDS);

        let attempts = f64::from(ROUNDS) * VOLUMES as f64;
        let since = || {
            let now = counted(&daemon);
            [now[0] - before[0], now[1] - before[1]]
        };
        eventually!(
            since().iter().all(|count| *count >= attempts),
            "{:?} of {attempts} are counted",
            since()
        );
        assert_eq!(since(), [attempts; 2]);
        for volume in busy.iter() {
            let is_busy = |event: &Event| event.kind() == "mount.busy" && volume.is_named(event);
            daemon.wait_for("the holder of each volume", is_busy);
            daemon.wait_for("the incident of each volume", |event| {
                event.is_incident("incident.opened", "volume-busy") && volume.is_of(event)
            });
            daemon.wait_for("its holder in that", |event| {
                event.kind().starts_with("incident.") && volume.is_named(event)
            });
        }
        let looks = daemon.metrics().count("kevtmon_holders_scan_seconds_count", &[]);
        // One for each attempt that is told, and one in each interval for those that are not.
        let told = f64::from(ROUNDS.ilog2() + 1);
        let most = VOLUMES as f64 * (told + (took.as_secs_f64() / SCAN_INTERVAL.as_secs_f64()).ceil());
        assert!(looks <= most, "{looks} looks for {attempts} attempts, at most {most}");

        // Whether each is gone takes the daemon half a second, which they wait for together.
        let unmounted = busy.take().map(|volume| {
            let mount = volume.let_go();
            umount2(mount.point(), MntFlags::UMOUNT_NOFOLLOW).expect("nobody holds it");
            mount
        });
        for mount in unmounted.collect::<Vec<_>>() {
            let closed = daemon.wait_for("the end of each incident", |event| {
                event.is_incident("incident.closed", "volume-busy")
                    && event.text("/mount/path") == mount.point().to_string_lossy()
            });
            closed.expect("/incident/close_reason", "resolved");
            closed.expect("/incident/count", ROUNDS);
        }
        stop_and_account_for_refusals(daemon);
    }
}
