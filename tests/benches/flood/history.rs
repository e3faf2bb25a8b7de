//! What a node had to tell before: pods whose gateways were lost and put back, a volume that is busy, one gateway that is still
//! lost. And the user's own events, until the store is full: from then on each one that is stored displaces another.

use std::collections::{BTreeMap, BTreeSet};

use kevtmon_tests::balance::stop_and_account;
use kevtmon_tests::daemon::{Daemon, WITHOUT_BUDGETS, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::pod::GATEWAY;
use kevtmon_tests::storm::ipv4;

use super::hostile::Hostile;
use super::{Node, SandboxedPod};

/// Times that each pod lost its gateway.
const LOSSES: usize = 3;
/// Other entries of each.
const ENTRIES: u32 = 50;
/// Events of which the store can keep no half.
const FILLING: f64 = 8_000.0;

/// The end of a daemon that ran before.
pub(crate) struct History {
    /// It has ended, and its state is there.
    pub(crate) daemon: Daemon,
    /// What it told before the user began.
    told: Vec<Event>,
    /// Numbers of all that it left in its store.
    kept: BTreeSet<u64>,
}

/// What is left of it.
pub(crate) struct Survivors {
    /// How many events it told before the user began.
    pub(crate) told: usize,
    /// How many of them are gone, or are not what they were.
    pub(crate) displaced: usize,
    /// How many of all that was stored is gone.
    pub(crate) displaced_in_all: usize,
    /// How many incidents were open, and how many of them are.
    pub(crate) open: (usize, usize),
}

impl History {
    pub(crate) fn make(node: &Node) -> Self {
        let mut daemon = launch().config(&format!("{WITHOUT_BUDGETS}{}", node.config())).start();
        node.others.iter().for_each(|(pod, _)| daemon.wait_for_gateway(pod.inum(), GATEWAY));
        for nth in 0..LOSSES {
            for (index, (pod, sandbox)) in node.others.iter().enumerate() {
                pod.netns().churn((0..ENTRIES).map(ipv4));
                let ip = pod.delete_gateway();
                daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY);
                if (nth, index) != (LOSSES - 1, node.others.len() - 1) {
                    pod.set_gateway();
                    eventually!(is_closed(&daemon, sandbox.id()), "its gateway is back");
                }
            }
            node.held.umount_refused();
        }
        daemon.wait_for("the busy volume", |event| event.is_incident("incident.opened", "volume-busy"));
        daemon.fence(&node.others[0].0);
        let told = daemon.events();
        let goal = stored(&daemon) + FILLING;
        let hostile = Hostile::start();
        eventually!(stored(&daemon) >= goal, "the store is full");
        drop(hostile);
        stop_and_account(&mut daemon);
        let kept = all(&daemon).iter().filter_map(|event| event.number("/seq")).collect();
        Self { daemon, told, kept }
    }

    /// Compares it with the store of a daemon that went on with it, and has ended.
    pub(crate) fn compare(&self, daemon: &Daemon) -> Survivors {
        let stored: BTreeMap<Option<u64>, String> =
            all(daemon).iter().map(|event| (event.number("/seq"), event.to_string())).collect();
        // What an output could not take may have been kept.
        let told = self.told.iter().filter(|event| !event.text("/lost/source").starts_with("sink."));
        let is_gone = |event: &&Event| stored.get(&event.number("/seq")) != Some(&event.to_string());
        let is_open = |event: &Event| event.kind() == "incident.opened" && !self.is_closed(event);
        let open: Vec<&str> =
            self.told.iter().filter(|event| is_open(event)).map(|event| event.text("/incident/id")).collect();
        let now = daemon.find(&["incidents"]);
        let is_still = |id: &&&str| now.iter().any(|incident| incident.text("/id") == **id);
        Survivors {
            told: told.clone().count(),
            displaced: told.filter(is_gone).count(),
            displaced_in_all: self.kept.iter().filter(|number| !stored.contains_key(&Some(**number))).count(),
            open: (open.len(), open.iter().filter(is_still).count()),
        }
    }

    fn is_closed(&self, opened: &Event) -> bool {
        self.told.iter().any(|event| {
            event.kind() == "incident.closed"
                && event.text("/incident/id") == opened.text("/incident/id")
                && event.number("/seq") > opened.number("/seq")
        })
    }
}

fn is_closed(daemon: &Daemon, container: &str) -> bool {
    let events = daemon.events();
    let mut own = events.iter().rev().filter(|event| event.text("/target/container/id") == container);
    own.find(|event| event.kind().starts_with("incident.")).is_some_and(|event| event.has("/incident/closed"))
}

/// Events that the store was given and has taken.
fn stored(daemon: &Daemon) -> f64 {
    let metrics = daemon.metrics();
    metrics.count("kevtmon_events_total", &[])
        - metrics.count("kevtmon_events_discarded_total", &[("sink", "store")])
}

/// All that a daemon which has ended left in its store.
pub(crate) fn all(daemon: &Daemon) -> Vec<Event> {
    daemon.find_committed(&["events", "--since", "1h"])
}

/// Whether the loss of a gateway by this process is among them.
pub(crate) fn has_loss(events: &[Event], (pod, _): &SandboxedPod, pid: u32) -> bool {
    events
        .iter()
        .any(|event| event.is_deletion(pod.inum(), GATEWAY) && event.number("/actor/pid") == Some(pid.into()))
}
