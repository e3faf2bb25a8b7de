//! One connection to a Docker daemon, from the subscription to the first failure.
//!
//! In: the daemon's answers and events. Out: one snapshot, then changes in the order of each container's
//! events, then a snapshot after each periodic list. How to come back after a failure is not its business.

use std::collections::HashMap;
use std::future::{Future, pending};
use std::path::Path;
use std::pin::{Pin, pin};
use std::time::Duration;

use bollard::errors::Error as ClientError;
use bollard::models::{ContainerInspectResponse, ContainerSummary, EventMessage};
use bollard::query_parameters::{InspectContainerOptions, ListContainersOptionsBuilder};
use bollard::{API_DEFAULT_VERSION, Docker};
use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt};
use tokio::time::{Instant, sleep_until, timeout};

use super::change::{self, Kind};
use super::containers::Containers;
use super::refresh::{Landing, Refresh};
use super::{DockerConfig, DockerError, RUNTIME, facts};
use crate::clock::boot_now;
use crate::observation::{
    BootNs, ContainerFacts, ContainerState, Fact, Observation, Source, SourceKind, SourceStatus,
};
use crate::sources::Sender;

/// Why a session ended.
pub(super) enum End {
    /// Nobody listens any more.
    Closed,
    /// The daemon cannot be asked.
    Failed(DockerError),
}

impl From<DockerError> for End {
    fn from(error: DockerError) -> Self {
        Self::Failed(error)
    }
}

type Listing = Pin<Box<dyn Future<Output = Result<Vec<ContainerSummary>, DockerError>> + Send>>;
type Inspect = Pin<Box<dyn Future<Output = Inspected> + Send>>;

struct Inspected {
    id: String,
    /// Wall clock when it was asked for.
    asked: i64,
    answer: Result<ContainerInspectResponse, DockerError>,
}

/// What one connection needs to remember.
pub(super) struct Session<'a> {
    config: &'a DockerConfig,
    containers: &'a mut Containers,
    tx: &'a Sender,
    /// Why there was a session before this one that ended.
    gap: Option<&'static str>,
    refresh: Refresh,
    inspects: FuturesUnordered<Inspect>,
    listing: Option<(Instant, Listing)>,
    /// When containers changed last: a list that was asked for before does not know of it.
    changed: HashMap<String, Instant>,
    /// Whether the first snapshot was sent.
    live: bool,
    /// When to list next; before the first snapshot: when to send it with what is known.
    due: Option<Instant>,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        config: &'a DockerConfig,
        containers: &'a mut Containers,
        tx: &'a Sender,
        gap: Option<&'static str>,
    ) -> Self {
        Self {
            config,
            containers,
            tx,
            gap,
            refresh: Refresh::default(),
            inspects: FuturesUnordered::new(),
            listing: None,
            changed: HashMap::new(),
            live: false,
            due: None,
        }
    }

    /// Runs until the daemon fails or nobody listens; sets `up` once the first snapshot was sent.
    pub(super) async fn run(&mut self, socket: &Path, up: &mut bool) -> End {
        let docker = match connect(socket, self.config.timeout) {
            Ok(docker) => docker,
            Err(error) => return error.into(),
        };
        let events = docker.events(Some(change::subscription(change::wall_now())));
        let Err(end) = self.follow(&docker, pin!(events), up).await;
        end
    }

    async fn follow(
        &mut self,
        docker: &Docker,
        mut events: Pin<&mut impl Stream<Item = Result<EventMessage, ClientError>>>,
        up: &mut bool,
    ) -> Result<std::convert::Infallible, End> {
        self.listing = Some((Instant::now(), list(docker.clone(), self.config.timeout)));
        loop {
            while let Some(id) = self.refresh.launch() {
                self.inspects.push(inspect(docker.clone(), id, self.config.timeout));
            }
            if !self.live && self.listing.is_none() && self.refresh.is_idle() {
                self.go_live(up).await?;
            }
            tokio::select! {
                () = self.tx.closed() => return Err(End::Closed),
                event = events.next() => match event {
                    None => return Err(DockerError::EventsEnded.into()),
                    Some(Err(source)) => {
                        return Err(failure(source, self.config.timeout, |source| DockerError::Events { source }).into());
                    }
                    Some(Ok(message)) => self.changed(message).await?,
                },
                Some(inspected) = self.inspects.next(), if !self.inspects.is_empty() => {
                    self.inspected(inspected).await?;
                }
                answer = answered(&mut self.listing) => self.listed(answer).await?,
                () = reached(self.due) => {
                    self.due = None;
                    if self.live {
                        self.listing = Some((Instant::now(), list(docker.clone(), self.config.timeout)));
                    } else {
                        self.go_live(up).await?;
                    }
                }
            }
        }
    }

    /// Sends the first snapshot. Containers that could not be inspected in time are in it without a pid.
    async fn go_live(&mut self, up: &mut bool) -> Result<(), End> {
        self.snapshot().await?;
        if let Some(gap) = self.gap {
            self.send(None, Fact::Resync { source: RUNTIME.to_owned(), reason: gap.to_owned() }).await?;
        }
        let status = SourceStatus::up(SourceKind::Runtime, RUNTIME);
        self.send(None, Fact::Source(status)).await?;
        (self.live, *up) = (true, true);
        self.due = Some(Instant::now() + self.config.reconcile);
        Ok(())
    }

    async fn snapshot(&mut self) -> Result<(), End> {
        let containers = self.containers.tell_all();
        self.send(None, Fact::RuntimeSnapshot { runtime: RUNTIME.to_owned(), containers }).await
    }

    async fn listed(&mut self, answer: Result<Vec<ContainerSummary>, DockerError>) -> Result<(), End> {
        let asked = self.listing.take().map_or_else(Instant::now, |(asked, _)| asked);
        let entries = answer?.into_iter().filter_map(facts::from_summary).collect();
        self.changed.retain(|_, changed| *changed >= asked);
        for id in self.containers.replace(entries, |id| self.changed.contains_key(id)) {
            self.refresh.request(&id, None);
        }
        if self.live {
            self.due = Some(Instant::now() + self.config.reconcile);
            return self.snapshot().await;
        }
        self.due = Some(Instant::now() + self.config.timeout);
        Ok(())
    }

    async fn changed(&mut self, message: EventMessage) -> Result<(), End> {
        let Some(change) = change::read(message) else { return Ok(()) };
        let (id, at) = (change.id.clone(), change::boot_time(change.wall));
        if change.kind != Kind::Network {
            self.changed.insert(id.clone(), Instant::now());
        }
        let news = match change.kind {
            Kind::Created => self.containers.created(change),
            Kind::Died => {
                self.refresh.outdate(&id);
                self.unconfirmed(&id).await?;
                self.containers.died(change)
            }
            Kind::Destroyed => {
                self.refresh.forget(&id);
                return self.removed(id, Some(at)).await;
            }
            // A container that starts is connected first; its start brings the inspect.
            Kind::Network if !self.containers.runs(&id) => return Ok(()),
            Kind::Network | Kind::Renamed => None,
            Kind::Paused => {
                self.containers.expect(change, ContainerState::Paused, at);
                None
            }
            Kind::Started | Kind::Unpaused => {
                self.containers.expect(change, ContainerState::Running, at);
                None
            }
        };
        self.refresh.request(&id, Some(at));
        self.tell(Some(at), news).await
    }

    async fn inspected(&mut self, inspected: Inspected) -> Result<(), End> {
        let Inspected { id, asked, answer } = inspected;
        let error = match answer {
            Ok(answer) => {
                let Landing::Use(at) = self.refresh.land(&id) else { return Ok(()) };
                let facts = facts::from_inspect(answer).filter(|facts| facts.id == id);
                let news = facts.and_then(|facts| self.containers.inspected(facts, asked));
                return self.tell(at, news).await;
            }
            Err(error) => error,
        };
        if error.is_absence() {
            self.refresh.land(&id);
            self.refresh.forget(&id);
            return self.removed(id, None).await;
        }
        tracing::debug!(container = %id, reason = %error.reason(), "container not inspected");
        if self.refresh.retry(&id) { Ok(()) } else { self.unconfirmed(&id).await }
    }

    async fn unconfirmed(&mut self, id: &str) -> Result<(), End> {
        let Some((at, facts)) = self.containers.unconfirmed(id) else { return Ok(()) };
        self.tell(Some(at), Some(facts)).await
    }

    /// Before the first snapshot nothing is told: that has it all.
    async fn tell(&mut self, at: Option<BootNs>, news: Option<ContainerFacts>) -> Result<(), End> {
        match news.filter(|_| self.live) {
            Some(facts) => self.send(at, Fact::Container(Box::new(facts))).await,
            None => Ok(()),
        }
    }

    async fn removed(&mut self, id: String, at: Option<BootNs>) -> Result<(), End> {
        if self.containers.removed(&id) && self.live {
            return self.send(at, Fact::ContainerGone { id }).await;
        }
        Ok(())
    }

    async fn send(&mut self, at: Option<BootNs>, fact: Fact) -> Result<(), End> {
        let observation = Observation { at: at.unwrap_or_else(boot_now), source: Source::Runtime, fact };
        self.tx.send(observation).await.map_err(|_| End::Closed)
    }
}

/// What a client error means, where it is not about what was asked: that, `asked` says.
fn failure(
    source: ClientError,
    after: Duration,
    asked: impl FnOnce(ClientError) -> DockerError,
) -> DockerError {
    match source {
        ClientError::RequestTimeoutError => DockerError::Timeout { after },
        ClientError::HyperLegacyError { ref err } if err.is_connect() => DockerError::Connect { source },
        source => asked(source),
    }
}

fn connect(socket: &Path, patience: Duration) -> Result<Docker, DockerError> {
    let path = socket.to_str().ok_or_else(|| DockerError::SocketPath { path: socket.to_owned() })?;
    // The library's own patience has whole seconds; it is what bounds the start of the event stream.
    let seconds = patience.as_secs() + u64::from(patience.subsec_nanos() > 0);
    Docker::connect_with_unix(path, seconds, API_DEFAULT_VERSION).map_err(|source| match source {
        ClientError::SocketNotFoundError(_) => DockerError::NoSocket { path: socket.to_owned() },
        source => DockerError::Connect { source },
    })
}

fn list(docker: Docker, patience: Duration) -> Listing {
    Box::pin(async move {
        let options = ListContainersOptionsBuilder::default().all(true).build();
        ask("GET /containers/json", docker.list_containers(Some(options)), patience).await
    })
}

fn inspect(docker: Docker, id: String, patience: Duration) -> Inspect {
    Box::pin(async move {
        let asked = change::wall_now();
        let request = docker.inspect_container(&id, None::<InspectContainerOptions>);
        let answer = ask("GET /containers/ID/json", request, patience).await;
        Inspected { id, asked, answer }
    })
}

async fn ask<T>(
    request: &'static str,
    answer: impl Future<Output = Result<T, ClientError>>,
    patience: Duration,
) -> Result<T, DockerError> {
    match timeout(patience, answer).await {
        Ok(answer) => answer
            .map_err(|source| failure(source, patience, |source| DockerError::Request { request, source })),
        Err(_) => Err(DockerError::Timeout { after: patience }),
    }
}

async fn answered(listing: &mut Option<(Instant, Listing)>) -> Result<Vec<ContainerSummary>, DockerError> {
    match listing {
        Some((_, listing)) => listing.await,
        None => pending().await,
    }
}

async fn reached(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}
