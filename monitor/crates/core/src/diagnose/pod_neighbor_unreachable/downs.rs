//! Who has set the host's ends of pods down.

use std::collections::BTreeMap;

use kevtmon_event::{Actor, Event, Kind, Shared};
use kevtmon_observation::BootNs;
use serde::{Deserialize, Serialize};

use crate::diagnose::CAPACITY;

/// Those that are down, by index.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Downs(BTreeMap<u32, Down>);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Down {
    pub(super) at: BootNs,
    pub(super) seq: u64,
    pub(super) actor: Shared<Actor>,
}

impl Downs {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn note(&mut self, event: &Event) {
        let Some(link) = event.link.as_deref().filter(|link| link.kind.as_deref() == Some("veth")) else {
            return;
        };
        let has = |change: &str| link.change.iter().any(|one| one == change);
        match event.kind {
            Kind::LinkChanged if has("down") => {
                self.0.remove(&link.ifindex);
                if self.0.len() < CAPACITY
                    && let Some(actor) = event.actor.clone()
                {
                    self.0.insert(link.ifindex, Down { at: event.at, seq: event.seq, actor });
                }
            }
            Kind::LinkChanged if has("up") => drop(self.0.remove(&link.ifindex)),
            // The next one with its index is another one.
            Kind::LinkCreated | Kind::LinkMoved | Kind::LinkDeleted => drop(self.0.remove(&link.ifindex)),
            _ => {}
        }
    }

    /// Events were lost: since an interface was set down it may have been set up, and down again by somebody else.
    pub(super) fn doubt(&mut self) {
        for down in self.0.values_mut() {
            down.actor = Actor::at_most_likely(down.actor.clone());
        }
    }

    /// Who set it down before this time.
    pub(super) fn before(&self, ifindex: u32, time: BootNs) -> Option<&Down> {
        self.0.get(&ifindex).filter(|down| down.at <= time)
    }
}
