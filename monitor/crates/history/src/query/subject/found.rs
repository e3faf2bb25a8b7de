//! The subjects that a word led to, each with how its events are found.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kevtmon_core::state::{NetnsStatus, NodeState};
use kevtmon_event::Container;
use kevtmon_event::wording::short_id;
use kevtmon_types::escape::name;

use super::{PodNames, Subject, SubjectKind};
use crate::query::Record;
use crate::query::key::{Family, Key, Lookup};

/// Former containers of a name that are told.
const FORMER_SHOWN: usize = 3;

pub(super) fn address_lookups(value: &str) -> Vec<Lookup> {
    vec![Lookup::exact(Family::Ip, value), Lookup::exact(Family::Neighbor, value)]
}

/// The address itself, and the interfaces of the namespace that has it.
pub(super) fn address_subject_lookups(address: IpAddr, state: Option<&NodeState>) -> Vec<Lookup> {
    let mut lookups = address_lookups(&address.to_string());
    let Some(state) = state else { return lookups };
    // Not every event on the host's interfaces is about this address.
    let others = state.namespaces.iter().filter(|namespace| namespace.netns != state.host_netns);
    for namespace in others.filter(|namespace| own_addresses(namespace).any(|own| own == address)) {
        lookups.extend(interfaces_of(state, namespace.netns));
    }
    lookups
}

pub(super) fn own_addresses(namespace: &NetnsStatus) -> impl Iterator<Item = IpAddr> {
    namespace.addresses.iter().filter_map(|address| address.split('/').next()?.parse().ok())
}

/// The path itself, mounts below it, and mounts that it may lie in.
pub(super) fn path_lookups(path: &str) -> Vec<Lookup> {
    let path = trimmed(path);
    let mut lookups = vec![Lookup::exact(Family::Path, path), below(path)];
    let mut above = path;
    while let Some((parent, _)) = above.rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) {
        lookups.push(Lookup::exact(Family::Path, parent));
        above = parent;
    }
    lookups
}

pub(super) fn below(path: &str) -> Lookup {
    Lookup::prefix(Family::Path, format!("{}/", path.trim_end_matches('/')))
}

pub(super) fn trimmed(path: &str) -> &str {
    match path.trim_end_matches('/') {
        "" => "/",
        trimmed => trimmed,
    }
}

/// The device at the path, of an RBD image or of a mount; the mount there, else the one that it lies in, else all below it.
pub(super) fn path_subject(path: &str, records: &[Record]) -> Option<Subject> {
    let path = trimmed(path);
    let mounts: BTreeSet<&str> = records
        .iter()
        .filter_map(|record| record.event.mount.as_ref())
        .map(|mount| mount.path.as_str())
        .filter(|path| !path.is_empty())
        .collect();
    let is_above = |mount: &&&str| {
        path.strip_prefix(**mount).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let subject = |label: String, handle: &str, lookup| Subject {
        kind: SubjectKind::Path,
        label,
        handle: format!("path:{handle}"),
        lookups: vec![lookup],
    };
    let is_device = |record: &Record| {
        let event = &record.event;
        let mount = event.mount.as_ref().filter(|mount| mount.block_device.is_some());
        event.rbd.as_ref().is_some_and(|rbd| rbd.device.as_deref() == Some(path))
            || mount.is_some_and(|mount| mount.source.as_deref() == Some(path))
            || mount.and_then(|mount| mount.block_device.as_ref()).is_some_and(|device| device.name == path)
    };
    if records.iter().any(is_device) {
        return Some(subject(format!("device {}", name(path)), path, Lookup::exact(Family::Path, path)));
    }
    if let Some(mount) = mounts.iter().filter(is_above).max_by_key(|mount| mount.len()) {
        return Some(subject(format!("mount {}", name(mount)), mount, Lookup::exact(Family::Path, *mount)));
    }
    let lookup = below(path);
    let any = mounts.iter().any(|mount| lookup.matches(&Key::new(Family::Path, *mount)));
    any.then(|| subject(format!("mounts below {}", name(path)), path, lookup))
}

/// The owner of a namespace in words; empty where it is not known.
pub(super) fn owner_of(namespace: &NetnsStatus, state: &NodeState) -> String {
    let pod = namespace.owner.pod.as_ref();
    match pod.and_then(|pod| pod.namespace.as_ref().zip(pod.name.as_ref())) {
        Some((namespace, name)) => format!(" of pod {namespace}/{name}"),
        None if namespace.netns == state.host_netns => " of the host".to_owned(),
        None => namespace.name.as_ref().map_or_else(String::new, |name| format!(" (/run/netns/{name})")),
    }
}

pub(super) fn pod_subject(full: &str, names: &PodNames, state: Option<&NodeState>) -> Subject {
    let mut lookups: Vec<Lookup> = names.uids.iter().map(|uid| Lookup::exact(Family::Uid, uid)).collect();
    if names.named {
        lookups.push(Lookup::exact(Family::Pod, full));
    }
    if let Some(state) = state {
        for pod in state.pods.iter().filter(|pod| names.uids.contains(&pod.pod.uid)) {
            let Some(netns) = pod.netns else { continue };
            lookups.extend(interfaces_of(state, netns));
            // Its entries in the host's neighbor table.
            lookups.extend(pod.pod.ip.iter().map(|ip| Lookup::exact(Family::Neighbor, ip.to_string())));
        }
    }
    let family = if names.named { Family::Pod } else { Family::Uid };
    Subject {
        kind: SubjectKind::Pod,
        label: format!("pod {}", name(full)),
        handle: Key::new(family, full).to_string(),
        lookups,
    }
}

/// `former`: ids of containers that had its name before, the newest first.
pub(super) fn container_subject(
    container: &Container,
    former: &[&str],
    state: Option<&NodeState>,
) -> Subject {
    let short = short_id(&container.id);
    let mut lookups = vec![Lookup::exact(Family::Container, &container.id)];
    if let Some(state) = state
        && let Some(place) = state.containers.iter().find(|place| place.container.id == container.id)
        && let Some(netns) = place.netns.filter(|netns| *netns != state.host_netns)
    {
        lookups.extend(interfaces_of(state, netns));
    }
    Subject {
        kind: SubjectKind::Container,
        label: match &container.name {
            Some(own) => format!("container {} ({short}{})", name(own), former_ones(former)),
            None => format!("container {short}"),
        },
        handle: format!("container:{short}"),
        lookups,
    }
}

fn former_ones(ids: &[&str]) -> String {
    let shown: Vec<&str> = ids.iter().take(FORMER_SHOWN).map(|id| short_id(id)).collect();
    match ids.len().saturating_sub(FORMER_SHOWN) {
        _ if ids.is_empty() => String::new(),
        0 => format!("; before it {}", shown.join(", ")),
        more => format!("; before it {} and {more} more", shown.join(", ")),
    }
}

/// Successive namespaces of one name.
pub(super) fn named_netns_subject(own: &str, inodes: &BTreeSet<u32>, state: Option<&NodeState>) -> Subject {
    let mut lookups = vec![
        Lookup::exact(Family::NetnsName, own),
        // Where `ip netns` mounts it.
        Lookup::exact(Family::Path, format!("/run/netns/{own}")),
    ];
    for netns in inodes {
        lookups.push(Lookup::exact(Family::Netns, netns.to_string()));
        lookups.extend(state.into_iter().flat_map(|state| interfaces_of(state, *netns)));
    }
    Subject {
        kind: SubjectKind::Netns,
        label: format!("network namespace {}", name(own)),
        handle: Key::new(Family::NetnsName, own).to_string(),
        lookups,
    }
}

/// All links of a namespace, and their other ends.
pub(super) fn interfaces_of(state: &NodeState, netns: u32) -> Vec<Lookup> {
    let links = state.namespaces.iter().filter(|namespace| namespace.netns == netns).flat_map(|n| &n.links);
    links
        .filter(|link| link.ifname != "lo")
        .flat_map(|link| {
            let peer = link.peer.as_ref().and_then(|peer| Some((peer.netns?, peer.ifindex)));
            [Some((link.netns, link.ifindex)), peer]
        })
        .flatten()
        .map(|(netns, ifindex)| Lookup::exact(Family::Interface, format!("{netns}/{ifindex}")))
        .collect()
}

pub(super) fn interface_subject(
    &(netns, ref ifname): &(u32, String),
    indexes: &BTreeSet<u32>,
    other_end: Option<(u32, u32)>,
    state: Option<&NodeState>,
) -> Subject {
    let mut lookups: Vec<Lookup> = indexes
        .iter()
        .map(|ifindex| Lookup::exact(Family::Interface, format!("{netns}/{ifindex}")))
        .collect();
    let namespace = state.and_then(|state| state.namespaces.iter().find(|known| known.netns == netns));
    let peers = namespace
        .iter()
        .flat_map(|namespace| &namespace.links)
        .filter(|link| indexes.contains(&link.ifindex))
        .filter_map(|link| link.peer.as_ref());
    lookups.extend(peers.filter_map(|peer| {
        Some(Lookup::exact(Family::Interface, format!("{}/{}", peer.netns?, peer.ifindex)))
    }));
    let lookup =
        |(netns, ifindex): (u32, u32)| Lookup::exact(Family::Interface, format!("{netns}/{ifindex}"));
    lookups.extend(other_end.map(lookup));
    let owner = namespace.and_then(|namespace| namespace.owner.confirmed_pod());
    let container = namespace
        .and_then(|namespace| namespace.owner.container.as_ref())
        .and_then(|own| own.name.as_deref());
    let place = match owner.and_then(|pod| pod.namespace.as_ref().zip(pod.name.as_ref())) {
        Some((namespace, name)) => format!("pod {namespace}/{name}"),
        None if state.is_some_and(|state| state.host_netns == netns) => "the host".to_owned(),
        None if container.is_some() => format!("container {}", name(container.unwrap_or_default())),
        None => namespace
            .and_then(|namespace| namespace.name.as_ref())
            .map_or_else(|| format!("netns {netns}"), |name| format!("/run/netns/{name}")),
    };
    let newest = indexes.last().copied().unwrap_or_default();
    Subject {
        kind: SubjectKind::Interface,
        label: format!("interface {} of {place}", name(ifname)),
        handle: format!("interface:{netns}/{newest}"),
        lookups,
    }
}
