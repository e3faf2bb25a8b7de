//! The schema against what is written.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use kevtmon_observation::{BlockDevice, DeviceUser, LoopDevice, MountedElsewhere};
use serde_json::{Value, json};

use super::*;
use crate::test_support::sample;
use crate::test_support::schema::{assert_valid, errors};
use crate::{
    Action, Advice, AncestorRef, CloseReason, Confidence, ContainerPart, HostCause, HostChange, Incident,
    Kind, LeakedMount, LinkPeer, NamedProcess, ProcessLink, Risk, Serves, Severity,
};

/// The events that recordings with a reviewed answer lead to.
fn reviewed() -> Vec<Value> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures");
    let mut paths: Vec<_> = fs::read_dir(fixtures).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|suffix| suffix == "golden"));
    paths.sort();
    let mut events = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        let lines = text.lines().filter(|line| line.starts_with("  {"));
        events.extend(lines.map(|line| serde_json::from_str::<Value>(line).unwrap()));
    }
    assert!(events.len() > 50, "{} events", events.len());
    events
}

/// Every field of every object, by what is reviewed, what the samples have, and what both lack.
fn full() -> Value {
    let samples = sample::all().into_iter().chain([extremes()]);
    let samples = samples.map(|event| serde_json::to_value(event).unwrap());
    reviewed().into_iter().chain(samples).reduce(merged).unwrap()
}

fn merged(a: Value, b: Value) -> Value {
    match (a, b) {
        (Value::Object(mut a), Value::Object(b)) => {
            for (name, value) in b {
                let value = match a.remove(&name) {
                    Some(known) => merged(known, value),
                    None => value,
                };
                a.insert(name, value);
            }
            Value::Object(a)
        }
        (_, b) => b,
    }
}

/// Two pods with one address, but for the second one.
fn conflict(pod: &crate::Pod) -> Box<crate::AddressConflict> {
    Box::new(crate::AddressConflict {
        address: "10.0.0.2".parse().unwrap(),
        pods: vec![crate::AddressedPod {
            pod: pod.clone(),
            netns: 7,
            ifindex: 2,
            ifname: "eth0".into(),
            host_end: LinkPeer { ifindex: 9, netns: Some(1), ifname: Some("cali0".into()) },
        }],
    })
}

/// Fields that the samples do without.
fn extremes() -> Event {
    let mut event = sample::deletion();
    let target = event.target.as_mut().unwrap();
    let mut container = target.container.clone().unwrap();
    (container.image, container.exit_code, container.oom_killed) =
        (Some("busybox".into()), Some(0), Some(false));
    (target.netns_name, target.netns_cookie) = (Some("blue".into()), Some("4097".into()));
    (target.userns, target.unit) = (Some(crate::UserNamespace::Other), Some("foo.service".into()));
    target.cgroup = Some("/system.slice/foo.service".into());
    target.process = Some(crate::TargetProcess { pid: 7, comm: "foo".into(), start_time_ns: "5".into() });
    let mut pod = event.target.as_ref().unwrap().pod.clone().unwrap();
    (pod.claimed, pod.sandbox_id) = (true, Some(container.id.clone()));
    event.target.as_mut().unwrap().pod = Some(pod.clone());
    let actor = event.actor.as_mut().unwrap();
    (actor.container, actor.pod) = (Some(container.clone()), Some(pod.clone()));
    (actor.euid, actor.userns) = (Some(0), Some(crate::UserNamespace::Other));
    event.component = sample::all().into_iter().find_map(|event| event.component);
    event.component.as_mut().unwrap().signal = Some(9);
    event.recreation = sample::all().into_iter().find_map(|event| event.recreation);
    let previous = &mut event.recreation.as_mut().unwrap().previous;
    (previous.pid, previous.oom_killed) = (Some(7), Some(false));
    let actor = event.actor.as_mut().unwrap();
    actor.ancestors = vec![ancestor(actor)];
    let neighbor = event.neighbor.as_mut().unwrap();
    neighbor.new_lladdr = Some("02:00:00:00:00:01".into());
    neighbor.new_state = Some("reachable".into());
    neighbor.reason = Some("wrong-lladdr".into());
    neighbor.ended_netns = Some(7);
    (neighbor.ended_lower, neighbor.link_moved, neighbor.after_exit) = (true, true, true);
    neighbor.other_netns = true;
    let of = |has: fn(&Event) -> bool| sample::all().into_iter().find(has).unwrap();
    event.link = of(|event| event.link.is_some()).link;
    let link = event.link.as_mut().unwrap();
    let end = |ifname: &str| LinkPeer { ifindex: 9, netns: Some(1), ifname: Some(ifname.into()) };
    (link.moved_to, link.peer, link.master) = (Some(end("eth0")), Some(end("cali0")), Some(3));
    link.old_mac = Some("02:42:ac:11:00:01".into());
    event.address_conflict = Some(conflict(&pod));
    event.neighbor_table = Some(Box::new(neighbor_table()));
    event.nfs_server = Some(Box::new(nfs_server(&pod)));
    event.reservation = Some(Box::new(reservation(&container, &pod)));
    event.sandbox = Some(Box::new(crate::Sandbox {
        id: container.id.clone(),
        checkpoint: Some(true),
        kubelet_version: Some("v1.20.2".into()),
    }));
    let busy = sample::busy();
    let mount = event.mount.insert(busy.mount.unwrap());
    (mount.child_mounts, mount.unserved) = (vec!["/mnt/x/y".into()], true);
    mount.servers = vec![server(&container, &pod)];
    mount.container_id = Some(container.id.clone());
    mount.block_device = Some(Box::new(block_device()));
    mount.staged = Some(staged());
    mount.refused = vec![crate::RefusedCall { syscall: "rmdir".into(), attempts: 2 }];
    event.holders = busy.holders;
    for holder in event.holders.iter_mut().flatten() {
        holder.tid = Some(7);
        (holder.possible, holder.init) = (true, true);
        let (mounts, devices) = (vec!["/y".into()], vec!["dm-0".into()]);
        let there = MountedElsewhere { path: "/y".into(), mntns: 4, pid: 7, comm: "sleep".into() };
        holder.loop_device =
            Some(LoopDevice { name: "/dev/loop0".into(), mounts, devices, elsewhere: vec![there] });
        (holder.cmdline, holder.exe) = (Some("etcd".into()), Some("/etcd".into()));
        (holder.path, holder.source, holder.fd) = (Some("/x".into()), Some("filer:/x".into()), Some(3));
        (holder.unit, holder.mntns) = (Some("x.service".into()), Some(4));
        (holder.container, holder.pod) = (Some(container.clone()), Some(pod.clone()));
        holder.serves =
            Some(Serves { mountpoint: "/x".into(), pod: pod.clone(), confidence: Some(Confidence::Certain) });
    }
    mount.identity.as_mut().unwrap().unique = Some(2_147_484_010);
    event.holders_age_ms = busy.holders_age_ms;
    (event.holders_complete, event.holders_verdict) = (busy.holders_complete, busy.holders_verdict);
    event.holders_unreadable = busy.holders_unreadable;
    event.leaks = Some(leaks(&container, &pod));
    event.throttled = of(|event| event.throttled.is_some()).throttled;
    event.throttled.as_mut().unwrap().container = Some(container);
    event.completes = Some(41);
    event.resync = true;
    event.incident = Some(Box::new(closed_incident(&event)));
    event
}

fn ancestor(actor: &crate::Actor) -> AncestorRef {
    AncestorRef {
        pid: 1,
        comm: "init".into(),
        start_time_ns: Some("5".into()),
        exe: Some("/sbin/init".into()),
        started: Some(true),
        uid: Some(0),
        container: actor.container.clone(),
        pod: actor.pod.clone(),
        join: Some(actor.join),
    }
}

fn neighbor_table() -> crate::NeighborTable {
    let namespaces = vec![crate::NeighborCount { netns: 7, owner: "pod a/b".into(), entries: 900 }];
    crate::NeighborTable { family: "ipv4".into(), entries: 1024, limit: 1024, refused: 7, namespaces }
}

fn nfs_server(pod: &crate::Pod) -> crate::NfsServer {
    let volume = volume(pod, "kubernetes.io/nfs");
    let (path, source, volume) = ("/v".into(), "nas1:/export".into(), Some(volume));
    let mounts = vec![crate::NfsServerMount { path, source, volume }];
    crate::NfsServer { name: "nas1".into(), waits: true, mounts, mounts_omitted: 3 }
}

fn volume(pod: &crate::Pod, plugin: &str) -> crate::Volume {
    crate::Volume { pod_uid: pod.uid.clone(), plugin: plugin.into(), name: "data".into() }
}

fn reservation(container: &crate::Container, pod: &crate::Pod) -> crate::Reservation {
    crate::Reservation {
        address: "10.0.0.2".parse().unwrap(),
        network: "cbr0".into(),
        container_id: container.id.clone(),
        netns: 7,
        ifindex: 2,
        ifname: "eth0".into(),
        reserved_for: Some("c0ffee".into()),
        reserved_for_pod: Some(pod.clone()),
    }
}

fn leaks(container: &crate::Container, pod: &crate::Pod) -> Vec<LeakedMount> {
    let written = reviewed().into_iter().find(|event| event["leaks"].is_array()).unwrap();
    let mut leaks: Vec<LeakedMount> = serde_json::from_value(written["leaks"].clone()).unwrap();
    for leak in &mut leaks {
        (leak.identity.unique, leak.without_process, leak.init) = (Some(4_294_969_312), true, true);
        leak.part = Some(ContainerPart::Shm);
        leak.volume = Some(volume(pod, "kubernetes.io/rbd"));
        (leak.container, leak.pod) = (Some(container.clone()), Some(pod.clone()));
        leak.staged = Some(staged());
    }
    leaks
}

fn block_device() -> BlockDevice {
    let (mapping, kind) = (Some("mpatha".into()), Some("multipath".into()));
    BlockDevice {
        name: "/dev/loop1".into(),
        number: "7:1".into(),
        backing_file: Some("/v/image".into()),
        devices: vec![DeviceUser { name: "dm-0".into(), mapping, kind }],
        swap: true,
        swap_device: Some("/dev/loop1p1".into()),
        suspended: true,
        unlocated: true,
        targets: vec!["iblock_0/disk".into()],
    }
}

fn staged() -> crate::StagedVolume {
    crate::StagedVolume {
        plugin: "kubernetes.io/csi".into(),
        name: Some("pvc-1".into()),
        handle: Some("0001-0009-rook-ceph".into()),
    }
}

fn server(container: &crate::Container, pod: &crate::Pod) -> crate::MountServer {
    crate::MountServer {
        pid: 7,
        uid: Some(0),
        comm: "glusterfs".into(),
        state: kevtmon_observation::ServerState::Waiting,
        waits_for: Some("NFS".into()),
        unit: Some("x.scope".into()),
        container: Some(container.clone()),
        pod: Some(pod.clone()),
        confidence: Confidence::Certain,
    }
}

fn closed_incident(event: &Event) -> Incident {
    Incident {
        id: "1".into(),
        kind: "volume-busy".into(),
        severity: Severity::Warning,
        confidence: Confidence::Likely,
        opened: event.time.clone(),
        closed: Some(event.time.clone()),
        first_seen: event.time.clone(),
        last_seen: event.time.clone(),
        count: 2,
        counted: "refused unmounts".into(),
        counted_since: Some(event.time.clone()),
        episode: 1,
        clock_set_ms: 1,
        ruled_out: vec!["eth0 is up".into()],
        close_reason: Some(CloseReason::SubjectGone),
        found_at_start: true,
        caused_by: vec!["2".into()],
        host_cause: Some(HostCause {
            change: HostChange::BridgeMac,
            netns: 1,
            ifindex: Some(2),
            ifname: Some("cni0".into()),
        }),
        summary: "x".into(),
        advice: vec![Advice {
            text: "look".into(),
            form: "show-users".into(),
            command: "ls /proc/7".into(),
            risk: Risk::Read,
            action: Action::None,
            process: Some(NamedProcess {
                pid: 7,
                seen_ns: "1".into(),
                links: vec![ProcessLink { link: "cwd".into(), target: "/m".into() }],
            }),
        }],
        evidence: vec![1],
        evidence_omitted: 1,
    }
}

/// The part of the schema that is about the values of a property.
fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str().and_then(|name| name.strip_prefix('#')) {
        Some(pointer) => root.pointer(pointer).unwrap(),
        None => schema,
    }
}

/// Visits each object of a value with its schema.
fn visit(
    root: &Value,
    schema: &Value,
    value: &mut Value,
    path: &str,
    each: &mut impl FnMut(&str, &Value, &mut Value),
) {
    let schema = resolved(root, schema);
    if schema["properties"].is_object() {
        each(path, schema, value);
    }
    for (name, value) in value.as_object_mut().into_iter().flatten() {
        if let Some(schema) = schema["properties"].get(name) {
            visit(root, schema, value, &format!("{path}.{name}"), each);
        }
    }
    for value in value.as_array_mut().into_iter().flatten() {
        visit(root, &schema["items"], value, path, each);
    }
}

#[test]
fn every_event_keeps_the_schema() {
    sample::all().iter().for_each(assert_valid);
    assert_eq!(errors(&full()), Vec::<String>::new());
}

#[test]
fn every_reviewed_event_keeps_the_schema() {
    for event in reviewed() {
        assert_eq!(errors(&event), Vec::<String>::new(), "{event:#}");
    }
}

#[test]
fn what_the_schema_describes_is_written_and_explained() {
    let root = schema().to_value();
    let mut written = full();
    let mut missing = BTreeSet::new();
    visit(&root, &root, &mut written, "", &mut |path, schema, value| {
        for (name, property) in schema["properties"].as_object().unwrap() {
            if value.get(name).is_none() {
                missing.insert(format!("{path}.{name} is not written"));
            }
            if property["description"].as_str().is_none_or(str::is_empty) {
                missing.insert(format!("{path}.{name} is not explained"));
            }
        }
    });
    assert_eq!(missing, BTreeSet::new());
}

#[test]
fn what_is_required_is_always_written_and_the_rest_is_not() {
    let root = schema().to_value();
    let mut least = full();
    visit(&root, &root, &mut least, "", &mut |path, schema, value| {
        let required: BTreeSet<&str> =
            schema["required"].as_array().into_iter().flatten().map(|name| name.as_str().unwrap()).collect();
        // Objects of the event itself stay, to look into them.
        let keep =
            |name: &str, value: &Value| required.contains(name) || path.is_empty() && value.is_object();
        value.as_object_mut().unwrap().retain(|name, value| keep(name, value));
    });
    let event: Event = serde_json::from_value(least.clone()).unwrap();
    assert_eq!(serde_json::to_value(&event).unwrap(), least);
}

#[test]
fn names_are_listed_in_their_order() {
    for kind in Kind::ALL {
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
    }
    fn names<T: serde::Serialize>(values: impl IntoIterator<Item = T>) -> Value {
        values.into_iter().map(|value| serde_json::to_value(value).unwrap()).collect()
    }
    let schema = schema().to_value();
    assert_eq!(schema["properties"]["kind"]["enum"], names(Kind::ALL));
    assert_eq!(schema["$defs"]["Severity"]["enum"], names(Severity::ALL));
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
}

#[test]
fn the_schema_has_nothing_that_validators_refuse_and_leaves_room_for_more() {
    fn check(value: &Value, path: &str) {
        for (name, value) in value.as_object().into_iter().flatten() {
            let path = format!("{path}/{name}");
            match name.as_str() {
                "format" => assert_eq!(value, "date-time", "{path}"),
                "additionalProperties" => assert_ne!(value, false, "{path}"),
                "oneOf" | "anyOf" | "default" => panic!("{path}: {value}"),
                _ => check(value, &path),
            }
        }
        assert!(value.as_array().is_none_or(|values| !values.contains(&json!("null"))), "{path}");
        value.as_array().into_iter().flatten().for_each(|value| check(value, path));
    }
    let schema = schema().to_value();
    jsonschema::meta::validate(&schema).unwrap();
    check(&schema, "");
}

#[test]
fn the_check_of_the_schema_finds_what_is_wrong() {
    let mut value = serde_json::to_value(sample::deletion()).unwrap();
    value["severity"] = "loud".into();
    value["neighbor"]["ifindex"] = "2".into();
    value["target"]["moon"] = json!(1);
    value.as_object_mut().unwrap().remove("node");
    let found = errors(&value);
    assert_eq!(found.len(), 4, "{found:?}");
}
