//! Incidents that a container opens and closes again and again by what it does to itself, or a server by responding now and then.
//!
//! Each opening and each end is an event that no budget limits, that is stored before others are told, and that has a
//! recording made. So beyond a few a minute the end of such an incident is told once it has lasted.

use std::borrow::Cow;
use std::collections::BTreeMap;

use kevtmon_event::WallClock;
use kevtmon_observation::BootNs;
use kevtmon_types::bucket::{Buckets, Price};
use kevtmon_types::clock::SECOND;
use serde::{Deserialize, Serialize};

use super::finding::IncidentObjects;
use super::identity::IncidentId;
use crate::node::tenant::{is_by_itself, of_target};

/// A container may have eight ends told at once, each of which it has back after this time.
const INTERVAL: BootNs = 5 * SECOND;
const OF_ONE_END: Price = Price { of_one: INTERVAL, of_all: 8 * INTERVAL };
/// How long an end beyond that must last.
const CALM: BootNs = 10 * SECOND;
/// That a server of NFS responds again is told at once for the first time in a day.
const DAY: BootNs = 24 * 3600 * SECOND;
const OF_A_SERVER: Price = Price { of_one: DAY, of_all: DAY };
const CALM_OF_A_SERVER: BootNs = 300 * SECOND;

/// An open incident that is over for the moment; its end counts once it has lasted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuietPeriod {
    pub id: String,
    /// Since when nothing is wrong, RFC 3339.
    pub since: String,
}

/// Which ends have been told of late, and which are not told yet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Flapping {
    accounts: Buckets,
    /// Since when an incident is over, and when that will have lasted.
    held: BTreeMap<IncidentId, (BootNs, BootNs)>,
}

impl Flapping {
    /// Whether the end of an incident is not to be told yet.
    pub(super) fn holds(&mut self, id: IncidentId, objects: &IncidentObjects, now: BootNs) -> bool {
        let (account, price, calm) = match objects.target.as_deref() {
            _ if objects.nfs_server.is_some() => (Cow::Owned(id.text()), OF_A_SERVER, CALM_OF_A_SERVER),
            Some(target) if is_own_doing(objects) => (of_target(target), OF_ONE_END, CALM),
            _ => return false,
        };
        if self.accounts.take(&account, now, price) {
            return false;
        }
        self.held.insert(id, (now, now.saturating_add(calm)));
        true
    }

    /// Forgets that an incident is over; returns whether it was.
    pub(super) fn resume(&mut self, id: IncidentId) -> bool {
        self.held.remove(&id).is_some()
    }

    pub(super) fn take_due(&mut self, now: BootNs) -> Option<IncidentId> {
        let id = self.held.iter().find(|(_, (_, due))| *due <= now).map(|(id, _)| *id)?;
        self.held.remove(&id);
        Some(id)
    }

    pub(super) fn take_all(&mut self) -> Vec<IncidentId> {
        std::mem::take(&mut self.held).into_keys().collect()
    }

    pub(super) fn quiet_periods(&self, clock: WallClock) -> Vec<QuietPeriod> {
        let held = self.held.iter();
        held.map(|(id, (since, _))| QuietPeriod { id: id.text(), since: clock.text(*since) }).collect()
    }

    pub(super) fn deadline(&self) -> Option<BootNs> {
        self.held.values().map(|(_, due)| *due).min()
    }
}

pub(super) fn flaps(objects: &IncidentObjects) -> bool {
    objects.nfs_server.is_some() || is_own_doing(objects)
}

/// Whether it is what a container did to itself.
pub(super) fn is_own_doing(objects: &IncidentObjects) -> bool {
    let both = objects.actor.as_deref().zip(objects.target.as_deref());
    both.is_some_and(|(actor, target)| is_by_itself(actor, target))
}

#[cfg(test)]
mod tests {
    use kevtmon_event::NfsServer;
    use kevtmon_testing::sample;

    use super::*;

    /// What a container did to itself.
    fn objects() -> IncidentObjects {
        let mut event = sample::deletion();
        let target = event.target.as_mut().unwrap();
        target.pod = None;
        event.actor.as_mut().unwrap().container = target.container.clone();
        IncidentObjects::of(&event)
    }

    fn id(number: usize) -> IncidentId {
        IncidentId::parse(&format!("{number:016x}")).unwrap()
    }

    #[test]
    fn ends_that_a_container_causes_itself_are_told_a_few_times_and_then_once_they_last() {
        let (mut flapping, objects) = (Flapping::default(), objects());
        let held = (0..1000).filter(|number| flapping.holds(id(*number), &objects, 1));
        assert_eq!(held.count(), 1000 - 8);
        assert!(!flapping.resume(id(0)) && flapping.resume(id(999)) && !flapping.resume(id(999)));
        let quiet_periods = flapping.quiet_periods(WallClock::default());
        let first = QuietPeriod { id: id(8).text(), since: WallClock::default().text(1) };
        assert_eq!((quiet_periods.len(), &quiet_periods[0]), (1000 - 9, &first), "they are over for now");
        assert_eq!((flapping.deadline(), flapping.take_due(CALM)), (Some(CALM + 1), None));
        assert_eq!(flapping.take_due(CALM + 1), Some(id(8)));
        // One of each five seconds is told at once.
        assert!(!flapping.holds(id(1), &objects, INTERVAL + 1));
        assert!(flapping.holds(id(2), &objects, INTERVAL + 2));
    }

    #[test]
    fn that_a_server_responds_is_told_once_a_day_and_then_once_it_lasts() {
        let server = NfsServer { name: "nas1".into(), waits: true, mounts: Vec::new(), mounts_omitted: 0 };
        let objects = IncidentObjects { nfs_server: Some(Box::new(server)), ..IncidentObjects::default() };
        let mut flapping = Flapping::default();
        assert!(flaps(&objects) && !flapping.holds(id(1), &objects, 1));
        assert!(!flapping.holds(id(2), &objects, 1), "another server");
        assert!(flapping.holds(id(1), &objects, DAY));
        assert_eq!(flapping.deadline(), Some(DAY + CALM_OF_A_SERVER));
        assert!(flapping.resume(id(1)) && !flapping.holds(id(1), &objects, DAY + 1));
    }

    #[test]
    fn what_somebody_else_did_is_over_at_once() {
        let mut flapping = Flapping::default();
        let mut by_other = objects();
        by_other.actor.as_mut().unwrap().container.as_mut().unwrap().id = "f".repeat(64);
        let unknown = IncidentObjects { actor: None, ..objects() };
        for number in 0..1000 {
            assert!(!flapping.holds(id(number), &by_other, 1) && !flapping.holds(id(number), &unknown, 1));
        }
    }
}
