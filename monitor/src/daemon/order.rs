//! In which order the observations of one moment are taken.
//!
//! Changes of routes and links come as messages, those of neighbor entries as records of the kernel programs. The kernel sends
//! a message before the request that it tells of returns. So once a record was read, every message about what came before it
//! waits in the socket; what was sent later is dated (`NetnsHeard`), and the model can tell. The record of who changed a link
//! is written before the message is sent: once a message was read, it waits in the ring.

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::{Daemon, QUEUE};
use crate::observation::{Fact, Observation, Source};
use crate::sources::{Barrier, observed_now};

/// Observations that wait while messages are read: more come only when messages and records come in masses.
const HELD_MAX: usize = 4 * QUEUE;
/// Longest wait for the records of who changed a link. They may wait for the names of a task's ancestors.
const ACTS_PATIENCE: Duration = Duration::from_millis(300);

/// Whether it is a change of a neighbor entry that a program in the kernel has seen.
pub(super) fn is_of_neighbor(observation: &Observation) -> bool {
    matches!(observation.fact, Fact::Neighbor(_)) && observation.source != Source::Netlink
}

/// Whether it is a message about a link, of which a record may tell who changed it.
pub(super) fn is_of_link(observation: &Observation) -> bool {
    matches!(observation.fact, Fact::Link(_) | Fact::LinkGone { .. })
}

impl Daemon {
    /// Takes the messages of a batch with records of neighbor entries, and all that the kernel sent before these. What
    /// remains in the batch can be judged. Returns what came meanwhile, which cannot.
    pub(super) async fn take_messages(
        &mut self,
        batch: &mut Vec<Observation>,
        rx: &mut mpsc::Receiver<Observation>,
    ) -> Vec<Observation> {
        let since = batch.iter().filter(|one| is_of_neighbor(one)).map(|one| one.at).min();
        let mut messages: Vec<Observation> = batch.extract_if(.., |one| is_message(one)).collect();
        let mut later = Vec::new();
        // Without the source there is nothing to wait for, and the daemon ends.
        let whole = meet(&self.barriers, rx, None, |observation| {
            if is_message(&observation) {
                messages.push(observation)
            } else {
                later.push(observation)
            }
            later.len() < HELD_MAX
        });
        let whole = whole.await;
        if messages.iter().any(is_of_link) {
            later.extend(self.take_acts(batch, rx).await);
        }
        for message in messages {
            self.observe(message);
        }
        if !whole {
            // They are too many to be waited for: what happened since then can only be judged by what is read anew.
            self.observe(observed_now(Fact::NetnsMissed { since: since.unwrap_or_default() }));
        }
        later
    }

    /// Takes who changed links before the messages of a batch were sent. Returns what else came meanwhile.
    pub(super) async fn take_acts(
        &mut self,
        batch: &mut Vec<Observation>,
        rx: &mut mpsc::Receiver<Observation>,
    ) -> Vec<Observation> {
        let Some(acts) = self.acts.clone() else { return Vec::new() };
        for act in batch.extract_if(.., |one| is_act(one)) {
            self.observe(act);
        }
        let mut later = Vec::new();
        // What comes later than this is not taken for what the messages tell.
        meet(&acts, rx, Some(Instant::now() + ACTS_PATIENCE), |observation| {
            if is_act(&observation) {
                self.observe(observation)
            } else {
                later.push(observation)
            }
            later.len() < HELD_MAX
        })
        .await;
        later
    }
}

/// Takes what is delivered until a source answers, a deadline, or until no more is wanted; whether it has answered.
async fn meet(
    source: &mpsc::Sender<Barrier>,
    rx: &mut mpsc::Receiver<Observation>,
    deadline: Option<Instant>,
    mut take: impl FnMut(Observation) -> bool,
) -> bool {
    let (barrier, mut passed) = oneshot::channel();
    // There is a place for it once the source has taken the one before, which may have been given up.
    let mut asking = pin!(source.send(barrier));
    let (mut is_asked, mut waits) = (false, true);
    let deadline = async {
        match deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => pending().await,
        }
    };
    let mut deadline = pin!(deadline);
    while waits {
        tokio::select! {
            biased;
            asked = &mut asking, if !is_asked => {
                is_asked = true;
                // A source that has ended has nothing to deliver.
                waits = asked.is_ok();
            }
            _ = &mut passed, if is_asked => waits = false,
            Some(observation) = rx.recv() => {
                if !take(observation) {
                    return false;
                }
            }
            () = &mut deadline => return false,
        }
    }
    while let Ok(observation) = rx.try_recv() {
        if !take(observation) {
            return false;
        }
    }
    true
}

fn is_message(observation: &Observation) -> bool {
    observation.source == Source::Netlink
        || matches!(observation.fact, Fact::NetnsMissed { .. } | Fact::NetnsGone { .. })
}

/// Tasks come before what they do.
fn is_act(observation: &Observation) -> bool {
    matches!(observation.fact, Fact::LinkAct(_) | Fact::Task(_))
}
