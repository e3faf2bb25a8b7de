//! Reading the ring.
//!
//! A wake-up costs the observed task more than the rest of a program, so the programs wake the reader only when it
//! has armed the flag. The reader arms, drains, and sleeps only if that drain found nothing: a record that came in
//! between has seen the flag and wakes it. A record that was being written during the drain has not, hence the
//! safety timer. After many records it pauses, so that a storm is read in batches.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use kevtmon_observation::{Fact, Loss, NsInum, Observation};
use kevtmon_sources::beat::at_beat;
use kevtmon_sources::procfs::readers::Readers;
use kevtmon_sources::{Barrier, Sender, observed_now};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout_at};

use super::account::Account;
use super::lineage::Lineages;
use super::load::BpfSource;
use super::{BpfError, Decoder};

/// Longest sleep without a wake-up while records come.
const SAFETY: Duration = Duration::from_millis(100);
/// Longest sleep without a wake-up when none came for [`SAFETY`]: then none was being written either, but by a program
/// that was preempted for as long.
const SAFETY_IDLE: Duration = Duration::from_secs(5);
/// Pause after a drain that took more than [`BATCH`] records.
const PAUSE: Duration = Duration::from_millis(1);
const BATCH: usize = 32;
/// Records taken before other tasks get their turn; fewer where one of them has an answer to bring for which these wait.
const YIELD_AFTER: usize = 256;
const YIELD_ASKING: usize = 16;
/// When the core has so many bytes of texts to take, it takes nearly all of them before more follow: its queue is bounded by
/// number, and any user can give 24 KiB with one call.
const UNTAKEN_TEXTS: usize = 4 << 20;
/// Observations that may be left then: other sources keep a place while they read.
const LEFT: usize = 64;

impl BpfSource {
    /// Reads the ring until the core is gone, or until `stop`; then what is in it is read to the end.
    pub async fn run(
        mut self,
        readers: Readers,
        host_netns: NsInum,
        tx: Sender,
        barriers: mpsc::Receiver<Barrier>,
        stop: oneshot::Receiver<()>,
    ) -> Result<(), BpfError> {
        // Polled through a descriptor of its own, since reading borrows the ring.
        let fd = self.ring.as_fd().try_clone_to_owned().map_err(BpfError::Poll)?;
        // SAFETY: an OwnedFd keeps its descriptor open and the same until it is dropped.
        let poll = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }
            .map_err(|error| BpfError::Poll(error.into()))?;
        let _logs: Vec<_> = std::mem::take(&mut self.loggers).into_iter().map(forward_log).collect();
        let mut lineages = Lineages::new(readers);
        let mut barriers = Barriers { asked: Vec::new(), drained: VecDeque::new(), rx: barriers };
        let mut decoder = Decoder::new(host_netns);
        let mut account = Account::new(
            self.budgets.take().ok_or(BpfError::NoMap("SOURCES"))?,
            std::mem::take(&mut self.skipped),
        );
        let mut outlet = Outlet { tx, texts: 0 };
        tokio::select! {
            () = self.read(&poll, &mut lineages, &mut decoder, &mut outlet, &mut account, &mut barriers) => {}
            _ = stop => {
                lineages.give_up();
                let _ = self.drain(&mut lineages, &mut decoder, &mut outlet, &mut account).await.is_some()
                    && self.report(&mut account, &mut outlet, true).await;
            }
        }
        Ok(())
    }

    /// Returns once the core is gone. Cancel-safe: a record that is taken is handed over at once.
    async fn read(
        &mut self,
        poll: &AsyncFd<OwnedFd>,
        lineages: &mut Lineages,
        decoder: &mut Decoder,
        outlet: &mut Outlet,
        account: &mut Account,
        barriers: &mut Barriers,
    ) {
        let mut longest = SAFETY;
        loop {
            if let Err(error) = self.armed.set(0, 1, 0) {
                tracing::error!(%error, "cannot arm the ring; reading it every {SAFETY:?}");
                longest = SAFETY;
            }
            barriers.ask();
            let Some(read) = self.drain(lineages, decoder, outlet, account).await else { return };
            barriers.answer(lineages);
            if !self.report(account, outlet, false).await {
                return;
            }
            if read > 0 {
                longest = SAFETY;
            }
            if read > BATCH && !barriers.is_waiting() {
                sleep(PAUSE).await;
            } else if read == 0 {
                let end = at_beat(longest);
                let due = account.due().map(Into::into).filter(|due| *due < end);
                tokio::select! {
                    () = lineages.completed() => {}
                    barrier = barriers.rx.recv(), if !barriers.rx.is_closed() => barriers.asked.extend(barrier),
                    ready = timeout_at(due.unwrap_or(end), poll.readable()) => match ready {
                        Ok(Ok(mut ready)) => ready.clear_ready(),
                        Ok(Err(_)) => {}
                        Err(_) if due.is_none() => {
                            longest = SAFETY_IDLE;
                            account.note_idle();
                        }
                        Err(_) => {}
                    }
                }
            }
        }
    }

    /// Takes what is there, and hands over what waits for nothing; `None` once the core is gone. Returns the number of
    /// records taken.
    async fn drain(
        &mut self,
        lineages: &mut Lineages,
        decoder: &mut Decoder,
        outlet: &mut Outlet,
        account: &mut Account,
    ) -> Option<usize> {
        let mut read = 0;
        loop {
            // Room in the queue first: an observation that is taken must never be dropped.
            let slot = outlet.slot().await?;
            if let Some(observation) = lineages.next() {
                slot.send(observation);
                continue;
            }
            drop(slot);
            let Some(item) = self.ring.next() else {
                return Some(read);
            };
            account.note_records();
            let decoded = decoder.record(&item);
            drop(item);
            let observation = decoded.unwrap_or_else(|error| {
                tracing::warn!(%error, "cannot decode a record of the kernel programs");
                let loss = Loss { source: "bpf".into(), reason: "decode".into(), count: Some(1) };
                Some(observed_now(Fact::Lost(loss)))
            });
            if let Some(observation) = observation {
                lineages.add(observation);
            }
            read += 1;
            if lineages.is_asking() && read % YIELD_ASKING == 0 {
                tokio::task::yield_now().await;
            }
            if read % YIELD_AFTER == 0 {
                // In a storm it may be long until the ring is empty.
                if !self.report(account, outlet, false).await {
                    return None;
                }
                tokio::task::yield_now().await;
            }
        }
    }

    /// Reports what was left out, if it is time to; false once the core is gone. Cancel-safe.
    async fn report(&self, account: &mut Account, outlet: &mut Outlet, all: bool) -> bool {
        account.look(&self.counts, all);
        while account.has_due() {
            let Some(slot) = outlet.slot().await else { return false };
            if let Some(fact) = account.take_due() {
                slot.send(observed_now(fact));
            }
        }
        true
    }
}

struct Outlet {
    tx: Sender,
    /// Bytes of the texts of those that the core may not have taken.
    texts: usize,
}

struct ChannelSlot<'a> {
    permit: mpsc::Permit<'a, Observation>,
    texts: &'a mut usize,
}

impl Outlet {
    /// Waits for room; `None` once the core is gone. Cancel-safe.
    async fn slot(&mut self) -> Option<ChannelSlot<'_>> {
        if self.texts >= UNTAKEN_TEXTS {
            let most = self.tx.max_capacity();
            drop(self.tx.reserve_many(most.saturating_sub(LEFT).max(1)).await.ok()?);
            self.texts = 0;
        }
        Some(ChannelSlot { permit: self.tx.reserve().await.ok()?, texts: &mut self.texts })
    }
}

impl ChannelSlot<'_> {
    fn send(self, observation: Observation) {
        *self.texts += observation.text_bytes();
        self.permit.send(observation);
    }
}

/// Who waits until the records of before were handed over.
struct Barriers {
    rx: mpsc::Receiver<Barrier>,
    /// The ring was not drained since.
    asked: Vec<Barrier>,
    /// It was, and so many observations had come by then.
    drained: VecDeque<(u64, Barrier)>,
}

impl Barriers {
    /// Takes those that wait by now, before a drain.
    fn ask(&mut self) {
        while let Ok(barrier) = self.rx.try_recv() {
            self.asked.push(barrier);
        }
    }

    /// Answers those of which all was handed over, after a drain.
    fn answer(&mut self, lineages: &Lineages) {
        self.drained.extend(self.asked.drain(..).map(|barrier| (lineages.added(), barrier)));
        let is_over = |(until, _): &(u64, Barrier)| *until <= lineages.given();
        while self.drained.front().is_some_and(is_over)
            && let Some((_, barrier)) = self.drained.pop_front()
        {
            // Who asked may have given up.
            let _ = barrier.send(());
        }
    }

    fn is_waiting(&self) -> bool {
        !self.asked.is_empty() || !self.rx.is_empty()
    }
}

/// Forwards what the programs themselves log, until the handle is dropped.
fn forward_log(logger: aya_log::EbpfLogger<&'static dyn log::Log>) -> Forwarding {
    Forwarding(tokio::spawn(async move {
        // SAFETY: the logger owns its map's descriptor for as long as it lives.
        let Ok(mut logger) = (unsafe { AsyncFd::register_with_interest(logger, Interest::READABLE) }) else {
            return tracing::error!("cannot poll the log of the kernel programs");
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

#[cfg(test)]
mod tests;
