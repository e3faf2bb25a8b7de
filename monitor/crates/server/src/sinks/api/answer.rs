//! Routes requests: which path is answered from which data.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Method, Request, StatusCode};
use jiff::Timestamp;
use kevtmon_core::state::NodeState;
use kevtmon_event::SCHEMA;
use kevtmon_history::query::doctor::DaemonReport;
use kevtmon_history::query::filter::EventFilter;
use kevtmon_history::query::history::{History, HistoryError, Layered, LiveHistory};
use kevtmon_history::query::why::why;
use kevtmon_history::query::wire::{self, VersionAnswer};
use kevtmon_history::query::{API, API_HEADER};
use kevtmon_history::query::{live, stale};
use kevtmon_metrics::ProcessReader as _;
use kevtmon_sources::procfs::own::Own;
use kevtmon_types::error_chain::chain;
use kevtmon_types::escape::to_json;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::Question;
use super::backlog::Backlog;
use super::memory::{Memory, Subscription};
use super::stream;
use crate::http::{
    Connection, JSON, NDJSON, Response, method_not_allowed, respond, stream_body, text, whole,
};

/// Timeout for a copy of the model from the core.
const CORE_TIME: Duration = Duration::from_secs(5);
/// Time for events that the core has emitted to reach the memory. Their queue can be full, so it ends.
const CATCH_UP_TIME: Duration = Duration::from_secs(1);
/// The daemon that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub node: String,
    /// Version of the program.
    pub version: String,
    /// Git revision of the program.
    pub revision: String,
    pub state_dir: PathBuf,
    pub capabilities_at_start: Option<u64>,
}

/// Most of what it pins that is told.
const PINS: usize = 32;

pub(super) struct Answers {
    pub(super) identity: Identity,
    pub(super) memory: Arc<Memory>,
    /// The memory, with what reaches further back behind it.
    pub(super) history: Arc<dyn History>,
    /// What reaches further back.
    pub(super) older: Option<Arc<dyn LiveHistory>>,
    pub(super) questions: mpsc::Sender<Question>,
    /// The process of the daemon.
    pub(super) own: Own,
}

impl Answers {
    pub(super) async fn answer(&self, request: &Request<Incoming>, connection: Arc<Connection>) -> Response {
        if request.method() != Method::GET {
            return method_not_allowed("GET");
        }
        let theirs = request.headers().get(API_HEADER).map(HeaderValue::as_bytes);
        if theirs.is_some_and(|theirs| theirs != API.to_string().as_bytes()) {
            let theirs = String::from_utf8_lossy(theirs.unwrap_or_default()).into_owned();
            let both = format!("this daemon has interface version {API}, the client {theirs}");
            return text(StatusCode::BAD_REQUEST, both);
        }
        let query = request.uri().query().unwrap_or_default();
        let answer = match request.uri().path() {
            "/v1/events" => self.events(query, connection).await,
            "/v1/incidents" => self.incidents(query).await,
            "/v1/why" => self.why(query).await,
            "/v1/state" => self.state().await,
            "/v1/version" => Ok(self.version()),
            "/v1/doctor" => self.doctor().await,
            path => {
                let paths = "/v1/events, /v1/incidents, /v1/why, /v1/state, /v1/version, /v1/doctor";
                Err(text(StatusCode::NOT_FOUND, format!("unknown path {path}: this daemon serves {paths}")))
            }
        };
        answer.unwrap_or_else(|refusal| refusal)
    }

    async fn events(&self, query: &str, connection: Arc<Connection>) -> Answer {
        let question = wire::parse_events(query, Timestamp::now()).map_err(invalid)?;
        if question.follow {
            return self.follow(question.filter, connection).await;
        }
        let history = Arc::clone(&self.history);
        searched(move || {
            let page = history.events(&question.filter)?;
            wire::write_page(&page, history.extent()?).map_err(broken)
        })
        .await
    }

    async fn incidents(&self, query: &str) -> Answer {
        let filter = wire::parse_incidents(query, Timestamp::now()).map_err(invalid)?;
        // Without the model nothing tells what is watched.
        let state = self.model().await.ok();
        if let Some(state) = &state {
            let _ = timeout(CATCH_UP_TIME, self.memory.caught_up(state.seq)).await;
        }
        let history = Arc::clone(&self.history);
        searched(move || {
            let mut incidents = history.incidents(&filter)?;
            match &state {
                Some(state) => live::apply(&mut incidents, state),
                None => stale::without_model(&mut incidents),
            }
            to_json(&wire::IncidentsAnswer { incidents }).map_err(broken)
        })
        .await
    }

    async fn state(&self) -> Answer {
        let state = self.model().await?;
        searched(move || to_json(&state).map_err(broken)).await
    }

    /// What happened to a subject. The core only copies its model; events and incidents are read here, from the
    /// memory and the store as they are at one moment.
    async fn why(&self, query: &str) -> Answer {
        let subject = wire::parse_why(query).map_err(invalid)?;
        let state = self.model().await?;
        // Events take a moment from the core to the memory, and the model includes them already.
        let _ = timeout(CATCH_UP_TIME, self.memory.caught_up(state.seq)).await;
        let (memory, older) = (Arc::clone(&self.memory), self.older.clone());
        searched(move || {
            // The memory comes second, so that it has all that the store has.
            let older = older.and_then(|older| older.snapshot());
            let newest = Box::new(memory.snapshot(*state));
            let outcome = match older {
                Some(older) => why(&Layered::new(newest, older), &subject)?,
                None => why(newest.as_ref(), &subject)?,
            };
            to_json(&outcome).map_err(broken)
        })
        .await
    }

    /// A copy of the core's model.
    async fn model(&self) -> Result<Box<NodeState>, Response> {
        let unavailable = |why: &str| text(StatusCode::SERVICE_UNAVAILABLE, why);
        let (question, answer) = oneshot::channel();
        self.questions
            .try_send(question)
            .map_err(|_| unavailable("too many requests for the state, or the daemon ends"))?;
        match timeout(CORE_TIME, answer).await {
            Ok(Ok(state)) => Ok(state),
            Ok(Err(_)) | Err(_) => Err(unavailable("the core does not respond")),
        }
    }

    fn version(&self) -> Response {
        let Identity { node, version, revision, state_dir, .. } = self.identity.clone();
        match to_json(&VersionAnswer { api: API, schema: SCHEMA, version, revision, node, state_dir }) {
            Ok(body) => respond(StatusCode::OK, JSON, whole(body)),
            Err(error) => failed(error.to_string()),
        }
    }

    /// What the daemon tells of itself.
    async fn doctor(&self) -> Answer {
        let state = self.model().await?;
        let (own, identity) = (self.own.clone(), self.identity.clone());
        searched(move || {
            let Identity { node, version, revision, state_dir, capabilities_at_start } = identity;
            let confinement = own.confinement();
            let hexadecimal = |mask: u64| format!("{mask:016x}");
            let report = DaemonReport {
                version,
                revision,
                node,
                pid: std::process::id(),
                state_dir,
                ready: state.ready,
                no_new_privs: confinement.map(|(no_new_privs, _)| no_new_privs),
                calls_filtered: confinement.map(|(_, calls_filtered)| calls_filtered),
                capabilities: own.effective_capabilities().map(hexadecimal),
                capabilities_at_start: capabilities_at_start.map(hexadecimal),
                pins: own.pins().into_iter().take(PINS).map(|pin| pin.what).collect(),
                sources: state.sources,
            };
            to_json(&report).map_err(broken)
        })
        .await
    }

    async fn follow(&self, mut filter: EventFilter, connection: Arc<Connection>) -> Answer {
        let after = filter.after.take().map(|after| self.continued(after, filter.boot_id.as_deref()));
        filter.boot_id = None;
        let Some(subscription) = self.memory.subscribe(filter.clone(), Arc::clone(&connection)) else {
            return Err(text(StatusCode::SERVICE_UNAVAILABLE, "too many readers, or the daemon ends"));
        };
        let backlog = match after {
            Some(after) => self.backlog(filter, after, &subscription).await?,
            None => Vec::new(),
        };
        connection.set_stream();
        let (chunks, body) = stream_body();
        // Ends when its body is dropped with the connection.
        tokio::spawn(stream::feed(backlog, Arc::clone(&self.memory), subscription, chunks));
        Ok(respond(StatusCode::OK, NDJSON, body))
    }

    async fn backlog(
        &self,
        filter: EventFilter,
        after: u64,
        subscription: &Subscription,
    ) -> Result<Vec<Arc<str>>, Response> {
        let backlog = Backlog {
            newest: self.memory.newest(),
            older: self.older.clone(),
            node: self.identity.node.clone(),
            boot_id: self.memory.boot_id().to_owned(),
            after,
            last_seq: subscription.last_seq,
        };
        backlog.await_commit().await;
        blocking(move || backlog.lines(filter)).await
    }

    /// Sequence numbers begin again with each boot, and where the last number is lost: then all events are new.
    fn continued(&self, after: u64, boot_id: Option<&str>) -> u64 {
        let same_boot = boot_id.is_none_or(|boot| boot == self.memory.boot_id());
        if same_boot && after <= self.memory.last_seq() { after } else { 0 }
    }
}

/// What is sent, or the refusal.
type Answer = Result<Response, Response>;

async fn searched(search: impl FnOnce() -> Result<String, HistoryError> + Send + 'static) -> Answer {
    Ok(respond(StatusCode::OK, JSON, whole(blocking(search).await?)))
}

/// Searches on a thread of its own, so that streams go on meanwhile.
async fn blocking<T: Send + 'static>(
    search: impl FnOnce() -> Result<T, HistoryError> + Send + 'static,
) -> Result<T, Response> {
    let found = spawn_blocking(search).await.map_err(|error| failed(error.to_string()))?;
    found.map_err(|error| {
        let error = chain(&error);
        tracing::error!(error, "a query failed");
        failed(error)
    })
}

fn failed(error: String) -> Response {
    text(StatusCode::INTERNAL_SERVER_ERROR, error)
}

fn invalid(error: impl Display) -> Response {
    text(StatusCode::BAD_REQUEST, error.to_string())
}

fn broken(source: serde_json::Error) -> HistoryError {
    HistoryError::Unreadable { what: "an answer".to_owned(), source: Box::new(source) }
}
