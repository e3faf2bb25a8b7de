//! Kubernetes Events as a sink: an incident is shown with the pod that it affects, by `kubectl describe pod`.
//!
//! One Event when it opens or becomes a warning, one when its culprit is known later than that, one for its end, and a change of the
//! first when it becomes critical: never one per observation. Where pods have one address, each of them has these. A node writes few,
//! slowly, and reads nothing, because each Event costs the API server a write to etcd, and the nodes of a cluster may have the same
//! fault at once. What cannot be written waits, within bounds; nothing waits for it.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::{Method, StatusCode};
use kevtmon_event::{Event, Kind, Severity, SharedEvent, Tenant};
use kevtmon_history::queue::{Bounds, Refused};
use kevtmon_metrics::Metrics;
use kevtmon_types::error_chain::chain;
use kevtmon_types::settings::{Valid, settings};
use serde_json::json;

use super::{Backoff, Context, Destination, EventQueue, Reconnecting, Started, spread};
use client::{ApiError, Call, Client, is_server, said};
use object::{Object, Transition};
use pace::Pace;

mod client;
mod object;
mod pace;

settings! { "kubernetes":
    /// Whether incidents are written as Events of Kubernetes, about the pod that they affect or else the node: one when an
    /// incident opens, one when it closes.
    EVENTS: bool = "events", default false;
    /// URL of the API server; empty for that of the cluster in which kevtmon is a pod.
    SERVER: String = "server", default String::new(),
        valid Valid::Text("a URL such as https://10.96.0.1:443", is_server);
    /// File with the token of a service account that may create and patch Events. It is read for each request.
    TOKEN_FILE: PathBuf = "token_file", default "/var/run/secrets/kubernetes.io/serviceaccount/token".into();
    /// File with the certificates of the authority that the API server has its own of.
    CA_FILE: PathBuf = "ca_file", default "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt".into();
}

/// In metric labels, and among the sources of `daemon.*` events.
const NAME: &str = "kubernetes";
/// Events that wait.
const WAITING: usize = 256;
/// How long: by then the operators know, or have other worries.
const AGE: Duration = Duration::from_secs(600);
/// Open incidents of which it is known what was written.
const KNOWN: usize = 1024;
/// Between attempts to connect.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };
/// Over which the writes of nodes are spread that start together, or find the server back together, in milliseconds.
const JITTER_MS: u64 = 10_000;
/// Where a server that has too much to do names no time; it doubles each time.
const TOO_MANY: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Of what the server says that is shown, in bytes.
const SHOWN: usize = 256;

/// Starts the sink; `None` if no Events are to be written.
pub(super) fn start(context: &Context<'_>) -> io::Result<Option<Started>> {
    if !context.settings.get(&EVENTS) {
        return Ok(None);
    }
    open(context, jitter(context.boot_id), BACKOFF).map(Some)
}

/// The same for one boot of one node.
fn jitter(boot_id: &str) -> Duration {
    Duration::from_millis(JITTER_MS).mul_f64(spread::share(boot_id))
}

fn open(context: &Context<'_>, jitter: Duration, backoff: Backoff) -> io::Result<Started> {
    let metrics = Arc::clone(context.metrics);
    let client = Client {
        server: context.settings.get(&SERVER),
        token_file: context.settings.get(&TOKEN_FILE),
        ca_file: context.settings.get(&CA_FILE),
    };
    let failure = client.check().err().map(|error| chain(&error));
    let server = ApiServer::new(client, jitter, Arc::clone(&metrics));
    let sink = Reconnecting::new(server, backoff, Arc::clone(&metrics), context.core.clone());
    let (sink, status) = sink.started(failure);
    // Of all others it takes only incidents and what is of the daemon.
    let queue = EventQueue::start(NAME, Severity::Critical, metrics, sink)?;
    Ok(Started { source: Some(NAME), status: Some(status), ..queue.into() })
}

/// An Event that waits.
struct Waiting {
    object: Object,
    tenant: Tenant,
    since: Instant,
}

/// What was written of an open incident.
#[derive(Clone, Copy)]
struct Written {
    severity: Severity,
    names_culprit: bool,
}

struct ApiServer {
    client: Client,
    pace: Pace,
    /// This node's own, of each wait that nodes have in common.
    jitter: Duration,
    /// In succession, for a server that has too much to do.
    pauses: u32,
    metrics: Arc<Metrics>,
    waiting: VecDeque<Waiting>,
    /// By id and episode.
    known: BTreeMap<(String, u32), Written>,
    reported: Reported,
}

/// What was logged and is not logged again.
#[derive(Default)]
struct Reported {
    no_patch: bool,
    refused: bool,
}

impl ApiServer {
    fn new(client: Client, jitter: Duration, metrics: Arc<Metrics>) -> Self {
        Self {
            client,
            pace: Pace::beginning(Instant::now() + jitter),
            jitter,
            pauses: 0,
            metrics,
            waiting: VecDeque::new(),
            known: BTreeMap::new(),
            reported: Reported::default(),
        }
    }

    /// Puts what is to be written in the queue. It takes no more of a tenant than leaves a place for everybody, as in the queue of each
    /// sink.
    fn take(&mut self, event: &Event) {
        let Some(incident) = &event.incident else { return };
        let key = (incident.id.clone(), incident.episode);
        let Some(transition) = self.transition(event, &key) else { return };
        if transition == Transition::Closed {
            self.known.remove(&key);
        }
        let Some(object) = Object::of(event, transition) else {
            return self.metrics.discarded(NAME, "unnamed", 1);
        };
        if !self.wait(object, &event.tenant) {
            return;
        }
        for other in Object::of_others(event, transition) {
            self.wait(other, &event.tenant);
        }
        let is_open = transition != Transition::Closed;
        if is_open && (self.known.len() < KNOWN || self.known.contains_key(&key)) {
            let written =
                Written { severity: incident.severity, names_culprit: object::names_culprit(event) };
            self.known.insert(key, written);
        }
    }

    /// Whether there was room for it.
    fn wait(&mut self, object: Object, tenant: &Tenant) -> bool {
        let same = self.waiting.iter().filter(|it| it.tenant == *tenant).count();
        let bounds = Bounds { capacity: WAITING, reserved: 0 };
        if !bounds.is_fair(self.waiting.len(), tenant, same) {
            self.metrics.discarded(NAME, Refused::Full.reason(), 1);
            return false;
        }
        self.waiting.push_back(Waiting { object, tenant: tenant.clone(), since: Instant::now() });
        true
    }

    /// What an event is the news of. Nothing below a warning is written: most refusals of the first unmount are over by the second.
    fn transition(&self, event: &Event, key: &(String, u32)) -> Option<Transition> {
        let incident = event.incident.as_ref()?;
        let written = self.known.get(key);
        if event.kind == Kind::IncidentClosed {
            let is_shown = written.is_some() || incident.severity >= Severity::Warning;
            return is_shown.then_some(Transition::Closed);
        }
        if incident.severity < Severity::Warning {
            return None;
        }
        let Some(written) = written else {
            // One from before the start is written again, under its name: the server has it already.
            let has_room = self.known.len() < KNOWN || event.kind == Kind::IncidentOpened;
            return has_room.then_some(Transition::Opened);
        };
        if !written.names_culprit && object::names_culprit(event) {
            return Some(Transition::Named);
        }
        (incident.severity > written.severity).then_some(Transition::Escalated)
    }

    /// Writes what the pace allows.
    fn send(&mut self) -> Result<(), ApiError> {
        let before = self.waiting.len();
        self.waiting.retain(|it| it.since.elapsed() < AGE);
        let expired = before - self.waiting.len();
        if expired > 0 {
            self.metrics.discarded(NAME, "expired", u64::try_from(expired).unwrap_or(u64::MAX));
        }
        while !self.waiting.is_empty() && self.pace.next() <= Instant::now() {
            self.send_first()?;
        }
        Ok(())
    }

    fn send_first(&mut self) -> Result<(), ApiError> {
        let Some(mut first) = self.waiting.pop_front() else { return Ok(()) };
        self.pace.take(Instant::now());
        let is_there = first.object.is_there;
        let reply = match self.client.send(call(&first.object)) {
            Ok(reply) => reply,
            // It may be this one that takes the server too long: others are next.
            Err(error) => {
                self.waiting.push_back(first);
                return Err(error);
            }
        };
        let (status, message) = (reply.status, said(&reply.body));
        let is_busy = status == StatusCode::TOO_MANY_REQUESTS
            || status == StatusCode::SERVICE_UNAVAILABLE && reply.retry_after.is_some();
        if is_busy {
            self.waiting.push_front(first);
            self.pause(reply.retry_after);
            return Ok(());
        }
        self.pauses = 0;
        match status {
            status if status.is_success() => {}
            // By an attempt of which the answer was lost, or before a restart.
            StatusCode::CONFLICT if !is_there && message.contains("already exists") => {}
            // It has expired, or was never made.
            StatusCode::NOT_FOUND if is_there => {
                first.object.is_there = false;
                self.waiting.push_front(first);
            }
            StatusCode::UNAUTHORIZED => {
                self.waiting.push_front(first);
                return Err(ApiError::Refused { status, message: shown(&message) });
            }
            status if status.is_server_error() || status == StatusCode::CONFLICT => {
                self.waiting.push_back(first);
                return Err(ApiError::Refused { status, message: shown(&message) });
            }
            StatusCode::FORBIDDEN => return self.forbidden(&message, is_there),
            _ => self.refuse(status, &message),
        }
        Ok(())
    }

    /// At another moment than other nodes, and longer each time.
    fn pause(&mut self, named: Option<Duration>) {
        let named = named.unwrap_or(TOO_MANY).max(Duration::from_secs(1));
        let pause = named.saturating_mul(1 << self.pauses.min(8)).min(LONGEST_PAUSE);
        self.pauses += 1;
        let part = self.jitter.as_secs_f64() * 1000.0 / JITTER_MS as f64;
        self.pace.pause(Instant::now() + pause.mul_f64(1.0 + part));
    }

    /// By RBAC, which concerns all Events; or by an admission plugin, which may concern this one.
    fn forbidden(&mut self, message: &str, is_there: bool) -> Result<(), ApiError> {
        let verb = if is_there { "patch" } else { "create" };
        if !message.contains(&format!("cannot {verb} resource")) {
            self.refuse(StatusCode::FORBIDDEN, message);
            return Ok(());
        }
        self.metrics.discarded(NAME, "forbidden", 1);
        let error = ApiError::Forbidden { verb };
        if !is_there {
            return Err(error);
        }
        // Others can still be created.
        if !std::mem::replace(&mut self.reported.no_patch, true) {
            tracing::warn!("incidents that become more severe are not updated as Kubernetes Events: {error}");
        }
        Ok(())
    }

    /// The server is well, and does not want this one.
    fn refuse(&mut self, status: StatusCode, message: &str) {
        // A namespace that is being deleted takes no Events, and nobody would read them.
        if message.starts_with("namespaces \"") || message.contains("being terminated") {
            return;
        }
        self.metrics.discarded(NAME, "refused", 1);
        if !std::mem::replace(&mut self.reported.refused, true) {
            let message = shown(message);
            tracing::warn!(%status, "the Kubernetes API refuses an Event, and perhaps more: {message}");
        }
    }
}

/// What still waits is lost.
impl Drop for ApiServer {
    fn drop(&mut self) {
        let waiting = u64::try_from(self.waiting.len()).unwrap_or(u64::MAX);
        if waiting > 0 {
            self.metrics.discarded(NAME, Refused::Closed.reason(), waiting);
        }
    }
}

fn shown(message: &str) -> String {
    object::cut(message, SHOWN).to_owned()
}

fn call(object: &Object) -> Call {
    let Object { namespace, name, event, is_there } = object;
    let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    if *is_there {
        let body = json!({ "series": event["series"] }).to_string().into_bytes();
        let content_type = "application/merge-patch+json";
        return Call { method: Method::PATCH, path: format!("{path}/{name}"), content_type, body };
    }
    let body = event.to_string().into_bytes();
    Call { method: Method::POST, path, content_type: "application/json", body }
}

impl Destination for ApiServer {
    type Error = ApiError;

    const NAME: &'static str = NAME;
    const TITLE: &'static str = "Kubernetes API server";
    /// An Event has no sequence number.
    const REPORTS_GAPS: bool = false;
    const WHILE_DOWN: &'static str = "up to 256 Events wait for ten minutes, and others are discarded";

    fn can_connect(&self) -> bool {
        !self.waiting.is_empty() && self.pace.next() <= Instant::now()
    }

    /// It is up once it has answered; the rest comes when other nodes have tried as well.
    fn connect(&mut self) -> Result<(), ApiError> {
        self.send_first()?;
        self.pace.pause(Instant::now() + self.jitter);
        Ok(())
    }

    fn write(&mut self, event: &Arc<SharedEvent>) -> Result<(), ApiError> {
        self.take(event);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ApiError> {
        self.send()
    }

    fn skip(&mut self, event: &SharedEvent) -> bool {
        self.take(event);
        true
    }

    fn due(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then(|| self.pace.next())
    }
}

#[cfg(test)]
mod tests;
