//! In which order the observations of one moment are taken.
//!
//! Changes of routes and links come as messages, those of neighbor entries as records of the kernel programs. The kernel sends
//! a message before the request that it tells of returns. So once a record was read, every message about what came before it
//! waits in the socket; what was sent later is dated (`NetnsHeard`), and the model can tell. The record of who changed a link
//! is written before the message is sent: once a message was read, it waits in the ring. So does, most often, the record of a
//! neighbor entry that went with a hardware address, which is written right after.

use std::pin::pin;
use std::time::Duration;

use kevtmon_observation::{
    Fact, LladdrAct, NeighborCause, NeighborChange, NeighborKey, NeighborOp, Observation, Source,
};
use kevtmon_sources::{Barrier, observed_now};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::{Daemon, QUEUE};

/// Observations that wait while messages are read: more come only when messages and records come in masses.
const HELD_MAX: usize = 4 * QUEUE;
/// The same in bytes of their texts, of which any user can give 24 KiB with one call.
const HELD_TEXTS: usize = 16 << 20;
/// Longest wait for the records of who changed a link. They may wait for the names of a task's ancestors.
const ACTS_PATIENCE: Duration = Duration::from_millis(300);

/// Whether it is a change of a neighbor entry that a program in the kernel has seen.
pub(super) fn is_of_neighbor(observation: &Observation) -> bool {
    matches!(observation.fact, Fact::Neighbor(_)) && observation.source != Source::Netlink
}

/// Whether it is a message about something of which a record may tell who changed it: a link, an address, a rule, a sysctl, or a
/// route of those that records tell of.
pub(super) fn is_of_acts(observation: &Observation) -> bool {
    match &observation.fact {
        Fact::Link(_) | Fact::LinkGone { .. } | Fact::Address(_) | Fact::AddressGone(_) => true,
        Fact::Rule(_) | Fact::RuleGone(_) => true,
        Fact::HostSysctls { all, .. } => !all,
        Fact::Route(route) | Fact::RouteGone(route) => match route.destination {
            None => true,
            Some((address, prefix_len)) => prefix_len == if address.is_ipv4() { 32 } else { 128 },
        },
        _ => false,
    }
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
        let mut later = Held::default();
        // Without the source there is nothing to wait for, and the daemon ends.
        let whole = meet(&self.barriers, rx, None, |observation| {
            if is_message(&observation) {
                messages.push(observation)
            } else {
                later.push(observation)
            }
            later.has_room()
        });
        let whole = whole.await;
        let mut later = later.observations;
        if messages.iter().any(is_of_acts) {
            self.take_acts_in(&mut later);
            later.extend(self.take_acts(batch, rx).await);
        }
        for message in messages {
            self.observe(message);
        }
        if !whole {
            // They are too many to be waited for: what happened since then can only be judged by what is read again.
            self.observe(observed_now(Fact::NetnsMissed { since: since.unwrap_or_default() }));
        }
        later
    }

    /// Takes who changed links, routes and addresses before the messages of a batch were sent. Returns what else came meanwhile.
    pub(super) async fn take_acts(
        &mut self,
        batch: &mut Vec<Observation>,
        rx: &mut mpsc::Receiver<Observation>,
    ) -> Vec<Observation> {
        let Some(acts) = self.acts.clone() else { return Vec::new() };
        self.take_acts_in(batch);
        let mut later = Held::default();
        // What comes later than this is not taken for what the messages tell.
        meet(&acts, rx, Some(Instant::now() + ACTS_PATIENCE), |observation| {
            if is_act(&observation) {
                self.observe(observation)
            } else {
                act_of(&observation).into_iter().for_each(|act| self.observe(act));
                later.push(observation)
            }
            later.has_room()
        })
        .await;
        later.observations
    }

    fn take_acts_in(&mut self, batch: &mut Vec<Observation>) {
        let acts: Vec<Observation> = batch.extract_if(.., |one| is_act(one)).collect();
        for act in acts.into_iter().chain(batch.iter().filter_map(act_of)) {
            self.observe(act);
        }
    }
}

/// What waits while messages are read.
#[derive(Default)]
struct Held {
    observations: Vec<Observation>,
    /// Bytes of their texts.
    texts: usize,
}

impl Held {
    fn push(&mut self, observation: Observation) {
        self.texts += observation.text_bytes();
        self.observations.push(observation);
    }

    fn has_room(&self) -> bool {
        self.observations.len() < HELD_MAX && self.texts < HELD_TEXTS
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
    let is_bounded = deadline.is_some();
    let mut deadline = pin!(sleep_until(deadline.unwrap_or_else(Instant::now)));
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
            () = &mut deadline, if is_bounded => return false,
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

/// Who changed the hardware address of a link, by the record of a neighbor entry that went with it, which itself is judged later.
fn act_of(observation: &Observation) -> Option<Observation> {
    let Fact::Neighbor(change) = &observation.fact else { return None };
    let NeighborChange { key: NeighborKey { netns, ifindex, .. }, op, cause, .. } = **change;
    if !is_of_neighbor(observation) || (op, cause) != (NeighborOp::Deleted, NeighborCause::LladdrChanged) {
        return None;
    }
    let (lladdr, actor) = (change.device_lladdr.clone()?, change.actor.clone()?);
    let fact = Fact::LladdrAct(Box::new(LladdrAct { netns, ifindex, lladdr, actor }));
    Some(Observation { at: observation.at, source: observation.source, fact })
}

/// Tasks come before what they do.
fn is_act(observation: &Observation) -> bool {
    matches!(observation.fact, Fact::LinkAct(_) | Fact::RouteAct(_) | Fact::SysctlWrite(_) | Fact::Task(_))
}

#[cfg(test)]
mod tests {
    use kevtmon_observation::{TaskFacts, TaskKey};

    use super::*;

    fn held(bytes: usize) -> Held {
        let task = TaskFacts {
            key: TaskKey { tgid: 1, start_ns: 1, exec_id: 1 },
            uid: 1000,
            exe: Some("x".repeat(bytes)),
            netns: 1,
            mntns: 1,
            ..TaskFacts::default()
        };
        let mut held = Held::default();
        while held.has_room() {
            held.push(observed_now(Fact::Task(Box::new(task.clone()))));
        }
        held
    }

    #[test]
    fn what_waits_for_messages_is_bounded_by_number_and_by_its_texts() {
        assert_eq!(held(16).observations.len(), HELD_MAX);
        assert_eq!(held(1 << 20).observations.len(), 16);
    }
}
