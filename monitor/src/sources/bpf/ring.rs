//! Reading the ring.
//!
//! A wake-up costs the watched process more than the whole program, so the programs wake the reader only
//! when it has armed the flag. The reader arms, drains, and sleeps only if that drain found nothing: a
//! record that came in between has seen the flag and wakes it. A record that was being written during the
//! drain has not, hence the safety timer. After many records it pauses, so that a storm is read in gulps.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::counters::{LOSSES, read};
use super::load::BpfSource;
use super::{BpfError, decode};
use crate::observation::{Ancestor, Fact, Loss, NsInum, Observation, TaskFacts};
use crate::sources::procfs::Proc;
use crate::sources::{Sender, seen};

const SAFETY: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(1);
const GULP: usize = 32;
/// Records taken before other tasks get their turn.
const TURN: usize = 256;
const ANCESTORS: usize = 5;

impl BpfSource {
    /// Reads the ring until the core is gone, or told to stop; then what is in it is read to the end.
    ///
    /// # Errors
    /// When the ring cannot be polled at all.
    pub async fn run(
        mut self,
        proc: Proc,
        host_netns: NsInum,
        tx: Sender,
        stop: oneshot::Receiver<()>,
    ) -> Result<(), BpfError> {
        // Polled through a descriptor of its own, since reading borrows the ring.
        let fd = self.ring.as_fd().try_clone_to_owned().map_err(BpfError::Poll)?;
        // SAFETY: an OwnedFd keeps its descriptor open and the same until it is dropped.
        let poll = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }
            .map_err(|error| BpfError::Poll(error.into()))?;
        let _log = self.logger.take().map(forward_log);
        for status in std::mem::take(&mut self.statuses) {
            if tx.send(seen(Fact::Source(status))).await.is_err() {
                return Ok(());
            }
        }
        let mut told = [0; LOSSES.len()];
        tokio::select! {
            () = self.read(&poll, &proc, host_netns, &tx, &mut told) => {}
            _ = stop => {
                let _ = self.drain(&proc, host_netns, &tx).await.is_some()
                    && self.tell_losses(&mut told, &tx).await;
            }
        }
        Ok(())
    }

    /// Returns once the core is gone. May be given up anywhere: a record that is taken is handed over at once.
    async fn read(
        &mut self,
        poll: &AsyncFd<OwnedFd>,
        proc: &Proc,
        host_netns: NsInum,
        tx: &Sender,
        told: &mut [u64; LOSSES.len()],
    ) {
        loop {
            if let Err(error) = self.armed.set(0, 1, 0) {
                tracing::error!(%error, "cannot arm the ring; reading it every {SAFETY:?}");
            }
            let Some(read) = self.drain(proc, host_netns, tx).await else { return };
            if read > 0 && !self.tell_losses(told, tx).await {
                return;
            }
            if read > GULP {
                sleep(PAUSE).await;
            } else if read == 0
                && let Ok(Ok(mut ready)) = timeout(SAFETY, poll.readable()).await
            {
                ready.clear_ready();
            }
        }
    }

    /// Takes what is there; `None` once the core is gone.
    async fn drain(&mut self, proc: &Proc, host_netns: NsInum, tx: &Sender) -> Option<usize> {
        let mut read = 0;
        loop {
            // A place in the queue first: a record that is taken must never be dropped.
            let permit = tx.reserve().await.ok()?;
            let Some(item) = self.ring.next() else {
                return Some(read);
            };
            let decoded = decode::record(&item, host_netns);
            drop(item);
            permit.send(match decoded {
                Ok(Observation { at, source, fact: Fact::Task(mut task) }) => {
                    complete(&mut task, proc);
                    Observation { at, source, fact: Fact::Task(task) }
                }
                Ok(observation) => observation,
                Err(error) => {
                    tracing::warn!(%error, "a record of the kernel programs could not be read");
                    seen(Fact::Lost(Loss { source: "bpf".into(), reason: "decode".into(), count: Some(1) }))
                }
            });
            read += 1;
            if read % TURN == 0 {
                tokio::task::yield_now().await;
            }
        }
    }

    async fn tell_losses(&self, told: &mut [u64; LOSSES.len()], tx: &Sender) -> bool {
        for ((counter, reason), told) in LOSSES.iter().zip(told) {
            let now = read(&self.counts, *counter);
            if now > *told {
                let loss = Loss { source: "bpf".into(), reason: (*reason).into(), count: Some(now - *told) };
                *told = now;
                if tx.send(seen(Fact::Lost(loss))).await.is_err() {
                    return false;
                }
            }
        }
        true
    }
}

/// Passes on what the programs themselves log, until the handle is dropped.
fn forward_log(logger: aya_log::EbpfLogger<&'static dyn log::Log>) -> Forwarding {
    Forwarding(tokio::spawn(async move {
        // SAFETY: the logger owns its map's descriptor for as long as it lives.
        let Ok(mut logger) = (unsafe { AsyncFd::register_with_interest(logger, Interest::READABLE) }) else {
            return tracing::error!("the programs' log cannot be polled");
        };
        while let Ok(mut ready) = logger.readable_mut().await {
            ready.get_inner_mut().flush();
            ready.clear_ready();
        }
    }))
}

struct Forwarding(tokio::task::JoinHandle<()>);

impl Drop for Forwarding {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Adds what only /proc has: executables of the ancestors, and the ancestors above the captured ones.
fn complete(task: &mut TaskFacts, proc: &Proc) {
    for ancestor in &mut task.ancestors {
        let key =
            crate::observation::TaskKey { tgid: ancestor.tgid, start_ns: ancestor.start_ns, exec_id: 0 };
        if proc.is_same(&key) {
            ancestor.exe = proc.exe(ancestor.tgid);
        }
    }
    while task.ancestors.len() < ANCESTORS {
        let Some(last) = task.ancestors.last().map(|ancestor| ancestor.tgid).filter(|tgid| *tgid > 1) else {
            return;
        };
        let Some(parent) = proc.stat(last).map(|stat| stat.ppid).filter(|ppid| *ppid != 0) else {
            return;
        };
        let Some(stat) = proc.stat(parent) else {
            return;
        };
        task.ancestors.push(Ancestor {
            tgid: parent,
            start_ns: stat.start_ns,
            comm: stat.comm,
            exe: proc.exe(parent),
        });
    }
}
