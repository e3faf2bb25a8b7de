//! Histories of the two common failures, for tests, and the answer to a question.

use kevtmon_event::{Action, Advice, CloseReason, Confidence, Event, Incident, Kind, Risk, Severity};
use kevtmon_history::query::history::History;
use kevtmon_history::query::story::Story;
use kevtmon_history::query::why::{Outcome, why};
use kevtmon_testing::sample;

use super::memory::{self, Memory, numbered, time};

pub fn chatter(seq: u64, kind: Kind, severity: Severity, message: &str) -> Event {
    Event {
        kind,
        severity,
        message: message.into(),
        target: sample::deletion().target,
        daemon: None,
        ..numbered(seq, sample::daemon(severity))
    }
}

pub fn incident_event(seq: u64, kind: Kind, incident: Incident, of: Event) -> Event {
    let message = incident.summary.clone();
    Event {
        kind,
        severity: incident.severity,
        message,
        incident: Some(Box::new(incident)),
        ..numbered(seq, of)
    }
}

/// A gateway entry deleted by a retried deletion of the pod's old sandbox.
pub fn gateway_lost() -> Memory {
    let cause = Incident {
        kind: "stale-cni-del".into(),
        severity: Severity::Warning,
        confidence: Confidence::Likely,
        opened: time(2),
        first_seen: time(1),
        last_seen: time(30),
        count: 12,
        summary: "the CNI DEL of the old sandbox 94feeebc95fb of pod lijiaob/etcd1-0 is retried.".into(),
        evidence: vec![1, 30],
        ..memory::incident("stale", 2)
    };
    let effect = Incident {
        opened: time(40),
        first_seen: time(40),
        last_seen: time(40),
        caused_by: vec!["stale".into()],
        summary: "pod lijiaob/etcd1-0 lost its gateway ARP 169.254.1.1, deleted by calico (pid 28997)".into(),
        evidence: vec![40],
        advice: vec![Advice {
            text: "set the entry again".into(),
            form: String::new(),
            command: "nsenter -t 4100 -n ip neigh replace 169.254.1.1 lladdr ee:ee:ee:ee:ee:ee dev eth0 nud permanent"
                .into(),
            risk: Risk::Restart,
            action: Action::FixConfig,
            process: None,
        }],
        ..memory::incident("lost", 40)
    };
    let old = |seq| {
        let said = "CNI DEL of sandbox 94feeebc95fb failed";
        Event { target: None, ..chatter(seq, Kind::ContainerExited, Severity::Notice, said) }
    };
    let stranger = |event: Event| Event { actor: None, neighbor: None, ..event };
    Memory::of([
        old(1),
        chatter(20, Kind::ContainerStarted, Severity::Info, "container etcd of pod lijiaob/etcd1-0 started"),
        chatter(21, Kind::LinkChanged, Severity::Debug, "veth cali91 changed: carrier-up"),
        old(30),
        memory::event(40),
        incident_event(41, Kind::IncidentOpened, effect.clone(), stranger(memory::event(41))),
    ])
    .with_incident(cause)
    .with_incident(effect)
    .with_state(super::node_state::state())
}

/// A volume that did not unmount, and then did.
pub fn volume_busy() -> Memory {
    let uid = "3f0f6a0e-2f6a-4d4e-9d1f-1f2f3f4f5f6f";
    let busy = |seq, attempts| {
        let mut event = numbered(seq, sample::busy());
        let mount = event.mount.as_mut().unwrap();
        mount.attempts = Some(attempts);
        mount.volume.as_mut().unwrap().pod_uid = uid.into();
        event.target = sample::deletion().target;
        event
    };
    let incident = Incident {
        kind: "volume-busy".into(),
        severity: Severity::Warning,
        opened: time(10),
        first_seen: time(10),
        last_seen: time(30),
        closed: Some(time(40)),
        close_reason: Some(CloseReason::Resolved),
        count: 4,
        summary: "volume data of pod lijiaob/etcd1-0 does not unmount: held by etcd (pid 4123)".into(),
        evidence: vec![10, 20, 30],
        ..memory::incident("busy", 10)
    };
    let released = Event {
        kind: Kind::MountReleased,
        severity: Severity::Info,
        message: "volume data unmounted by umount (pid 29001), after 4 refused attempts".into(),
        holders: None,
        ..busy(40, 4)
    };
    Memory::of([
        busy(10, 1),
        busy(20, 2),
        busy(30, 4),
        released,
        incident_event(41, Kind::IncidentClosed, incident.clone(), memory::event(41)),
    ])
    .with_incident(incident)
}

pub fn told(history: &dyn History, word: &str) -> Story {
    match why(history, word).unwrap() {
        Outcome::Story(story) => *story,
        other => panic!("{word}: {other:?}"),
    }
}
