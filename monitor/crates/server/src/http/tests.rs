//! Clients that say nothing, little or too much, and the places that they get.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::Instant;

use hyper::StatusCode;
use tokio::sync::Semaphore;

use super::*;
use crate::web_config::{WebListener, WebStream};

/// Enough on any machine; what is awaited comes in milliseconds.
const LONG: Duration = Duration::from_secs(60);
const NEVER: Patience = Patience { usual: Duration::from_secs(3600), scarce: Duration::from_secs(3600) };

/// Answers `/wait` when it is released, all else at once.
struct Answers {
    entered: Mutex<mpsc::SyncSender<()>>,
    release: Arc<Semaphore>,
}

impl Handler for Answers {
    type Stream = WebStream;
    type Peer = ();

    fn identify(&self, _stream: &Self::Stream) -> Result<(), String> {
        Ok(())
    }

    async fn handle(&self, request: &Request<Incoming>, (): &(), _connection: &Arc<Connection>) -> Response {
        if request.uri().path() == "/wait" {
            self.entered.lock().unwrap().send(()).unwrap();
            self.release.acquire().await.unwrap().forget();
        }
        text(StatusCode::OK, "answer")
    }
}

struct Rig {
    addresses: Vec<SocketAddr>,
    entered: mpsc::Receiver<()>,
    release: Arc<Semaphore>,
    _server: Server,
}

impl Rig {
    fn new(listeners: usize, connections: usize, patience: Patience) -> Self {
        let listeners: Vec<TcpListener> = (0..listeners)
            .map(|_| {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                listener.set_nonblocking(true).unwrap();
                listener
            })
            .collect();
        let addresses = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
        let (entering, entered) = mpsc::sync_channel(64);
        let release = Arc::new(Semaphore::new(0));
        let handler = Answers { entered: Mutex::new(entering), release: Arc::clone(&release) };
        let limits = Limits {
            connections,
            patience,
            connection: CONNECTION_TIME,
            blocking_threads: 1,
            shutdown: Duration::ZERO,
            capabilities: &[],
        };
        let listeners = move || {
            listeners
                .into_iter()
                .map(|listener| WebListener::new(listener, None))
                .collect::<io::Result<Vec<_>>>()
        };
        Self {
            addresses,
            entered,
            release,
            _server: Server::start("test", listeners, limits, handler).unwrap(),
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.addresses[0]).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream
    }

    fn send(&self, path: &str) -> TcpStream {
        let mut stream = self.connect();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        stream
    }
}

fn answer(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[track_caller]
fn expect_answer(stream: TcpStream) {
    let answer = answer(stream);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("answer\n"), "{answer}");
}

fn is_open(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    (&*stream).read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

#[test]
fn the_oldest_idle_connections_are_closed_for_new_ones() {
    let rig = Rig::new(1, 4, NEVER);
    let idle: Vec<TcpStream> = (0..12).map(|_| rig.connect()).collect();
    expect_answer(rig.send("/"));
    let (closed, open) = idle.split_at(9);
    for stream in closed {
        assert_eq!((&*stream).read(&mut [0]).unwrap(), 0);
    }
    assert!(open.iter().all(is_open), "a place was needed for the request only");
}

#[test]
fn clients_that_send_their_requests_at_once_are_all_answered() {
    let rig = Rig::new(1, 4, NEVER);
    let _idle: Vec<TcpStream> = (0..8).map(|_| rig.connect()).collect();
    let asking: Vec<TcpStream> = (0..64).map(|_| rig.send("/")).collect();
    asking.into_iter().for_each(expect_answer);
}

#[test]
fn what_is_being_answered_is_not_closed_for_others() {
    let rig = Rig::new(1, 2, NEVER);
    let waiting: Vec<TcpStream> = (0..2).map(|_| rig.send("/wait")).collect();
    for _ in &waiting {
        rig.entered.recv_timeout(LONG).unwrap();
    }
    let late = rig.send("/");
    assert!(waiting.iter().all(is_open));
    rig.release.add_permits(waiting.len());
    expect_answer(late);
    for stream in waiting {
        stream.set_nonblocking(false).unwrap();
        expect_answer(stream);
    }
}

#[test]
fn a_listener_without_clients_takes_no_place_from_another() {
    let rig = Rig::new(2, 1, NEVER);
    for address in rig.addresses.iter().rev().cycle().take(6) {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        expect_answer(stream);
    }
}

#[test]
fn a_client_that_never_completes_its_request_is_disconnected() {
    let rig =
        Rig::new(1, 8, Patience { usual: Duration::from_millis(100), scarce: Duration::from_millis(20) });
    let mut slow = rig.connect();
    slow.write_all(b"GET / HTTP/1.1\r\nX: ").unwrap();
    // Each further byte would prolong a limit on silence.
    slow.set_nonblocking(true).unwrap();
    let begin = Instant::now();
    while is_open(&slow) {
        assert!(begin.elapsed() < LONG, "it is still connected");
        let _ = slow.write(b"y");
        thread::park_timeout(Duration::from_millis(1));
    }
}

#[test]
fn while_places_are_scarce_a_request_has_to_arrive_sooner() {
    let scarce = Duration::from_millis(50);
    let rig = Rig::new(1, 8, Patience { usual: NEVER.usual, scarce });
    let slow: Vec<TcpStream> = (0..6)
        .map(|_| {
            let mut stream = rig.connect();
            stream.write_all(b"GET / HTTP/1.1\r\nX: ").unwrap();
            stream
        })
        .collect();
    // Half of the places are enough for those who are slow.
    for stream in &slow[..2] {
        assert_eq!((&*stream).read(&mut [0]).unwrap(), 0);
    }
    assert!(slow[2..].iter().all(is_open));
    expect_answer(rig.send("/"));
}
