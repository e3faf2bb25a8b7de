//! A real socket, a memory, and a core that is a thread, for tests.
#![allow(dead_code, reason = "each crate uses a part")]

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use kevtmon_core::state::NodeState;
use kevtmon_core::{Core, Resume};
use kevtmon_event::Event;
use kevtmon_history::query::history::LiveHistory;
use kevtmon_metrics::Metrics;
use kevtmon_server::client::Remote;
use kevtmon_server::sinks::api::{Identity, Memory, Server, questions};
use kevtmon_sources::procfs::own::Own;
use kevtmon_testing::numbered;
use kevtmon_testing::patience::PATIENCE;
use kevtmon_types::settings::{Cmdline, EventRate, Settings};
use tempfile::TempDir;

pub const BOOT: &str = "5a3c6b5e-0d0f-4d5c-9c58-0f2b6a1f7c11";

/// What the core that is a thread does.
#[derive(Default)]
pub struct FakeCore {
    /// Number of the newest event that its model knows.
    pub seq: AtomicU64,
    /// How often its model was copied.
    pub copies: AtomicUsize,
}

pub struct Rig {
    pub server: Option<Server>,
    pub core: Arc<FakeCore>,
    pub memory: Arc<Memory>,
    pub metrics: Arc<Metrics>,
    pub path: PathBuf,
    _dir: TempDir,
}

impl Rig {
    pub fn new() -> Self {
        Self::with(None)
    }

    pub fn with(older: Option<Arc<dyn LiveHistory>>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let path = dir.path().join("run/k.sock");
        let metrics = Arc::new(Metrics::new("0", "0", Own::default()).unwrap());
        let memory = Arc::new(Memory::new("n", BOOT, Arc::clone(&metrics)));
        let (asking, mut asked) = questions();
        let fake = Arc::new(FakeCore::default());
        let own = Arc::clone(&fake);
        thread::spawn(move || {
            let settings = Settings {
                node: "n".into(),
                boot_id: BOOT.into(),
                version: "0".into(),
                host_netns: 1,
                cmdline: Cmdline::Host,
                sources: Default::default(),
                incidents: Default::default(),
                user_events: EventRate { rate: 4, burst: 64 },
                container_events: EventRate { rate: 16, burst: 512 },
            };
            let core = Core::new(settings, Resume::default());
            while let Some(question) = asked.blocking_recv() {
                let state = NodeState { seq: own.seq.load(Ordering::Relaxed), ..core.state(0) };
                own.copies.fetch_add(1, Ordering::Relaxed);
                let _ = question.send(Box::new(state));
            }
        });
        let identity = Identity {
            node: "n".into(),
            version: "0".into(),
            revision: "r".into(),
            state_dir: "/state".into(),
            capabilities_at_start: Some(1),
        };
        let server =
            Server::start(&path, identity, Arc::clone(&memory), older, asking, Own::default()).unwrap();
        Self { server: Some(server), core: fake, memory, metrics, path, _dir: dir }
    }

    pub fn push(&self, seqs: impl IntoIterator<Item = u64>) {
        self.push_events(&seqs.into_iter().map(numbered::event).collect::<Vec<_>>());
    }

    pub fn push_events(&self, events: &[Event]) {
        for event in events {
            self.memory.push(event, serde_json::to_string(event).unwrap().into());
        }
        self.memory.wake();
    }

    pub fn ask(&self, target: &str) -> String {
        ask(&self.path, &format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n"))
    }

    pub fn remote(&self) -> Remote {
        Remote::connect(&self.path).unwrap()
    }

    /// A stream whose head was read.
    pub fn stream(&self, query: &str) -> BufReader<UnixStream> {
        let mut stream = BufReader::new(UnixStream::connect(&self.path).unwrap());
        stream.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream.get_mut(), "GET /v1/events?follow=1{query} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            assert!(stream.read_line(&mut line).unwrap() > 0);
        }
        stream
    }
}

pub fn ask(path: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    // The server may refuse before it has read all.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}
