//! Docker: its containers, by list, inspect and event stream of the Engine API.
//!
//! Nothing but GET requests is ever sent, since the socket is root on the node.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bollard::errors::Error as ClientError;
use bollard::models::SystemVersion;
use bollard::{API_DEFAULT_VERSION, BollardRequest};
use events::Actions;
use futures_util::{StreamExt, future};
use transport::{Allowance, Fault};

use super::client::{Changes, Inspection, Listed, RuntimeClient, RuntimeError};
use super::source::Options;
use super::state_files::StateFiles;
use crate::kubelet::PodLabels;

pub(super) mod api;
mod events;
mod facts;
mod list;
mod transport;

pub(super) use facts::from_inspect;

/// Engines that serve this API, by what they call themselves among their components, and their name in
/// `ContainerFacts::runtime`.
const ENGINES: &[(&str, &str)] = &[("Engine", "docker"), ("Podman Engine", "podman")];

/// The name of an engine that does not report its own.
const UNNAMED: &str = "docker";

const LIST: &str = "GET /containers/json";
const INSPECT: &str = "GET /containers/ID/json";
const EVENTS: &str = "GET /events";
const VERSION: &str = "GET /version";
const INFO: &str = "GET /info";

/// How long an engine has for telling where its data is, which is only needed once it does not answer.
const INFO_PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct Docker {
    socket: PathBuf,
    /// For all but lists and inspects.
    api: bollard::Docker,
    /// How much may be read before the next event.
    next_event: Arc<Allowance>,
    runtime: &'static str,
    /// Answers that were none.
    refused: u64,
    data_root: Option<PathBuf>,
    patience: Duration,
    labels: Arc<PodLabels>,
}

impl RuntimeClient for Docker {
    async fn connect(socket: &Path, options: &Options) -> Result<Self, RuntimeError> {
        let patience = options.timeout;
        // The library's own patience has whole seconds; it is what bounds the start of the event stream.
        let seconds = patience.as_secs() + u64::from(patience.subsec_nanos() > 0);
        let next_event = Allowance::of_events();
        let (path, events) = (socket.to_owned(), Arc::clone(&next_event));
        let send = move |request: BollardRequest| {
            let (path, events) = (path.clone(), Arc::clone(&events));
            async move { transport::send(&path, events, request).await }
        };
        let origin = Some(transport::ORIGIN);
        let api = bollard::Docker::connect_with_custom_transport(send, origin, seconds, API_DEFAULT_VERSION)
            .map_err(|source| RuntimeError::Connect { source: Box::new(source) })?;
        let (version, info) = tokio::join!(
            ask(VERSION, patience, api.version()),
            tokio::time::timeout(INFO_PATIENCE.min(patience / 2), ask(INFO, patience, api.info()))
        );
        // A proxy may withhold both, and an engine may take long to count its images.
        let info = info.ok();
        let is_refused = [version.as_ref().err(), info.as_ref().and_then(|info| info.as_ref().err())]
            .map(|error| error.is_some_and(RuntimeError::is_malformed));
        let refused = is_refused.into_iter().map(u64::from).sum();
        let data = info.and_then(Result::ok).and_then(|info| info.docker_root_dir);
        let data_root = data.map(PathBuf::from).filter(|data| data.is_absolute());
        let runtime = match version {
            Ok(version) => runtime_of(version),
            // Any other fault shows in the list.
            Err(RuntimeError::Request { .. } | RuntimeError::Decode { .. }) => UNNAMED,
            Err(error) => return Err(error),
        };
        let (socket, labels) = (socket.to_owned(), Arc::clone(&options.pod_labels));
        Ok(Self { socket, api, next_event, runtime, refused, data_root, patience, labels })
    }

    fn runtime(&self) -> &str {
        self.runtime
    }

    fn refused(&self) -> u64 {
        self.refused
    }

    fn state_files(&self) -> Option<StateFiles> {
        self.data_root.clone().map(|data| StateFiles::Docker(Some(data)))
    }

    fn usual_state_files(socket: &Path) -> Option<StateFiles> {
        super::DOCKER.iter().any(|path| Path::new(path) == socket).then_some(StateFiles::Docker(None))
    }

    async fn list(&self) -> Result<Listed, RuntimeError> {
        let answer =
            ask(LIST, self.patience, transport::get(&self.socket, "/containers/json?all=true")).await?;
        list::read(&answer, &self.labels).map_err(|error| invalid(LIST, error))
    }

    async fn inspect(&self, id: &str) -> Result<Option<Inspection>, RuntimeError> {
        let answer = match transport::get(&self.socket, &format!("/containers/{id}/json")).await {
            Ok(answer) => answer,
            Err(ClientError::DockerResponseServerError { status_code: 404, .. }) => return Ok(None),
            Err(source) => return Err(failure(INSPECT, self.patience, source)),
        };
        let answer = serde_json::from_slice(&answer).map_err(|error| invalid(INSPECT, error))?;
        // Not `None`, which would report that the container is gone.
        let found = from_inspect(answer, &self.labels, self.data_root.as_deref());
        found.map(Some).ok_or_else(|| invalid(INSPECT, "it has no container id"))
    }

    fn events(&self, since: i64) -> Changes {
        self.changes(events::ACTIONS, since)
    }
}

impl Docker {
    /// Changes of an engine that has these names for what happens to a container.
    pub(super) fn changes(&self, actions: Actions, since: i64) -> Changes {
        let patience = self.patience;
        let allowance = Arc::clone(&self.next_event);
        allowance.renew();
        let messages = self.api.events(Some(events::subscription(actions, since)));
        Box::pin(messages.filter_map(move |message| {
            future::ready(match (message, allowance.fault()) {
                (Ok(message), _) => {
                    allowance.renew();
                    events::read(actions, message).transpose()
                }
                (Err(_), Some(fault)) => {
                    Some(Err(RuntimeError::Decode { request: EVENTS, source: Box::new(fault) }))
                }
                (Err(source), None) => Some(Err(match failure(EVENTS, patience, source) {
                    RuntimeError::Request { source, .. } => RuntimeError::Events { source },
                    error => error,
                })),
            })
        }))
    }
}

fn runtime_of(version: SystemVersion) -> &'static str {
    let components = version.components.unwrap_or_default();
    let named = ENGINES.iter().find(|(name, _)| components.iter().any(|component| component.name == *name));
    named.map_or(UNNAMED, |(_, runtime)| runtime)
}

async fn ask<T>(
    request: &'static str,
    patience: Duration,
    answer: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, RuntimeError> {
    answer.await.map_err(|source| failure(request, patience, source))
}

fn invalid(
    request: &'static str,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> RuntimeError {
    RuntimeError::Decode { request, source: source.into() }
}

fn failure(request: &'static str, after: Duration, source: ClientError) -> RuntimeError {
    match Fault::of(&source) {
        Some(Fault::Connect(_)) => return RuntimeError::Connect { source: Box::new(source) },
        Some(Fault::TooLarge { .. }) => return RuntimeError::Decode { request, source: Box::new(source) },
        None => {}
    }
    match source {
        ClientError::RequestTimeoutError => RuntimeError::Timeout { after },
        ClientError::SocketNotFoundError(path) => RuntimeError::NoSocket { path: path.into() },
        ClientError::JsonDataError { .. } | ClientError::JsonSerdeError { .. } => {
            RuntimeError::Decode { request, source: Box::new(source) }
        }
        source => RuntimeError::Request { request, source: Box::new(source) },
    }
}

#[cfg(test)]
mod tests;
