//! Resolves a word of an operator: to a pod, container, address, path, interface or process.
//!
//! The word enters, then the model and the events that name it; the subjects that match leave.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::Record;
use super::filter::is_uid;
use super::key::{Family, Key, Lookup};
use crate::core::state::{NetnsStatus, NodeState};
use crate::event::{Container, Pod, Role, Visitor};

/// A bare word this short that looks like the beginning of a container id is a coincidence.
const SHORTEST_PREFIX: usize = 4;

/// What kind of subject it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubjectKind {
    /// A pod, or successive pods of one name.
    Pod,
    /// A container.
    Container,
    /// An interface.
    Interface,
    /// A process id.
    Process,
    /// An address.
    Address,
    /// A mount point, or all mount points below a directory.
    Path,
    /// A pod volume.
    Volume,
    /// The device of a file system.
    Device,
    /// A network namespace.
    Netns,
    /// An incident.
    Incident,
    /// One event.
    Event,
}

/// What a story is about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    /// What it is.
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
#[must_use]
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
    let mut probes: Vec<Lookup> = [Family::PodName, Family::ContainerName, Family::Link, Family::Volume]
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

/// All subjects that match the word, each once, in a stable order.
#[must_use]
pub fn candidates(word: &str, state: Option<&NodeState>, records: &[Record]) -> Vec<Subject> {
    let probes = probes(word);
    let mut known = Known { probes: &probes, ..Known::default() };
    if let Some(state) = state {
        known.take_state(state);
    }
    for record in records {
        record.event.visit(&mut known);
    }
    let mut subjects = known.subjects(state);
    if let Some(path) = word.strip_prefix("path:").or_else(|| word.starts_with('/').then_some(word)) {
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
    Family::ALL.into_iter().any(|known| known.name() == family).then(|| word.parse().ok())?
}

fn address(word: &str) -> Option<IpAddr> {
    word.strip_prefix("ip:").or_else(|| word.strip_prefix("neighbor:")).unwrap_or(word).parse().ok()
}

/// `MAJOR:MINOR`, as in mountinfo.
fn is_device(word: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    word.split_once(':').is_some_and(|(major, minor)| is_number(major) && is_number(minor))
}

/// Whether it can be the beginning of an id of a container or an incident.
#[must_use]
pub fn is_id_prefix(word: &str) -> bool {
    (SHORTEST_PREFIX..=64).contains(&word.len())
        && word.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn address_lookups(value: &str) -> Vec<Lookup> {
    vec![Lookup::exact(Family::Ip, value), Lookup::exact(Family::Neighbor, value)]
}

/// The address itself, and the interfaces of the namespace that has it.
fn address_subject_lookups(address: IpAddr, state: Option<&NodeState>) -> Vec<Lookup> {
    let mut lookups = address_lookups(&address.to_string());
    let Some(state) = state else { return lookups };
    // Not every event on the host's interfaces is about this address.
    let others = state.namespaces.iter().filter(|namespace| namespace.netns != state.host_netns);
    for namespace in others.filter(|namespace| own_addresses(namespace).any(|own| own == address)) {
        lookups.extend(interfaces_of(state, namespace.netns));
    }
    lookups
}

fn own_addresses(namespace: &NetnsStatus) -> impl Iterator<Item = IpAddr> {
    namespace.addresses.iter().filter_map(|address| address.split('/').next()?.parse().ok())
}

/// The path itself, mounts below it, and mounts that it may lie in.
fn path_lookups(path: &str) -> Vec<Lookup> {
    let path = trimmed(path);
    let mut lookups = vec![Lookup::exact(Family::Path, path), below(path)];
    let mut above = path;
    while let Some((parent, _)) = above.rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) {
        lookups.push(Lookup::exact(Family::Path, parent));
        above = parent;
    }
    lookups
}

fn below(path: &str) -> Lookup {
    Lookup::prefix(Family::Path, format!("{}/", path.trim_end_matches('/')))
}

fn trimmed(path: &str) -> &str {
    match path.trim_end_matches('/') {
        "" => "/",
        trimmed => trimmed,
    }
}

/// The mount at the path, else the one that it lies in, else all below it.
fn path_subject(path: &str, records: &[Record]) -> Option<Subject> {
    let path = trimmed(path);
    let mounts: BTreeSet<&str> = records
        .iter()
        .filter_map(|record| record.event.mount.as_ref())
        .map(|mount| mount.path.as_str())
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
    if let Some(mount) = mounts.iter().filter(is_above).max_by_key(|mount| mount.len()) {
        return Some(subject(format!("mount {mount}"), mount, Lookup::exact(Family::Path, *mount)));
    }
    let lookup = below(path);
    let any = mounts.iter().any(|mount| lookup.matches(&Key::new(Family::Path, *mount)));
    any.then(|| subject(format!("mounts below {path}"), path, lookup))
}

/// What matches the probes.
#[derive(Default)]
struct Known<'a> {
    probes: &'a [Lookup],
    /// By `NAMESPACE/NAME`, or by uid where the name is unknown.
    pods: BTreeMap<String, PodNames>,
    /// By id.
    containers: BTreeMap<String, Container>,
    /// By namespace and name: one that is created again has another index.
    interfaces: BTreeMap<(u32, String), BTreeSet<u32>>,
    processes: BTreeMap<u32, String>,
    addresses: BTreeSet<IpAddr>,
    volumes: BTreeSet<String>,
    devices: BTreeSet<String>,
    /// Namespaces, with their owner where it is known.
    namespaces: BTreeMap<u32, String>,
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
            self.take_container(&place.container);
        }
        for namespace in &state.namespaces {
            if self.is_meant(Family::Netns, &namespace.netns.to_string()) {
                self.namespaces.insert(namespace.netns, owner_of(namespace, state));
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
            names.uids.insert(pod.uid.clone());
        }
    }

    fn take_container(&mut self, container: &Container) {
        let is_meant = self.is_meant(Family::Container, &container.id)
            || container.name.as_ref().is_some_and(|name| self.is_meant(Family::ContainerName, name));
        if is_meant {
            let known = self.containers.entry(container.id.clone()).or_insert_with(|| container.clone());
            if known.name.is_none() {
                known.name.clone_from(&container.name);
            }
        }
        if let Some(pid) = container.pid {
            self.take_process(pid, container.name.as_deref().unwrap_or(&container.id));
        }
    }

    fn take_interface(&mut self, netns: u32, ifindex: u32, ifname: &str) {
        if self.is_meant(Family::Link, ifname)
            || self.is_meant(Family::Interface, &format!("{netns}/{ifindex}"))
        {
            self.interfaces.entry((netns, ifname.to_owned())).or_default().insert(ifindex);
        }
    }

    fn take_process(&mut self, pid: u32, comm: &str) {
        if self.is_meant(Family::Pid, &pid.to_string()) {
            self.processes.entry(pid).or_insert_with(|| comm.to_owned());
        }
    }

    fn subjects(&self, state: Option<&NodeState>) -> Vec<Subject> {
        let pods = self.pods.iter().map(|(name, names)| pod_subject(name, names, state));
        let containers = self.containers.values().map(|container| container_subject(container, state));
        let interfaces = self
            .interfaces
            .iter()
            .map(|((netns, ifname), indexes)| interface_subject(*netns, ifname, indexes, state));
        let processes = self.processes.iter().map(|(pid, comm)| Subject {
            kind: SubjectKind::Process,
            label: format!("process {pid} ({comm})"),
            handle: format!("pid:{pid}"),
            lookups: vec![Lookup::exact(Family::Pid, pid.to_string())],
        });
        let named = |kind, what: &str, family, value: &String| Subject {
            kind,
            label: format!("{what} {value}"),
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
        let others = volumes.chain(devices).chain(namespaces);
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

    fn pod_uid(&mut self, _role: Role, _uid: &str) {}

    fn interface(&mut self, role: Role, netns: u32, ifindex: u32, ifname: Option<&str>) {
        if let Some(ifname) = ifname {
            self.take_interface(netns, ifindex, ifname);
        }
        if role == Role::Object && self.is_meant(Family::Netns, &netns.to_string()) {
            self.namespaces.entry(netns).or_default();
        }
    }

    fn interface_name(&mut self, _role: Role, _ifname: &str) {}

    fn neighbor_address(&mut self, _role: Role, address: IpAddr) {
        self.addresses.insert(address);
    }

    fn path(&mut self, _role: Role, _path: &str) {}

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

    fn incident(&mut self, _role: Role, _id: &str) {}
}

/// An incident as a subject.
#[must_use]
pub fn incident_subject(id: &str, kind: &str) -> Subject {
    Subject {
        kind: SubjectKind::Incident,
        label: format!("incident {id} ({kind})"),
        handle: Key::new(Family::Incident, id).to_string(),
        lookups: vec![Lookup::exact(Family::Incident, id)],
    }
}

/// One event as a subject.
#[must_use]
pub fn event_subject(record: &Record) -> Subject {
    let seq = record.event.seq;
    Subject {
        kind: SubjectKind::Event,
        label: format!("event {seq} ({})", record.kind),
        handle: format!("seq:{seq}"),
        lookups: Vec::new(),
    }
}

/// The number of an event in `seq:NUMBER`, or in a bare number.
#[must_use]
pub fn seq(word: &str) -> Option<u64> {
    word.strip_prefix("seq:").unwrap_or(word).parse().ok()
}

/// The owner of a namespace in words; empty where it is not known.
fn owner_of(namespace: &NetnsStatus, state: &NodeState) -> String {
    let pod = namespace.owner.pod.as_ref();
    match pod.and_then(|pod| pod.namespace.as_ref().zip(pod.name.as_ref())) {
        Some((namespace, name)) => format!(" of pod {namespace}/{name}"),
        None if namespace.netns == state.host_netns => " of the host".to_owned(),
        None => namespace.name.as_ref().map_or_else(String::new, |name| format!(" (/run/netns/{name})")),
    }
}

fn pod_subject(name: &str, names: &PodNames, state: Option<&NodeState>) -> Subject {
    let mut lookups: Vec<Lookup> = names.uids.iter().map(|uid| Lookup::exact(Family::Uid, uid)).collect();
    if names.named {
        lookups.push(Lookup::exact(Family::Pod, name));
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
        label: format!("pod {name}"),
        handle: Key::new(family, name).to_string(),
        lookups,
    }
}

fn container_subject(container: &Container, state: Option<&NodeState>) -> Subject {
    let short = container.id.get(..12).unwrap_or(&container.id);
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
            Some(name) => format!("container {name} ({short})"),
            None => format!("container {short}"),
        },
        handle: format!("container:{short}"),
        lookups,
    }
}

/// All links of a namespace, and their other ends.
fn interfaces_of(state: &NodeState, netns: u32) -> Vec<Lookup> {
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

fn interface_subject(
    netns: u32,
    ifname: &str,
    indexes: &BTreeSet<u32>,
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
    let owner = namespace.and_then(|namespace| namespace.owner.confirmed_pod());
    let place = match owner.and_then(|pod| pod.namespace.as_ref().zip(pod.name.as_ref())) {
        Some((namespace, name)) => format!("pod {namespace}/{name}"),
        None if state.is_some_and(|state| state.host_netns == netns) => "the host".to_owned(),
        None => namespace
            .and_then(|namespace| namespace.name.as_ref())
            .map_or_else(|| format!("netns {netns}"), |name| format!("/run/netns/{name}")),
    };
    let newest = indexes.last().copied().unwrap_or_default();
    Subject {
        kind: SubjectKind::Interface,
        label: format!("interface {ifname} of {place}"),
        handle: format!("interface:{netns}/{newest}"),
        lookups,
    }
}

#[cfg(test)]
pub(crate) mod tests;
