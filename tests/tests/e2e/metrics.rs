//! What Prometheus reads: exact counts, the promised names, few series, and a format without stderr.

use std::process::Command;

use kevtmon_tests::balance::stop_and_account_by_store;
use kevtmon_tests::daemon::launch;
use kevtmon_tests::eventually;
use kevtmon_tests::http::get_compressed;
use kevtmon_tests::lock::Exclusive;
use kevtmon_tests::mount::Mount;
use kevtmon_tests::patience::wait_until;
use kevtmon_tests::pod::Pod;
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::{finish_with_input, hold_by_cwd};
use kevtmon_tests::scrape::Scrape;

/// Families that dashboards and alerts rely on.
const PROMISED: [&str; 29] = [
    "kevtmon_build_info",
    "kevtmon_events_total",
    "kevtmon_events_lost_total",
    "kevtmon_events_discarded_total",
    "kevtmon_events_throttled_total",
    "kevtmon_joins_total",
    "kevtmon_kernel_neighbor_deletions_total",
    "kevtmon_kernel_mount_busy_total",
    "kevtmon_neighbor_deletions_total",
    "kevtmon_mount_busy_total",
    "kevtmon_mount_busy_ignored_total",
    "kevtmon_link_changes_total",
    "kevtmon_veth_devices",
    "kevtmon_cni_invocations_total",
    "kevtmon_container_recreations_total",
    "kevtmon_incidents_open",
    "kevtmon_incidents_total",
    "kevtmon_incident_info_omitted",
    "kevtmon_holders_scan_seconds",
    "kevtmon_event_latency_seconds",
    "kevtmon_netlink_resyncs_total",
    "kevtmon_source_up",
    "kevtmon_proc_readers_stuck",
    "kevtmon_store_bytes",
    "kevtmon_store_errors_total",
    "kevtmon_hook_info",
    "kevtmon_self_pins",
    "kevtmon_core_last_tick_timestamp_seconds",
    "process_resident_memory_bytes",
];

/// The most series that an idle node may have.
const SERIES: usize = 150;

#[test]
fn every_promised_family_is_there_as_prometheus_wants_it_and_packed() {
    let pod = Pod::new();
    let mount = Mount::new();
    let mut daemon = launch().start();
    // Families with labels appear with their first sample.
    pod.set_up(false);
    pod.set_up(true);
    let _holder = hold_by_cwd(mount.point());
    mount.umount_refused();
    daemon.mount_fence();
    daemon.fence(&pod);
    let metrics = daemon.metrics();
    let families = metrics.families();
    let missing = PROMISED.iter().filter(|name| !families.contains(name)).collect::<Vec<_>>();
    assert!(missing.is_empty(), "{missing:?} in\n{}", metrics.text);
    let foreign =
        families.iter().filter(|name| !name.starts_with("kevtmon_") && !name.starts_with("process_"));
    assert_eq!(foreign.collect::<Vec<_>>(), Vec::<&&str>::new());
    finish_with_input(Command::new("promtool").args(["check", "metrics"]), &metrics.text);
    let answer = daemon.get("/metrics").map(|answer| answer.head.to_lowercase()).unwrap_or_default();
    assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
    assert!(!answer.contains("content-encoding"), "it did not accept gzip: {answer}");

    let (head, body) = get_compressed(daemon.address(), "/metrics").expect("it answers");
    let head = head.to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 200 ") && head.contains("\r\ncontent-encoding: gzip\r\n"), "{head}");
    assert!(head.contains("\r\nvary: accept-encoding\r\n"), "a cache keeps both apart: {head}");
    let text = finish_with_input(Command::new("gzip").arg("-dc"), &body).stdout;
    assert!(body.len() < text.len() / 2, "{} bytes of {}", body.len(), text.len());
    // A family without a series is not written, and the daemon's first series come while it is asked.
    wait_until("packed and plain metrics have the same families", || {
        let (_, body) = get_compressed(daemon.address(), "/metrics")?;
        let unpacked = Scrape::parse(finish_with_input(Command::new("gzip").arg("-dc"), &body).stdout);
        (unpacked.families() == daemon.metrics().families()).then_some(())
    });
}

#[test]
fn an_open_incident_has_the_uid_of_its_pod_and_none_once_it_is_closed() {
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().start();
    pod.delete_gateway();
    let opened = daemon.wait_for_incident(sandbox.id());
    let id = opened.text("/incident/id");
    let open = |labels: &[(&str, &str)]| daemon.metrics().sum("kevtmon_incident_info", labels);
    let kind = ("incident", "gateway-neighbor-lost");
    eventually!(open(&[("id", id)]).is_some(), "it is open");
    assert_eq!(open(&[("id", id), ("pod_uid", sandbox.uid()), kind]), Some(1.0));
    pod.set_gateway();
    eventually!(open(&[("id", id)]).is_none(), "it is closed");
}

/// What counts all that the kernel does, or needs a quiet machine.
mod alone {
    use super::*;

    #[test]
    fn deletions_are_counted_exactly() {
        let _exclusive = Exclusive::take();
        let pod = Pod::new();
        let daemon = launch().start();
        let admin = [("state", "permanent"), ("origin", "admin")];
        let collateral = [("state", "permanent"), ("origin", "collateral")];
        let name = "kevtmon_kernel_neighbor_deletions_total";
        let before = daemon.metrics();
        for _ in 0..7 {
            pod.delete_gateway();
            pod.set_gateway();
        }
        pod.set_up(false);
        pod.set_up(true);
        let rise =
            |labels: &[(&str, &str)]| daemon.metrics().count(name, labels) - before.count(name, labels);
        eventually!(rise(&collateral) >= 1.0, "the last deletion is counted");
        assert_eq!(rise(&admin), 7.0);
        assert_eq!(rise(&collateral), 1.0);

        let emitted = || {
            let now = daemon.metrics();
            now.count("kevtmon_neighbor_deletions_total", &[("cause", "admin"), ("gateway", "true")])
        };
        eventually!(emitted() >= 7.0, "the events are counted");
        assert_eq!(emitted(), 7.0);
    }

    #[test]
    fn a_storm_is_counted_exactly() {
        const TIMES: u32 = 10_000;
        let _exclusive = Exclusive::take();
        let pod = Pod::new();
        // However long the storm takes, the burst is all that there is.
        let slow = launch().config("[hooks]\nsource_rate = 1\n");
        let daemon = slow.output("none").argument("--node-name").argument("storm").spawn();
        eventually!(daemon.get("/readyz").is_some_and(|answer| answer.status == 200), "the daemon is ready");
        let count = || {
            let labels = [("state", "permanent"), ("origin", "admin")];
            daemon.metrics().count("kevtmon_kernel_neighbor_deletions_total", &labels)
        };
        let before = count();
        let address = kevtmon_tests::unique::address(92);
        let entry = address.parse().expect("an address");
        pod.netns().churn((0..TIMES).map(|_| entry));
        eventually!(count() >= before + f64::from(TIMES), "the storm is counted");
        assert_eq!(count(), before + f64::from(TIMES));
        let emitted = || daemon.metrics().count("kevtmon_events_total", &[("kind", "neighbor.deleted")]);
        let lost = || daemon.metrics().count("kevtmon_events_lost_total", &[]);
        let throttled = || daemon.metrics().count("kevtmon_events_throttled_total", &[]);
        let all = || emitted() + throttled() + lost();
        eventually!(
            all() >= f64::from(TIMES),
            "what was not emitted was over the budget or lost, and counted"
        );
        assert!(throttled() > 0.0, "{} emitted, {} lost", emitted(), lost());
        stop_and_account_by_store(daemon);
    }

    #[test]
    fn an_idle_node_has_few_series_and_no_label_grows() {
        // What other tests have on this machine is seen by all daemons, and has series of its own.
        let _exclusive = Exclusive::take();
        let daemon = launch().start();
        let metrics = daemon.metrics();
        assert!(metrics.samples.len() <= SERIES, "{} series:\n{}", metrics.samples.len(), metrics.text);
        for sample in &metrics.samples {
            for label in ["pid", "path", "address", "netns", "ifname"] {
                assert!(!sample.labels.contains_key(label), "{sample:?}");
            }
        }
    }
}
