//! Resolves a word of an operator: to a pod, container, address, path, interface or process.
//!
//! The word enters, then the model and the events that name it; the subjects that match leave.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kevtmon_core::state::{NetnsStatus, NodeState};
use kevtmon_event::volume::is_uid;
use kevtmon_event::{Container, Event, Link, Pod, Role, Target, Visitor};
use kevtmon_types::escape::name;
use serde::{Deserialize, Serialize};

use self::found::{
    address_lookups, address_subject_lookups, container_subject, interface_subject, interfaces_of,
    named_netns_subject, own_addresses, owner_of, path_lookups, path_subject, pod_subject,
};
use super::Record;
use super::key::{Family, Key, Lookup};

mod found;

/// Where network namespaces have names.
const NETNS_DIRECTORIES: [&str; 4] =
    ["/run/netns/", "/var/run/netns/", "/run/docker/netns/", "/var/run/docker/netns/"];
/// A bare word this short that looks like the beginning of a container id is a coincidence.
const SHORTEST_PREFIX: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubjectKind {
    /// A pod, or successive pods of one name.
    Pod,
    Container,
    Interface,
    Process,
    Address,
    /// A mount point, or all mount points below a directory.
    Path,
    Volume,
    /// The device of a file system.
    Device,
    Netns,
    Incident,
    Event,
}

/// What a story is about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    pub kind: SubjectKind,
    /// Its name in text.
    pub label: String,
    /// A word that matches only this.
    pub handle: String,
    /// How its events are found.
    #[serde(skip)]
    pub lookups: Vec<Lookup>,
}

/// The keys of events that can name the subject of the word.
pub fn probes(word: &str) -> Vec<Lookup> {
    let prefixed = |family: Family, value: &str| match family {
        Family::Container => vec![Lookup::prefix(family, value)],
        Family::Ip | Family::Neighbor => address_lookups(value),
        Family::Path => path_lookups(value),
        _ => vec![Lookup::exact(family, value)],
    };
    if let Some(Key { family, value }) = handle(word) {
        return prefixed(family, &value);
    }
    if let Some(name) = netns_name(word) {
        return [vec![Lookup::exact(Family::NetnsName, name)], path_lookups(word)].concat();
    }
    if word.starts_with('/') {
        return path_lookups(word);
    }
    if word.parse::<IpAddr>().is_ok() {
        return address_lookups(word);
    }
    if word.contains('/') {
        return vec![Lookup::exact(Family::Pod, word)];
    }
    if is_device(word) {
        return vec![Lookup::exact(Family::Device, word)];
    }
    if let Some(inode) = netns_inode(word) {
        return vec![Lookup::exact(Family::Netns, inode)];
    }
    let mut probes: Vec<Lookup> =
        [Family::PodName, Family::ContainerName, Family::Link, Family::Volume, Family::NetnsName]
            .into_iter()
            .map(|family| Lookup::exact(family, word))
            .collect();
    if is_uid(word) {
        probes.push(Lookup::exact(Family::Uid, word));
    }
    if word.parse::<u32>().is_ok() {
        probes.push(Lookup::exact(Family::Pid, word));
        probes.push(Lookup::exact(Family::Netns, word));
    }
    if is_id_prefix(word) {
        probes.push(Lookup::prefix(Family::Container, word));
    }
    probes
}

/// All subjects that match the word, each once, in a stable order. `records`: the oldest first.
pub fn candidates(word: &str, state: Option<&NodeState>, records: &[Record]) -> Vec<Subject> {
    let probes = probes(word);
    let mut known = Known { probes: &probes, ..Known::default() };
    if let Some(state) = state {
        known.take_state(state);
    }
    // Who had a name last comes first.
    for record in records.iter().rev() {
        record.event.visit(&mut known);
        if let Some(state) = state {
            known.take_other_end(&record.event, state);
        }
    }
    let mut subjects = known.subjects(state);
    let path = word.strip_prefix("path:").or_else(|| word.starts_with('/').then_some(word));
    // What is mounted there is part of the story of the namespace.
    if let Some(path) = path.filter(|_| known.named_namespaces.is_empty()) {
        subjects.extend(path_subject(path, records));
    }
    // An interface may have had several names.
    let mut handles = BTreeSet::new();
    subjects.retain(|subject| handles.insert(subject.handle.clone()));
    // The owner of the address is meant, rather than the address.
    if subjects.is_empty()
        && let Some(address) = address(word)
        && known.addresses.contains(&address)
    {
        subjects.push(Subject {
            kind: SubjectKind::Address,
            label: format!("address {address}"),
            handle: format!("ip:{address}"),
            lookups: address_subject_lookups(address, state),
        });
    }
    subjects
}

fn handle(word: &str) -> Option<Key> {
    let (family, _) = word.split_once(':')?;
    // An IPv6 address has colons too, but no such name before the first.
    family.parse::<Family>().ok().and_then(|_| word.parse().ok())
}

fn address(word: &str) -> Option<IpAddr> {
    word.strip_prefix("ip:").or_else(|| word.strip_prefix("neighbor:")).unwrap_or(word).parse().ok()
}

/// `MAJOR:MINOR`, as in mountinfo.
fn is_device(word: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    word.split_once(':').is_some_and(|(major, minor)| is_number(major) && is_number(minor))
}

/// The name of a network namespace, of a path that names one.
fn netns_name(path: &str) -> Option<&str> {
    let name = NETNS_DIRECTORIES.iter().find_map(|directory| path.strip_prefix(directory))?;
    Some(name.trim_end_matches('/')).filter(|name| !name.is_empty() && !name.contains('/'))
}

/// The inode number in `net:[4026532253]`, as links in /proc name a network namespace.
fn netns_inode(word: &str) -> Option<&str> {
    let inode = word.strip_prefix("net:[")?.strip_suffix(']')?;
    inode.parse::<u32>().is_ok().then_some(inode)
}

/// Whether it can be the beginning of an id of a container or an incident.
pub fn is_id_prefix(word: &str) -> bool {
    (SHORTEST_PREFIX..=64).contains(&word.len())
        && word.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// What matches the probes.
#[derive(Default)]
struct Known<'a> {
    probes: &'a [Lookup],
    /// By `NAMESPACE/NAME`, or by uid where the name is unknown.
    pods: BTreeMap<String, PodNames>,
    containers: BTreeMap<String, Container>,
    /// Ids of these: those that exist, then the others, the one that was seen last first.
    container_order: Vec<String>,
    /// How many of these exist.
    existing: usize,
    /// By namespace and name: one that is created again has another index.
    interfaces: BTreeMap<(u32, String), BTreeSet<u32>>,
    /// The last other ends of those that are gone, by namespace and index.
    other_ends: BTreeMap<(u32, String), (u32, u32)>,
    processes: BTreeMap<u32, String>,
    addresses: BTreeSet<IpAddr>,
    volumes: BTreeSet<String>,
    devices: BTreeSet<String>,
    /// Namespaces, with their owner where it is known.
    namespaces: BTreeMap<u32, String>,
    /// Namespaces by name, with the inode numbers of those that have it now.
    named_namespaces: BTreeMap<String, BTreeSet<u32>>,
}

#[derive(Default)]
struct PodNames {
    named: bool,
    uids: BTreeSet<String>,
}

impl Known<'_> {
    fn is_meant(&self, family: Family, value: &str) -> bool {
        let key = Key::new(family, value);
        self.probes.iter().any(|probe| probe.matches(&key))
    }

    fn take_state(&mut self, state: &NodeState) {
        for pod in &state.pods {
            self.take_pod(&pod.pod);
        }
        for place in &state.containers {
            let has_address = place.ip.iter().any(|ip| self.is_meant(Family::Ip, &ip.to_string()));
            let is_of_pod = place.pod.as_ref().is_some_and(|pod| !pod.claimed);
            self.take_container(&place.container);
            if has_address && !is_of_pod {
                self.note_container(&place.container);
            }
        }
        self.existing = self.container_order.len();
        for namespace in &state.namespaces {
            if self.is_meant(Family::Netns, &namespace.netns.to_string()) {
                self.namespaces.insert(namespace.netns, owner_of(namespace, state));
            }
            if let Some(name) = namespace.name.as_ref().filter(|name| self.is_meant(Family::NetnsName, name))
            {
                self.named_namespaces.entry(name.clone()).or_default().insert(namespace.netns);
            }
            for link in &namespace.links {
                self.take_interface(link.netns, link.ifindex, &link.ifname);
            }
            if let (Some(pid), Some(comm)) = (namespace.pid, &namespace.comm) {
                self.take_process(pid, comm);
            }
            self.addresses.extend(&namespace.gateways);
            self.addresses.extend(own_addresses(namespace));
        }
    }

    fn take_pod(&mut self, pod: &Pod) {
        if pod.claimed {
            return;
        }
        let full = pod.namespace.as_ref().zip(pod.name.as_ref()).map(|(ns, name)| format!("{ns}/{name}"));
        let is_meant = self.is_meant(Family::Uid, &pod.uid)
            || full.as_ref().is_some_and(|full| self.is_meant(Family::Pod, full))
            || pod.name.as_ref().is_some_and(|name| self.is_meant(Family::PodName, name))
            || pod.ip.iter().any(|ip| self.is_meant(Family::Ip, &ip.to_string()));
        if is_meant {
            let named = full.is_some();
            let names = self.pods.entry(full.unwrap_or_else(|| pod.uid.clone())).or_default();
            names.named = named;
            if !pod.uid.is_empty() {
                names.uids.insert(pod.uid.clone());
            }
        }
    }

    fn take_container(&mut self, container: &Container) {
        let is_meant = self.is_meant(Family::Container, &container.id)
            || container.name.as_ref().is_some_and(|name| self.is_meant(Family::ContainerName, name));
        if is_meant {
            self.note_container(container);
        }
        if let Some(pid) = container.pid {
            self.take_process(pid, container.name.as_deref().unwrap_or(&container.id));
        }
    }

    fn note_container(&mut self, container: &Container) {
        if !self.containers.contains_key(&container.id) {
            self.container_order.push(container.id.clone());
        }
        let known = self.containers.entry(container.id.clone()).or_insert_with(|| container.clone());
        if known.name.is_none() {
            known.name.clone_from(&container.name);
        }
    }

    /// The containers that are meant, with the ids of those that are not: a name is given again once its container is
    /// gone, and whoever gives it means the one that has it, or had it last.
    fn meant_containers(&self) -> (Vec<&Container>, Vec<&str>) {
        let named = |container: &&Container| {
            container.name.as_ref().is_some_and(|name| self.is_meant(Family::ContainerName, name))
        };
        let all = || self.container_order.iter().filter_map(|id| self.containers.get(id));
        if !all().all(|container| named(&container)) {
            return (all().collect(), Vec::new());
        }
        let kept = self.existing.max(1);
        (all().take(kept).collect(), all().skip(kept).map(|container| container.id.as_str()).collect())
    }

    fn take_interface(&mut self, netns: u32, ifindex: u32, ifname: &str) {
        if self.is_meant(Family::Link, ifname)
            || self.is_meant(Family::Interface, &format!("{netns}/{ifindex}"))
        {
            self.interfaces.entry((netns, ifname.to_owned())).or_default().insert(ifindex);
        }
    }

    /// What an interface that is gone has led to. The number of a namespace is given again, so only one that is the same.
    fn take_other_end(&mut self, event: &Event, state: &NodeState) {
        let Some(link) = event.link.as_deref().filter(|_| event.boot_id == state.boot_id) else { return };
        let key = (link.netns, link.ifname.clone());
        let Some((netns, ifindex)) = link.peer.as_ref().and_then(|peer| Some((peer.netns?, peer.ifindex)))
        else {
            return;
        };
        let Some(target) = &event.target else { return };
        let is_same = |known: &NetnsStatus| known.netns == netns && is_owner(known, target);
        let is_it = |known: &Link| known.netns == link.netns && known.ifname == link.ifname;
        let is_there = state.namespaces.iter().flat_map(|namespace| &namespace.links).any(is_it);
        if !is_there && self.interfaces.contains_key(&key) && state.namespaces.iter().any(is_same) {
            self.other_ends.insert(key, (netns, ifindex));
        }
    }

    fn take_process(&mut self, pid: u32, comm: &str) {
        if self.is_meant(Family::Pid, &pid.to_string()) {
            self.processes.entry(pid).or_insert_with(|| comm.to_owned());
        }
    }

    fn subjects(&self, state: Option<&NodeState>) -> Vec<Subject> {
        let pods = self.pods.iter().map(|(name, names)| pod_subject(name, names, state));
        let (containers, former) = self.meant_containers();
        let containers = containers.into_iter().map(|container| container_subject(container, &former, state));
        let interfaces = self
            .interfaces
            .iter()
            .map(|(key, indexes)| interface_subject(key, indexes, self.other_ends.get(key).copied(), state));
        let processes = self.processes.iter().map(|(pid, comm)| Subject {
            kind: SubjectKind::Process,
            label: format!("process {pid} ({})", name(comm)),
            handle: format!("pid:{pid}"),
            lookups: vec![Lookup::exact(Family::Pid, pid.to_string())],
        });
        let named = |kind, what: &str, family, value: &String| Subject {
            kind,
            label: format!("{what} {}", name(value)),
            handle: Key::new(family, value).to_string(),
            lookups: vec![Lookup::exact(family, value)],
        };
        let volumes =
            self.volumes.iter().map(|name| named(SubjectKind::Volume, "volume", Family::Volume, name));
        let devices =
            self.devices.iter().map(|device| named(SubjectKind::Device, "device", Family::Device, device));
        let namespaces = self.namespaces.iter().map(|(netns, owner)| {
            let inode = netns.to_string();
            let plain = named(SubjectKind::Netns, "network namespace", Family::Netns, &inode);
            let mut lookups = plain.lookups;
            lookups.extend(state.into_iter().flat_map(|state| interfaces_of(state, *netns)));
            Subject { label: format!("{}{owner}", plain.label), lookups, ..plain }
        });
        let named_namespaces =
            self.named_namespaces.iter().map(|(name, inodes)| named_netns_subject(name, inodes, state));
        let others = volumes.chain(devices).chain(namespaces).chain(named_namespaces);
        pods.chain(containers).chain(interfaces).chain(processes).chain(others).collect()
    }
}

impl Visitor for Known<'_> {
    fn process(&mut self, _role: Role, pid: u32, comm: &str) {
        self.take_process(pid, comm);
    }

    fn container(&mut self, _role: Role, container: &Container) {
        self.take_container(container);
    }

    fn pod(&mut self, _role: Role, pod: &Pod) {
        self.take_pod(pod);
        self.addresses.extend(&pod.ip);
    }

    fn interface(&mut self, role: Role, netns: u32, ifindex: u32, ifname: Option<&str>) {
        if let Some(ifname) = ifname {
            self.take_interface(netns, ifindex, ifname);
        }
        if role == Role::Object && self.is_meant(Family::Netns, &netns.to_string()) {
            self.namespaces.entry(netns).or_default();
        }
    }

    fn neighbor_address(&mut self, _role: Role, address: IpAddr) {
        self.addresses.insert(address);
    }

    fn volume(&mut self, _role: Role, name: &str) {
        if self.is_meant(Family::Volume, name) {
            self.volumes.insert(name.to_owned());
        }
    }

    fn device(&mut self, _role: Role, device: &str) {
        if self.is_meant(Family::Device, device) {
            self.devices.insert(device.to_owned());
        }
    }

    fn namespace(&mut self, _role: Role, name: &str) {
        if self.is_meant(Family::NetnsName, name) {
            self.named_namespaces.entry(name.to_owned()).or_default();
        }
    }
}

/// Whether the owner of a namespace that there is was this one.
fn is_owner(known: &NetnsStatus, told: &Target) -> bool {
    let same = |known: Option<&String>, told: Option<&String>| known.is_some() && known == told;
    let container = |owner: &Target| owner.container.as_ref().map(|container| container.id.clone());
    same(known.cookie.as_ref(), told.netns_cookie.as_ref())
        || same(container(&known.owner).as_ref(), container(told).as_ref())
        || same(known.owner.confirmed_pod().map(|pod| &pod.uid), told.confirmed_pod().map(|pod| &pod.uid))
}

pub fn incident_subject(id: &str, kind: &str) -> Subject {
    Subject {
        kind: SubjectKind::Incident,
        label: format!("incident {id} ({kind})"),
        handle: Key::new(Family::Incident, id).to_string(),
        lookups: vec![Lookup::exact(Family::Incident, id)],
    }
}

pub fn event_subject(record: &Record) -> Subject {
    let seq = record.event.seq;
    Subject {
        kind: SubjectKind::Event,
        label: format!("event {seq} ({})", record.kind),
        handle: format!("seq:{seq}"),
        lookups: Vec::new(),
    }
}

/// The number of an event in `seq:NUMBER`. A bare number is that of a process.
pub fn seq(word: &str) -> Option<u64> {
    word.strip_prefix("seq:")?.parse().ok()
}

#[cfg(test)]
pub mod tests;
