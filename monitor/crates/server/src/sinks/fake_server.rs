//! A server on the loopback, by TLS or without, that answers as it is told to.

use std::collections::VecDeque;
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};

use kevtmon_testing::patience::PATIENCE;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned, crypto};

pub(super) const CA: &str = include_str!("kubernetes/tests/ca.pem");
pub(super) const OTHER_CA: &str = include_str!("kubernetes/tests/other-ca.pem");
const CERTIFICATE: &str = include_str!("kubernetes/tests/server.pem");
const KEY: &str = include_str!("kubernetes/tests/server.key");

/// A request, as the server has read it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Request {
    /// Its first line and its headers.
    head: Vec<String>,
    pub(super) body: Vec<u8>,
}

impl Request {
    pub(super) fn line(&self) -> &str {
        self.head.first().map_or("", String::as_str)
    }

    /// The value of a header, whose name is in small letters; empty if there is none.
    pub(super) fn header(&self, name: &str) -> &str {
        let mut values = self.head.iter().filter_map(|line| line.split_once(": "));
        values.find(|(header, _)| *header == name).map_or("", |(_, value)| value)
    }
}

/// What it answers with next.
pub(super) type Answers = Arc<Mutex<VecDeque<&'static str>>>;

/// What a server has, and what it is asked.
#[derive(Clone)]
pub(super) struct Script {
    pub(super) answers: Answers,
    /// Where nothing is left of them.
    pub(super) otherwise: &'static str,
    pub(super) seen: mpsc::SyncSender<Request>,
    pub(super) is_tls: bool,
}

pub(super) struct FakeServer {
    pub(super) address: SocketAddr,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FakeServer {
    pub(super) fn start(address: SocketAddr, script: Script) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ends);
        let tls = script.is_tls.then(tls);
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if is_over.load(Ordering::Acquire) {
                    return;
                }
                let stream = stream.unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                // A client that does not trust it hangs up.
                let _ = match &tls {
                    Some(tls) => serve_by_tls(stream, tls, &script),
                    None => serve(stream, &script).map(drop),
                };
            }
        });
        Self { address, ends, thread: Some(thread) }
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        // Wakes it up.
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn tls() -> Arc<ServerConfig> {
    let certificate = CertificateDer::from_pem_slice(CERTIFICATE.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(KEY.as_bytes()).unwrap();
    let builder = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    Arc::new(builder.with_single_cert(vec![certificate], key).unwrap())
}

fn serve_by_tls(stream: TcpStream, tls: &Arc<ServerConfig>, script: &Script) -> io::Result<()> {
    let connection = ServerConnection::new(Arc::clone(tls)).map_err(io::Error::other)?;
    let mut stream = serve(StreamOwned::new(connection, stream), script)?;
    stream.conn.send_close_notify();
    stream.flush()
}

fn serve<S: Read + Write>(mut stream: S, script: &Script) -> io::Result<S> {
    let mut reader = BufReader::new(&mut stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        head.push(line.trim().to_owned());
    }
    let mut request = Request { head, body: Vec::new() };
    let length: usize = request.header("content-length").parse().map_err(io::Error::other)?;
    request.body.resize(length, 0);
    reader.read_exact(&mut request.body)?;
    // It is in the queue of requests before the sink goes on.
    let _ = script.seen.send(request);
    let answer = script.answers.lock().unwrap().pop_front().unwrap_or(script.otherwise);
    stream.write_all(answer.as_bytes())?;
    stream.flush()?;
    Ok(stream)
}
