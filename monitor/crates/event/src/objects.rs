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

impl IncidentObjects {
    /// The objects of an event.
    #[must_use]
    pub fn of(event: &Event) -> Self {
        Self {
            actor: event.actor.clone(),
            target: event.target.clone(),
            neighbor: event.neighbor.clone(),
            address_conflict: event.address_conflict.clone(),
            neighbor_table: event.neighbor_table.clone(),
            reservation: event.reservation.clone(),
            link: event.link.clone(),
            route: event.route.clone(),
            sandbox: event.sandbox.clone(),
            cni: event.cni.clone(),
            component: event.component.clone(),
            mount: event.mount.clone(),
            holders: event.holders.clone(),
            holders_age_ms: event.holders_age_ms,
            holders_complete: event.holders_complete,
            holders_unreadable: event.holders_unreadable.clone(),
            holders_verdict: event.holders_verdict,
            leaks: event.leaks.clone(),
            rbd: event.rbd.clone(),
            nfs_server: event.nfs_server.clone(),
        }
    }

    /// The event with these objects instead of its own.
    #[must_use]
    pub fn apply_to(self, event: Event) -> Event {
        Event {
            actor: self.actor,
            target: self.target,
            neighbor: self.neighbor,
            address_conflict: self.address_conflict,
            neighbor_table: self.neighbor_table,
            reservation: self.reservation,
            link: self.link,
            route: self.route,
            sandbox: self.sandbox,
            cni: self.cni,
            component: self.component,
            mount: self.mount,
            holders: self.holders,
            holders_age_ms: self.holders_age_ms,
            holders_complete: self.holders_complete,
            holders_unreadable: self.holders_unreadable,
            holders_verdict: self.holders_verdict,
            leaks: self.leaks,
            rbd: self.rbd,
            nfs_server: self.nfs_server,
            ..event
        }
    }

    /// Takes over what the newer objects have and keeps the rest: a repetition without an actor does not remove the
    /// actor of the first event.
    pub fn merge(&mut self, newer: Self) {
        fn put<T>(old: &mut Option<T>, newer: Option<T>) {
            if newer.is_some() {
                *old = newer;
            }
        }
        put(&mut self.actor, newer.actor);
        put(&mut self.target, newer.target);
        put(&mut self.neighbor, newer.neighbor);
        put(&mut self.address_conflict, newer.address_conflict);
        put(&mut self.neighbor_table, newer.neighbor_table);
        put(&mut self.reservation, newer.reservation);
        put(&mut self.link, newer.link);
        put(&mut self.route, newer.route);
        put(&mut self.sandbox, newer.sandbox);
        put(&mut self.cni, newer.cni);
        put(&mut self.component, newer.component);
        put(&mut self.mount, newer.mount);
        put(&mut self.holders, newer.holders);
        if newer.holders_complete.is_some() {
            self.holders_unreadable = newer.holders_unreadable;
            self.holders_age_ms = newer.holders_age_ms;
        }
        put(&mut self.holders_complete, newer.holders_complete);
        put(&mut self.holders_verdict, newer.holders_verdict);
        put(&mut self.leaks, newer.leaks);
        put(&mut self.rbd, newer.rbd);
        put(&mut self.nfs_server, newer.nfs_server);
    }
}
