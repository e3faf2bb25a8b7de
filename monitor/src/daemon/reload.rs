//! Reads the configuration again on request. A disk that does not answer keeps the daemon from nothing: a thread waits for it.

use std::future::pending;
use std::time::Duration;

use kevtmon_observation::{Fact, SourceKind, SourceStatus};
use kevtmon_sources::observed_now;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout_at};

use super::Daemon;
use crate::config::Config;

/// The configuration among the sources of `daemon.*` events.
const CONFIGURATION: &str = "configuration";
/// A file that takes longer is told.
const PATIENCE: Duration = Duration::from_secs(3);

/// The configuration that was read, or why there is none.
pub(super) type Outcome = Result<Config, String>;

/// The readings that were asked for.
pub(super) struct Reload<F> {
    read: F,
    /// The one that runs, and when that it takes too long is told; it is told once.
    running: Option<(JoinHandle<Outcome>, Option<Instant>)>,
    /// Whether another one was asked for meanwhile: the file may have changed.
    again: bool,
}

impl<F: Fn() -> Outcome + Clone + Send + 'static> Reload<F> {
    pub(super) fn new(read: F) -> Self {
        Self { read, running: None, again: false }
    }

    /// Begins to read, after the reading that runs.
    pub(super) fn begin(&mut self) {
        self.again = self.running.is_some();
        if !self.again {
            self.running = Some((spawn_blocking(self.read.clone()), Some(Instant::now() + PATIENCE)));
        }
    }

    /// What comes of it. May be dropped before it is ready.
    pub(super) async fn next(&mut self) -> Outcome {
        let Some((reading, late)) = &mut self.running else { return pending().await };
        let read = match *late {
            None => reading.await,
            Some(at) => match timeout_at(at, &mut *reading).await {
                Ok(read) => read,
                Err(_) => {
                    *late = None;
                    return Err("the disk of the configuration does not answer".to_owned());
                }
            },
        };
        self.running = None;
        if std::mem::take(&mut self.again) {
            self.begin();
        }
        read.unwrap_or_else(|error| Err(error.to_string()))
    }
}

impl Daemon {
    /// With a configuration that cannot be used the old one stays, and the daemon is degraded until the next one.
    pub(super) fn reload(&mut self, config: Outcome) {
        let status = match &config {
            Ok(_) => SourceStatus::up(SourceKind::Configuration, CONFIGURATION),
            Err(reason) => {
                tracing::error!("{reason}; keeping the old configuration");
                SourceStatus::down(SourceKind::Configuration, CONFIGURATION, reason)
            }
        };
        if status.up != std::mem::replace(&mut self.is_configured, status.up) {
            self.observe(observed_now(Fact::Source(status)));
        }
        if let Ok(config) = config {
            self.reconfigure(&config);
        }
    }

    fn reconfigure(&mut self, config: &Config) {
        let mut settings = self.core.settings().clone();
        config.policy().apply_to(&mut settings);
        self.observe(observed_now(Fact::Settings(Box::new(settings))));
        match &self.config.adopt(config)[..] {
            [] => tracing::info!("configuration reloaded"),
            names => {
                tracing::warn!("configuration reloaded; a restart is needed for: {}", names.join(", "));
            }
        }
    }
}
