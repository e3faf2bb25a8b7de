//! Who has set the host's ends of pods down.

use std::collections::BTreeMap;

use kevtmon_event::{Actor, Event, Kind, Shared};
use kevtmon_observation::BootNs;
use serde::{Deserialize, Serialize};

use super::CAPACITY;

/// When each was last set down, by index.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Downs(BTreeMap<u32, Down>);

/// An interface of the host that was set down, and its routes with it; or a route that was deleted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Down {
    pub(super) at: BootNs,
    pub(super) seq: u64,
    pub(super) actor: Option<Shared<Actor>>,
}

impl Down {
    pub(super) fn of(event: &Event) -> Self {
        Self { at: event.at, seq: event.seq, actor: event.actor.clone() }
    }

    pub(super) fn doubt(&mut self) {
        self.actor = self.actor.take().map(Actor::at_most_likely);
    }
}

impl Downs {
    pub(super) fn note(&mut self, event: &Event) {
        let Some(link) = event.link.as_deref().filter(|link| link.kind.as_deref() == Some("veth")) else {
            return;
        };
        let has_room = self.0.len() < CAPACITY || self.0.contains_key(&link.ifindex);
        match event.kind {
            Kind::LinkChanged if has_room && link.change.iter().any(|one| one == "down") => {
                self.0.insert(link.ifindex, Down::of(event));
            }
            // The next one with its index is another one.
            Kind::LinkCreated | Kind::LinkMoved | Kind::LinkDeleted => drop(self.0.remove(&link.ifindex)),
            _ => {}
        }
    }

    /// Events were lost: since an interface was set down it may have been set up, and down again by somebody else.
    pub(super) fn doubt(&mut self) {
        self.0.values_mut().for_each(Down::doubt);
    }

    pub(super) fn retain(&mut self, is_kept: impl Fn(u32) -> bool) {
        self.0.retain(|ifindex, _| is_kept(*ifindex));
    }

    pub(super) fn last(&self, ifindex: u32) -> Option<&Down> {
        self.0.get(&ifindex)
    }
}
