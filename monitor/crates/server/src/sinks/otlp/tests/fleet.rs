//! The queries of docs/fleet.md over what a receiver gets from fifty nodes: recordings that were replayed. It decodes with the official
//! protobuf package, and SQLite stands for ClickHouse, with the table that the Collector makes there.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::iter::repeat_n;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::read::GzDecoder;
use jiff::{SignedDuration, Timestamp};
use kevtmon_event::{Event, Kind, Severity, SharedEvent};
use kevtmon_testing::patience::PATIENCE;
use kevtmon_types::settings::Values;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use prost::Message as _;
use rusqlite::{Connection, Row, params, types};

use super::{AT_ONCE, Rig};
use crate::sinks::Sinks;
use crate::sinks::fake_server::Request;
use crate::sinks::otlp::record::tests::values;
use crate::sinks::otlp::{ENDPOINT, MIN_SEVERITY, Timing, open, proto, record};

const PAGE: &str = include_str!("../../../../../../../docs/fleet.md");
/// In the pool `kube`, of all recordings.
const IMAGE: &str = "index-api-image";
/// Text for dates and maps: the first compare as they are written, the others are JSON.
const TABLE: &str = "CREATE TABLE otel_logs (
    Timestamp TEXT, SeverityText TEXT, SeverityNumber INTEGER, ServiceName TEXT, Body TEXT,
    ResourceAttributes TEXT, LogAttributes TEXT, EventName TEXT
)";

/// A name, and what happens there.
type Node = (String, Vec<Event>);

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures")
}

/// What a recording leads to until something happens, of an image with another name.
fn events(recording: &str, image: &str, end: Option<Kind>) -> Vec<Event> {
    let text = fs::read_to_string(fixtures().join(format!("{recording}.golden"))).unwrap();
    let lines = text.lines().map(str::trim).filter(|line| line.starts_with("{\"schema\""));
    let events = lines.map(|line| serde_json::from_str::<Event>(&line.replace(IMAGE, image)).unwrap());
    events.take_while(|event| Some(event.kind) != end).collect()
}

fn later(mut events: Vec<Event>, minutes: i64) -> Vec<Event> {
    for event in &mut events {
        let time: Timestamp = event.time.parse().unwrap();
        event.time = format!("{:.9}", time + SignedDuration::from_mins(minutes));
    }
    events
}

fn fleet() -> Vec<Node> {
    let whole = |recording| events(recording, IMAGE, None);
    let mapped = |image| events("rbd-orphan-mapping", image, Some(Kind::RbdUnmapped));
    let locked = |image| events("rbd-lock-left", image, Some(Kind::IncidentClosed));
    let refused = |image| events("rbd-locked-elsewhere", image, Some(Kind::RbdMapped));
    let mut nodes = vec![
        mapped(IMAGE),
        refused(IMAGE),
        locked(IMAGE),
        // It has given the image back.
        whole("rbd-orphan-mapping"),
        // The day before.
        later(locked(IMAGE), -24 * 60),
        // Another image, which is not refused any more.
        locked("other-image"),
        events("rbd-locked-elsewhere", "other-image", None),
        // Nobody else has this one.
        [locked("third-image"), refused("third-image")].concat(),
    ];
    // A roll-out, and another cause of the same.
    nodes.extend((0..20).map(|minutes| later(whole("gateway-neighbor-lost"), minutes)));
    nodes.extend(repeat_n(whole("stale-cni-del"), 3));
    nodes.push(whole("forwarding-off"));
    // In the hour after that.
    nodes.extend(repeat_n(whole("volume-busy"), 12));
    // Without an incident.
    nodes.extend(repeat_n(whole("graceful-deletion"), 6));
    let named = |(index, events): (usize, Vec<Event>)| (format!("node-{:02}", index + 1), events);
    nodes.into_iter().enumerate().map(named).collect()
}

/// Each recording as a node, by its name.
fn recordings() -> Vec<Node> {
    let paths = fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().path());
    let goldens = paths.filter(|path| path.extension().is_some_and(|suffix| suffix == "golden"));
    let node = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let events = events(&name, IMAGE, None);
        (name, events)
    };
    goldens.map(node).collect()
}

fn on(node: &str, event: &Event) -> SharedEvent {
    Event { node: node.to_owned(), ..event.clone() }.into()
}

/// What the receiver gets of nodes that have a sink each, all at the same time.
fn received(nodes: &[Node]) -> Vec<ExportLogsServiceRequest> {
    let rig = Rig::new(&[]);
    let mut settings = Values::default();
    settings.set(&ENDPOINT, format!("http://{}", rig.server.as_ref().unwrap().address));
    settings.set(&MIN_SEVERITY, Severity::Debug);
    // Nothing is sent before the end: the rig keeps few requests.
    let timing = Timing { linger: PATIENCE * 100, ..AT_ONCE };
    let start = |(name, events): &Node| {
        let mut sinks = Sinks::default();
        sinks.add(open(&rig.context(&settings), timing).unwrap().queue);
        events.iter().for_each(|event| sinks.offer(&Arc::new(on(name, event))));
        sinks
    };
    let mut requests = Vec::new();
    for sinks in nodes.iter().map(start).collect::<Vec<Sinks>>() {
        sinks.finish(PATIENCE);
        requests.extend(rig.requests.try_iter().map(|request| decoded(&request)));
    }
    requests
}

fn decoded(request: &Request) -> ExportLogsServiceRequest {
    let mut message = Vec::new();
    GzDecoder::new(&request.body[..]).read_to_end(&mut message).unwrap();
    let decoded = ExportLogsServiceRequest::decode(&message[..]).unwrap();
    assert!(decoded.encode_to_vec() == message, "nothing is sent that the official package does not know");
    decoded
}

/// Each record, after the attributes of its resource.
fn records(requests: &[ExportLogsServiceRequest]) -> Vec<(BTreeMap<String, String>, &LogRecord)> {
    let mut records = Vec::new();
    for logs in requests.iter().flat_map(|request| &request.resource_logs) {
        let resource = attributes(&logs.resource.as_ref().unwrap().attributes);
        let of_node = logs.scope_logs.iter().flat_map(|logs| &logs.log_records);
        records.extend(of_node.map(|record| (resource.clone(), record)));
    }
    records
}

/// The values are text in ClickHouse.
fn attributes(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    attributes.iter().map(|it| (it.key.clone(), text(it.value.as_ref()))).collect()
}

fn text(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    }
}

fn table(requests: &[ExportLogsServiceRequest]) -> Connection {
    let table = Connection::open_in_memory().unwrap();
    table.execute_batch(TABLE).unwrap();
    let json = |map: &BTreeMap<String, String>| serde_json::to_string(map).unwrap();
    let mut insert = table.prepare("INSERT INTO otel_logs VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)").unwrap();
    for (resource, record) in records(requests) {
        let time = Timestamp::from_nanosecond(record.time_unix_nano.into()).unwrap();
        insert
            .execute(params![
                format!("{time:.9}").replace('T', " ").replace('Z', ""),
                record.severity_text,
                record.severity_number,
                resource["service.name"],
                text(record.body.as_ref()),
                json(&resource),
                json(&attributes(&record.attributes)),
                record.event_name,
            ])
            .unwrap();
    }
    drop(insert);
    table
}

fn queries() -> Vec<&'static str> {
    PAGE.split("```sql\n").skip(1).map(|rest| rest.split_once("```").unwrap().0).collect()
}

/// All that differs: `LogAttributes['key']` reads a map in ClickHouse, where a value that is not there is empty.
fn for_sqlite(query: &str) -> String {
    let mut query = query.to_owned();
    for column in ["ResourceAttributes", "LogAttributes"] {
        let access = format!("{column}['");
        let mut parts = query.split(access.as_str());
        let mut replaced = parts.next().unwrap().to_owned();
        for part in parts {
            let (key, rest) = part.split_once("']").unwrap();
            write!(replaced, "coalesce({column} ->> '$.\"{key}\"', ''){rest}").unwrap();
        }
        query = replaced;
    }
    query
}

fn rows(table: &Connection, query: &str) -> Vec<Vec<String>> {
    let mut statement = table.prepare(&for_sqlite(query)).unwrap();
    let columns = statement.column_count();
    let shown = |value: types::Value| match value {
        types::Value::Text(text) => text,
        types::Value::Integer(number) => number.to_string(),
        other => panic!("{other:?}"),
    };
    let cells = |row: &Row<'_>| {
        let cells = (0..columns).map(|column| row.get(column).map(shown));
        cells.collect::<rusqlite::Result<Vec<String>>>()
    };
    let rows = statement.query_map([], cells).unwrap();
    rows.map(Result::unwrap).collect()
}

/// The last message of this kind.
fn said((_, events): &Node, kind: Kind) -> &str {
    &events.iter().rfind(|event| event.kind == kind).unwrap().message
}

#[test]
fn the_queries_find_what_no_node_sees_alone() {
    let nodes = fleet();
    assert_eq!(nodes.len(), 50);
    let requests = received(&nodes);
    // All answers were lost: each record came twice.
    let table = table(&[requests.clone(), requests].concat());
    let queries = queries();
    let [images, kinds, programs] = queries[..] else { panic!("{queries:?}") };
    let image = "kube/index-api-image";
    assert_eq!(
        rows(&table, images),
        [
            [image, "node-02", "node-01", said(&nodes[0], Kind::IncidentUpdated)],
            [image, "node-02", "node-01", said(&nodes[0], Kind::RbdMapped)],
            [image, "node-02", "node-03", said(&nodes[2], Kind::IncidentOpened)],
        ]
    );
    let (first, last) = ("2018-06-12 20:19:41.010000000", "2018-06-12 20:41:24.310020000");
    assert_eq!(rows(&table, kinds), [["gateway-neighbor-lost", "24", first, last, "2", "lijiaob"]]);
    assert_eq!(rows(&table, programs), [["/opt/cni/bin/calico", "calico", "23", "3"]]);
}

#[test]
fn the_official_package_reads_each_record_as_it_was_sent() {
    let nodes = recordings();
    assert!(nodes.len() > 30, "{} recordings", nodes.len());
    let requests = received(&nodes);
    let mut by_node: BTreeMap<String, Vec<&LogRecord>> = BTreeMap::new();
    for (resource, record) in records(&requests) {
        assert_eq!(resource["service.name"], "kevtmon");
        by_node.entry(resource["k8s.node.name"].clone()).or_default().push(record);
    }
    for (name, events) in &nodes {
        let records = &by_node[name];
        assert_eq!(records.len(), events.len(), "{name}");
        for (read, event) in records.iter().zip(events) {
            let sent = record::of(&on(name, event), Timestamp::UNIX_EPOCH);
            assert_eq!(read.event_name, sent.event_name);
            assert_eq!(read.time_unix_nano, sent.time_unix_nano);
            assert_eq!(read.severity_number, sent.severity_number);
            assert_eq!(read.severity_text, sent.severity_text);
            assert_eq!(Some(proto::AnyValue::text(text(read.body.as_ref()))), sent.body);
            assert_eq!(attributes(&read.attributes), values(&sent.attributes));
            assert_ne!(read.observed_time_unix_nano, 0);
        }
    }
}
