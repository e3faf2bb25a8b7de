//! Events as OpenTelemetry logs: what a server gets of a daemon that has given up its privileges.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use flate2::read::GzDecoder;
use kevtmon_tests::daemon::launch;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::patience::patience;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::pod_sandbox::PodSandbox;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use prost::Message as _;
use serde_json::Value as Json;

const TAKEN: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

fn text(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        _ => String::new(),
    }
}

fn attribute(attributes: &[KeyValue], key: &str) -> String {
    text(attributes.iter().find(|attribute| attribute.key == key).and_then(|it| it.value.as_ref()))
}

/// Of one request: its head, and what it sends.
type Sent = (Vec<String>, ExportLogsServiceRequest);

fn answer(stream: TcpStream, requests: &mpsc::SyncSender<Sent>) -> io::Result<()> {
    stream.set_read_timeout(Some(patience()))?;
    let mut stream = BufReader::new(stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        match line.trim() {
            "" => break,
            line => head.push(line.to_owned()),
        }
    }
    let length = head.iter().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or_default();
    let mut body = vec![0; length.parse().map_err(io::Error::other)?];
    stream.read_exact(&mut body)?;
    stream.get_mut().write_all(TAKEN.as_bytes())?;
    let mut message = Vec::new();
    GzDecoder::new(&body[..]).read_to_end(&mut message)?;
    let request = ExportLogsServiceRequest::decode(&message[..]).map_err(io::Error::other)?;
    requests.send((head, request)).map_err(io::Error::other)
}

#[test]
fn an_incident_is_a_log_record_with_its_pod_and_its_culprit() {
    let scratch = Scratch::without_mounts();
    let headers_file = scratch.path().join("headers");
    std::fs::write(&headers_file, "authorization: Bearer secret\n").expect("a file can be written");
    // By a name, which is looked up within the filter of system calls.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let (requests, seen) = mpsc::sync_channel(256);
    // It ends with the first request that nobody waits for.
    thread::spawn(move || {
        let answered = |stream: io::Result<TcpStream>| answer(stream?, &requests);
        listener.incoming().map(answered).all(|answered| answered.is_ok())
    });
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch()
        .config(&format!("[otlp]\nendpoint = \"http://localhost:{port}\"\nheaders_file = {headers_file:?}\n"))
        .start();
    daemon.wait_for_gateway(pod.inum(), GATEWAY);

    let _ = pod.delete_gateway();
    let opened = daemon.wait_for("the incident", |event| {
        event.is_incident("incident.opened", "gateway-neighbor-lost") && event.is_in(pod.inum())
    });
    let id = opened.text("/incident/id");
    // Pods of other tests have incidents, too.
    let (head, resource, record) = loop {
        let (head, request) = seen.recv_timeout(patience()).expect("the incident is sent");
        let found = request.resource_logs.into_iter().find_map(|logs| {
            let mut records = logs.scope_logs.into_iter().flat_map(|it| it.log_records);
            let record = records.find(|record| {
                record.event_name == "incident.opened"
                    && attribute(&record.attributes, "kevtmon.incident.id") == id
            })?;
            Some((logs.resource.unwrap_or_default(), record))
        });
        if let Some((resource, record)) = found {
            break (head, resource, record);
        }
    };

    assert_eq!(head[0], "POST /v1/logs HTTP/1.1");
    assert!(head.iter().any(|line| line == "authorization: Bearer secret"), "{head:?}");
    assert_eq!(attribute(&resource.attributes, "service.name"), "kevtmon");
    assert_eq!(attribute(&resource.attributes, "k8s.node.name"), opened.text("/node"));
    assert_eq!(text(record.body.as_ref()), opened.text("/message"));
    assert_eq!(attribute(&record.attributes, "kevtmon.incident.kind"), "gateway-neighbor-lost");
    assert!([13, 17].contains(&record.severity_number), "{record:?}");
    assert!(record.time_unix_nano > 1_700_000_000_000_000_000, "{record:?}");
    assert!(!attribute(&record.attributes, "process.pid").is_empty(), "{record:?}");
    let event: Json = serde_json::from_str(&attribute(&record.attributes, "kevtmon.event")).expect("JSON");
    assert_eq!(event["seq"].to_string(), attribute(&record.attributes, "kevtmon.seq"));
    assert!(text(record.body.as_ref()).contains(sandbox.uid()), "{record:?}");
    assert!(!daemon.log().contains("secret"), "{}", daemon.log());
}
