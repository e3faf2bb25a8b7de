//! An incident as an Event of Kubernetes, `events.k8s.io/v1`.
//!
//! The API changes nothing of an Event but its `series`. So the text of an Event is that of the moment when it was made, and
//! what it says has to hold for as long as it is shown, an hour by default; what is learned later is another Event.

use std::fmt::Write as _;

use jiff::Timestamp;
use kevtmon_event::{AddressConflict, Advice, CloseReason, Confidence, Event, Incident, Pod, Target};
use kevtmon_types::escape::Escaped;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

/// Of `note`, in bytes: what the API takes.
const NOTE: usize = 1024;
/// The same of `reportingInstance`.
const INSTANCE: usize = 128;
/// The same of a name.
const NAME: usize = 253;
/// Namespace of Events about what is in none.
const NO_NAMESPACE: &str = "default";
/// A kind whose target is to blame, and the node affected.
const OF_NODE: &str = "neighbor-table-full";
/// Of an Event that repeats: the API takes no less.
const REPEATED: u64 = 2;

/// What an Event is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transition {
    Opened,
    /// Its culprit became known later.
    Named,
    /// It became more severe.
    Escalated,
    Closed,
}

impl Transition {
    /// In the name of the Event: an escalation is a change of the first.
    fn in_name(self) -> &'static str {
        match self {
            Self::Opened | Self::Escalated => "opened",
            Self::Named => "named",
            Self::Closed => "closed",
        }
    }
}

/// Whether an incident's text says who did it, or of a mount who holds it.
pub(super) fn names_culprit(event: &Event) -> bool {
    match (&event.holders, &event.mount) {
        (Some(holders), _) => !holders.is_empty(),
        (None, Some(_)) => false,
        (None, None) => event.actor.is_some(),
    }
}

/// An Event to be made, or one that is there and escalates.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Object {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) event: Value,
    /// Whether it is likely there, so that only its `series` is written.
    pub(super) is_there: bool,
}

impl Object {
    /// Of an incident; `None` of any other event, and where the node has no name that Kubernetes would give it.
    pub(super) fn of(event: &Event, transition: Transition) -> Option<Self> {
        let incident = event.incident.as_deref()?;
        let (regarding, related) = Party::of(event, incident)?;
        let name = name(regarding.name, incident, transition, "");
        Self::about(event, transition, name, (regarding, related.filter(|related| *related != regarding)))
    }

    /// The same about the other pods that have the address, of which `kubectl describe pod` would show nothing else.
    pub(super) fn of_others(event: &Event, transition: Transition) -> Vec<Self> {
        let Some((incident, conflict)) = event.incident.as_deref().zip(event.address_conflict.as_deref())
        else {
            return Vec::new();
        };
        let Some((first, _)) = Party::of(event, incident) else { return Vec::new() };
        let of_pod = |pod: Party<'_>| {
            let name = name(pod.name, incident, transition, pod.uid);
            Self::about(event, transition, name, (pod, Some(first)))
        };
        Party::with_address(conflict).filter(|pod| *pod != first).filter_map(of_pod).collect()
    }

    fn about(
        event: &Event,
        transition: Transition,
        name: String,
        (regarding, related): (Party<'_>, Option<Party<'_>>),
    ) -> Option<Self> {
        let incident = event.incident.as_deref()?;
        let is_closed = transition == Transition::Closed;
        let time = if is_closed { incident.closed.as_ref().unwrap_or(&event.time) } else { &incident.opened };
        let namespace = regarding.namespace.unwrap_or(NO_NAMESPACE).to_owned();
        let mut object = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": { "name": &name, "namespace": &namespace },
            "type": if is_closed { "Normal" } else { "Warning" },
            "reason": reason(&incident.kind),
            "action": action(transition, incident.close_reason),
            "note": note(incident, &event.node),
            "eventTime": micro_time(time)?,
            "regarding": regarding.reference(),
            "reportingController": "kevtmon",
            "reportingInstance": cut(&event.node, INSTANCE),
        });
        if let Some(related) = related {
            object["related"] = related.reference();
        }
        let is_there = transition == Transition::Escalated;
        if is_there {
            object["series"] = json!({
                "count": incident.count.clamp(REPEATED, i32::MAX.unsigned_abs().into()),
                "lastObservedTime": micro_time(&incident.last_seen)?,
            });
        }
        Some(Self { namespace, name, event: object, is_there })
    }
}

/// What an Event refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Party<'a> {
    kind: &'static str,
    namespace: Option<&'a str>,
    name: &'a str,
    uid: &'a str,
}

impl<'a> Party<'a> {
    /// Whom it affects, and the pod of who did it, or another that has its address. Whom it affects is a pod, or else the node, of which `kubectl describe node` finds
    /// Events by its name in place of its uid.
    fn of(event: &'a Event, incident: &Incident) -> Option<(Self, Option<Self>)> {
        let target = event.target.as_deref().and_then(Target::confirmed_pod).and_then(Self::pod);
        let node = &*event.node;
        let node = is_name(node).then_some(Self { kind: "Node", namespace: None, name: node, uid: node });
        if incident.kind == OF_NODE {
            // Its target fills the table of the node.
            return Some((node?, target));
        }
        let actor = event.actor.as_deref().filter(|actor| actor.confidence > Confidence::Guess);
        let culprit = actor.and_then(|actor| Pod::confirmed(actor.pod.as_ref())).and_then(Self::pod);
        let mut others = event.address_conflict.as_deref().into_iter().flat_map(Self::with_address);
        let other = others.find(|other| Some(*other) != target);
        Some((target.or(node)?, culprit.or(other)))
    }

    /// The pods that have an address.
    fn with_address(conflict: &'a AddressConflict) -> impl Iterator<Item = Self> {
        conflict.pods.iter().filter_map(|it| Pod::confirmed(Some(&it.pod)).and_then(Self::pod))
    }

    /// A pod whose name and namespace are such: they become a part of the path of a request.
    fn pod(pod: &'a Pod) -> Option<Self> {
        let (namespace, name) = pod.namespace.as_deref().zip(pod.name.as_deref())?;
        let is_one = [namespace, name].into_iter().all(is_name) && !pod.uid.is_empty();
        is_one.then_some(Self { kind: "Pod", namespace: Some(namespace), name, uid: &pod.uid })
    }

    fn reference(self) -> Value {
        let mut reference =
            json!({ "apiVersion": "v1", "kind": self.kind, "name": self.name, "uid": self.uid });
        if let Some(namespace) = self.namespace {
            reference["namespace"] = namespace.into();
        }
        reference
    }
}

/// Whether it is a DNS subdomain (RFC 1123), as far as that matters in a path.
fn is_name(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= NAME
        && bytes.iter().copied().all(is_inner)
        && is_end(bytes.first())
        && is_end(bytes.last())
        && !text.contains("..")
}

/// The same each time: what is written again, after a lost answer or a restart, is there already. `uid`: of another pod than the first,
/// which may have its name.
fn name(regarding: &str, incident: &Incident, transition: Transition, uid: &str) -> String {
    let transition = transition.in_name();
    let hash = digest(&SHA256, format!("{}/{}/{transition}{uid}", incident.id, incident.episode).as_bytes());
    let hex = hash.as_ref().iter().take(8).fold(String::new(), |mut hex, byte| {
        // Writing to a text cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    let stem = cut(regarding, NAME - 1 - hex.len()).trim_end_matches(['-', '.']);
    format!("{stem}.{hex}")
}

/// `gateway-neighbor-lost` as `GatewayNeighborLost`.
fn reason(kind: &str) -> String {
    let capitalized = |word: &str| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect::<String>()
    };
    kind.split('-').map(capitalized).collect()
}

fn action(transition: Transition, closed: Option<CloseReason>) -> &'static str {
    match closed {
        None if transition == Transition::Named => "Identified",
        None => "Detected",
        Some(CloseReason::Resolved) => "Resolved",
        Some(CloseReason::Detached) => "Detached",
        Some(CloseReason::SubjectGone) => "TargetRemoved",
        Some(CloseReason::LikelyGone) => "TargetProbablyRemoved",
        Some(CloseReason::Expired) => "Expired",
    }
}

/// What happened, and one command. Left to `kevtmon why` is that about a process, which may have ended by the time that it is read, and
/// one that cannot be shown as it is.
fn note(incident: &Incident, node: &str) -> String {
    let message = if incident.closed.is_some() { incident.message() } else { incident.summary.clone() };
    let mut note = Escaped(&message).to_string();
    let next = incident.advice.first().map(|Advice { command, process, .. }| {
        let is_plain = Escaped(command).to_string() == *command;
        match process {
            None if is_plain && command.starts_with("kubectl ") => format!(". Next: {command}"),
            None if is_plain => format!(". Next, on {}: {command}", Escaped(node)),
            _ => format!(". Next, on {}: kevtmon why {}", Escaped(node), incident.id),
        }
    });
    // Half a command may do something else.
    if let Some(next) = next
        && note.len() + next.len() <= NOTE
    {
        note.push_str(&next);
    }
    if note.len() > NOTE {
        note.truncate(note.floor_char_boundary(NOTE - '…'.len_utf8()));
        note.push('…');
    }
    note
}

pub(super) fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// With six digits of a second: the API takes no others.
fn micro_time(time: &str) -> Option<String> {
    Some(format!("{:.6}", time.parse::<Timestamp>().ok()?))
}

#[cfg(test)]
pub(super) mod tests {
    use kevtmon_event::{Action, AddressedPod, Kind, LinkPeer, NamedProcess, Risk, Severity, Shared};
    use kevtmon_testing::{numbered, sample};

    use super::*;

    pub(in crate::sinks::kubernetes) fn opened(id: &str) -> Event {
        let mut incident = numbered::incident(id, 7);
        incident.summary = "static gateway ARP 169.254.1.1 deleted by calico (pid 28997)".into();
        let event = sample::deletion();
        Event {
            kind: Kind::IncidentOpened,
            severity: Severity::Critical,
            message: incident.summary.clone(),
            incident: Some(Box::new(incident)),
            ..event
        }
    }

    fn advice(command: &str, process: Option<NamedProcess>) -> Advice {
        Advice {
            text: "restart the pod".into(),
            form: "delete-pod".into(),
            command: command.into(),
            risk: Risk::Restart,
            action: Action::RestartPod,
            process,
        }
    }

    fn incident(event: &mut Event) -> &mut Incident {
        event.incident.as_mut().unwrap()
    }

    fn object(event: &Event) -> Value {
        Object::of(event, Transition::Opened).unwrap().event
    }

    #[test]
    fn an_opening_is_a_warning_about_the_pod() {
        let mut event = opened("00000000000000a1");
        incident(&mut event).advice = vec![advice("kubectl -n lijiaob delete pod etcd1-0", None)];
        let expected = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": { "namespace": "lijiaob", "name": object(&event)["metadata"]["name"] },
            "type": "Warning",
            "reason": "GatewayNeighborLost",
            "action": "Detected",
            "note": "static gateway ARP 169.254.1.1 deleted by calico (pid 28997). Next: kubectl -n lijiaob delete pod etcd1-0",
            "eventTime": "2026-01-02T03:00:07.000000Z",
            "regarding": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": "lijiaob",
                "name": "etcd1-0",
                "uid": "3f0f6a0e-2f6a-4d4e-9d1f-1f2f3f4f5f6f",
            },
            "reportingController": "kevtmon",
            "reportingInstance": "slave-197",
        });
        assert_eq!(object(&event), expected);
    }

    #[test]
    fn a_closing_is_another_event_and_an_escalation_the_series_of_the_first() {
        let mut event = opened("00000000000000a1");
        let first = Object::of(&event, Transition::Opened).unwrap();
        incident(&mut event).count = 1;
        let escalated = Object::of(&event, Transition::Escalated).unwrap();
        assert_eq!((&escalated.name, escalated.is_there, first.is_there), (&first.name, true, false));
        let series = json!({ "count": 2, "lastObservedTime": "2026-01-02T03:00:07.000000Z" });
        assert_eq!(escalated.event["series"], series, "the API takes no lower count");
        incident(&mut event).close("2026-01-02T03:04:05.678901234Z".into(), CloseReason::Resolved);
        let closed = Object::of(&event, Transition::Closed).unwrap();
        assert_ne!(closed.name, first.name);
        assert!(!closed.is_there && closed.event.get("series").is_none());
        for (member, value) in [
            ("type", "Normal"),
            ("action", "Resolved"),
            ("reason", "GatewayNeighborLost"),
            ("eventTime", "2026-01-02T03:04:05.678901Z"),
            ("note", "resolved: static gateway ARP 169.254.1.1 deleted by calico (pid 28997)"),
        ] {
            assert_eq!(closed.event[member], value, "{member}");
        }
    }

    #[test]
    fn the_name_is_that_of_this_episode_of_the_incident_whenever_it_is_made() {
        let mut event = opened("00000000000000a1");
        let name = |event: &Event| Object::of(event, Transition::Opened).unwrap().name;
        let first = name(&event);
        let (stem, hex) = first.split_once('.').unwrap();
        assert!(stem == "etcd1-0" && hex.len() == 16 && u64::from_str_radix(hex, 16).is_ok(), "{first}");
        event.seq += 1;
        assert_eq!(name(&event), first);
        assert_ne!(Object::of(&event, Transition::Named).unwrap().name, first);
        incident(&mut event).episode = 2;
        assert_ne!(name(&event), first);
        let long = format!("{}-{}", "a".repeat(235), "b".repeat(17));
        event.target.as_mut().unwrap().pod.as_mut().unwrap().name = Some(long);
        let name = name(&event);
        assert!(is_name(&name) && name.len() == 252, "without what would end in a dash: {name}");
    }

    #[test]
    fn what_is_of_no_confirmed_pod_is_about_the_node() {
        let claimed = |event: &mut Event| event.target.as_mut().unwrap().pod.as_mut().unwrap().claimed = true;
        let nameless = |event: &mut Event| event.target.as_mut().unwrap().pod.as_mut().unwrap().name = None;
        let odd = |event: &mut Event| {
            event.target.as_mut().unwrap().pod.as_mut().unwrap().namespace = Some("../../x".into());
        };
        let none = |event: &mut Event| event.target = None;
        for change in [claimed, nameless, odd, none] {
            let mut event = opened("00000000000000a1");
            change(&mut event);
            let object = Object::of(&event, Transition::Opened).unwrap();
            assert_eq!(object.namespace, "default");
            let node = json!({ "apiVersion": "v1", "kind": "Node", "name": "slave-197", "uid": "slave-197" });
            assert_eq!(object.event["regarding"], node);
            event.node = "Slave_197".into();
            assert_eq!(Object::of(&event, Transition::Opened), None, "no node of Kubernetes");
        }
    }

    #[test]
    fn the_pod_of_the_culprit_is_related_if_it_is_more_than_a_guess() {
        let mut event = opened("00000000000000a1");
        let pod = Pod {
            namespace: Some("kube-system".into()),
            name: Some("calico-node-x7k2p".into()),
            uid: "9".into(),
            ..Pod::default()
        };
        event.actor.as_mut().unwrap().pod = Some(pod);
        let related = json!({
            "apiVersion": "v1", "kind": "Pod", "namespace": "kube-system", "name": "calico-node-x7k2p", "uid": "9",
        });
        assert_eq!(object(&event)["related"], related);
        event.actor.as_mut().unwrap().confidence = Confidence::Guess;
        assert_eq!(object(&event).get("related"), None);
        let actor = event.actor.as_mut().unwrap();
        actor.confidence = Confidence::Certain;
        actor.pod.as_mut().unwrap().claimed = true;
        assert_eq!(object(&event).get("related"), None);
        let own = event.target.as_ref().unwrap().pod.clone();
        event.actor.as_mut().unwrap().pod = own;
        assert_eq!(object(&event).get("related"), None, "it did it to itself");
    }

    #[test]
    fn each_of_the_pods_with_one_address_has_an_event_that_refers_to_another() {
        let mut event = opened("00000000000000a1");
        let own = event.target.as_ref().unwrap().pod.clone().unwrap();
        // A StatefulSet may have two of a name for a moment.
        let other = |uid: &str| Pod { uid: uid.into(), ..own.clone() };
        let claimed = Pod { claimed: true, ..other("7") };
        let addressed = |pod: Pod| {
            let host_end = LinkPeer { ifindex: 9, netns: Some(1), ifname: Some("cali1".into()) };
            AddressedPod { pod, netns: 7, ifindex: 2, ifname: "eth0".into(), host_end }
        };
        let pods = [own.clone(), other("8"), claimed, other("9")].map(addressed).into();
        let address = "192.168.252.66".parse().unwrap();
        event.address_conflict = Some(Box::new(AddressConflict { address, pods }));
        let all: Vec<Object> = Object::of(&event, Transition::Opened)
            .into_iter()
            .chain(Object::of_others(&event, Transition::Opened))
            .collect();
        let uids = |object: &Object| {
            ["regarding", "related"].map(|member| object.event[member]["uid"].as_str().unwrap().to_owned())
        };
        let expected = [[own.uid.as_str(), "8"], ["8", &own.uid], ["9", &own.uid]];
        assert_eq!(all.iter().map(uids).collect::<Vec<_>>(), expected);
        let names: std::collections::BTreeSet<&str> = all.iter().map(|object| object.name.as_str()).collect();
        assert_eq!(names.len(), 3, "{names:?}");
        event.address_conflict = None;
        assert!(Object::of_others(&event, Transition::Opened).is_empty());
    }

    #[test]
    fn who_fills_the_table_of_the_node_is_not_whom_it_affects() {
        let mut event = opened("00000000000000a1");
        incident(&mut event).kind = OF_NODE.into();
        let object = object(&event);
        assert_eq!(
            (&object["regarding"]["kind"], &object["related"]["name"]),
            (&"Node".into(), &"etcd1-0".into())
        );
    }

    #[test]
    fn a_note_fits_and_has_no_part_of_a_command() {
        let mut event = opened("00000000000000a1");
        incident(&mut event).advice = vec![advice("kubectl delete pod etcd1-0", None)];
        for length in 900..1100 {
            incident(&mut event).summary = "é".repeat(length / 2);
            let note = object(&event)["note"].as_str().unwrap().to_owned();
            assert!(note.len() <= NOTE, "{}", note.len());
            assert_eq!(note.contains("Next"), note.ends_with(" delete pod etcd1-0"), "{note}");
            assert_eq!(note.ends_with('…'), length / 2 * 2 > NOTE, "{note}");
        }
    }

    #[test]
    fn a_command_about_a_process_is_not_kept_for_an_hour() {
        let mut event = opened("00000000000000a1");
        let process = NamedProcess { pid: 7, seen_ns: "1".into(), links: Vec::new() };
        incident(&mut event).advice = vec![advice("kill 7", Some(process))];
        let note = object(&event)["note"].as_str().unwrap().to_owned();
        assert!(note.ends_with(". Next, on slave-197: kevtmon why 00000000000000a1"), "{note}");
        incident(&mut event).advice = vec![advice("umount /a\u{202e}b", None)];
        assert_eq!(object(&event)["note"], note, "nor is one that cannot be copied");
    }

    #[test]
    fn nothing_in_a_note_controls_a_terminal() {
        let mut event = opened("00000000000000a1");
        incident(&mut event).summary = "gone\n\x1b[2J".into();
        assert_eq!(object(&event)["note"], "gone\\n\\x1b[2J");
    }

    #[test]
    fn only_incidents_are_events() {
        assert!(sample::all().iter().all(|event| Object::of(event, Transition::Opened).is_none()));
        let actor = opened("00000000000000a1").actor.map(Shared::into_inner);
        assert!(actor.is_some_and(|actor| actor.pod.is_none()), "the sample has none");
    }

    #[test]
    fn every_kind_of_incident_has_a_word_of_its_own() {
        let words: Vec<String> = kevtmon_core::diagnose::KINDS.iter().map(|kind| reason(kind.name)).collect();
        let is_word = |word: &String| {
            word.starts_with(|first: char| first.is_ascii_uppercase())
                && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
                && word.len() <= 128
        };
        assert!(words.iter().all(is_word), "{words:?}");
        assert!(words.contains(&"VolumeBusy".to_owned()) && words.contains(&reason(OF_NODE)), "{words:?}");
    }
}
