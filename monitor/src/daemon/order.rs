//! In which order the observations of one moment are taken.
//!
//! Changes of routes come as messages, those of neighbor entries as records of the kernel programs. The kernel sends a
//! message before the request that it tells of returns. So once a record was read, every message about what came before it
//! waits in the socket; what was sent later is dated (`NetnsHeard`), and the model can tell.

use tokio::sync::{mpsc, oneshot};

use super::{Daemon, QUEUE};
use crate::observation::{BootNs, Fact, Observation, Source};
use crate::sources::observed_now;

/// Observations that wait while messages are read: more come only when messages and records come in masses.
const HELD_MAX: usize = 4 * QUEUE;

/// Whether it is a change of a neighbor entry that a program in the kernel has seen.
pub(super) fn is_of_neighbor(observation: &Observation) -> bool {
    matches!(observation.fact, Fact::Neighbor(_)) && observation.source != Source::Netlink
}

impl Daemon {
    /// Takes the messages of a batch with records of neighbor entries, then all that the kernel sent before these. What
    /// remains in the batch can be judged. Returns what came meanwhile, which cannot.
    pub(super) async fn take_messages(
        &mut self,
        batch: &mut Vec<Observation>,
        rx: &mut mpsc::Receiver<Observation>,
    ) -> Vec<Observation> {
        let since = batch.iter().filter(|one| is_of_neighbor(one)).map(|one| one.at).min();
        for message in batch.extract_if(.., |one| is_message(one)) {
            self.observe(message);
        }
        let mut later = Vec::new();
        let (barrier, mut passed) = oneshot::channel();
        // Without the source there is nothing to wait for, and the daemon ends.
        let mut waits = self.barriers.send(barrier).await.is_ok();
        while waits {
            tokio::select! {
                biased;
                _ = &mut passed => waits = false,
                Some(observation) = rx.recv() => self.take_or_hold(observation, &mut later),
            }
            if later.len() >= HELD_MAX {
                self.give_up(since.unwrap_or_default());
                return later;
            }
        }
        while let Ok(observation) = rx.try_recv() {
            self.take_or_hold(observation, &mut later);
        }
        later
    }

    fn take_or_hold(&mut self, observation: Observation, later: &mut Vec<Observation>) {
        if is_message(&observation) {
            self.observe(observation);
        } else {
            later.push(observation);
        }
    }

    /// The messages are too many to be waited for: what happened since then can only be judged by what is read anew.
    fn give_up(&mut self, since: BootNs) {
        self.observe(observed_now(Fact::NetnsMissed { since }));
    }
}

fn is_message(observation: &Observation) -> bool {
    observation.source == Source::Netlink
        || matches!(observation.fact, Fact::NetnsMissed { .. } | Fact::NetnsGone { .. })
}
