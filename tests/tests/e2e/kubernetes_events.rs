//! Incidents as Events of Kubernetes: what a server by TLS gets of a daemon that has given up its privileges.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::thread;

use kevtmon_tests::certificate::Certificate;
use kevtmon_tests::daemon::{launch, own_address};
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::patience::patience;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::pod_sandbox::PodSandbox;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;

const CREATED: &str = "HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\n{}";

/// A request: its first line, its token and its body.
type Request = (String, String, Value);

fn tls(certificate: &Certificate) -> Arc<ServerConfig> {
    let chain = vec![CertificateDer::from_pem_file(&certificate.certificate).expect("a certificate")];
    let key = PrivateKeyDer::from_pem_file(&certificate.key).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.expect("versions of TLS").with_no_client_auth();
    Arc::new(builder.with_single_cert(chain, key).expect("they fit"))
}

fn answer(stream: TcpStream, tls: Arc<ServerConfig>, requests: &mpsc::SyncSender<Request>) -> io::Result<()> {
    stream.set_read_timeout(Some(patience()))?;
    let connection = ServerConnection::new(tls).map_err(io::Error::other)?;
    let mut stream = BufReader::new(StreamOwned::new(connection, stream));
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        match line.trim() {
            "" => break,
            line => head.push(line.to_owned()),
        }
    }
    let header = |name: &str| {
        let of_it = |line: &String| Some(line.split_once(": ").filter(|it| it.0 == name)?.1.to_owned());
        head.iter().find_map(of_it).unwrap_or_default()
    };
    let mut body = vec![0; header("content-length").parse().map_err(io::Error::other)?];
    stream.read_exact(&mut body)?;
    let stream = stream.get_mut();
    stream.write_all(CREATED.as_bytes())?;
    stream.conn.send_close_notify();
    stream.flush()?;
    let request = (head[0].clone(), header("authorization"), serde_json::from_slice(&body)?);
    requests.send(request).map_err(io::Error::other)
}

#[test]
fn an_incident_is_an_event_when_it_opens_and_another_when_it_closes() {
    let scratch = Scratch::without_mounts();
    let address = own_address();
    let certificate = Certificate::server(scratch.path(), "api", address);
    let token_file = scratch.path().join("token");
    std::fs::write(&token_file, "secret\n").expect("a file can be written");
    let (listener, tls) = (TcpListener::bind(address).expect("a free address"), tls(&certificate));
    let (requests, seen) = mpsc::sync_channel(256);
    // It ends with the first request that nobody waits for.
    thread::spawn(move || {
        let answered = |stream: io::Result<TcpStream>| answer(stream?, Arc::clone(&tls), &requests);
        listener.incoming().map(answered).all(|answered| answered.is_ok())
    });
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch()
        .config(&format!(
            "[kubernetes]\nevents = true\nserver = \"https://{address}\"\ntoken_file = {token_file:?}\n\
             ca_file = {:?}\n",
            certificate.certificate,
        ))
        .start();
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    // Pods of other tests have incidents, too.
    let written = |kind: &str| loop {
        let request = seen.recv_timeout(patience()).unwrap_or_else(|_| panic!("{kind} is written"));
        let note = request.2["note"].as_str().unwrap_or_default();
        if note.contains(sandbox.uid()) && request.2["type"] == kind {
            break request;
        }
    };

    let _ = pod.delete_gateway();
    let opened = daemon.wait_for("the incident", |event| {
        event.is_incident("incident.opened", "gateway-neighbor-lost") && event.is_in(pod.inum())
    });
    let (line, token, event) = written("Warning");
    assert_eq!(line, "POST /apis/events.k8s.io/v1/namespaces/default/events HTTP/1.1");
    assert_eq!(token, "Bearer secret");
    assert_eq!(event["reason"], "GatewayNeighborLost");
    let note = event["note"].as_str().expect("a note");
    assert!(note.starts_with(opened.text("/incident/summary")), "{note}");
    // Only by what is in its cgroup, which is no proof of a name.
    let node = opened.text("/node");
    assert_eq!((&event["regarding"]["kind"], &event["regarding"]["name"]), (&"Node".into(), &node.into()));

    pod.set_gateway();
    let (_, _, event) = written("Normal");
    assert_eq!((&event["reason"], &event["action"]), (&"GatewayNeighborLost".into(), &"Resolved".into()));
}
