//! The event store under load: how many events a second it takes through its sink without discarding any, how
//! much disk that takes, how fast it fills, and how long questions take when it holds a million events.
#![expect(clippy::print_stdout, reason = "a benchmark talks to whoever started it")]

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use kevtmon::event::{Event, Severity};
use kevtmon::metrics::Metrics;
use kevtmon::query::filter::{self, EventFilter, Order};
use kevtmon::query::key::{Family, Lookup};
use kevtmon::sinks::Sinks;
use kevtmon::sinks::store::{StoreConfig, start};
use kevtmon::sources::procfs::own::Own;
use kevtmon::store::{Limits, Reader, Writer};
use serde_json::json;

const BOOT: &str = "5a3c6b5e-0d0f-4d5c-9c58-0f2b6a1f7c11";
const PODS: u64 = 250;
const RATE: u64 = 10_000;
const SECONDS: u64 = 20;
const EVENTS: u64 = 1_000_000;
/// Events this far apart are about a pod that has few.
const RARE: u64 = 50_000;
const REPEATS: usize = 30;

fn main() -> Result<()> {
    // `cargo test` runs benchmarks, too, to see that they work; `cargo bench` says so.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    sustained(&directory.path().join("sustained"))?;
    let state = directory.path().join("filled");
    fill(&state)?;
    questions(&state)
}

fn pod(number: u64) -> serde_json::Value {
    json!({
        "namespace": format!("team-{}", number % 10),
        "name": format!("service-{number}-0"),
        "uid": format!("3f0f6a0e-2f6a-4d4e-9d1f-{number:012x}"),
        "ip": [Ipv4Addr::from(0x0a2a_0000 + u32::try_from(number).unwrap_or(0)).to_string()],
    })
}

fn container(number: u64) -> serde_json::Value {
    json!({
        "id": format!("{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).repeat(4),
        "name": format!("k8s_app_service-{number}-0"), "runtime": "docker",
        "image": "registry.example/team/service:1.2.3", "pid": 4000 + number, "state": "running",
    })
}

/// One of a mix: deletions, link changes, refused unmounts with holders, containers.
fn template(seq: u64) -> Result<Event> {
    let number = if seq.is_multiple_of(RARE) { PODS } else { seq % PODS };
    let target = json!({"container": container(number), "pod": pod(number), "join": "ok"});
    let pid = 20_000 + seq % 30_000;
    let actor = json!({
        "source": "kernel", "confidence": "certain", "pid": pid, "tid": pid, "uid": 0, "comm": "calico",
        "exe": "/opt/cni/bin/calico", "cmdline": "/opt/cni/bin/calico", "start_time_ns": "41000000000",
        "cgroup": "/system.slice/kubelet.service", "unit": "kubelet.service", "netns": 4_026_531_833_u64,
        "mntns": 4_026_531_840_u64, "join": "host",
        "ancestors": [{"pid": 1893, "comm": "kubelet", "exe": "/usr/bin/kubelet"}, {"pid": 1, "comm": "systemd"}],
    });
    let netns = 4_026_532_000 + number;
    let (kind, severity, object) = match seq % 10 {
        0..4 => (
            "neighbor.deleted",
            "warning",
            json!({"neighbor": {
            "address": Ipv4Addr::from(u32::try_from(seq % 100_000).unwrap_or(0) + 0x0a63_0000).to_string(),
            "lladdr": "ee:ee:ee:ee:ee:ee", "ifindex": 2, "ifname": "eth0", "netns": netns,
            "state": "permanent", "cause": "admin", "gateway": false}}),
        ),
        4..7 => (
            "link.changed",
            "info",
            json!({"link": {
            "ifindex": 9 + number, "ifname": format!("cali{number:011x}"), "kind": "veth",
            "netns": 4_026_531_833_u64, "peer": {"ifindex": 2, "netns": netns, "ifname": "eth0"},
            "mac": "ee:ee:ee:ee:ee:ee", "up": true, "change": ["up"]}}),
        ),
        7 => (
            "mount.busy",
            "notice",
            json!({"mount": {
            "syscall": "umount2", "errno": "EBUSY", "mntns": 4_026_531_840_u64, "attempts": 1,
            "path": format!("/var/lib/kubelet/pods/{number:x}/volumes/kubernetes.io~glusterfs/data"),
            "fstype": "fuse.glusterfs", "source": "10.0.0.5:vol1", "device": "0:48"},
            "holders": [{"pid": 4000 + number, "comm": "etcd", "access": "fd", "pod": pod(number)}],
            "holders_complete": true, "holders_verdict": "processes"}),
        ),
        _ => ("container.exited", "info", json!({})),
    };
    let mut event = json!({
        "schema": 1, "time": "", "seq": 0, "boot_id": BOOT, "node": "slave-197", "kind": kind,
        "severity": severity, "target": target, "actor": actor,
        "message": format!("something happened to service-{number}-0 of team-{}", number % 10),
    });
    if let (Some(event), Some(object)) = (event.as_object_mut(), object.as_object()) {
        event.extend(object.clone());
    }
    Ok(serde_json::from_value(event)?)
}

/// The events of a storm are made beforehand; only number and time change.
fn templates() -> Result<Vec<Event>> {
    (1..=RARE).map(template).collect()
}

fn numbered(templates: &[Event], seq: u64, time: i128) -> Result<Event> {
    let length = u64::try_from(templates.len())?;
    let template = &templates[usize::try_from((seq - 1) % length)?];
    let time = format!("{:.9}", jiff::Timestamp::from_nanosecond(time)?);
    Ok(Event { seq, time, ..template.clone() })
}

#[expect(clippy::disallowed_methods, reason = "paces a load")]
fn pace(until: Instant) {
    std::thread::sleep(until.saturating_duration_since(Instant::now()));
}

fn sustained(state: &Path) -> Result<()> {
    let templates = templates()?;
    let metrics = Arc::new(Metrics::new("0", "0", Own::default())?);
    let (core, _statuses) = tokio::sync::mpsc::channel(16);
    let config =
        StoreConfig { directory: state.to_owned(), limits: Limits::default(), boot_id: BOOT.to_owned() };
    let started = start(config, Arc::clone(&metrics), core)?;
    ensure!(started.status.up, "the store does not start: {:?}", started.status.reason);
    let sinks = Sinks::behind(started.store);
    let begin = Instant::now();
    let mut most = 0;
    for hundredth in 0..SECONDS * 100 {
        for seq in hundredth * RATE / 100..(hundredth + 1) * RATE / 100 {
            let now = jiff::Timestamp::now().as_nanosecond();
            sinks.offer(&Arc::new(numbered(&templates, seq + 1, now)?.into()));
        }
        most = most.max(bytes(state)?);
        pace(begin + Duration::from_millis(10 * (hundredth + 1)));
    }
    let took = begin.elapsed().as_secs_f64();
    sinks.finish(Duration::from_secs(10));
    let discarded = sum(&metrics, "events_discarded_total{");
    println!(
        "store      {:.0} events/s for {took:.1} s: discarded {discarded}, at most {:.1} MiB on disk (limit {} MiB)",
        (SECONDS * RATE) as f64 / took,
        most as f64 / 1_048_576.0,
        Limits::default().max_bytes >> 20
    );
    Ok(())
}

fn bytes(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory)? {
        // The log goes when the store is closed.
        bytes += entry?.metadata().map_or(0, |metadata| metadata.len());
    }
    Ok(bytes)
}

fn sum(metrics: &Metrics, name: &str) -> f64 {
    let text = metrics.gather().unwrap_or_default();
    let values = text.lines().filter(|line| line.contains(name));
    values.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

fn fill(state: &Path) -> Result<()> {
    let templates = templates()?;
    let limits = Limits { max_bytes: 64 << 30, ..Limits::default() };
    let (mut writer, ..) = Writer::resume(state, limits, BOOT)?;
    let start = jiff::Timestamp::now().as_nanosecond() - 6 * 86_400 * 1_000_000_000;
    let mut took = Duration::ZERO;
    for seq in 1..=EVENTS {
        // Half a second apart.
        let event = numbered(&templates, seq, start + i128::from(seq) * 500_000_000)?;
        let begin = Instant::now();
        writer.insert(&event)?;
        if seq.is_multiple_of(RATE) {
            writer.commit()?;
            writer.checkpoint()?;
        }
        took += begin.elapsed();
    }
    writer.stop()?;
    println!(
        "           filled with {EVENTS} events at {:.0} events/s: {:.0} bytes each on disk",
        EVENTS as f64 / took.as_secs_f64(),
        bytes(state)? as f64 / EVENTS as f64
    );
    Ok(())
}

fn questions(state: &Path) -> Result<()> {
    let hours = |hours: i64| Some(jiff::Timestamp::now() - jiff::SignedDuration::from_hours(hours));
    let rare = template(RARE)?.target.context("a target")?;
    let rare_pod = rare.pod.context("a pod")?;
    let rare_id = rare.container.context("a container")?.id;
    let any = || EventFilter { limit: filter::MAX_LIMIT, ..EventFilter::default() };
    let exact = |family, value: &str| EventFilter { about: vec![Lookup::exact(family, value)], ..any() };
    let pod = |number: u64| filter::pod(&format!("team-{}/service-{number}-0", number % 10)).ok();
    let container = |digits: usize| filter::container(&rare_id[..digits]).ok();
    let kind = |kind: &str| vec![kind.to_owned()];
    let busy = "/var/lib/kubelet/pods/7/volumes/kubernetes.io~glusterfs/data";
    let filters = [
        ("newest 1000", any()),
        ("oldest 1000", EventFilter { order: Order::Oldest, ..any() }),
        ("kind", EventFilter { kinds: kind("mount.busy"), ..any() }),
        ("severity, none", EventFilter { severity: Some(Severity::Critical), ..any() }),
        ("pod", EventFilter { pod: pod(42), ..any() }),
        ("rare pod", EventFilter { pod: pod(PODS), ..any() }),
        ("pod and kind", EventFilter { kinds: kind("neighbor."), pod: pod(40), ..any() }),
        ("pod and kind, none", EventFilter { kinds: kind("mount.busy"), pod: pod(40), ..any() }),
        ("pod and container", EventFilter { pod: pod(PODS), container: container(12), ..any() }),
        ("pod uid", exact(Family::Uid, &rare_pod.uid)),
        ("container, 4 digits", EventFilter { container: container(4), ..any() }),
        ("container, whole id", EventFilter { container: container(64), ..any() }),
        ("address", exact(Family::Neighbor, "10.99.0.1")),
        ("path", exact(Family::Path, busy)),
        (
            "below a path",
            EventFilter { about: vec![Lookup::prefix(Family::Path, "/var/lib/kubelet/pods/")], ..any() },
        ),
        ("veth", exact(Family::Link, "cali00000000005")),
        ("eth0", exact(Family::Link, "eth0")),
        ("pid", exact(Family::Pid, "20001")),
        ("an hour, long ago", EventFilter { since: hours(100), until: hours(99), ..any() }),
        ("pod in an hour", EventFilter { since: hours(100), until: hours(99), pod: pod(42), ..any() }),
        ("nothing", exact(Family::Pid, "1")),
    ];
    for (what, filter) in filters {
        let mut times = Vec::with_capacity(REPEATS);
        let mut found = 0;
        for _ in 0..REPEATS {
            let begin = Instant::now();
            // As a command does that finds no daemon: opened for the one question.
            let reader = Reader::open_read_only(state)?;
            found = black_box(reader.events(&filter)?).events.len();
            times.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        println!(
            "           {what:24} {found:5} found, {:6.2} / {:6.2} / {:6.2} ms (min / median / max)",
            times[0],
            times[REPEATS / 2],
            times[REPEATS - 1]
        );
    }
    Ok(())
}
