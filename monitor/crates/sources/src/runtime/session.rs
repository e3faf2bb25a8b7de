//! One connection to a runtime, from the subscription to the first failure.
//!
//! In: the client's answers and changes. Out: one snapshot, then changes in the order of each container's
//! events, then a snapshot after each periodic list. `source.rs` reconnects after a failure.

use std::collections::HashSet;
use std::future::{Future, pending};
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::OptionFuture;
use futures_util::stream::FuturesUnordered;
use kevtmon_observation::{
    BootNs, ContainerFacts, ContainerState, Fact, Observation, Source, SourceKind, SourceStatus,
};
use kevtmon_types::clock::boot_now;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::{Instant, sleep_until, timeout};

use super::change::{Change, ChangeKind, boot_time, wall_now};
use super::client::{Changes, Inspection, Listed, RuntimeClient, RuntimeError};
use super::containers::{Containers, is_live};
use super::process::{Group, Identity, Said, identify};
use super::refresh::{InspectReply, Refresh};
use super::source::Options;
use super::state_files::StateFiles;
use crate::beat::at_beat;
use crate::procfs::readers::Readers;
use crate::{Sender, send};

/// Containers without a process that are inspected after one of the later lists, until all were.
const LATER_MAX: usize = 64;

type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

struct Listing {
    read: BootNs,
    /// The containers that changed since: it may not include that.
    changed: HashSet<String>,
    answer: Answer<Result<Listed, RuntimeError>>,
}

struct Inspected {
    id: String,
    /// Wall clock when it was requested.
    requested: i64,
    answer: Result<Option<Inspection>, RuntimeError>,
}

pub(super) struct Session<'a, C> {
    options: &'a Options,
    containers: &'a mut Containers,
    readers: &'a Readers,
    tx: &'a Sender,
    /// Why there was a session before this one that ended.
    gap: Option<&'static str>,
    /// Where the runtime has what is of its containers.
    directories: Vec<String>,
    /// Containers that are to be read again.
    wanted: broadcast::Receiver<String>,
    refresh: Refresh,
    inspects: FuturesUnordered<Answer<Inspected>>,
    listing: Option<Listing>,
    read: BootNs,
    /// The event stream, or why there is none.
    events: Result<Changes, RuntimeError>,
    client: C,
    /// Whether the first snapshot was sent.
    live: bool,
    /// When to list next; before the first snapshot: when to send it with what is known.
    due: Option<Instant>,
}

/// What a connection leaves to the one after it.
#[derive(Debug, Default)]
pub(super) struct Served {
    /// Whether the first snapshot was sent.
    pub(super) up: bool,
    /// Where the runtime keeps its containers on disk.
    pub(super) files: Option<StateFiles>,
}

/// Runs one connection until the runtime fails, and returns how. `gap`: why the previous connection ended, if there
/// was one.
pub(super) async fn run<C: RuntimeClient>(
    socket: &Path,
    options: &Options,
    containers: &mut Containers,
    readers: &Readers,
    tx: &Sender,
    gap: Option<&'static str>,
    served: &mut Served,
) -> RuntimeError {
    let client = match bounded(options.timeout, C::connect(socket, options)).await {
        Ok(client) => client,
        Err(error) => return error,
    };
    client.runtime().clone_into(&mut containers.runtime);
    served.files = client.state_files().or(served.files.take());
    let (events, refused) = (Ok(client.events(wall_now())), client.refused());
    let directories = served.files.as_ref().map(StateFiles::directories).unwrap_or_default();
    let mut session = Session {
        options,
        directories,
        wanted: options.wanted.subscribe(),
        containers,
        readers,
        tx,
        gap,
        refresh: Refresh::default(),
        inspects: FuturesUnordered::new(),
        listing: None,
        read: boot_now(),
        events,
        client,
        live: false,
        due: None,
    };
    if refused > 0 {
        session.malformed(refused).await;
    }
    let Err(error) = session.follow(&mut served.up).await;
    error
}

impl<C: RuntimeClient> Session<'_, C> {
    async fn follow(&mut self, up: &mut bool) -> Result<std::convert::Infallible, RuntimeError> {
        self.list();
        loop {
            while let Some(id) = self.refresh.launch() {
                self.inspects.push(inspect(self.client.clone(), id, self.options.timeout));
            }
            if !self.live && self.listing.is_none() && self.refresh.is_idle() {
                self.go_live(up).await;
            }
            tokio::select! {
                Some(change) =
                    OptionFuture::from(self.events.as_mut().ok().map(StreamExt::next)) => match change {
                    None => return Err(RuntimeError::EventsEnded),
                    Some(Err(error @ RuntimeError::NoEvents { .. })) => self.without_events(error).await,
                    Some(Err(RuntimeError::UnidentifiedEvent { .. })) => self.malformed(1).await,
                    Some(Err(error)) => return Err(error),
                    Some(Ok(change)) => self.changed(change).await,
                },
                Some(inspected) = self.inspects.next(), if !self.inspects.is_empty() => {
                    self.inspected(inspected).await;
                }
                id = wanted(&mut self.wanted) => self.look_at(&id),
                Some(answer) =
                    OptionFuture::from(self.listing.as_mut().map(|listing| &mut listing.answer)) => {
                    self.listed(answer).await?;
                }
                () = sleep_until(self.due.unwrap_or_else(Instant::now)), if self.due.is_some() => {
                    self.due = None;
                    if self.live { self.list() } else { self.go_live(up).await }
                }
            }
        }
    }

    fn list(&mut self) {
        let (client, patience) = (self.client.clone(), self.options.timeout);
        let answer = Box::pin(async move { bounded(patience, client.list()).await });
        self.listing = Some(Listing { read: boot_now(), changed: HashSet::new(), answer });
    }

    /// Lists from now on, at the interval for runtimes without events.
    async fn without_events(&mut self, error: RuntimeError) {
        self.events = Err(error);
        if self.live {
            self.due = Some(at_beat(self.interval()));
            self.send(None, Fact::Source(self.status())).await;
        }
    }

    fn interval(&self) -> Duration {
        if self.events.is_ok() { self.options.reconcile } else { self.options.poll }
    }

    fn status(&self) -> SourceStatus {
        let up = SourceStatus::up(SourceKind::Runtime, &self.containers.source);
        match &self.events {
            Ok(_) => up,
            Err(error) => {
                SourceStatus { attach_mode: Some("list".to_owned()), reason: Some(error.reason()), ..up }
            }
        }
    }

    /// Sends the first snapshot. Containers that could not be inspected in time are in it without a pid.
    async fn go_live(&mut self, up: &mut bool) {
        if !self.directories.is_empty() {
            let source = self.containers.source.clone();
            let directories = std::mem::take(&mut self.directories);
            self.send(None, Fact::RuntimeDirectories { source, directories }).await;
        }
        self.snapshot().await;
        if let Some(gap) = self.gap {
            let source = self.containers.source.clone();
            self.send(None, Fact::Resync { source, reason: gap.to_owned() }).await;
        }
        self.send(None, Fact::Source(self.status())).await;
        (self.live, *up) = (true, true);
        let interval = if C::LOOKS_BACK { self.interval() } else { self.interval().min(self.options.poll) };
        self.due = Some(at_beat(interval));
    }

    async fn snapshot(&mut self) {
        let containers = self.containers.take_all();
        let fact = Fact::RuntimeSnapshot {
            runtime: self.client.runtime().to_owned(),
            source: self.containers.source.clone(),
            read: Some(self.read),
            containers,
        };
        self.send(None, fact).await;
    }

    async fn listed(&mut self, answer: Result<Listed, RuntimeError>) -> Result<(), RuntimeError> {
        let Some(Listing { read, changed, .. }) = self.listing.take() else { return Ok(()) };
        self.read = read;
        let Listed { containers: mut listed, malformed } = answer?;
        if malformed > 0 {
            self.malformed(malformed).await;
        }
        let tgids = self.containers.processes();
        let claimants = self.containers.claimants(&mut listed);
        let found = identify(self.readers, tgids.clone(), None, claimants).await;
        let processes = tgids.into_iter().zip(found).collect();
        for id in self.containers.replace(listed, malformed == 0, &processes, |id| changed.contains(id)) {
            self.refresh.request(&id, None);
        }
        if self.live && self.events.is_ok() {
            // What is mounted for those that had ended before, only an inspect tells. Nothing waits for it.
            let unknown = self.containers.never_inspected(LATER_MAX);
            unknown.iter().for_each(|id| self.refresh.request(id, None));
        }
        if self.live {
            self.due = Some(at_beat(self.interval()));
            self.snapshot().await;
        } else {
            self.due = Some(Instant::now() + self.options.timeout);
        }
        Ok(())
    }

    async fn changed(&mut self, mut change: Change) {
        if !self.containers.knows(&change.id) {
            identify(self.readers, Vec::new(), None, self.containers.claimants(&mut change.facts)).await;
        }
        let (id, at) = (change.id.clone(), boot_time(change.wall));
        if change.kind == ChangeKind::OutOfMemory {
            self.containers.out_of_memory(&id);
            return;
        }
        if let Some(listing) = &mut self.listing
            && !matches!(change.kind, ChangeKind::Network | ChangeKind::Disconnected)
        {
            listing.changed.insert(id.clone());
        }
        let news = match change.kind {
            ChangeKind::Created => self.containers.created(change),
            ChangeKind::Died => {
                self.refresh.outdate(&id);
                self.unconfirmed(&id).await;
                self.containers.died(change)
            }
            ChangeKind::Removed => {
                self.refresh.forget(&id);
                return self.removed(id, Some(at)).await;
            }
            // Its start has failed, and an inspect has the reason.
            ChangeKind::Disconnected if self.containers.is_created(&id) => None,
            // A container that starts is connected first; its start brings the inspect.
            ChangeKind::Network | ChangeKind::Disconnected if !self.containers.runs(&id) => return,
            ChangeKind::Network | ChangeKind::Disconnected | ChangeKind::Other | ChangeKind::OutOfMemory => {
                None
            }
            ChangeKind::Paused => {
                self.containers.await_state(change, ContainerState::Paused, at);
                None
            }
            ChangeKind::Started | ChangeKind::Unpaused => {
                self.containers.await_state(change, ContainerState::Running, at);
                None
            }
        };
        self.refresh.request(&id, Some(at));
        self.report(Some(at), news).await;
    }

    async fn inspected(&mut self, inspected: Inspected) {
        let Inspected { id, requested, answer } = inspected;
        match answer {
            Ok(Some(Inspection { facts, since })) => {
                let InspectReply::Use(at) = self.refresh.complete(&id) else { return };
                let mut facts = Some(facts).filter(|facts| facts.id == id);
                // What requested it may be older: its creation, or the end of the run before. The event of its start
                // follows, and has nothing new to tell.
                let is_news =
                    facts.as_ref().is_some_and(|facts| self.containers.runs(&id) != is_live(facts.state));
                let at = since.filter(|_| is_news).map(boot_time).or(at);
                let tgid = facts.as_ref().and_then(|facts| facts.tgid);
                let said = facts.as_ref().map(Said::of);
                let claimants = self.containers.claimants(&mut facts);
                let process = identify(self.readers, tgid.into_iter().collect(), said, claimants).await.pop();
                let mut process = process.unwrap_or_default();
                match (&mut facts, process.group) {
                    (Some(facts), Group::OfSandbox) => facts.joined_netns = true,
                    (Some(facts), Group::Other) => {
                        tracing::warn!(container = %id, ?tgid, "the first process that its runtime names is of another container");
                        (facts.tgid, process) = (None, Identity::default());
                        self.malformed(1).await;
                    }
                    _ => {}
                }
                let news = facts.and_then(|facts| self.containers.inspected(facts, process, requested));
                self.report(at.or_else(|| Some(boot_time(requested))), news).await;
            }
            Ok(None) => {
                self.refresh.complete(&id);
                self.refresh.forget(&id);
                self.removed(id, None).await;
            }
            Err(error) => {
                tracing::debug!(container = %id, reason = %error.reason(), "cannot inspect a container");
                if error.is_malformed() {
                    self.malformed(1).await;
                }
                if !self.refresh.retry(&id) {
                    self.unconfirmed(&id).await;
                }
            }
        }
    }

    /// Somebody has reason to believe that no event tells what this container is by now.
    fn look_at(&mut self, id: &str) {
        if self.live && self.containers.knows(id) {
            self.refresh.request(id, None);
        }
    }

    async fn unconfirmed(&mut self, id: &str) {
        if let Some((at, facts)) = self.containers.unconfirmed(id) {
            self.report(Some(at), Some(facts)).await;
        }
    }

    /// Before the first snapshot nothing is reported: that has it all.
    async fn report(&mut self, at: Option<BootNs>, news: Option<ContainerFacts>) {
        if let Some(facts) = news.filter(|_| self.live) {
            self.send(at, Fact::Container(Box::new(facts))).await;
        }
    }

    async fn removed(&mut self, id: String, at: Option<BootNs>) {
        if self.containers.removed(&id) && self.live {
            let source = self.containers.source.clone();
            self.send(at, Fact::ContainerGone { id, source }).await;
        }
    }

    async fn malformed(&mut self, count: u64) {
        let source = self.containers.source.clone();
        self.send(None, Fact::Malformed { source, count }).await;
    }

    async fn send(&mut self, at: Option<BootNs>, fact: Fact) {
        let observation = Observation { at: at.unwrap_or_else(boot_now), source: Source::Runtime, fact };
        send(self.tx, observation).await;
    }
}

fn inspect<C: RuntimeClient>(client: C, id: String, patience: Duration) -> Answer<Inspected> {
    Box::pin(async move {
        let requested = wall_now();
        let answer = bounded(patience, client.inspect(&id)).await;
        Inspected { id, requested, answer }
    })
}

async fn bounded<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, RuntimeError>>,
) -> Result<T, RuntimeError> {
    timeout(patience, answer).await.unwrap_or(Err(RuntimeError::Timeout { after: patience }))
}

/// The next container that is to be read again. Of too many at once the oldest are left out: whoever wants them asks again.
async fn wanted(ids: &mut broadcast::Receiver<String>) -> String {
    loop {
        match ids.recv().await {
            Ok(id) => return id,
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => pending().await,
        }
    }
}
