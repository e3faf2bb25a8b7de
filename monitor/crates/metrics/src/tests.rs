//! The tests read the text that Prometheus scrapes.

mod manual;

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

use kevtmon_event::{Actor, Kind, Lost, Severity, UserNamespace};
use kevtmon_observation::{HolderReport, Loss, Source, SourceKind, SourceStatus};
use kevtmon_testing::sample;

use super::link::MAX_LINK_KINDS;
use super::*;

fn metrics() -> Metrics {
    let metrics = Metrics::new("0.1.0", "abc", Process).unwrap();
    let always = kevtmon_core::diagnose::KINDS.into_iter().filter(|kind| !kind.is_optional);
    let series = always.map(|kind| IncidentSeries { kind: kind.name, severities: kind.severities });
    metrics.export_zero_incidents(series);
    metrics
}

/// A process that uses a little of all.
struct Process;

impl ProcessReader for Process {
    fn start_ns(&self) -> Option<BootNs> {
        None
    }

    fn usage(&self) -> Option<Usage> {
        Some(Usage { cpu_seconds: 0.5, resident_bytes: 1, virtual_bytes: 2, open_fds: 3, max_fds: 4 })
    }

    fn pins(&self) -> Vec<Pin> {
        Vec::new()
    }
}

fn value(metrics: &Metrics, series: &str) -> Option<f64> {
    let text = metrics.gather().unwrap();
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

fn seen(fact: Fact) -> Observation {
    Observation { at: 1_000_000_000, source: Source::Daemon, fact }
}

fn status(source: &str, up: bool, attach_mode: Option<&str>) -> Observation {
    seen(Fact::Source(SourceStatus {
        lacks: None,
        absent: false,
        vacant: false,
        source: source.into(),
        kind: if source.starts_with("hook.") { SourceKind::Hook } else { SourceKind::Runtime },
        up,
        attach_mode: attach_mode.map(str::to_owned),
        reason: None,
    }))
}

/// A node on which nothing has happened yet.
fn idle() -> Metrics {
    let metrics = metrics();
    let count = |metric, labels, value| KernelCount { metric, labels, value };
    metrics.set_kernel_counters(Box::new(move || {
        vec![
            count(KernelMetric::NeighborDeletions, &["permanent", "admin"], 3),
            count(KernelMetric::NeighborDeletions, &["permanent", "collateral"], 4),
            count(KernelMetric::NeighborDeletions, &["learned", "admin"], 0),
            count(KernelMetric::NeighborDeletions, &["learned", "collateral"], 0),
            count(KernelMetric::NeighborDeletions, &["noarp", "admin"], 0),
            count(KernelMetric::NeighborDeletions, &["noarp", "collateral"], 0),
            count(KernelMetric::GatewaySets, &["admin"], 0),
            count(KernelMetric::GatewaySets, &["protocol"], 0),
            count(KernelMetric::MountBusy, &["umount2"], 5),
            count(KernelMetric::Throttled, &["namespace"], 0),
            count(KernelMetric::Throttled, &["owner"], 6),
            count(KernelMetric::Throttled, &["unknown"], 0),
            count(KernelMetric::Throttled, &["umount"], 0),
            count(KernelMetric::Throttled, &["exec"], 0),
            count(KernelMetric::Throttled, &["gateway-set"], 0),
            count(KernelMetric::CniIgnored, &[], 0),
        ]
    }));
    metrics.export_zero_losses(kevtmon_probe::loss_reasons());
    for source in ["bpf", "netlink", "docker", "procfs"] {
        metrics.observation(&status(source, true, None));
    }
    for hook in ["hook.neighbor", "hook.umount", "hook.exec"] {
        metrics.observation(&status(hook, true, Some("tp_btf")));
    }
    metrics.observation(&seen(Fact::Tick));
    metrics.model(&HashMap::from([(("docker".to_owned(), ContainerState::Running), 20)]), 20, 0, 0);
    metrics
}

/// As on a node with one runtime where everything has happened once.
fn used() -> Metrics {
    let metrics = idle();
    for event in sample::all() {
        metrics.event(&event);
    }
    for source in [Source::Bpf, Source::Netlink, Source::Runtime] {
        metrics.latency(&Event { source, ..sample::deletion() }, 42_000_100_000);
    }
    metrics.observation(&seen(Fact::Holders(Box::new(HolderReport::skipped(1, "/mnt/x")))));
    metrics.refusals_ignored(IgnoredRefusals { repeated: 3, ..IgnoredRefusals::default() });
    metrics.discarded("stdout", "closed", 2);
    metrics
}

#[test]
fn promtool_finds_nothing_to_complain_about() {
    let Ok(mut promtool) = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    else {
        eprintln!("skipped: promtool is not installed");
        return;
    };
    promtool.stdin.take().unwrap().write_all(used().gather().unwrap().as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.is_empty(), "{said}");
}

#[test]
fn names_and_labels_follow_the_conventions() {
    let text = used().gather().unwrap();
    let mut families = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("# TYPE ")) {
        let [_, _, name, kind] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        families.push(name.to_owned());
        assert!(name.starts_with("kevtmon_") || name.starts_with("process_"), "{name}");
        assert!(text.contains(&format!("# HELP {name} ")), "{name} has no help");
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
        let abbreviated = |part| ["ms", "us", "ns", "s", "kb", "mb", "gb", "b"].contains(&part);
        assert!(!name.split('_').any(abbreviated), "{name} has an abbreviated unit");
    }
    assert!(families.len() >= 27, "{families:?}");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((_, rest)) = line.split_once('{') else { continue };
        for label in rest.split("\",").map(|pair| pair.split('=').next().unwrap()) {
            let forbidden =
                ["pid", "path", "address", "ip", "ifname", "node", "instance", "job", "device", "cluster"];
            assert!(!forbidden.contains(&label), "{line}");
        }
    }
}

#[test]
fn a_severity_that_no_incident_of_a_kind_has_is_no_series() {
    let text = idle().gather().unwrap();
    let severities = |kind: &str| {
        let series = format!("kevtmon_incidents_open{{incident=\"{kind}\",");
        text.lines().filter(|line| line.starts_with(&series)).count()
    };
    for kind in ["cni-netns-mismatch", "cni-teardown-failing", "stale-cni-del", "spec-hash-storm"] {
        assert_eq!(severities(kind), 1, "{kind}");
    }
    // What only informs has one once it is there.
    assert_eq!(severities("volume-busy"), 2);
}

#[test]
fn an_idle_node_has_few_series() {
    let text = idle().gather().unwrap();
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    assert!(series <= 150, "{series} series: {text}");
    let text = used().gather().unwrap();
    for family in ["kevtmon_holders_scan_seconds", "kevtmon_event_latency_seconds"] {
        let prefix = format!("{family}_bucket{{");
        let buckets: BTreeSet<&str> = text
            .lines()
            .filter(|line| line.starts_with(&prefix))
            .map(|line| line.split("le=\"").nth(1).unwrap().split('"').next().unwrap())
            .collect();
        assert!((2..=6).contains(&buckets.len()), "{family}: {buckets:?}");
    }
}

#[test]
fn what_can_be_zero_is_there_before_the_first_event_but_for_the_kinds_of_events() {
    let metrics = metrics();
    for kind in Kind::ALL {
        assert_eq!(value(&metrics, &format!("kevtmon_events_total{{kind=\"{}\"}}", kind.name())), None);
    }
    for kind in kevtmon_core::diagnose::KINDS {
        // What takes a source that is off is not there.
        let expected = (!kind.is_optional).then_some(0.0);
        let kind = kind.name;
        assert_eq!(
            value(&metrics, &format!("kevtmon_incidents_total{{incident=\"{kind}\"}}")),
            expected,
            "{kind}"
        );
    }
    assert_eq!(value(&metrics, "kevtmon_build_info{revision=\"abc\",version=\"0.1.0\"}"), Some(1.0));
}

#[test]
fn an_event_counts_its_kind_its_joins_and_its_object() {
    let metrics = metrics();
    metrics.event(&sample::deletion());
    metrics.event(&sample::link(Severity::Info));
    for series in [
        "kevtmon_events_total{kind=\"neighbor.deleted\"}",
        "kevtmon_joins_total{result=\"host\",side=\"actor\"}",
        "kevtmon_joins_total{result=\"ok\",side=\"target\"}",
        "kevtmon_neighbor_deletions_total{cause=\"admin\",gateway=\"true\"}",
        "kevtmon_link_changes_total{change=\"down\",link_kind=\"veth\"}",
    ] {
        assert_eq!(value(&metrics, series), Some(1.0), "{series}");
    }
}

#[test]
fn latency_is_that_of_the_source_which_observed_the_fact() {
    let metrics = metrics();
    let now = sample::deletion().at + 2_000_000;
    for source in [Source::Daemon, Source::Netlink] {
        metrics.latency(&Event { source, ..sample::deletion() }, now);
    }
    let of = |family: &str, source: &str| value(&metrics, &format!("{family}{{source=\"{source}\"}}"));
    assert_eq!(of("kevtmon_event_latency_seconds_count", "netlink"), Some(1.0));
    assert_eq!(of("kevtmon_event_latency_seconds_sum", "netlink"), Some(0.002));
    for other in ["bpf", "daemon"] {
        assert_eq!(of("kevtmon_event_latency_seconds_count", other), None, "{other}");
    }
}

#[test]
fn losses_count_what_is_known_and_at_least_one() {
    let metrics = metrics();
    let loss = |count| seen(Fact::Lost(Loss { source: "netlink".into(), reason: "overrun".into(), count }));
    metrics.observation(&loss(Some(7)));
    metrics.observation(&loss(None));
    assert_eq!(
        value(&metrics, "kevtmon_events_lost_total{reason=\"overrun\",source=\"netlink\"}"),
        Some(8.0)
    );
}

#[test]
fn calls_that_the_model_had_no_room_for_count_and_no_other_loss_counts_twice() {
    let metrics = metrics();
    let of = |reason: &str, source: &str| {
        value(&metrics, &format!("kevtmon_events_lost_total{{reason=\"{reason}\",source=\"{source}\"}}"))
    };
    assert_eq!(of("too-many-calls", "cni"), Some(0.0));
    for (source, reason) in [("cni", "too-many-calls"), ("netlink", "overrun")] {
        let (source, reason) = (source.to_owned(), reason.to_owned());
        let lost = Lost { source, reason, count: "3".to_owned(), from: None, to: None };
        metrics.event(&Event { lost: Some(lost), ..sample::daemon(Severity::Warning) });
    }
    assert_eq!((of("too-many-calls", "cni"), of("overrun", "netlink")), (Some(3.0), Some(0.0)));
}

#[test]
fn a_socket_shows_by_its_label_from_the_start_and_never_by_its_path() {
    let metrics = metrics();
    for (source, label) in [("docker:/a", "docker"), ("docker:/b", "docker-2")] {
        metrics.name_source(source.into(), label.into());
    }
    let up = |label: &str| value(&metrics, &format!("kevtmon_source_up{{source=\"{label}\"}}"));
    assert_eq!((up("docker"), up("docker-2")), (Some(0.0), Some(0.0)));
    metrics.observation(&status("docker:/b", true, None));
    metrics.observation(&status("podman:/c", true, None));
    assert_eq!((up("docker"), up("docker-2"), up("podman")), (Some(0.0), Some(1.0), Some(1.0)));
}

#[test]
fn a_kubelet_that_has_no_such_api_any_more_is_no_source_and_one_that_does_not_answer_is_down() {
    let metrics = metrics();
    let up = || value(&metrics, "kevtmon_source_up{source=\"kubelet\"}");
    let (kind, source) = (SourceKind::Kubelet, "kubelet:/a");
    let down = SourceStatus::down(kind, source, "it ended");
    let absent = SourceStatus { absent: true, ..down.clone() };
    for (status, expected) in [
        (absent.clone(), None),
        (SourceStatus::up(kind, source), Some(1.0)),
        (down, Some(0.0)),
        (absent, None),
        (SourceStatus::up(kind, source), Some(1.0)),
    ] {
        metrics.observation(&seen(Fact::Source(status)));
        assert_eq!(up(), expected);
    }
}

#[test]
fn what_a_socket_sends_that_is_no_answer_is_counted_by_its_label() {
    let metrics = metrics();
    metrics.name_source("cri:/a".into(), "cri".into());
    metrics.name_later_source("cri:/b".into(), "cri-2".into());
    let count = |label: &str| value(&metrics, &format!("kevtmon_malformed_total{{source=\"{label}\"}}"));
    assert_eq!((count("cri"), count("cri-2")), (Some(0.0), None));
    for count in [1, 2] {
        metrics.observation(&seen(Fact::Malformed { source: "cri:/b".into(), count }));
    }
    assert_eq!((count("cri"), count("cri-2")), (Some(0.0), Some(3.0)));
}

#[test]
fn a_hook_has_one_attach_mode_at_a_time() {
    let metrics = metrics();
    metrics.observation(&status("hook.neighbor", true, Some("tp_btf")));
    metrics.observation(&status("hook.neighbor", true, Some("netlink")));
    assert_eq!(value(&metrics, "kevtmon_hook_info{attach_mode=\"tp_btf\",hook=\"neighbor\"}"), None);
    assert_eq!(value(&metrics, "kevtmon_hook_info{attach_mode=\"netlink\",hook=\"neighbor\"}"), Some(1.0));
    metrics.observation(&status("hook.neighbor", false, Some("netlink")));
    assert_eq!(value(&metrics, "kevtmon_hook_info{attach_mode=\"none\",hook=\"neighbor\"}"), Some(1.0));
    metrics.observation(&status("docker", false, None));
    assert_eq!(value(&metrics, "kevtmon_source_up{source=\"docker\"}"), Some(0.0));
}

#[test]
fn what_was_seen_once_keeps_its_zero() {
    let metrics = metrics();
    let dead = |count| HashMap::from([(("docker".to_owned(), ContainerState::Dead), count)]);
    metrics.model(&dead(3), 6, 0, 0);
    metrics.model(&HashMap::new(), 0, 0, 0);
    assert_eq!(value(&metrics, "kevtmon_containers{runtime=\"docker\",state=\"running\"}"), Some(0.0));
    assert_eq!(value(&metrics, "kevtmon_containers{runtime=\"docker\",state=\"dead\"}"), Some(0.0));
    assert_eq!(value(&metrics, "kevtmon_containers{runtime=\"docker\",state=\"paused\"}"), None);
    assert_eq!(value(&metrics, "kevtmon_veth_devices"), Some(0.0));
}

#[test]
fn kernel_counters_are_read_at_every_scrape_and_not_added_up() {
    let metrics = used();
    let series = "kevtmon_kernel_neighbor_deletions_total{origin=\"collateral\",state=\"permanent\"}";
    assert_eq!(value(&metrics, series), Some(4.0));
    assert_eq!(value(&metrics, series), Some(4.0));
    assert_eq!(value(&metrics, "kevtmon_kernel_mount_busy_total{syscall=\"umount2\"}"), Some(5.0));
}

#[test]
fn invented_link_kinds_end_up_as_other() {
    let metrics = metrics();
    for index in 0..MAX_LINK_KINDS + 10 {
        let mut event = sample::link(Severity::Info);
        event.link.as_mut().unwrap().kind = Some(format!("kind{index}"));
        metrics.event(&event);
    }
    let other = "kevtmon_link_changes_total{change=\"down\",link_kind=\"other\"}";
    assert_eq!(value(&metrics, other), Some(10.0));
    assert_eq!(value(&metrics, "kevtmon_link_changes_total{change=\"down\",link_kind=\"kind0\"}"), Some(1.0));
}

#[test]
fn times_are_told_on_the_wall_clock() {
    let metrics = metrics();
    metrics.observation(&seen(Fact::Clock { realtime_offset_ns: 1_700_000_000_000_000_000 }));
    metrics.observation(&seen(Fact::Tick));
    assert_eq!(value(&metrics, "kevtmon_core_last_tick_timestamp_seconds"), Some(1_700_000_001.0));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let start = value(&metrics, "process_start_time_seconds").unwrap();
    assert!(start > 1.6e9 && start <= now + 1.0, "{start}");
}

#[test]
fn this_process_is_measured_at_every_scrape() {
    let metrics = metrics();
    for series in [
        "process_resident_memory_bytes", "process_virtual_memory_bytes", "process_open_fds",
        "process_max_fds", "process_cpu_seconds_total",
    ] {
        assert!(value(&metrics, series).unwrap() > 0.0, "{series}");
    }
}

fn incident(id: &str, kind: Kind, severity: Severity) -> Event {
    let mut event = sample::deletion();
    event.kind = kind;
    event.severity = severity;
    event.incident = Some(Box::new(Incident {
        id: id.into(),
        kind: "gateway-neighbor-lost".into(),
        severity,
        confidence: kevtmon_event::Confidence::Certain,
        opened: format!("1970-01-01T00:00:{:02}Z", 10 + id.len()),
        closed: None,
        first_seen: String::new(),
        last_seen: String::new(),
        count: 1,
        counted: String::new(),
        counted_since: None,
        episode: 1,
        clock_set_ms: 0,
        ruled_out: Vec::new(),
        close_reason: None,
        found_at_start: false,
        caused_by: Vec::new(),
        host_cause: None,
        summary: String::new(),
        advice: Vec::new(),
        evidence: Vec::new(),
        evidence_omitted: 0,
    }));
    event
}

#[test]
fn an_incident_is_counted_once_shown_while_open_and_moves_with_its_severity() {
    let metrics = metrics();
    let open = |severity| {
        let series =
            format!("kevtmon_incidents_open{{incident=\"gateway-neighbor-lost\",severity=\"{severity}\"}}");
        value(&metrics, &series)
    };
    let oldest = "kevtmon_incidents_oldest_open_timestamp_seconds{incident=\"gateway-neighbor-lost\"}";
    assert_eq!((open("warning"), open("critical"), value(&metrics, oldest)), (Some(0.0), Some(0.0), None));
    metrics.event(&incident("aa", Kind::IncidentOpened, Severity::Warning));
    metrics.event(&incident("aaa", Kind::IncidentOpened, Severity::Warning));
    metrics.event(&incident("aa", Kind::IncidentUpdated, Severity::Critical));
    assert_eq!(
        (open("warning"), open("critical"), value(&metrics, oldest)),
        (Some(1.0), Some(1.0), Some(12.0))
    );
    let info = "kevtmon_incident_info{actor=\"calico\",id=\"aa\",incident=\"gateway-neighbor-lost\",\
                namespace=\"lijiaob\",pod=\"etcd1-0\",\
                pod_uid=\"3f0f6a0e-2f6a-4d4e-9d1f-1f2f3f4f5f6f\",severity=\"critical\"}";
    assert_eq!(value(&metrics, info), Some(1.0));
    metrics.event(&incident("aa", Kind::IncidentClosed, Severity::Notice));
    assert_eq!((open("warning"), open("critical"), value(&metrics, info)), (Some(1.0), Some(0.0), None));
    let total = "kevtmon_incidents_total{incident=\"gateway-neighbor-lost\"}";
    assert_eq!(value(&metrics, total), Some(2.0));
}

#[test]
fn a_name_that_any_user_can_choose_is_shown_of_nobody_but_root_and_containers() {
    let shown = |change: &dyn Fn(&mut Actor)| {
        let metrics = metrics();
        let mut event = incident("aa", Kind::IncidentOpened, Severity::Warning);
        let actor = event.actor.as_mut().unwrap();
        (actor.container, actor.uid) = (None, Some(0));
        change(actor);
        metrics.event(&event);
        let text = metrics.gather().unwrap();
        let line = text.lines().find(|line| line.starts_with("kevtmon_incident_info{")).unwrap();
        line.split("actor=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
    };
    assert_eq!(shown(&|_| {}), "calico");
    assert_eq!(shown(&|actor| actor.uid = Some(1000)), "");
    assert_eq!(shown(&|actor| actor.userns = Some(UserNamespace::Other)), "");
    assert_eq!(shown(&|actor| actor.comm = "\u{1b}]0;x\u{7}".into()), "\\\\x1b]0;x\\\\x07");
}

#[test]
fn a_resumed_incident_is_open_but_not_counted_again() {
    let metrics = metrics();
    let event = incident("aa", Kind::IncidentUpdated, Severity::Critical);
    metrics.resumed_incident(event.incident.as_ref().unwrap(), &IncidentObjects::of(&event));
    let open = "kevtmon_incidents_open{incident=\"gateway-neighbor-lost\",severity=\"critical\"}";
    let total = "kevtmon_incidents_total{incident=\"gateway-neighbor-lost\"}";
    assert_eq!((value(&metrics, open), value(&metrics, total)), (Some(1.0), Some(0.0)));
}

#[test]
fn many_open_incidents_are_shown_as_the_worst_twenty_and_a_number() {
    let metrics = metrics();
    for index in 0..30_usize {
        let severity = if index == 29 { Severity::Critical } else { Severity::Warning };
        metrics.event(&incident(&"a".repeat(index + 1), Kind::IncidentOpened, severity));
    }
    let text = metrics.gather().unwrap();
    let shown: Vec<&str> = text.lines().filter(|line| line.starts_with("kevtmon_incident_info{")).collect();
    assert_eq!(shown.len(), 20);
    assert_eq!(shown.iter().filter(|line| line.contains("critical")).count(), 1);
    assert_eq!(value(&metrics, "kevtmon_incident_info_omitted"), Some(10.0));
    metrics.incidents_discarded(7);
    metrics.incidents_discarded(7);
    let discarded = "kevtmon_events_discarded_total{reason=\"too-many-open\",sink=\"diagnose\"}";
    assert_eq!(value(&metrics, discarded), Some(7.0));
}
