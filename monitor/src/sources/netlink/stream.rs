//! The loop: one socket that is heard all the time, one reading job at a time.
//!
//! Decides what is read when; what it means for the model is in `changes` and `snapshots`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future;
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};

use super::NetlinkConfig;
use super::agenda::{Agenda, Cycle, Work};
use super::discover::{self, Found};
use super::dump::{self, ReadError, Reading};
use super::neighbor::NeighborMemory;
use super::nsid::NsidTable;
use super::socket::{DATAGRAM, Datagram, Subscription};
use crate::clock::boot_now;
use crate::observation::{Fact, LinkFacts, Loss, NsInum, Observation, SourceKind, SourceStatus};
use crate::sources::procfs::Proc;
use crate::sources::{Sender, observed_now};

const SOURCE: &str = "netlink";
/// Changes that may wait for the snapshot of their namespace. With more, the kernel buffers.
const HELD: usize = 1024;
/// Datagrams read at one go before a survey takes effect.
const DRAIN: usize = 4096;

/// Nobody receives any more.
#[derive(Debug)]
pub(super) struct Closed;

pub(super) type Flow = Result<(), Closed>;

/// A reading job under way.
#[derive(Debug)]
enum Job {
    Survey { all: bool, began: Instant, result: oneshot::Receiver<HashMap<NsInum, Found>> },
    Read { netns: NsInum, result: oneshot::Receiver<Result<Reading, ReadError>> },
}

/// Its result.
enum Outcome {
    Survey { all: bool, began: Instant, found: Option<HashMap<NsInum, Found>> },
    Read { netns: NsInum, reading: Result<Box<Reading>, ReadError> },
}

enum Event {
    Closed,
    Outcome(Outcome),
    Request(Option<NsInum>),
    Datagram(io::Result<Datagram>),
    NotReady,
    Due,
}

pub(super) struct Stream {
    pub(super) host: NsInum,
    proc: Proc,
    bind_directories: Vec<PathBuf>,
    socket: AsyncFd<Subscription>,
    buffer: Vec<u8>,
    tx: Sender,
    pub(super) names: NsidTable,
    pub(super) agenda: Agenda,
    pub(super) found: HashMap<NsInum, Found>,
    /// Their snapshot was delivered.
    pub(super) known: HashSet<NsInum>,
    /// Asked for by the core, and not answered yet, with the time of the question.
    pub(super) wanted: HashMap<NsInum, Instant>,
    /// Links delivered without the namespace of their peer, with its number.
    pub(super) unresolved: HashMap<(NsInum, u32), (LinkFacts, i32)>,
    /// Only where neighbors are heard.
    pub(super) memory: Option<NeighborMemory>,
    job: Option<Job>,
    /// Changes in the namespace that is being read.
    pub(super) held: VecDeque<Observation>,
    /// Why a namespace could not be entered.
    pub(super) refused: Option<String>,
    /// What was last said of the source.
    up: Option<bool>,
}

impl Stream {
    pub(super) fn new(
        config: NetlinkConfig,
        proc: Proc,
        host: NsInum,
        socket: AsyncFd<Subscription>,
        tx: Sender,
    ) -> Self {
        Self {
            host,
            proc,
            bind_directories: config.bind_directories,
            socket,
            buffer: vec![0; DATAGRAM],
            tx,
            names: NsidTable::default(),
            agenda: Agenda::new(Instant::now()),
            found: HashMap::new(),
            known: HashSet::new(),
            wanted: HashMap::new(),
            unresolved: HashMap::new(),
            memory: config.neighbors_live.then(NeighborMemory::default),
            job: None,
            held: VecDeque::new(),
            refused: None,
            up: None,
        }
    }

    pub(super) async fn run(mut self, mut requests: mpsc::Receiver<NsInum>) {
        let mut requests_open = true;
        loop {
            self.begin_work();
            if self.job.is_none() && self.settle().await.is_err() {
                return;
            }
            let deadline = self.agenda.deadline().filter(|_| self.job.is_none());
            let event = tokio::select! {
                () = self.tx.closed() => Event::Closed,
                outcome = outcome(&mut self.job) => Event::Outcome(outcome),
                request = requests.recv(), if requests_open => Event::Request(request),
                ready = self.socket.readable(), if self.held.len() < HELD => match ready {
                    Ok(mut guard) => guard
                        .try_io(|socket| socket.get_ref().receive(&mut self.buffer))
                        .map_or(Event::NotReady, Event::Datagram),
                    Err(_) => Event::Closed,
                },
                () = until(deadline) => Event::Due,
            };
            let flow = match event {
                Event::Closed => Err(Closed),
                Event::Outcome(outcome) => self.end_work(outcome).await,
                Event::Request(Some(netns)) => {
                    self.requested(netns);
                    Ok(())
                }
                Event::Request(None) => {
                    requests_open = false;
                    Ok(())
                }
                Event::Datagram(datagram) => self.received(datagram).await,
                Event::NotReady | Event::Due => Ok(()),
            };
            if flow.is_err() {
                return;
            }
        }
    }

    fn requested(&mut self, netns: NsInum) {
        let now = Instant::now();
        self.wanted.insert(netns, now);
        if netns == self.host || self.found.contains_key(&netns) {
            self.agenda.read(netns);
        } else {
            self.agenda.look(now, 0);
        }
    }

    fn begin_work(&mut self) {
        while self.job.is_none() {
            let now = Instant::now();
            let Some(work) = self.agenda.next(now) else { return };
            let begun = match work {
                Work::Survey { all } => self.begin_survey(all, now),
                Work::Read(netns) => self.begin_read(netns),
            };
            match begun {
                Ok(job) => self.job = job,
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "namespaces cannot be read now");
                    self.agenda.postpone(work, now);
                    return;
                }
            }
        }
    }

    fn begin_survey(&mut self, all: bool, began: Instant) -> Result<Option<Job>, ReadError> {
        self.names.begin_survey();
        let (proc, directories, host) = (self.proc.clone(), self.bind_directories.clone(), self.host);
        let result = dump::on_thread(move || discover::survey(&proc, &directories, host))?;
        Ok(Some(Job::Survey { all, began, result }))
    }

    fn begin_read(&mut self, netns: NsInum) -> Result<Option<Job>, ReadError> {
        let result = if netns == self.host {
            dump::on_thread(move || dump::read_host(netns))?
        } else if let Some(found) = self.found.get(&netns).cloned() {
            let proc = self.proc.clone();
            dump::on_thread(move || dump::read_foreign(&found, &proc))?
        } else {
            // It went while it waited.
            self.agenda.forget(netns);
            return Ok(None);
        };
        if let Some(memory) = &mut self.memory {
            memory.begin_dump(netns);
        }
        Ok(Some(Job::Read { netns, result }))
    }

    async fn end_work(&mut self, outcome: Outcome) -> Flow {
        self.job = None;
        match outcome {
            Outcome::Survey { all, began, found: Some(found) } => self.surveyed(all, began, found).await?,
            Outcome::Survey { all, .. } => self.agenda.postpone(Work::Survey { all }, Instant::now()),
            Outcome::Read { netns, reading } => self.read(netns, reading).await?,
        }
        self.resolve().await
    }

    /// Says what is complete, when nothing is under way.
    async fn settle(&mut self) -> Flow {
        if let Some(Cycle::Resync(reasons)) = self.agenda.finish(Instant::now()) {
            for reason in reasons {
                self.send(observed_now(Fact::Resync { source: SOURCE.into(), reason: reason.into() }))
                    .await?;
            }
        }
        if self.up != Some(true) && !self.agenda.in_cycle() && self.known.contains(&self.host) {
            self.up = Some(true);
            self.send(observed_now(Fact::Source(self.status()))).await?;
        }
        Ok(())
    }

    fn status(&self) -> SourceStatus {
        let refused = self.socket.get_ref().host_only.as_ref();
        let unheard = refused.map(|error| format!("other namespaces cannot be heard: {error}"));
        let rung = if refused.is_some() { "host-only" } else { "all-nsid" };
        let unread = self.refused.as_ref().map(|error| format!("other namespaces cannot be read: {error}"));
        let reasons: Vec<String> = unheard.into_iter().chain(unread).collect();
        let reason = (!reasons.is_empty()).then(|| reasons.join("; "));
        SourceStatus { rung: Some(rung.into()), reason, ..SourceStatus::up(SourceKind::Netlink, SOURCE) }
    }

    /// A host's number for a namespace was heard that nobody explained yet.
    pub(super) fn missed(&mut self, nsid: i32) {
        if let Some(tries) = self.names.miss(nsid) {
            self.agenda.look(Instant::now(), tries);
        }
    }

    pub(super) async fn drain(&mut self) -> Flow {
        for _ in 0..DRAIN {
            match self.socket.get_ref().receive(&mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                datagram => self.received(datagram).await?,
            }
        }
        Ok(())
    }

    async fn received(&mut self, datagram: io::Result<Datagram>) -> Flow {
        match datagram {
            Ok(datagram) if !datagram.from_kernel => Ok(()),
            Ok(datagram) if datagram.truncated => self.undecoded().await,
            Ok(datagram) => {
                let buffer = std::mem::take(&mut self.buffer);
                let flow = self.changed(datagram.nsid, &buffer[..datagram.length], boot_now()).await;
                self.buffer = buffer;
                flow
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => {
                let is_news = self.agenda.gap("overrun", Instant::now());
                tracing::debug!(%error, "netlink messages were lost");
                if is_news { self.lost("overrun", None).await } else { Ok(()) }
            }
        }
    }

    /// A message did not decode.
    pub(super) async fn undecoded(&mut self) -> Flow {
        self.agenda.gap("decode", Instant::now());
        self.lost("decode", Some(1)).await
    }

    pub(super) async fn lost(&mut self, reason: &str, count: Option<u64>) -> Flow {
        self.send(observed_now(Fact::Lost(Loss { source: SOURCE.into(), reason: reason.into(), count })))
            .await
    }

    pub(super) async fn down(&mut self, reason: String) -> Flow {
        if self.up.replace(false) == Some(false) {
            return Ok(());
        }
        let status = SourceStatus::down(SourceKind::Netlink, SOURCE, reason);
        self.send(observed_now(Fact::Source(status))).await
    }

    /// Forgets a namespace, and says so if anybody believes in it.
    pub(super) async fn gone(&mut self, netns: NsInum) -> Flow {
        let was_wanted = self.wanted.remove(&netns).is_some();
        let was_known = self.known.remove(&netns);
        self.found.remove(&netns);
        self.names.forget(netns);
        self.agenda.forget(netns);
        self.unresolved.retain(|(of, _), _| *of != netns);
        if let Some(memory) = &mut self.memory {
            memory.forget(netns);
        }
        if self.is_reading(netns) {
            // Nobody wants to know what it held.
            self.job = None;
            self.held.clear();
        }
        if was_wanted || was_known {
            self.send(observed_now(Fact::NetnsGone { netns })).await
        } else {
            Ok(())
        }
    }

    pub(super) fn is_reading(&self, netns: NsInum) -> bool {
        matches!(self.job, Some(Job::Read { netns: read, .. }) if read == netns)
    }

    /// Delivers a change, after the snapshot if that is being made.
    pub(super) async fn deliver(&mut self, netns: NsInum, observation: Observation) -> Flow {
        if self.is_reading(netns) {
            self.held.push_back(observation);
            return Ok(());
        }
        self.send(observation).await
    }

    pub(super) async fn send_all(&mut self, observations: VecDeque<Observation>) -> Flow {
        for observation in observations {
            self.send(observation).await?;
        }
        Ok(())
    }

    pub(super) async fn send(&mut self, observation: Observation) -> Flow {
        self.tx.send(observation).await.map_err(|_| Closed)
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => future::pending().await,
    }
}

/// Waits for the job; a thread that died without a word counts as a failure.
async fn outcome(job: &mut Option<Job>) -> Outcome {
    match job {
        Some(Job::Survey { all, began, result }) => {
            let found = result.await.ok();
            Outcome::Survey { all: *all, began: *began, found }
        }
        Some(Job::Read { netns, result }) => {
            let reading = result.await.unwrap_or_else(|_| {
                Err(ReadError::Thread(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended early")))
            });
            Outcome::Read { netns: *netns, reading: reading.map(Box::new) }
        }
        None => future::pending().await,
    }
}
