//! The names that an event can be found by: an event enters, its keys leave, each with the role of what it names.
//! A store may index them.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::net::IpAddr;

use kevtmon_event::{Container, Event, Pod, Role, Visitor};
use kevtmon_types::escape::to_json;
use kevtmon_types::names::names;

/// Holders whose names become keys; a mount can have hundreds.
const HOLDERS: usize = 32;

names! {
    /// What a key names; its name is the part of the key before the colon. The order is part of the format of the store.
    #[derive(Hash, PartialOrd, Ord)]
    Family {
        /// `NAMESPACE/NAME` of a pod.
        Pod = "pod",
        /// Name of a pod alone.
        PodName = "pod-name",
        /// Uid of a pod.
        Uid = "uid",
        Container = "container",
        ContainerName = "container-name",
        /// Address of a pod.
        Ip = "ip",
        /// Address of a neighbor entry or gateway.
        Neighbor = "neighbor",
        Path = "path",
        Link = "link",
        /// Interface by `NETNS/IFINDEX`.
        Interface = "interface",
        Pid = "pid",
        /// Network namespace by inode number, of an interface that an event is about.
        Netns = "netns",
        /// Name of a network namespace.
        NetnsName = "netns-name",
        /// Name of a pod volume.
        Volume = "volume",
        /// Device of a file system, `MAJOR:MINOR`.
        Device = "device",
        /// Id of an incident.
        Incident = "incident",
    }
}

/// One name of something; written `FAMILY:VALUE`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub family: Family,
    pub value: String,
}

impl Key {
    pub fn new(family: Family, value: impl Into<String>) -> Self {
        Self { family, value: value.into() }
    }

    /// Text that the JSON of every event with this key contains.
    pub fn needle(&self) -> String {
        let part = match self.family {
            Family::Pod => self.value.rsplit('/').next().unwrap_or_default(),
            Family::Interface => self.value.split('/').next().unwrap_or_default(),
            _ => &self.value,
        };
        // Strings stand in JSON as JSON writes them; the quotes are not part of a prefix.
        let quoted = to_json(part).unwrap_or_default();
        quoted[1..quoted.len() - 1].to_owned()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.family.name(), self.value)
    }
}

impl std::str::FromStr for Key {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let parts = text.split_once(':').filter(|(_, value)| !value.is_empty());
        let key = parts.and_then(|(family, value)| Some(Self::new(family.parse().ok()?, value)));
        key.ok_or_else(|| InvalidKey(text.to_owned()))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not valid: expected FAMILY:VALUE, as in pod:default/web or pid:1")]
pub struct InvalidKey(pub String);

/// A condition on keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Lookup {
    Exact(Key),
    /// Every key of the family with this prefix.
    Prefix(Key),
}

impl Lookup {
    pub fn exact(family: Family, value: impl Into<String>) -> Self {
        Self::Exact(Key::new(family, value))
    }

    /// Every name with this prefix.
    pub fn prefix(family: Family, value: impl Into<String>) -> Self {
        Self::Prefix(Key::new(family, value))
    }

    pub fn matches(&self, key: &Key) -> bool {
        match self {
            Self::Exact(wanted) => key == wanted,
            Self::Prefix(wanted) => key.family == wanted.family && key.value.starts_with(&wanted.value),
        }
    }

    /// The key, or the prefix of one.
    pub fn key(&self) -> &Key {
        match self {
            Self::Exact(key) | Self::Prefix(key) => key,
        }
    }
}

/// All keys of an event, sorted, each once with every role.
pub fn keys(event: &Event) -> BTreeSet<(Key, Role)> {
    let mut keys = BTreeSet::new();
    visit(event, |family, value, role| {
        keys.insert((Key::new(family, value), role));
    });
    keys
}

/// Calls `found` with each key of an event and its role; with some more than once.
pub fn visit(event: &Event, found: impl FnMut(Family, &str, Role)) {
    event.visit(&mut KeyVisitor { found, text: String::new(), holders: 0 });
}

struct KeyVisitor<F> {
    found: F,
    /// Buffer for a value that is formatted.
    text: String,
    holders: usize,
}

impl<F: FnMut(Family, &str, Role)> KeyVisitor<F> {
    fn put(&mut self, role: Role, family: Family, value: &str) {
        if !value.is_empty() && (role != Role::Holder || self.holders <= HOLDERS) {
            (self.found)(family, value, role);
        }
    }

    fn show(&mut self, role: Role, family: Family, value: &impl fmt::Display) {
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        // Writing to a string cannot fail.
        let _ = write!(text, "{value}");
        self.put(role, family, &text);
        self.text = text;
    }
}

impl<F: FnMut(Family, &str, Role)> Visitor for KeyVisitor<F> {
    fn process(&mut self, role: Role, pid: u32, _comm: &str) {
        if role == Role::Holder {
            self.holders += 1;
        }
        self.show(role, Family::Pid, &pid);
    }

    fn container(&mut self, role: Role, container: &Container) {
        self.put(role, Family::Container, &container.id);
        self.put(role, Family::ContainerName, container.name.as_deref().unwrap_or_default());
        if let Some(pid) = container.pid {
            self.show(role, Family::Pid, &pid);
        }
    }

    fn pod(&mut self, role: Role, pod: &Pod) {
        // Who asks for a pod must not get what only claims to be it.
        if pod.claimed {
            return;
        }
        self.put(role, Family::Uid, &pod.uid);
        if let (Some(namespace), Some(name)) = (&pod.namespace, &pod.name) {
            self.show(role, Family::Pod, &format_args!("{namespace}/{name}"));
            self.put(role, Family::PodName, name);
        }
        for ip in &pod.ip {
            self.show(role, Family::Ip, ip);
        }
    }

    fn pod_uid(&mut self, role: Role, uid: &str) {
        self.put(role, Family::Uid, uid);
    }

    fn interface(&mut self, role: Role, netns: u32, ifindex: u32, ifname: Option<&str>) {
        self.show(role, Family::Interface, &format_args!("{netns}/{ifindex}"));
        self.put(role, Family::Link, ifname.unwrap_or_default());
        if role == Role::Object {
            self.show(role, Family::Netns, &netns);
        }
    }

    fn interface_name(&mut self, role: Role, ifname: &str) {
        self.put(role, Family::Link, ifname);
    }

    fn neighbor_address(&mut self, role: Role, address: IpAddr) {
        self.show(role, Family::Neighbor, &address);
    }

    fn path(&mut self, role: Role, path: &str) {
        self.put(role, Family::Path, path);
    }

    fn volume(&mut self, role: Role, name: &str) {
        self.put(role, Family::Volume, name);
    }

    fn device(&mut self, role: Role, device: &str) {
        self.put(role, Family::Device, device);
    }

    fn namespace(&mut self, role: Role, name: &str) {
        self.put(role, Family::NetnsName, name);
    }

    fn incident(&mut self, role: Role, id: &str) {
        self.put(role, Family::Incident, id);
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_event::Severity;
    use kevtmon_testing::sample;

    use super::*;

    fn roles(event: &Event, key: &str) -> Vec<Role> {
        let key: Key = key.parse().unwrap();
        keys(event).into_iter().filter(|(known, _)| *known == key).map(|(_, role)| role).collect()
    }

    #[test]
    fn a_deletion_is_found_by_pod_container_actor_address_and_interface() {
        let event = sample::deletion();
        assert_eq!(roles(&event, "pod:lijiaob/etcd1-0"), [Role::Target]);
        assert_eq!(roles(&event, "pod-name:etcd1-0"), [Role::Target]);
        assert_eq!(roles(&event, "ip:10.42.0.7"), [Role::Target]);
        assert_eq!(roles(&event, "pid:28997"), [Role::Actor]);
        assert_eq!(roles(&event, "neighbor:169.254.1.1"), [Role::Object]);
        assert_eq!(roles(&event, "interface:4026532253/2"), [Role::Object]);
        assert_eq!(roles(&event, "pod:lijiaob/etcd1-1"), []);
    }

    #[test]
    fn a_busy_mount_is_found_by_its_path_its_pod_and_its_holders() {
        let event = sample::busy();
        let path = event.mount.as_ref().unwrap().path.clone();
        assert_eq!(roles(&event, &format!("path:{path}")), [Role::Object]);
        assert_eq!(roles(&event, "uid:3f0f"), [Role::Target]);
        assert_eq!(roles(&event, "pid:4123"), [Role::Holder]);
        assert_eq!(roles(&event, "pod:lijiaob/etcd1-0"), [Role::Holder]);
    }

    #[test]
    fn both_ends_of_a_pair_find_it() {
        let event = sample::link(Severity::Info);
        assert_eq!(roles(&event, "link:cali0123"), [Role::Peer]);
        assert_eq!(roles(&event, "interface:4026532253/2"), [Role::Object]);
    }

    #[test]
    fn the_needle_of_each_key_stands_in_the_json() {
        let mut odd = sample::busy();
        odd.mount.as_mut().unwrap().path = "/mnt/a \"b\"\\é\u{1}".into();
        for event in sample::all().into_iter().chain([odd]) {
            let json = serde_json::to_string(&event).unwrap();
            for (key, _) in keys(&event) {
                assert!(json.contains(&key.needle()), "{key}: {} not in {json}", key.needle());
            }
        }
    }

    #[test]
    fn keys_are_read_as_they_are_written() {
        for (key, _) in sample::all().iter().flat_map(keys) {
            assert_eq!(key.to_string().parse(), Ok(key));
        }
        assert!("pid".parse::<Key>().is_err());
        assert!("shoe:42".parse::<Key>().is_err());
        assert!("pid:".parse::<Key>().is_err());
    }

    #[test]
    fn a_prefix_stays_in_its_family() {
        let lookup = Lookup::prefix(Family::Container, "593d");
        assert!(lookup.matches(&Key::new(Family::Container, "593d8a")));
        assert!(!lookup.matches(&Key::new(Family::Container, "493d8a")));
        assert!(!lookup.matches(&Key::new(Family::ContainerName, "593d8a")));
    }
}
