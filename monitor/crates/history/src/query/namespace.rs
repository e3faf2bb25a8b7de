//! Which events are of a network namespace that had the inode number before: the kernel gives the number of one that ended
//! to the next, whose interfaces have the same indexes as well.
//!
//! The events that a number has led to enter; those leave that are of the namespace that has it now, or of the last one
//! that had it. What an event says of the owner tells; where it says nothing, what came after the last of another owner.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kevtmon_core::state::NodeState;
use kevtmon_event::{Event, Target};

use super::Record;
use super::key::{Family, Key, keys};
use super::record::timestamp;
use super::subject::{Subject, SubjectKind};

/// A namespace, by what identifies it.
#[derive(Default)]
struct Owner {
    containers: BTreeSet<String>,
    pods: BTreeSet<String>,
    cookies: BTreeSet<String>,
}

impl Owner {
    fn present(state: &NodeState, netns: u32) -> Option<Self> {
        let known = state.namespaces.iter().find(|known| known.netns == netns)?;
        let mut owner = Self::default();
        owner.add(&known.owner);
        owner.cookies.extend(known.cookie.clone());
        let inside = state.containers.iter().filter(|place| place.netns == Some(netns));
        owner.containers.extend(inside.map(|place| place.container.id.clone()));
        let pods = state.pods.iter().filter(|pod| pod.netns == Some(netns));
        owner.pods.extend(pods.map(|pod| pod.pod.uid.clone()));
        Some(owner)
    }

    fn add(&mut self, target: &Target) {
        self.containers.extend(target.container.as_ref().map(|container| container.id.clone()));
        self.pods.extend(target.confirmed_pod().map(|pod| pod.uid.clone()));
        self.cookies.extend(target.netns_cookie.clone());
    }

    fn is_known(&self) -> bool {
        !(self.containers.is_empty() && self.pods.is_empty() && self.cookies.is_empty())
    }

    /// Whether a namespace of this owner is this one; `None` where that is not said.
    fn is(&self, target: &Target) -> Option<bool> {
        let container = target.container.as_ref().map(|container| &container.id);
        let pod = target.confirmed_pod().map(|pod| &pod.uid);
        let has = |known: &BTreeSet<String>, value: Option<&String>| {
            value.filter(|_| !known.is_empty()).map(|value| known.contains(value))
        };
        let said = [
            has(&self.cookies, target.netns_cookie.as_ref()),
            has(&self.pods, pod),
            has(&self.containers, container),
        ];
        // Another container of the same pod is in the same namespace.
        said.into_iter().flatten().reduce(|one, other| one || other)
    }
}

/// Leaves out the events of other namespaces with a number by which the subject is found.
pub(super) fn of_one_namespace(
    records: Vec<Record>,
    subject: &Subject,
    state: Option<&NodeState>,
) -> Vec<Record> {
    let newest = records.iter().max_by_key(|record| record.time());
    let boot = state.map(|state| &state.boot_id).or(newest.map(|newest| &newest.event.boot_id)).cloned();
    let mut namespaces: BTreeMap<u32, Namespace> = BTreeMap::new();
    let mut kept = Vec::with_capacity(records.len());
    for record in &records {
        let is_of_it = number(record, subject).is_none_or(|number| {
            let of_number = || Namespace::of_number(number, &records, subject, state);
            let namespace = namespaces.entry(number).or_insert_with(of_number);
            Some(&record.event.boot_id) == boot.as_ref() && namespace.has(record)
        });
        kept.push(is_of_it);
    }
    records.into_iter().zip(kept).filter_map(|(record, kept)| kept.then_some(record)).collect()
}

/// The namespace that is meant by a number.
struct Namespace {
    number: u32,
    owner: Owner,
    /// When another one had the number last, as far as is known.
    after: Option<Timestamp>,
}

impl Namespace {
    fn of_number(number: u32, records: &[Record], subject: &Subject, state: Option<&NodeState>) -> Self {
        let any = Self { number, owner: Owner::default(), after: None };
        match state {
            // It stays for as long as the boot; events on its interfaces tell the owners of the other ends.
            Some(state) if state.host_netns == number => return any,
            None if subject.kind != SubjectKind::Netns => return any,
            _ => {}
        }
        let present = state.and_then(|state| Owner::present(state, number));
        let owner = present.unwrap_or_else(|| last_owner(records, number));
        let others = records.iter().filter(|record| says(&owner, record, number) == Some(false));
        let after = others.map(Record::time).max();
        let known = state.and_then(|state| state.namespaces.iter().find(|known| known.netns == number));
        let since = known.and_then(|known| known.since.as_deref()).map(timestamp);
        Self { number, owner, after: after.max(since) }
    }

    fn has(&self, record: &Record) -> bool {
        let is_later = || self.after.is_none_or(|after| record.time() > after);
        says(&self.owner, record, self.number).unwrap_or_else(is_later)
    }
}

/// The number by which alone an event is one of the subject's; `None` where it names the subject otherwise.
fn number(record: &Record, subject: &Subject) -> Option<u32> {
    let keys = keys(&record.event);
    let meant = |key: &Key| subject.lookups.iter().any(|lookup| lookup.matches(key));
    let numbers: Vec<Option<u32>> =
        keys.iter().filter(|(key, _)| meant(key)).map(|(key, _)| netns_of(key)).collect();
    // An event on both ends of a pair is of the namespace that it happened in.
    let own = netns(&record.event).filter(|own| numbers.contains(&Some(*own)));
    numbers.iter().all(Option::is_some).then(|| own.or(numbers.first().copied()?))?
}

fn netns_of(key: &Key) -> Option<u32> {
    match key.family {
        Family::Netns => key.value.parse().ok(),
        Family::Interface => key.value.split_once('/')?.0.parse().ok(),
        _ => None,
    }
}

/// The namespace that an event is about.
fn netns(event: &Event) -> Option<u32> {
    let of_neighbor = event.neighbor.as_ref().map(|neighbor| neighbor.netns);
    let of_link = event.link.as_ref().map(|link| link.netns);
    let of_rule = || event.rule.as_ref().map(|rule| rule.netns);
    of_neighbor.or(of_link).or(event.route.as_ref().map(|route| route.netns)).or_else(of_rule)
}

/// Whether an event says that it is of the namespace of this owner.
fn says(owner: &Owner, record: &Record, number: u32) -> Option<bool> {
    let target = record.event.target.as_deref().filter(|_| netns(&record.event) == Some(number))?;
    owner.is(target)
}

/// The owner that the newest event about a number tells, where the model has no such namespace.
fn last_owner(records: &[Record], number: u32) -> Owner {
    let told = |record: &Record| {
        let mut owner = Owner::default();
        owner.add(record.event.target.as_deref()?);
        owner.is_known().then_some((record.time(), owner))
    };
    let about = records.iter().filter(|record| netns(&record.event) == Some(number));
    about.filter_map(told).max_by_key(|(time, _)| *time).map(|(_, owner)| owner).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::why::{Outcome, why};
    use crate::test_support::memory::{Memory, event};
    use crate::test_support::node_state::state;

    const NUMBER: u32 = 71;

    /// A deletion in the namespace, of which another container and pod than before is said to be the owner.
    fn deletion(seq: u64, pod: Option<&str>) -> Event {
        let mut event = event(seq);
        let neighbor = event.neighbor.as_mut().unwrap();
        // Those of other entries would be one group.
        (neighbor.netns, neighbor.gateway) = (NUMBER, Some(true));
        neighbor.address = [10, 9, 0, u8::try_from(seq).unwrap()].into();
        event.message = format!("number {seq}");
        event.actor = None;
        let target = event.target.as_mut().unwrap();
        target.container = None;
        target.pod = pod.and(target.pod.take());
        if let (Some(pod), Some(uid)) = (&mut target.pod, pod) {
            (pod.uid, pod.name, pod.ip) = (uid.into(), Some(uid.into()), Vec::new());
        }
        event
    }

    fn told(events: Vec<Event>, word: &str, state: Option<NodeState>) -> Vec<u64> {
        let memory = Memory::of(events);
        let memory = match state {
            Some(state) => memory.with_state(state),
            None => memory,
        };
        let Outcome::Story(story) = why(&memory, word).unwrap() else { panic!("no story of {word}") };
        story.steps.iter().map(|step| step.seq).collect()
    }

    #[test]
    fn what_happened_in_a_namespace_that_had_the_number_before_is_not_told() {
        let events = vec![
            deletion(1, None),
            deletion(2, Some("uid-z")),
            deletion(3, None),
            deletion(4, Some("uid-a")),
            deletion(5, None),
        ];
        for word in ["71", "net:[71]", "a/web", "interface:71/2"] {
            assert_eq!(told(events.clone(), word, Some(state())), [3, 4, 5], "{word}");
        }
        // The last one that had the number, where none has it now.
        assert_eq!(told(events.clone(), "71", None), [3, 4, 5]);
        // Numbers begin again with each boot.
        let mut earlier = deletion(4, None);
        earlier.boot_id = "another".into();
        assert_eq!(told(vec![earlier, deletion(5, None)], "71", Some(state())), [5]);
        let mut fresh = state();
        fresh.namespaces[0].since = Some(crate::test_support::memory::time(4));
        assert_eq!(told(vec![deletion(3, None), deletion(5, None)], "71", Some(fresh)), [5]);
    }
}
