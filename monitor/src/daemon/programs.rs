//! Loads the eBPF programs that the configuration selects, and reads their records until shutdown.

use kevtmon_observation::{Fact, Loss, NsInum};
use kevtmon_probe::{BpfConfig, BpfSource, LoadedHooks};
use kevtmon_sources::procfs::readers::Readers;
use kevtmon_sources::{Barrier, Sender, observed_now};
use kevtmon_types::error_chain::chain;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::starts::Starts;
use super::{Daemon, DaemonError};
use crate::config::{Config, REQUIRE_EBPF};

/// Attaches every hook at the best attach mode that configuration, kernel and the starts before this one allow.
pub(super) fn load_hooks(config: &Config, log: bool, starts: &Starts) -> Result<LoadedHooks, DaemonError> {
    let withheld = starts.withheld();
    let hooks = kevtmon_probe::load(&BpfConfig { withheld, ..BpfConfig::from_values(config.values(), log) });
    if config.get(&REQUIRE_EBPF) {
        check_required(&hooks)?;
    }
    Ok(hooks)
}

/// The task that reads the records of the programs.
pub(super) struct Reading {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Reading {
    pub(super) fn start(
        programs: BpfSource,
        readers: Readers,
        host_netns: NsInum,
        tx: Sender,
        barriers: mpsc::Receiver<Barrier>,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            if let Err(error) = programs.run(readers, host_netns, tx.clone(), barriers, stopped).await {
                tracing::error!(error = chain(&error), "cannot read the kernel programs");
                let loss = Loss { source: "bpf".into(), reason: "unreadable".into(), count: None };
                // Sending fails only during shutdown, when the core's queue is closed.
                let _ = tx.send(observed_now(Fact::Lost(loss))).await;
            }
        });
        Self { stop, task }
    }

    /// Lets the task send the records written so far, and waits until it has.
    pub(super) async fn finish(self) {
        // The task may have ended already.
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

impl Daemon {
    /// Starts to read the programs' records, and observes the status of every hook.
    pub(super) fn start_hooks(
        &mut self,
        hooks: LoadedHooks,
        host_netns: NsInum,
        tx: &Sender,
    ) -> Option<Reading> {
        self.metrics.export_zero_losses(kevtmon_probe::loss_reasons());
        let reading = hooks.programs.map(|mut programs| {
            self.lanes = programs.lanes.take();
            self.plugins = programs.plugins.take();
            self.update_plugins();
            if let Some(tables) = programs.mount_tables.take() {
                self.scanner.set_mount_tables(tables);
            }
            let counts = programs.counts();
            self.metrics.set_kernel_counters(Box::new(move || counts()));
            let (acts, barriers) = mpsc::channel(1);
            self.acts = Some(acts);
            Reading::start(programs, self.readers.clone(), host_netns, tx.clone(), barriers)
        });
        self.observe(observed_now(Fact::Source(kevtmon_probe::iterators::status(&hooks.iterators))));
        match hooks.iterators {
            Ok(iterators) => self.scanner.set_iterators(iterators),
            Err(reason) => {
                tracing::info!(reason, "scans for holders read /proc, without BPF iterators")
            }
        }
        for status in &hooks.statuses {
            self.observe(observed_now(Fact::Source(status.source_status())));
        }
        reading
    }
}

fn check_required(hooks: &LoadedHooks) -> Result<(), DaemonError> {
    if let Some(failure) = &hooks.failure {
        return Err(DaemonError::Ebpf(chain(failure)));
    }
    let Some(status) = hooks.statuses.iter().find(|status| status.lacks_programs()) else {
        return Ok(());
    };
    let reason = status.reason().unwrap_or_default();
    Err(DaemonError::Ebpf(format!("{}: {reason}", status.hook.source())))
}
