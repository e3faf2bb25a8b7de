//! The loop: one socket is read all the time, one discovery or dump runs at a time.
//!
//! Decides when to read what; what it means for the model is decided in `changes` and `snapshots`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use futures_util::future::OptionFuture;
use kevtmon_observation::{
    BootNs, Fact, LinkFacts, Loss, NsInum, Observation, Source, SourceKind, SourceStatus,
};
use kevtmon_types::clock::boot_now;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use super::discover::{Discover, DiscoveredNetns};
use super::dump;
use super::job::{Job, Outcome, read_foreign};
use super::neighbor::NeighborCache;
use super::nsid::NsidTable;
use super::schedule::{FullRead, ReadSchedule, Work};
use super::socket::{self, DATAGRAM, Datagram, Subscription};
use super::{Barrier, NetlinkConfig};
use crate::procfs::readers::Readers;
use crate::{Sender, observed_now, observed_now_by, send, until_closed};

const SOURCE: &str = "netlink";
/// Changes that may wait for the snapshot of their namespace. With more, the kernel buffers.
const PENDING_MAX: usize = 1024;
/// Datagrams taken before a reading begins, at most.
const BURST: usize = 256;
/// Datagrams taken before a mark is worth its system call.
const FEW: usize = 64;
/// What a queued message takes of the receive buffer, at least.
const LEAST_MESSAGE: usize = 768;

enum Event {
    Outcome(Outcome),
    Request(Option<NsInum>),
    Barrier(Option<Barrier>),
    Datagram(io::Result<Datagram>),
    Empty(BootNs),
    Due,
}

pub(super) struct Stream {
    pub(super) host: NsInum,
    readers: Readers,
    bind_directories: Vec<PathBuf>,
    socket: AsyncFd<Subscription>,
    /// More messages than the socket can hold at a time.
    most_queued: usize,
    /// When nothing was left in the socket.
    pub(super) heard: BootNs,
    /// Since when messages may have been lost, until the socket is empty: until then more are.
    missed: Option<BootNs>,
    /// Marks set so far, and the last one that was answered.
    marks: u32,
    marked: Option<u32>,
    buffer: Vec<u8>,
    tx: Sender,
    pub(super) names: NsidTable,
    pub(super) schedule: ReadSchedule,
    pub(super) found: HashMap<NsInum, DiscoveredNetns>,
    /// Their snapshot was delivered.
    pub(super) known: HashSet<NsInum>,
    /// Requested by the core and not yet answered, with the time of the request.
    pub(super) wanted: HashMap<NsInum, Instant>,
    /// Of which a discovery is to find other processes, since those that it found before have left.
    pub(super) abandoned: HashSet<NsInum>,
    /// In which no process lived when they were last read.
    pub(super) ownerless: HashSet<NsInum>,
    /// Links delivered without the namespace of their peer, with its nsid.
    pub(super) unresolved: HashMap<(NsInum, u32), (LinkFacts, i32)>,
    /// Only if neighbor messages are subscribed to.
    pub(super) memory: Option<NeighborCache>,
    pub(super) job: Option<Job>,
    pub(super) pending: VecDeque<Observation>,
    /// Why a namespace could not be entered.
    pub(super) refused: Option<String>,
    up: Option<bool>,
}

impl Stream {
    pub(super) fn new(
        config: NetlinkConfig,
        readers: Readers,
        host: NsInum,
        socket: AsyncFd<Subscription>,
        tx: Sender,
    ) -> Self {
        Self {
            host,
            readers,
            bind_directories: config.bind_directories,
            socket,
            // The kernel doubles what is asked for.
            most_queued: config.receive_buffer * 2 / LEAST_MESSAGE,
            heard: boot_now(),
            missed: None,
            marks: 0,
            marked: None,
            buffer: vec![0; DATAGRAM],
            tx,
            names: NsidTable::default(),
            schedule: ReadSchedule::new(Instant::now()),
            found: HashMap::new(),
            known: HashSet::new(),
            wanted: HashMap::new(),
            abandoned: HashSet::new(),
            ownerless: HashSet::new(),
            unresolved: HashMap::new(),
            memory: config.neighbors_live.then(NeighborCache::default),
            job: None,
            pending: VecDeque::new(),
            refused: None,
            up: None,
        }
    }

    /// Runs until the receiver is gone.
    pub(super) async fn run(self, requests: mpsc::Receiver<NsInum>, barriers: mpsc::Receiver<Barrier>) {
        let tx = self.tx.clone();
        until_closed(&tx, self.follow(requests, barriers)).await;
    }

    async fn follow(mut self, mut requests: mpsc::Receiver<NsInum>, mut barriers: mpsc::Receiver<Barrier>) {
        let (mut requests_open, mut barriers_open) = (true, true);
        loop {
            self.begin_work().await;
            if self.job.is_none() {
                self.report_completion().await;
            }
            let deadline = self.schedule.deadline().filter(|_| self.job.is_none());
            let event = tokio::select! {
                Some(outcome) = OptionFuture::from(self.job.as_mut().map(Job::outcome)) => {
                    Event::Outcome(outcome)
                }
                request = requests.recv(), if requests_open => Event::Request(request),
                barrier = barriers.recv(), if barriers_open => Event::Barrier(barrier),
                ready = self.socket.readable(), if self.pending.len() < PENDING_MAX => match ready {
                    Ok(mut guard) => {
                        let now = boot_now();
                        guard
                            .try_io(|socket| socket.get_ref().receive(&mut self.buffer))
                            .map_or(Event::Empty(now), Event::Datagram)
                    }
                    Err(_) => return,
                },
                () = sleep_until(deadline.unwrap_or_else(Instant::now).into()), if deadline.is_some() => {
                    Event::Due
                }
            };
            match event {
                Event::Outcome(outcome) => self.end_work(outcome).await,
                Event::Request(Some(netns)) => self.requested(netns),
                Event::Request(None) => requests_open = false,
                Event::Barrier(Some(barrier)) => {
                    self.drain().await;
                    // Nobody may be waiting any more.
                    let _ = barrier.send(());
                }
                Event::Barrier(None) => barriers_open = false,
                Event::Datagram(datagram) => self.received(datagram).await,
                Event::Empty(at) => self.emptied(at).await,
                Event::Due => {}
            }
        }
    }

    fn requested(&mut self, netns: NsInum) {
        let now = Instant::now();
        self.wanted.insert(netns, now);
        // A process may have entered one that had none.
        let had_processes = self.found.get(&netns).map(DiscoveredNetns::had_processes);
        let discovers = match had_processes {
            Some(true) => false,
            Some(false) => self.schedule.should_discover(now),
            None => netns != self.host,
        };
        if discovers {
            self.schedule.plan_discovery(now, 0);
        } else {
            self.schedule.enqueue(netns);
        }
    }

    async fn begin_work(&mut self) {
        while self.job.is_none() {
            let now = Instant::now();
            match self.schedule.next(now) {
                None => break,
                Some(Work::Discover { all }) => {
                    self.names.begin_discovery();
                    let look = Discover { bind_directories: self.bind_directories.clone(), host: self.host };
                    self.job = Some(Job::discovery(self.readers.clone(), look, all, now));
                }
                Some(Work::Read(netns)) => {
                    // As far as that is quick: what is taken before needs no other reading.
                    self.take(BURST, None).await;
                    self.job = self.begin_read(netns);
                }
            }
        }
    }

    fn begin_read(&mut self, netns: NsInum) -> Option<Job> {
        let heard = self.heard;
        let job = if netns == self.host {
            Job::reading(netns, heard, async move { dump::on_thread(move || dump::read_host(netns)).await? })
        } else if let Some(found) = self.found.get(&netns).cloned() {
            // Without an nsid its messages do not arrive.
            let naming = (!self.names.has_nsid(netns) && !self.is_host_only()).then(|| self.names.naming());
            Job::reading(netns, heard, read_foreign(found, self.readers.clone(), naming))
        } else {
            // It was removed while it was queued.
            self.schedule.forget(netns);
            return None;
        };
        if let Some(memory) = &mut self.memory {
            memory.begin_dump(netns);
        }
        Some(job)
    }

    async fn end_work(&mut self, outcome: Outcome) {
        // What a reading shows may have been told already: that message belongs behind it.
        self.drain().await;
        self.job = None;
        match outcome {
            Outcome::Discover { all, began, found: Some(found) } => {
                self.discovered(all, began, found).await;
            }
            Outcome::Discover { all, .. } => self.schedule.postpone(all, Instant::now()),
            Outcome::Read { netns, heard, reading } => self.read(netns, heard, reading).await,
        }
        self.resolve().await;
    }

    /// Reports that everything is read, if so, while no job is running.
    async fn report_completion(&mut self) {
        if let Some(FullRead::Resync(reasons)) = self.schedule.finish(Instant::now()) {
            for reason in reasons {
                self.send(observed_now(Fact::Resync { source: SOURCE.into(), reason: reason.into() })).await;
            }
        }
        if self.up != Some(true) && !self.schedule.is_reading_all() && self.known.contains(&self.host) {
            self.up = Some(true);
            self.send(observed_now(Fact::Source(self.status()))).await;
        }
    }

    fn status(&self) -> SourceStatus {
        let refused = self.socket.get_ref().host_only.as_ref();
        let unsubscribed = refused.map(|error| format!("cannot subscribe to other namespaces: {error}"));
        let attach_mode = if refused.is_some() { "host-only" } else { "all-nsid" };
        let unread = self.refused.as_ref().map(|error| format!("cannot read other namespaces: {error}"));
        let reasons: Vec<String> = unsubscribed.into_iter().chain(unread).collect();
        let reason = (!reasons.is_empty()).then(|| reasons.join("; "));
        SourceStatus {
            attach_mode: Some(attach_mode.into()),
            reason,
            ..SourceStatus::up(SourceKind::Netlink, SOURCE)
        }
    }

    /// A message carried an nsid that is not in the table.
    pub(super) fn unknown_nsid(&mut self, nsid: i32) {
        if let Some(tries) = self.names.unknown(nsid) {
            self.schedule.plan_discovery(Instant::now(), tries);
        }
    }

    /// Reads at least all that is in the socket by now.
    pub(super) async fn drain(&mut self) {
        if self.take(FEW, None).await {
            return;
        }
        // More may come as fast as it is read: all that is there by now comes before the answer to a mark.
        let (at, mark) = (boot_now(), self.marks.wrapping_add(1));
        self.marks = mark;
        let is_set = self.socket.get_ref().set_mark(mark).is_ok();
        if !self.take(self.most_queued, is_set.then_some(mark)).await {
            self.heard = at;
        }
    }

    /// Reads until nothing is left, until the answer to a mark, or so many datagrams; true if nothing was left.
    async fn take(&mut self, most: usize, mark: Option<u32>) -> bool {
        for _ in 0..most {
            let now = boot_now();
            match self.socket.get_ref().receive(&mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.emptied(now).await;
                    return true;
                }
                datagram => self.received(datagram).await,
            }
            if mark.is_some() && self.marked == mark {
                break;
            }
        }
        false
    }

    /// Nothing was left in the socket at a time.
    async fn emptied(&mut self, at: BootNs) {
        if let Some(since) = self.missed.take() {
            self.missed(since).await;
        }
        self.heard = at;
    }

    /// Messages were lost: what is known of every namespace is old, and so is what is being read.
    async fn missed(&mut self, since: BootNs) {
        if let Some(netns) = self.job.as_ref().and_then(|job| job.reads) {
            self.pending.push_back(observed_now_by(Source::Netlink, Fact::NetnsStale { netns, told: false }));
            self.schedule.mark_stale(netns, Instant::now());
        }
        self.send(observed_now_by(Source::Netlink, Fact::NetnsMissed { since })).await;
    }

    async fn received(&mut self, datagram: io::Result<Datagram>) {
        match datagram {
            Ok(datagram) if !datagram.from_kernel => {}
            Ok(datagram) if datagram.truncated => self.undecoded().await,
            Ok(datagram) if socket::mark(&self.buffer[..datagram.length]).is_some() => {
                self.marked = socket::mark(&self.buffer[..datagram.length]);
            }
            Ok(datagram) => {
                let buffer = std::mem::take(&mut self.buffer);
                self.changed(datagram.nsid, &buffer[..datagram.length], boot_now()).await;
                self.buffer = buffer;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                let is_news = self.schedule.gap("overrun", Instant::now());
                tracing::debug!(%error, "netlink messages were lost");
                if is_news {
                    self.lost("overrun", None).await;
                }
                self.missed = Some(self.heard);
                self.missed(self.heard).await;
            }
        }
    }

    pub(super) async fn undecoded(&mut self) {
        self.schedule.gap("decode", Instant::now());
        self.lost("decode", Some(1)).await;
        self.missed(self.heard).await;
    }

    pub(super) async fn lost(&mut self, reason: &str, count: Option<u64>) {
        self.send(observed_now(Fact::Lost(Loss { source: SOURCE.into(), reason: reason.into(), count })))
            .await;
    }

    pub(super) async fn down(&mut self, reason: String) {
        if self.up.replace(false) != Some(false) {
            let status = SourceStatus::down(SourceKind::Netlink, SOURCE, reason);
            self.send(observed_now(Fact::Source(status))).await;
        }
    }

    /// Removes a namespace, and reports it if the core has or requested it.
    pub(super) async fn gone(&mut self, netns: NsInum) {
        let was_wanted = self.wanted.remove(&netns).is_some();
        let was_known = self.known.remove(&netns);
        self.found.remove(&netns);
        self.names.forget(netns);
        self.schedule.forget(netns);
        self.abandoned.remove(&netns);
        self.ownerless.remove(&netns);
        self.unresolved.retain(|(of, _), _| *of != netns);
        if let Some(memory) = &mut self.memory {
            memory.forget(netns);
        }
        if self.is_reading(netns) {
            // Its content no longer matters.
            self.job = None;
            self.pending.clear();
        }
        if was_wanted || was_known {
            self.send(observed_now(Fact::NetnsGone { netns })).await;
        }
    }

    /// Whether no other namespace is listened to.
    pub(super) fn is_host_only(&self) -> bool {
        self.socket.get_ref().host_only.is_some()
    }

    pub(super) fn is_reading(&self, netns: NsInum) -> bool {
        self.job.as_ref().is_some_and(|job| job.reads == Some(netns))
    }

    /// Delivers a change, after the snapshot if that is being made. Changes of routes are told at once, so that the model knows
    /// which of them came first; the snapshot is brought up to them. So are those of rules, of which no snapshot has any.
    pub(super) async fn deliver(&mut self, netns: NsInum, observation: Observation) {
        let is_rule = matches!(observation.fact, Fact::Rule(_) | Fact::RuleGone(_));
        if is_rule || !self.is_reading(netns) {
            return self.send(observation).await;
        }
        match observation.fact {
            Fact::RouteAsked { .. }
            | Fact::Route(_)
            | Fact::RouteGone(_)
            | Fact::NetnsHeard { .. }
            | Fact::NetnsStale { .. } => self.send(observation.clone()).await,
            _ => {}
        }
        self.pending.push_back(observation);
    }

    pub(super) async fn send_all(&mut self, observations: VecDeque<Observation>) {
        for observation in observations {
            self.send(observation).await;
        }
    }

    pub(super) async fn send(&mut self, observation: Observation) {
        send(&self.tx, observation).await;
    }
}

/// Whether a change makes another gateway be in use, or may do so.
pub(super) fn changes_routes(fact: &Fact) -> bool {
    match fact {
        Fact::Route(route) | Fact::RouteGone(route) => route.is_default(),
        Fact::NetnsStale { .. } => true,
        _ => false,
    }
}
