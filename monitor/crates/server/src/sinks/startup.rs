//! Starts the sinks in `SINKS`: the daemon refers to none of them by name.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use kevtmon_history::store::PreviousRun;
use kevtmon_metrics::Metrics;
use kevtmon_observation::SourceStatus;
use kevtmon_sources::Sender;
use kevtmon_types::settings::Values;
use thiserror::Error;

use super::api::Memory;
use super::{CommitBarrier, EventQueue, KeptState, Liveness, SINKS, Sinks, kubernetes, otlp};

/// Starts a sink; `None` if it is not enabled.
pub(super) type Start = fn(&Context<'_>) -> io::Result<Option<Started>>;

/// What sinks are started with.
pub struct Context<'a> {
    pub settings: &'a Values,
    pub state_dir: PathBuf,
    pub boot_id: &'a str,
    /// Whether standard output may be coloured.
    pub colour: bool,
    pub metrics: &'a Arc<Metrics>,
    /// Takes the status of sinks that can be down.
    pub core: &'a Sender,
    /// What queries are answered from.
    pub memory: &'a Arc<Memory>,
}

/// A sink that was started.
pub struct Started {
    /// Where its events are put.
    pub queue: EventQueue,
    /// Its name among the sources, if it reports its status to the core.
    pub source: Option<&'static str>,
    /// What it has reported, if it is watched whether it gets stuck in its work.
    pub liveness: Option<Liveness>,
    /// Its status, if that is known by now.
    pub status: Option<SourceStatus>,
    /// What other sinks wait for, and what is kept for the next run.
    pub store: Option<(Arc<CommitBarrier>, Arc<KeptState>)>,
    /// State of the previous run.
    pub previous_run: Option<PreviousRun>,
}

impl From<EventQueue> for Started {
    fn from(queue: EventQueue) -> Self {
        Self { queue, source: None, liveness: None, status: None, store: None, previous_run: None }
    }
}

/// A sink cannot be started.
#[derive(Debug, Error)]
#[error("cannot start {what}")]
pub struct StartError {
    what: &'static str,
    source: io::Error,
}

/// All sinks, and what is known once they run.
#[derive(Default)]
pub struct Running {
    pub sinks: Sinks,
    /// Names of those that report their status to the core.
    pub sources: Vec<&'static str>,
    /// Statuses that are known by now, for the core.
    pub statuses: Vec<SourceStatus>,
    /// State of the previous run, from the store.
    pub previous_run: PreviousRun,
}

/// Whether a sink opens connections to other nodes.
pub fn connects(settings: &Values) -> bool {
    settings.get(&kubernetes::EVENTS) || !settings.get(&otlp::ENDPOINT).is_empty()
}

/// Starts every sink that is enabled.
/// Errors: when a thread or standard output is not available. A destination that is down is no error.
pub fn start(context: &Context<'_>) -> Result<Running, StartError> {
    let mut running = Running::default();
    for (what, start) in SINKS {
        let Some(mut started) = start(context).map_err(|source| StartError { what, source })? else {
            continue;
        };
        running.sources.extend(started.source);
        running.statuses.extend(started.status.take());
        if let Some(previous_run) = started.previous_run.take() {
            running.previous_run = previous_run;
        }
        running.sinks.add(started);
    }
    Ok(running)
}
