//! The objects that are the same of an event and of the incident it is about.

use kevtmon_observation::Verdict;
use serde::{Deserialize, Serialize};

use crate::{
    Actor, AddressConflict, Cni, Component, Event, LeakedMount, Link, Mount, MountHolder, Neighbor,
    NeighborTable, NfsServer, Rbd, Reservation, Route, Sandbox, Shared, Target, Unreadable,
};

/// The objects that an incident's events carry.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct IncidentObjects {
    pub actor: Option<Shared<Actor>>,
    /// The owner of what is affected.
    pub target: Option<Shared<Target>>,
    pub neighbor: Option<Box<Neighbor>>,
    /// The address that several pods have.
    pub address_conflict: Option<Box<AddressConflict>>,
    pub neighbor_table: Option<Box<NeighborTable>>,
    /// The reservation of an address.
    pub reservation: Option<Box<Reservation>>,
    pub link: Option<Box<Link>>,
    pub route: Option<Box<Route>>,
    /// The sandbox that a container lacks.
    pub sandbox: Option<Box<Sandbox>>,
    /// The call of a CNI plugin.
    pub cni: Option<Box<Cni>>,
    /// The kubelet or runtime.
    pub component: Option<Box<Component>>,
    pub mount: Option<Box<Mount>>,
    /// The holders of the mount, or of the network namespace of the other end.
    pub holders: Option<Vec<MountHolder>>,
    /// How long before the event they were found, milliseconds.
    pub holders_age_ms: Option<u64>,
    /// Whether the list of holders is complete.
    pub holders_complete: Option<bool>,
    /// What the scan could not look into.
    pub holders_unreadable: Vec<Unreadable>,
    /// Conclusion of the holder scan.
    pub holders_verdict: Option<Verdict>,
    /// Mounts that are left in the mount namespace of the actor.
    pub leaks: Option<Vec<LeakedMount>>,
    /// The Ceph RBD image.
    pub rbd: Option<Box<Rbd>>,
    /// The server of NFS.
    pub nfs_server: Option<Box<NfsServer>>,
}

/// Calls a macro with the objects that newer ones replace: those that are copied, and those that are cloned.
macro_rules! replaced {
    ($build:ident) => {
        $build! {
            [holders_complete holders_verdict]
            [
                actor target neighbor address_conflict neighbor_table reservation link route sandbox cni component
                mount holders leaks rbd nfs_server
            ]
        }
    };
}

impl IncidentObjects {
    /// The objects of an event.
    pub fn of(event: &Event) -> Self {
        macro_rules! of {
            ([$($copied:ident)*] [$($cloned:ident)*]) => {
                Self {
                    $($copied: event.$copied,)*
                    $($cloned: event.$cloned.clone(),)*
                    holders_age_ms: event.holders_age_ms,
                    holders_unreadable: event.holders_unreadable.clone(),
                }
            };
        }
        replaced!(of)
    }

    /// The event with these objects instead of its own.
    pub fn apply_to(self, event: Event) -> Event {
        macro_rules! apply {
            ([$($copied:ident)*] [$($cloned:ident)*]) => {
                Event {
                    $($copied: self.$copied,)*
                    $($cloned: self.$cloned,)*
                    holders_age_ms: self.holders_age_ms,
                    holders_unreadable: self.holders_unreadable,
                    ..event
                }
            };
        }
        replaced!(apply)
    }

    /// Takes over what the newer objects have and keeps the rest: a repetition without an actor does not remove the
    /// actor of the first event.
    pub fn merge(&mut self, newer: Self) {
        if newer.holders_complete.is_some() {
            self.holders_unreadable = newer.holders_unreadable;
            self.holders_age_ms = newer.holders_age_ms;
        }
        macro_rules! merge {
            ([$($copied:ident)*] [$($cloned:ident)*]) => {
                $(self.$copied = newer.$copied.or(self.$copied);)*
                $(self.$cloned = newer.$cloned.or(self.$cloned.take());)*
            };
        }
        replaced!(merge);
    }
}
