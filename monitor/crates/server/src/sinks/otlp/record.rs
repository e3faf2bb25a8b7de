//! An event as a log record: with attributes by the semantic conventions of OpenTelemetry where there are such, and else by names that
//! begin with `kevtmon`. One attribute has the whole event, as JSON.

use jiff::Timestamp;
use kevtmon_event::{Actor, Incident, Pod, Severity, SharedEvent, Target};
use kevtmon_types::build_info::VERSION;
use kevtmon_types::escape::Escaped;
use prost::Message as _;

use super::proto::{
    AnyValue, ExportLogsServiceRequest, InstrumentationScope, KeyValue, LogRecord, Resource, ResourceLogs,
    ScopeLogs,
};

/// Name of the service, and of what makes the records.
const SERVICE: &str = "kevtmon";
/// Of an event as JSON, with which a record stays below the limits of servers, such as Loki's 64 KiB.
const EVENT_BYTES: usize = 32 << 10;

/// The request that sends these records, which are encoded already.
pub(super) fn request<'a>(node: &str, boot_id: &str, records: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut resource = Attributes::default();
    resource.known("service.name", Some(SERVICE));
    resource.known("service.version", Some(VERSION));
    resource.known("host.name", Some(node));
    resource.known("k8s.node.name", Some(node));
    resource.known("kevtmon.boot_id", Some(boot_id));
    let logs = ScopeLogs {
        scope: Some(InstrumentationScope { name: SERVICE.to_owned(), version: VERSION.to_owned() }),
        log_records: records.map(<[u8]>::to_vec).collect(),
    };
    let resource = Resource { attributes: resource.0 };
    let of_node = ResourceLogs { resource: Some(resource), scope_logs: vec![logs] };
    ExportLogsServiceRequest { resource_logs: vec![of_node] }.encode_to_vec()
}

/// The record of an event, which this sink got at a moment.
pub(super) fn of(event: &SharedEvent, got: Timestamp) -> LogRecord {
    let mut attributes = Attributes::default();
    attributes.number("kevtmon.seq", event.seq);
    if let Some(incident) = event.incident.as_deref() {
        attributes.incident(incident);
    }
    if let Some(target) = event.target.as_deref() {
        attributes.target(target);
    }
    if let Some(actor) = event.actor.as_deref() {
        attributes.actor(actor);
    }
    attributes.known("kevtmon.rbd.image", event.rbd.as_ref().map(|rbd| rbd.spec()).as_deref());
    let line = event.line();
    if line.len() <= EVENT_BYTES {
        attributes.0.push(KeyValue::text("kevtmon.event", line.as_ref().to_owned()));
    }
    LogRecord {
        time_unix_nano: event.time.parse::<Timestamp>().map_or(0, nanoseconds),
        severity_number: severity_number(event.severity),
        severity_text: event.severity.name().to_owned(),
        body: Some(AnyValue::text(Escaped(&event.message).to_string())),
        attributes: attributes.0,
        observed_time_unix_nano: nanoseconds(got),
        event_name: event.kind.name().to_owned(),
    }
}

fn nanoseconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_nanosecond()).unwrap_or(0)
}

/// DEBUG, INFO, INFO2, WARN and ERROR: FATAL would be a program that ends.
fn severity_number(severity: Severity) -> i32 {
    match severity {
        Severity::Debug => 5,
        Severity::Info => 9,
        Severity::Notice => 10,
        Severity::Warning => 13,
        Severity::Critical => 17,
    }
}

#[derive(Default)]
struct Attributes(Vec<KeyValue>);

impl Attributes {
    fn incident(&mut self, incident: &Incident) {
        self.known("kevtmon.incident.id", Some(&incident.id));
        self.known("kevtmon.incident.kind", Some(&incident.kind));
        self.known("kevtmon.incident.severity", Some(incident.severity.name()));
        self.known("kevtmon.incident.confidence", Some(incident.confidence.name()));
        self.number("kevtmon.incident.count", incident.count);
    }

    /// Who is affected. A pod that only a label claims is none.
    fn target(&mut self, target: &Target) {
        if let Some(pod) = target.confirmed_pod() {
            self.known("k8s.pod.uid", Some(&pod.uid));
            self.known("k8s.pod.name", pod.name.as_deref());
            self.known("k8s.namespace.name", pod.namespace.as_deref());
        }
        self.known("container.id", target.container.as_ref().map(|container| container.id.as_str()));
    }

    /// Who did it.
    fn actor(&mut self, actor: &Actor) {
        self.number("process.pid", actor.pid.into());
        self.known("process.executable.path", actor.exe.as_deref());
        self.known("process.command_line", actor.cmdline.as_deref());
        self.known("kevtmon.actor.comm", Some(&actor.comm));
        self.known("kevtmon.actor.confidence", Some(actor.confidence.name()));
        let container = actor.container.as_ref().map(|container| container.id.as_str());
        self.known("kevtmon.actor.container.id", container);
        if let Some(pod) = Pod::confirmed(actor.pod.as_ref()) {
            self.known("kevtmon.actor.k8s.pod.uid", Some(&pod.uid));
            self.known("kevtmon.actor.k8s.pod.name", pod.name.as_deref());
            self.known("kevtmon.actor.k8s.namespace.name", pod.namespace.as_deref());
        }
    }

    /// What others may have chosen: nothing in it controls a terminal.
    fn known(&mut self, key: &str, value: Option<&str>) {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.0.push(KeyValue::text(key, Escaped(value).to_string()));
        }
    }

    fn number(&mut self, key: &str, value: u64) {
        self.0.push(KeyValue::number(key, i64::try_from(value).unwrap_or(i64::MAX)));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use kevtmon_event::{Event, Kind, Shared};
    use kevtmon_testing::{numbered, sample};

    use super::*;
    use crate::sinks::otlp::proto::Value;

    /// The values of attributes by their names, numbers as text.
    pub(in crate::sinks::otlp) fn values(attributes: &[KeyValue]) -> BTreeMap<String, String> {
        let values = attributes.iter().map(|attribute| {
            let value = match attribute.value.clone().unwrap().value.unwrap() {
                Value::Text(text) => text,
                Value::Number(number) => number.to_string(),
            };
            (attribute.key.clone(), value)
        });
        let values: BTreeMap<_, _> = values.collect();
        assert_eq!(values.len(), attributes.len(), "each comes once");
        values
    }

    fn record(event: Event) -> (LogRecord, BTreeMap<String, String>) {
        let record = of(&event.into(), Timestamp::UNIX_EPOCH);
        let values = values(&record.attributes);
        (record, values)
    }

    #[test]
    fn a_record_has_the_name_time_and_severity_of_its_event() {
        let event = sample::deletion();
        let (record, _) = record(event.clone());
        assert_eq!(record.event_name, "neighbor.deleted");
        assert_eq!(record.body, Some(AnyValue::text(event.message.clone())));
        assert_eq!((record.severity_number, record.severity_text.as_str()), (13, "warning"));
        assert_eq!(record.observed_time_unix_nano, 0);
        let time: Timestamp = event.time.parse().unwrap();
        assert_eq!(i128::from(record.time_unix_nano), time.as_nanosecond());
        assert_eq!(record.time_unix_nano % 1_000_000_000, 678_901_234);
    }

    #[test]
    fn attributes_say_who_is_affected_and_who_did_it() {
        let mut event = sample::deletion();
        let pod = Pod { name: Some("calico-node-x7k2p".into()), uid: "9".into(), ..Pod::default() };
        event.actor.as_mut().unwrap().pod = Some(pod);
        let (_, values) = record(event.clone());
        let actor = event.actor.clone().unwrap();
        for (name, value) in [
            ("kevtmon.seq", "42"),
            ("k8s.pod.uid", "3f0f6a0e-2f6a-4d4e-9d1f-1f2f3f4f5f6f"),
            ("k8s.pod.name", "etcd1-0"),
            ("k8s.namespace.name", "lijiaob"),
            ("process.pid", &actor.pid.to_string()),
            ("process.executable.path", actor.exe.as_deref().unwrap()),
            ("kevtmon.actor.comm", &actor.comm),
            ("kevtmon.actor.k8s.pod.uid", "9"),
            ("kevtmon.actor.k8s.pod.name", "calico-node-x7k2p"),
        ] {
            assert_eq!(values.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert_eq!(values.get("process.command_line"), actor.cmdline.as_ref());
        let line = SharedEvent::from(event).line().as_ref().to_owned();
        assert_eq!(values.get("kevtmon.event"), Some(&line));
    }

    #[test]
    fn a_pod_that_is_only_claimed_is_in_the_event_alone() {
        let mut event = sample::deletion();
        event.target.as_mut().unwrap().pod.as_mut().unwrap().claimed = true;
        let (_, values) = record(event);
        assert!(!values.keys().any(|name| name.starts_with("k8s.")), "{values:?}");
        assert!(values["kevtmon.event"].contains("etcd1-0"));
    }

    #[test]
    fn an_incident_can_be_found_by_what_it_is() {
        let mut incident = numbered::incident("00000000000000a1", 7);
        incident.count = 3;
        let event = Event {
            kind: Kind::IncidentOpened,
            incident: Some(Box::new(incident.clone())),
            ..sample::deletion()
        };
        let (record, values) = record(event);
        assert_eq!(record.event_name, "incident.opened");
        for (name, value) in [
            ("kevtmon.incident.id", "00000000000000a1"),
            ("kevtmon.incident.kind", incident.kind.as_str()),
            ("kevtmon.incident.severity", incident.severity.name()),
            ("kevtmon.incident.confidence", incident.confidence.name()),
            ("kevtmon.incident.count", "3"),
        ] {
            assert_eq!(values.get(name).map(String::as_str), Some(value), "{name}");
        }
    }

    #[test]
    fn nothing_in_a_record_controls_a_terminal() {
        let mut event = sample::deletion();
        event.message = "gone\n\x1b[2J".into();
        let mut actor = event.actor.take().unwrap().into_inner();
        actor.exe = Some("/tmp/\x1b[2J".into());
        event.actor = Some(Shared::new(actor));
        let (record, values) = record(event);
        assert_eq!(record.body, Some(AnyValue::text("gone\\n\\x1b[2J".into())));
        assert_eq!(values["process.executable.path"], "/tmp/\\x1b[2J");
    }

    #[test]
    fn every_event_is_a_record_that_reads_back() {
        for event in sample::all() {
            let written = of(&event.into(), Timestamp::UNIX_EPOCH);
            let request = request("node", "b", [written.encode_to_vec().as_slice()].into_iter());
            let read = ExportLogsServiceRequest::decode(request.as_slice()).unwrap();
            let [of_node] = read.resource_logs.as_slice() else { panic!("{read:?}") };
            let resource = values(&of_node.resource.as_ref().unwrap().attributes);
            assert_eq!((&*resource["service.name"], &*resource["host.name"]), ("kevtmon", "node"));
            assert_eq!(resource["kevtmon.boot_id"], "b");
            let records = &of_node.scope_logs[0].log_records;
            assert_eq!(LogRecord::decode(records[0].as_slice()).unwrap(), written);
        }
    }
}
