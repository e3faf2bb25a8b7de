//! OpenTelemetry logs as a sink: events are sent to a Collector, or whatever else takes OTLP by HTTP.
//!
//! Several at once, compressed, a moment after the first. What cannot be sent waits, within bounds; nothing waits for it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use jiff::Timestamp;
use kevtmon_event::{Severity, SharedEvent};
use kevtmon_history::queue::Refused;
use kevtmon_metrics::Metrics;
use kevtmon_types::error_chain::chain;
use kevtmon_types::settings::{Valid, settings};
use prost::Message as _;

use super::http_client::{self, Reply};
use super::{Backoff, Context, Destination, EventQueue, Reconnecting, Started, event_queue, spread};
use client::{Client, OtlpError, is_endpoint};
use proto::{ExportLogsServiceResponse, Status};
use waiting::Waiting;

mod client;
mod proto;
mod record;
mod waiting;

settings! { "otlp":
    /// URL that events are sent to as OpenTelemetry logs (OTLP by HTTP, with protobuf); without a path, to /v1/logs of that
    /// server. Empty for none.
    ENDPOINT: String = "endpoint", default String::new(),
        valid Valid::Text("a URL such as http://127.0.0.1:4318, without a user and a query", is_endpoint);
    /// Minimum severity of what is sent; events of the daemon itself and of incidents are always sent.
    MIN_SEVERITY: Severity = "min_severity", default Severity::Notice, valid Valid::OneOf(Severity::NAMES);
    /// File with the certificates of the authorities that are trusted with an https URL; empty for those of the node, such as
    /// /etc/ssl/certs/ca-certificates.crt.
    CA_FILE: PathBuf = "ca_file", default PathBuf::new();
    /// File with headers to send, such as a token, each in a line: NAME: VALUE. It is read for each request. Empty for none.
    HEADERS_FILE: PathBuf = "headers_file", default PathBuf::new();
}

/// In metric labels, and among the sources of `daemon.*` events.
const NAME: &str = "otlp";
/// How long a record waits for the server: by then the operators know, or have other worries.
const AGE: Duration = Duration::from_secs(600);
/// How long a server may have too much to do before it counts as down.
const BUSY: Duration = Duration::from_secs(60);
/// What the last request may take when the daemon ends.
const LAST_PATIENCE: Duration = Duration::from_secs(2);
/// Of what the server says that is shown, in bytes.
const SHOWN: usize = 512;
/// How long it waits for others to be sent with it.
const LINGER: Duration = Duration::from_secs(1);
/// Between attempts, before the share of this node is added, which is less than as much again.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The longest pause that a server may name, likewise: what waits has not expired by then.
const LONGEST_NAMED: Duration = Duration::from_secs(240);

/// When things are done.
#[derive(Debug, Clone, Copy)]
struct Timing {
    linger: Duration,
    backoff: Backoff,
    /// Of this node, by which all its pauses are longer.
    share: f64,
}

impl Timing {
    fn of_boot(boot_id: &str) -> Self {
        let share = spread::share(boot_id);
        let backoff =
            Backoff { first: FIRST_PAUSE.mul_f64(1.0 + share), longest: LONGEST_PAUSE.mul_f64(1.0 + share) };
        Self { linger: LINGER, backoff, share }
    }

    /// After so many answers in succession that the server has too much to do.
    fn pause(&self, named: Option<Duration>, before: u32) -> Duration {
        let doubled = FIRST_PAUSE.saturating_mul(1 << before.min(8)).min(LONGEST_PAUSE);
        named.unwrap_or_default().min(LONGEST_NAMED).max(doubled).mul_f64(1.0 + self.share)
    }
}

/// Starts the sink; `None` if events are sent nowhere.
pub(super) fn start(context: &Context<'_>) -> io::Result<Option<Started>> {
    if context.settings.get(&ENDPOINT).is_empty() {
        return Ok(None);
    }
    open(context, Timing::of_boot(context.boot_id)).map(Some)
}

fn open(context: &Context<'_>, timing: Timing) -> io::Result<Started> {
    let metrics = Arc::clone(context.metrics);
    let client = Client {
        endpoint: context.settings.get(&ENDPOINT),
        ca_file: context.settings.get(&CA_FILE),
        headers_file: context.settings.get(&HEADERS_FILE),
    };
    let failure = client.check().err().map(|error| chain(&error));
    if client.exposes_headers() {
        tracing::warn!(
            "[otlp] sends the headers of headers_file without TLS: use https, or a server on this node"
        );
    }
    let collector = Collector::new(client, timing, context.boot_id, Arc::clone(&metrics));
    let sink = Reconnecting::new(collector, timing.backoff, Arc::clone(&metrics), context.core.clone());
    let (sink, status) = sink.started(failure);
    let queue = EventQueue::start(NAME, context.settings.get(&MIN_SEVERITY), metrics, sink)?;
    Ok(Started { source: Some(NAME), status: Some(status), ..queue.into() })
}

struct Collector {
    client: Client,
    timing: Timing,
    metrics: Arc<Metrics>,
    /// Of all events: what runs here has one name.
    node: String,
    boot_id: String,
    waiting: Waiting,
    /// Since the server has too much to do.
    not_before: Instant,
    busy_since: Option<Instant>,
    /// In succession, for that.
    pauses: u32,
    /// Records of a request: fewer while one with more has failed without an answer.
    most: usize,
    /// The last request: then the next one puts a single record at risk.
    is_refused: bool,
    patience: Duration,
    reported: Reported,
}

/// What was logged and is not logged again.
#[derive(Default)]
struct Reported {
    refused: bool,
    rejected: bool,
}

impl Collector {
    fn new(client: Client, timing: Timing, boot_id: &str, metrics: Arc<Metrics>) -> Self {
        Self {
            client,
            timing,
            metrics,
            node: String::new(),
            boot_id: boot_id.to_owned(),
            waiting: Waiting::default(),
            not_before: Instant::now(),
            busy_since: None,
            pauses: 0,
            most: waiting::BATCH,
            is_refused: false,
            patience: http_client::PATIENCE,
            reported: Reported::default(),
        }
    }

    fn take(&mut self, event: &SharedEvent) {
        self.expire();
        if self.node.is_empty() {
            self.node.clone_from(&event.node);
        }
        let class = event_queue::class(event);
        // In a storm most of them find none: those are not encoded.
        let has_room = self.waiting.has_room(0, &event.tenant, class);
        let record = || record::of(event, Timestamp::now()).encode_to_vec();
        if !has_room || !self.waiting.push(record(), &event.tenant, class, Instant::now()) {
            self.discarded(Refused::Full.reason(), 1);
        }
    }

    fn expire(&mut self) {
        let expired = self.waiting.expire(AGE, Instant::now());
        if expired > 0 {
            self.discarded("expired", expired);
        }
    }

    fn discarded(&self, reason: &'static str, count: usize) {
        self.metrics.discarded(NAME, reason, u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// When the next request may be sent; it may be past.
    fn next(&self) -> Option<Instant> {
        let since = self.waiting.since()?;
        let ready = if self.waiting.is_batch() { since } else { since + self.timing.linger };
        Some(ready.max(self.not_before))
    }

    /// Sends one request, if it is time: others come in between.
    fn send_if_due(&mut self) -> Result<(), OtlpError> {
        self.expire();
        match self.next() {
            Some(next) if next <= Instant::now() => match self.send() {
                Err(OtlpError::Busy { .. }) if self.is_soon() => Ok(()),
                other => other,
            },
            _ => Ok(()),
        }
    }

    /// Whether a server that has too much to do is asked again before it counts as down.
    fn is_soon(&self) -> bool {
        self.busy_since.is_none_or(|since| self.not_before.saturating_duration_since(since) <= BUSY)
    }

    /// Sends a request with the oldest records. They go on to wait until the server has taken or refused them.
    fn send(&mut self) -> Result<(), OtlpError> {
        let count = self.waiting.batch().min(if self.is_refused { 1 } else { self.most });
        if count == 0 {
            return Ok(());
        }
        let message = record::request(&self.node, &self.boot_id, self.waiting.first(count));
        let reply = match self.client.send(&message, self.patience) {
            Ok(reply) => reply,
            Err(error) => {
                // It may be too much for the way, or for the server's time.
                self.most = (count / 2).max(1);
                return Err(error);
            }
        };
        let status = reply.status;
        if is_temporary(status) {
            let now = Instant::now();
            self.busy_since.get_or_insert(now);
            self.not_before = now + self.timing.pause(reply.retry_after, self.pauses);
            self.pauses += 1;
            return Err(OtlpError::Busy { status, message: said(&reply.body) });
        }
        (self.busy_since, self.pauses) = (None, 0);
        self.waiting.drop_first(count);
        if self.waiting.is_empty() {
            self.most = waiting::BATCH;
        }
        if status.is_success() {
            self.is_refused = self.rejected(&reply, count) == count;
            return Ok(());
        }
        self.discarded("refused", count);
        let was_refused = std::mem::replace(&mut self.is_refused, true);
        let message = said(&reply.body);
        // The second time in succession it is not for what was sent.
        if was_refused || !is_about_records(status) {
            return Err(OtlpError::Refused { status, message });
        }
        if !std::mem::replace(&mut self.reported.refused, true) {
            tracing::warn!(%status, "the OpenTelemetry server refuses events, and perhaps more: {message}");
        }
        Ok(())
    }

    /// Of so many that were sent, those that it has not taken.
    fn rejected(&mut self, reply: &Reply, count: usize) -> usize {
        // What is no such message says nothing of it.
        let response = ExportLogsServiceResponse::decode(&reply.body[..]).unwrap_or_default();
        let Some(partial) = response.partial_success else { return 0 };
        let rejected = usize::try_from(partial.rejected_log_records).unwrap_or(0).min(count);
        // Without a number it is a warning.
        if rejected == 0 && partial.error_message.is_empty() {
            return 0;
        }
        if rejected > 0 {
            self.discarded("rejected", rejected);
        }
        if !std::mem::replace(&mut self.reported.rejected, true) {
            let message = shown(partial.error_message.as_bytes());
            tracing::warn!(
                rejected,
                "the OpenTelemetry server complains of events, and perhaps of more: {message}"
            );
        }
        rejected
    }
}

/// Whether the same request may be taken later, by the specification of OTLP.
fn is_temporary(status: StatusCode) -> bool {
    [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::BAD_GATEWAY,
        StatusCode::SERVICE_UNAVAILABLE,
        StatusCode::GATEWAY_TIMEOUT,
    ]
    .contains(&status)
}

/// Whether others may be taken.
fn is_about_records(status: StatusCode) -> bool {
    [StatusCode::BAD_REQUEST, StatusCode::PAYLOAD_TOO_LARGE, StatusCode::UNPROCESSABLE_ENTITY]
        .contains(&status)
}

/// What it says of a failure: the message of a status, or else the beginning of the text.
fn said(body: &[u8]) -> String {
    match Status::decode(body) {
        Ok(status) if !status.message.is_empty() => shown(status.message.as_bytes()),
        _ => shown(body),
    }
}

fn shown(text: &[u8]) -> String {
    let mut text = http_client::text_of(text);
    text.truncate(text.floor_char_boundary(SHOWN));
    text
}

/// What still waits is lost.
impl Drop for Collector {
    fn drop(&mut self) {
        let count = self.waiting.len();
        if count > 0 {
            self.discarded(Refused::Closed.reason(), count);
            tracing::warn!(count, "events were not sent to the OpenTelemetry server before the end");
        }
    }
}

impl Destination for Collector {
    type Error = OtlpError;

    const NAME: &'static str = NAME;
    const TITLE: &'static str = "OpenTelemetry server";
    /// Each discarded event is counted; what is sent has the numbers.
    const REPORTS_GAPS: bool = false;
    const WHILE_DOWN: &'static str = "up to 4096 events wait for ten minutes, and others are discarded";

    fn can_connect(&self) -> bool {
        !self.waiting.is_empty() && self.not_before <= Instant::now()
    }

    /// It is up once it has taken a request. An old record is not dropped before: without one there would be nothing to ask.
    fn connect(&mut self) -> Result<(), OtlpError> {
        self.send()
    }

    fn write(&mut self, event: &Arc<SharedEvent>) -> Result<(), OtlpError> {
        self.take(event);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), OtlpError> {
        self.send_if_due()
    }

    fn skip(&mut self, event: &SharedEvent) -> bool {
        self.take(event);
        true
    }

    fn due(&self) -> Option<Instant> {
        self.next()
    }

    /// Each request is answered, fails or begins a pause: this ends.
    fn close(&mut self) -> Result<(), OtlpError> {
        self.patience = LAST_PATIENCE;
        while self.can_connect() {
            self.send()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
