//! The schema against what is written, and the completions against the commands.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::*;
use crate::event::{
    Advice, AncestorRef, CloseReason, Confidence, Event, Incident, Kind, LinkPeer, Risk, Severity,
};
use crate::observation::{Access, Verdict};
use crate::tests::sample;

fn schema() -> Value {
    serde_json::from_str(SCHEMA).unwrap()
}

/// What is wrong with a value. Stricter than JSON Schema: what is not described is wrong too.
fn complaints(value: &Value, schema: &Value, place: &str) -> Vec<String> {
    let root = self::schema();
    let rule = match schema.get("$ref") {
        Some(name) => &root["$defs"][name.as_str().unwrap().strip_prefix("#/$defs/").unwrap()],
        None => schema,
    };
    let mut found = Vec::new();
    let mut wrong = |what: String| found.push(format!("{place}: {what}"));
    if rule.get("const").is_some_and(|only| only != value) {
        wrong(format!("{value} is not {}", rule["const"]));
    }
    if rule.get("enum").is_some_and(|values| !values.as_array().unwrap().contains(value)) {
        wrong(format!("{value} is none of the values"));
    }
    let type_is_right = match rule.get("type").and_then(Value::as_str) {
        Some("string") => value.is_string(),
        Some("integer") => value.is_u64(),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        None => rule.get("const").is_some(),
        Some(other) => panic!("{place}: type {other}"),
    };
    if !type_is_right {
        wrong(format!("{value} has the wrong type"));
    }
    for name in rule.get("required").and_then(Value::as_array).into_iter().flatten() {
        if value.get(name.as_str().unwrap()).is_none() {
            wrong(format!("{name} is missing"));
        }
    }
    let none = Map::new();
    let properties = rule.get("properties").and_then(Value::as_object).unwrap_or(&none);
    for (name, value) in value.as_object().into_iter().flatten() {
        let place = format!("{place}.{name}");
        match properties.get(name).or_else(|| rule.get("additionalProperties")) {
            Some(rule) => found.extend(complaints(value, rule, &place)),
            None => found.push(format!("{place} is not described")),
        }
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        found.extend(complaints(item, &rule["items"], &format!("{place}[{index}]")));
    }
    found
}

/// Every field of every object.
fn full() -> Event {
    let mut event = sample::deletion();
    let mut container = event.target.as_ref().unwrap().container.clone().unwrap();
    container.image = Some("busybox".into());
    event.target.as_mut().unwrap().netns_name = Some("blue".into());
    let mut pod = event.target.as_ref().unwrap().pod.clone().unwrap();
    pod.sandbox_id = Some(container.id.clone());
    event.target.as_mut().unwrap().pod = Some(pod.clone());
    let actor = event.actor.as_mut().unwrap();
    (actor.container, actor.pod) = (Some(container.clone()), Some(pod.clone()));
    actor.ancestors = vec![AncestorRef { pid: 1, comm: "init".into(), exe: Some("/sbin/init".into()) }];
    let neighbor = event.neighbor.as_mut().unwrap();
    neighbor.new_lladdr = Some("02:00:00:00:00:01".into());
    neighbor.new_state = Some("reachable".into());
    neighbor.reason = Some("wrong-lladdr".into());
    let of = |has: fn(&Event) -> bool| sample::all().into_iter().find(has).unwrap();
    event.link = of(|event| event.link.is_some()).link;
    let link = event.link.as_mut().unwrap();
    link.moved_to = Some(LinkPeer { ifindex: 9, netns: Some(1), ifname: Some("eth0".into()) });
    link.master = Some(3);
    link.peer = Some(LinkPeer { ifindex: 9, netns: Some(1), ifname: Some("cali0".into()) });
    event.route = of(|event| event.route.is_some()).route;
    let busy = sample::busy();
    event.mount = busy.mount;
    event.mount.as_mut().unwrap().child_mounts = vec!["/mnt/x/y".into()];
    event.holders = busy.holders;
    for holder in event.holders.iter_mut().flatten() {
        (holder.cmdline, holder.exe) = (Some("etcd".into()), Some("/etcd".into()));
        (holder.path, holder.fd) = (Some("/x".into()), Some(3));
        (holder.unit, holder.mntns) = (Some("x.service".into()), Some(4));
        (holder.container, holder.pod) = (Some(container.clone()), Some(pod.clone()));
    }
    (event.holders_complete, event.holders_verdict) = (busy.holders_complete, busy.holders_verdict);
    event.lost = of(|event| event.lost.is_some()).lost;
    event.daemon = of(|event| event.daemon.is_some()).daemon;
    event.incident = Some(Box::new(Incident {
        id: "1".into(),
        kind: "volume-busy".into(),
        severity: Severity::Warning,
        confidence: Confidence::Likely,
        opened: event.time.clone(),
        closed: Some(event.time.clone()),
        first_seen: event.time.clone(),
        last_seen: event.time.clone(),
        count: 2,
        close_reason: Some(CloseReason::SubjectGone),
        found_at_start: true,
        caused_by: vec!["2".into()],
        summary: "x".into(),
        advice: vec![Advice { text: "look".into(), command: "ls".into(), risk: Risk::Read }],
        evidence: vec![1],
        evidence_omitted: 1,
    }));
    event
}

fn described(value: &Value, schema: &Value, place: &str, into: &mut BTreeSet<String>) {
    let root = self::schema();
    let rule = match schema.get("$ref") {
        Some(name) => &root["$defs"][name.as_str().unwrap().strip_prefix("#/$defs/").unwrap()],
        None => schema,
    };
    for (name, rule) in rule.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let place = format!("{place}.{name}");
        match value.get(name) {
            Some(value) => described(value, rule, &place, into),
            None => drop(into.insert(place)),
        }
    }
    if let Some(item) = value.as_array().and_then(|items| items.first()) {
        described(item, &rule["items"], place, into);
    }
}

#[test]
fn every_event_keeps_the_schema() {
    let schema = schema();
    for event in sample::all().into_iter().chain([full()]) {
        let value = serde_json::to_value(&event).unwrap();
        assert_eq!(complaints(&value, &schema, event.kind.name()), Vec::<String>::new());
    }
}

#[test]
fn what_the_schema_describes_is_written() {
    let mut missing = BTreeSet::new();
    described(&serde_json::to_value(full()).unwrap(), &schema(), "", &mut missing);
    assert_eq!(missing, BTreeSet::new());
}

#[test]
fn the_schema_has_every_name_that_is_written_and_no_other() {
    fn names<T: serde::Serialize>(values: impl IntoIterator<Item = T>) -> Value {
        values.into_iter().map(|value| serde_json::to_value(value).unwrap()).collect()
    }
    let schema = schema();
    let defs = &schema["$defs"];
    assert_eq!(schema["properties"]["kind"]["enum"], names(Kind::ALL));
    assert_eq!(defs["severity"]["enum"], names(Severity::ALL));
    let access =
        [Access::Fd, Access::Cwd, Access::Root, Access::Exe, Access::Mmap, Access::Mount, Access::ChildMount];
    assert_eq!(defs["holder"]["properties"]["access"]["enum"], names(access));
    let verdicts = [
        Verdict::Processes,
        Verdict::MountNamespace,
        Verdict::ChildMount,
        Verdict::Kernel,
        Verdict::Transient,
        Verdict::NotAMount,
        Verdict::Skipped,
        Verdict::Incomplete,
    ];
    assert_eq!(schema["properties"]["holders_verdict"]["enum"], names(verdicts));
    assert_eq!(
        defs["confidence"]["enum"],
        names([Confidence::Guess, Confidence::Likely, Confidence::Certain])
    );
}

#[test]
fn the_check_of_the_schema_finds_what_is_wrong() {
    let mut value = serde_json::to_value(sample::deletion()).unwrap();
    value["severity"] = "loud".into();
    value["neighbor"]["ifindex"] = "2".into();
    value["target"]["moon"] = json!(1);
    value.as_object_mut().unwrap().remove("node");
    let found = complaints(&value, &schema(), "");
    assert_eq!(found.len(), 4, "{found:?}");
}

#[test]
fn every_shell_gets_completions_that_know_the_commands() {
    for shell in [Shell::Bash, Shell::Elvish, Shell::Fish, Shell::PowerShell, Shell::Zsh] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "kevtmon", &mut text);
        let text = String::from_utf8(text).unwrap();
        for command in ["run", "events", "incidents", "why", "state", "schema", "completions", "config"] {
            assert!(text.contains(command), "{shell}: {command}");
        }
    }
}
