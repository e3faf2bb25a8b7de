//! Mounts that others still have, by the open incidents about them: of the container itself, or of others in those who
//! hold something of it.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use kevtmon_event::{LeakedMount, MountHolder, leak_holder};
use kevtmon_types::escape::name;

use crate::diagnose::mount_leak;
use crate::diagnose::{Context, IncidentKey, OpenIncident};

const CAUSES_MAX: usize = 8;

/// The incidents about mounts of this container, and about those who hold it.
pub(super) fn causes(context: &Context<'_>, id: &str, holders: &[MountHolder]) -> Vec<IncidentKey> {
    let holding: BTreeSet<&str> =
        holders.iter().filter_map(|holder| Some(holder.container.as_ref()?.id.as_str())).collect();
    let is_holder = |open: &&OpenIncident| {
        let actor = open.objects.actor.as_ref().and_then(|actor| actor.container.as_ref());
        actor.is_some_and(|container| holding.contains(container.id.as_str()))
    };
    let leaks = incidents(context).filter(|open| is_holder(open) || of_container(open, id).next().is_some());
    leaks
        .take(CAUSES_MAX)
        .map(|open| IncidentKey { kind: mount_leak::KIND, subject: open.subject.clone() })
        .collect()
}

/// Who still has which mount of this container: of those that are as sure the one that its incident tells first.
pub(super) fn phrase(context: &Context<'_>, id: &str) -> Option<String> {
    let mounts = incidents(context).filter_map(|open| {
        let holder = open.objects.actor.as_deref()?;
        Some((holder, of_container(open, id).min_by_key(|leak| Reverse(leak.confidence))?))
    });
    let (holder, leak) = mounts.min_by_key(|(_, leak)| Reverse(leak.confidence))?;
    let (what, at) = (leak.phrase(), name(&leak.identity.mount_point));
    Some(format!("{} still has {what} mounted at {at}", leak_holder(holder)))
}

fn incidents<'a>(context: &Context<'a>) -> impl Iterator<Item = &'a OpenIncident> {
    context.incidents.iter().filter(|open| open.kind() == mount_leak::KIND)
}

fn of_container<'a>(open: &'a OpenIncident, id: &str) -> impl Iterator<Item = &'a LeakedMount> {
    let leaks = open.objects.leaks.iter().flatten();
    leaks.filter(move |leak| leak.container.as_ref().is_some_and(|container| container.id == id))
}
