//! Which kernel programs the configuration wants, and what follows where they cannot be had.

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::DaemonError;
use crate::config::{Config, NeighborHook, UmountHook};
use crate::error_chain::chain;
use crate::observation::{Fact, Loss, NsInum, SourceKind, SourceStatus};
use crate::sources::bpf::{self, BpfConfig, BpfError, BpfSource};
use crate::sources::procfs::Proc;
use crate::sources::{Sender, seen};

/// Loads what the configuration wants; the second part tells of hooks that could not even be tried.
pub(super) fn load_programs(
    config: &Config,
    log: bool,
) -> Result<(Option<BpfSource>, Vec<SourceStatus>), DaemonError> {
    let wanted = BpfConfig {
        ring_bytes: config.ring_bytes,
        neighbor: matches!(config.neighbor_hook, NeighborHook::Auto | NeighborHook::TpBtf),
        umount: config.umount_hook != UmountHook::Off,
        log,
    };
    let down = |reason: &str| {
        [bpf::NEIGHBOR, bpf::UMOUNT].map(|hook| SourceStatus::down(SourceKind::Hook, hook, reason)).to_vec()
    };
    if !wanted.neighbor && !wanted.umount {
        return Ok((None, down(bpf::SWITCHED_OFF)));
    }
    let loaded = bpf::load(&wanted);
    if config.require_ebpf {
        check_required(&wanted, &loaded)?;
    }
    match loaded {
        Ok(programs) => Ok((Some(programs), Vec::new())),
        Err(error) => Ok((None, down(&chain(&error)))),
    }
}

/// The task that reads the programs' records.
pub(super) struct Reading {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Reading {
    /// Starts it.
    pub(super) fn start(programs: BpfSource, proc: Proc, host_netns: NsInum, tx: Sender) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            if let Err(error) = programs.run(proc, host_netns, tx.clone(), stopped).await {
                tracing::error!(error = chain(&error), "the kernel programs cannot be read");
                let loss = Loss { source: "bpf".into(), reason: "unreadable".into(), count: None };
                // The core ends together with its queue.
                let _ = tx.send(seen(Fact::Lost(loss))).await;
            }
        });
        Self { stop, task }
    }

    /// Has it hand over what the programs have told so far; returns when that is done.
    pub(super) async fn finish(self) {
        // Either end may be gone already.
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

fn check_required(wanted: &BpfConfig, loaded: &Result<BpfSource, BpfError>) -> Result<(), DaemonError> {
    let programs = loaded.as_ref().map_err(|error| DaemonError::Ebpf(chain(error)))?;
    let hooks = [(bpf::NEIGHBOR, wanted.neighbor), (bpf::UMOUNT, wanted.umount)];
    match hooks.into_iter().find(|(hook, wanted)| *wanted && !programs.is_up(hook)) {
        None => Ok(()),
        Some((hook, _)) => {
            let status = programs.statuses.iter().find(|status| status.source == hook);
            let reason = status.and_then(|status| status.reason.clone()).unwrap_or_default();
            Err(DaemonError::Ebpf(format!("{hook}: {reason}")))
        }
    }
}
