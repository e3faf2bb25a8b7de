//! What a line speaks of: found in its message by the shapes of ids, names and paths, and in incidents by their fields.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use kevtmon_event::volume::is_uid;
use kevtmon_event::{Event, Role, volume};
use kevtmon_types::escape::is_hidden;

use crate::query::key::{Family, Key, Lookup};

/// Lengths of a UUID and of the id of a container, in full and as tools shorten it; what is cut by hand has eight digits at least.
const UUID: usize = 36;
const ID: usize = 64;
const SHORT: usize = 12;
const CUT: usize = 8;
/// Longest name and path that are taken, bytes.
const NAME_MAX: usize = 255;
const PATH_MAX: usize = 4096;
/// Places of a message at which a path or a pod may begin: hostile ones have thousands.
const PLACES: usize = 64;
/// Directories in which directories are called like containers. Those of layers have such names, too, and are none.
const OF_CONTAINERS: [&str; 6] =
    ["containers", "sandboxes", "overlay-containers", "k8s.io", "moby", "docker"];
/// What paths begin with that are a program or part of a URL.
const NOT_MEANT: [&str; 5] = ["/usr/", "/bin/", "/sbin/", "/opt/cni/bin/", "/v1."];
/// What the host's ends of pods' pairs are called, before digits; and other devices of the host.
const HOST_ENDS: [&str; 5] = ["cali", "veth", "eni", "azv", "lxc"];
const DEVICES: [&str; 5] = ["vxlan.calico", "flannel.1", "cni0", "docker0", "tunl0"];
/// Kinds of incidents that are about the node.
const OF_NODE: [&str; 4] =
    ["kubelet-crash-loop", "spec-hash-storm", "neighbor-table-full", "netns-never-ends"];

/// Where the known words stand in a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found<'a> {
    pub(super) message: &'a str,
    pub(super) begin: usize,
    /// Behind the last of them.
    pub(super) end: usize,
    /// What stands between the first two of them.
    pub(super) between: &'a str,
}

/// Finds a subject in a message.
pub(super) type Extract = fn(&Found<'_>) -> Option<Subject>;

/// What a line speaks of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// `NAMESPACE/NAME`.
    Pod(String),
    Uid(String),
    /// Its id, or the first digits of it.
    Container(String),
    Path(String),
    /// A network interface of the host.
    Interface(String),
    Address(IpAddr),
    /// Path of a network namespace.
    Netns(String),
    /// An RBD image, as `POOL/IMAGE` or by its name alone.
    Image(String),
    Task {
        comm: String,
        tid: u32,
    },
    /// A server of NFS.
    Server(String),
    /// Nothing but the node.
    Node,
}

impl Subject {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Pod(_) => "pod",
            Self::Uid(_) => "uid",
            Self::Container(_) => "container",
            Self::Path(_) => "path",
            Self::Interface(_) => "interface",
            Self::Address(_) => "address",
            Self::Netns(_) => "netns",
            Self::Image(_) => "image",
            Self::Task { .. } => "task",
            Self::Server(_) => "server",
            Self::Node => "node",
        }
    }

    /// What it is called; nothing for the node.
    pub fn name(&self) -> String {
        match self {
            Self::Pod(name)
            | Self::Uid(name)
            | Self::Container(name)
            | Self::Path(name)
            | Self::Interface(name)
            | Self::Netns(name)
            | Self::Image(name)
            | Self::Server(name) => name.clone(),
            Self::Address(address) => address.to_string(),
            Self::Task { comm, tid } => format!("{comm}:{tid}"),
            Self::Node => String::new(),
        }
    }

    /// The word by which `why` finds it.
    pub(super) fn word(&self) -> Option<String> {
        let is_word = !matches!(
            self,
            Self::Netns(_) | Self::Image(_) | Self::Task { .. } | Self::Server(_) | Self::Node
        );
        is_word.then(|| self.name())
    }

    /// Whether an incident happened to it, by its kind, its newest event and the keys of that. Who did it, or holds something, is
    /// another matter.
    pub(super) fn is_affected(&self, kind: &str, event: &Event, keys: &BTreeSet<(Key, Role)>) -> bool {
        let is_victim = |role: &Role| !matches!(role, Role::Actor | Role::Holder | Role::Server);
        let has = |lookup: Lookup| keys.iter().any(|(key, role)| is_victim(role) && lookup.matches(key));
        match self {
            Self::Pod(name) => has(Lookup::exact(Family::Pod, name)),
            Self::Uid(uid) => has(Lookup::exact(Family::Uid, uid)),
            Self::Container(id) => {
                let pod = event.target.as_deref().and_then(|target| target.confirmed_pod());
                let ids = [
                    event.cni.as_deref().and_then(|cni| cni.container_id.as_deref()),
                    event.sandbox.as_deref().map(|sandbox| sandbox.id.as_str()),
                    event.mount.as_deref().and_then(|mount| mount.container_id.as_deref()),
                    pod.and_then(|pod| pod.sandbox_id.as_deref()),
                ];
                has(Lookup::prefix(Family::Container, id))
                    || ids.into_iter().flatten().any(|known| known.starts_with(id.as_str()))
            }
            Self::Path(path) => has(Lookup::exact(Family::Path, path)),
            Self::Interface(name) => has(Lookup::exact(Family::Link, name)),
            Self::Address(address) => {
                let address = address.to_string();
                // A gateway is that of many pods.
                let is_gateway = event.neighbor.as_deref().is_some_and(|entry| entry.gateway == Some(true));
                has(Lookup::exact(Family::Ip, &address))
                    || !is_gateway && has(Lookup::exact(Family::Neighbor, &address))
            }
            Self::Netns(path) => {
                let name = path.rsplit_once("/netns/").map(|(_, name)| name);
                name.is_some_and(|name| has(Lookup::exact(Family::NetnsName, name)))
                    || event.cni.as_deref().is_some_and(|cni| cni.netns.as_ref() == Some(path))
            }
            Self::Image(name) => {
                event.rbd.as_deref().is_some_and(|rbd| rbd.image == *name || rbd.spec() == *name)
            }
            Self::Task { comm, tid } => event
                .actor
                .as_deref()
                .is_some_and(|actor| (actor.tid == *tid || actor.pid == *tid) && actor.comm == *comm),
            Self::Server(name) => event.nfs_server.as_deref().is_some_and(|server| server.name == *name),
            Self::Node => OF_NODE.contains(&kind),
        }
    }
}

pub(super) fn node(_: &Found<'_>) -> Option<Subject> {
    Some(Subject::Node)
}

/// What the kernel names between its words.
pub(super) fn server(found: &Found<'_>) -> Option<Subject> {
    let name = found.between.trim_end();
    let is_name = !name.is_empty()
        && name.len() <= NAME_MAX
        && !name.contains(|c: char| c.is_whitespace() || is_hidden(c));
    is_name.then(|| Subject::Server(name.to_owned()))
}

/// The uid of a pod: of a directory of the kubelet, else the first UUID.
pub(super) fn uid(found: &Found<'_>) -> Option<Subject> {
    const PODS: &str = "/pods/";
    let mut directories = found.message.match_indices(PODS).take(PLACES);
    let directory = directories.find_map(|(at, _)| {
        let name = found.message[at + PODS.len()..].split(|c| !is_of_word(c)).next()?;
        is_uid(name).then(|| name.to_owned())
    });
    // CRI-O has namespaces of such names.
    let is_netns = |at: usize| found.message[..at].ends_with("/netns/");
    let mut words = runs(found.message, is_of_word).filter(|(at, _)| !is_netns(*at));
    directory.or_else(|| words.find_map(|(_, word)| uuid(word))).map(Subject::Uid)
}

/// A UUID, also as in the name of a pod's control group: `kubepods-pod5c948341_c030_4996_b888_f032577d97b0`.
fn uuid(word: &str) -> Option<String> {
    let uid = word.rsplit("pod").next()?.replace('_', "-");
    (uid.len() == UUID && is_uid(&uid)).then_some(uid)
}

/// A pod by its names.
pub(super) fn pod(found: &Found<'_>) -> Option<Subject> {
    let message = found.message;
    // `pod="ns/name"`, `pods=["ns/name"]`, `pod "name_ns"`, `pod name_ns(uid)`.
    let marks = message.match_indices("od").filter(|(at, _)| message[..*at].ends_with(['p', 'P']));
    let marked = marks.take(PLACES).find_map(|(at, mark)| {
        let rest = &message[at + mark.len()..];
        let rest = rest.strip_prefix('s').unwrap_or(rest);
        full_name(first_run(rest.trim_start_matches(['=', ':', ' ', '[', '"'])))
    });
    let metadata = || {
        let (name, rest) = message.split_once("PodSandboxMetadata{Name:")?.1.split_once(',')?;
        let (namespace, _) = rest.split_once("Namespace:")?.1.split_once(',')?;
        full_name(&format!("{namespace}/{name}"))
    };
    // Calico before Kubernetes' own datastore: `workload=ns.name`. Others have a name of the endpoint there.
    let workload = || {
        let run = first_run(message.split_once("orkload=")?.1.trim_start_matches('"'));
        let (namespace, name) = run.split_once('.').filter(|_| !run.ends_with("-eth0"))?;
        full_name(&format!("{namespace}/{name}"))
    };
    let with_uid = || {
        let is_before_uid = |(at, run): &(usize, &str)| {
            let behind = message[at + run.len()..].strip_prefix('(');
            behind.and_then(|rest| rest.split(|c| !is_of_word(c)).next()).is_some_and(is_uid)
        };
        runs(message, is_of_pod).filter(is_before_uid).find_map(|(_, run)| full_name(run))
    };
    marked.or_else(metadata).or_else(workload).or_else(with_uid).map(Subject::Pod)
}

fn first_run(text: &str) -> &str {
    text.split(|c| !is_of_pod(c)).next().unwrap_or_default().trim_end_matches('.')
}

/// `NAMESPACE/NAME` of that, or of `NAME_NAMESPACE` as older kubelets have it.
fn full_name(text: &str) -> Option<String> {
    let swapped = || text.split_once('_').map(|(name, namespace)| (namespace, name));
    let (namespace, name) = text.split_once('/').or_else(swapped)?;
    let is_of_label = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
    let is_name = |text: &str| !text.is_empty() && text.len() <= NAME_MAX && text.bytes().all(is_of_label);
    // `3/3` is none, and below the control group or the directory of a pod there is none.
    let is_namespace = |text: &str| {
        is_name(text)
            && text.bytes().any(|byte| byte.is_ascii_lowercase())
            && !text.contains('.')
            && !is_uid(text)
    };
    let is_pod = is_namespace(namespace) && is_name(name);
    is_pod.then(|| format!("{namespace}/{name}"))
}

/// A container by its id: the one right behind the known words, however it is cut; else the first.
pub(super) fn container(found: &Found<'_>) -> Option<Subject> {
    let behind = found.message[found.end..].trim_start_matches([' ', '"', '\'', '(', '{', ':']);
    let next = behind.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
    // Neither the first group of a UUID nor a number.
    let is_cut = (CUT..ID).contains(&next.len())
        && next.bytes().any(|byte| byte.is_ascii_lowercase())
        && !behind[next.len()..].starts_with('-');
    let is_next = is_hex(next) && (is_cut || next.len() == ID);
    let first = || {
        let mut words = runs(found.message, |c| c.is_ascii_alphanumeric());
        words.find_map(|(at, word)| is_id(&found.message[..at], word).then_some(word))
    };
    let id = Some(next).filter(|_| is_next).or_else(first)?;
    Some(Subject::Container(id.to_owned()))
}

/// Whether it is the id of a container, by what stands before it: layers and images have such ids, too.
fn is_id(before: &str, word: &str) -> bool {
    let is_short = word.len() == SHORT && word.bytes().any(|byte| byte.is_ascii_lowercase());
    if !is_hex(word) || !(word.len() == ID || is_short) {
        return false;
    }
    match before.chars().next_back() {
        Some('/') => {
            let above = before.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
            // `docker://ID`, a control group, and `NAMESPACE_NAME/ID` of kubelets.
            let is_owner = above.ends_with(':') || above.starts_with("pod") || above.contains('_');
            is_owner || OF_CONTAINERS.contains(&above)
        }
        // `sha256:…`
        Some(':') => false,
        // A UUID ends with as many digits as a short id has.
        Some('-' | '.' | '_') => word.len() == ID,
        _ => true,
    }
}

/// A path: that of a pod's volume; else the one before the known words, else the first.
pub(super) fn path(found: &Found<'_>) -> Option<Subject> {
    let is_meant = |path: &str| !is_netns(path) && !NOT_MEANT.iter().any(|begin| path.starts_with(*begin));
    let all: Vec<(usize, &str)> = paths(found.message).filter(|(_, path)| is_meant(path)).collect();
    let volume = all.iter().find(|(_, path)| volume::of_path(path).is_some());
    let before = || all.iter().rfind(|(at, _)| *at < found.begin);
    let (_, path) = volume.or_else(before).or(all.first())?;
    Some(Subject::Path(path.trim_end_matches('/').to_owned()))
}

pub(super) fn netns(found: &Found<'_>) -> Option<Subject> {
    let (_, path) = paths(found.message).find(|(_, path)| is_netns(path))?;
    Some(Subject::Netns(path.to_owned()))
}

fn is_netns(path: &str) -> bool {
    path.ends_with("/ns/net") || path.contains("/run/netns/") || path.contains("/docker/netns/")
}

/// Absolute paths, with where they begin. One with blanks is taken where it stands in quotes.
fn paths(message: &str) -> impl Iterator<Item = (usize, &str)> {
    let before = move |at: usize| message[..at].chars().next_back();
    let begins = move |at: usize| before(at).is_none_or(|c| " \t=([{<,\"'".contains(c));
    let places = message.match_indices('/').map(|(at, _)| at).filter(move |at| begins(*at)).take(PLACES);
    places.filter_map(move |at| {
        let rest = &message[at..message.floor_char_boundary(at.saturating_add(PATH_MAX))];
        let closed = before(at).filter(|c| matches!(c, '"' | '\'')).and_then(|quote| rest.find(quote));
        let end = closed.or_else(|| rest.find(|c: char| c.is_whitespace() || "\"'),;]>}".contains(c)));
        let path = rest[..end.unwrap_or(rest.len())].split(": ").next().unwrap_or_default();
        let path = path.trim_end_matches([':', '.', ',']);
        (path.len() > 1 && !path.starts_with("//")).then_some((at, path))
    })
}

/// An address that can be a pod's, also with a port.
pub(super) fn address(found: &Found<'_>) -> Option<Subject> {
    let mut words = runs(found.message, |c| c.is_ascii_alphanumeric() || matches!(c, '.' | ':'));
    words.find_map(|(_, word)| {
        let word = word.trim_end_matches(['.', ':']);
        let host = || word.rsplit_once(':').and_then(|(host, _)| host.parse::<Ipv4Addr>().ok());
        let address = word.parse::<IpAddr>().ok().or_else(|| host().map(IpAddr::V4))?;
        // The gateway of Calico is that of every pod.
        let is_of_many = match address {
            IpAddr::V4(v4) => v4.is_link_local() || v4.is_loopback() || v4.is_unspecified(),
            IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.is_loopback() || v6.is_unspecified(),
        };
        (!is_of_many).then_some(Subject::Address(address))
    })
}

/// An interface whose name tells that it is the host's, as each namespace has an `eth0`: the end of a pair rather than a bridge.
pub(super) fn interface(found: &Found<'_>) -> Option<Subject> {
    let words = runs(found.message, |c| c.is_ascii_alphanumeric() || c == '.');
    let names: Vec<&str> = words.map(|(_, word)| word.trim_end_matches('.')).collect();
    let is_digits = |rest: &str| (5..=12).contains(&rest.len()) && is_hex(rest);
    let is_end = |name: &str| HOST_ENDS.iter().filter_map(|begin| name.strip_prefix(*begin)).any(is_digits);
    let end = names.iter().find(|name| is_end(name));
    let name = end.or_else(|| names.iter().find(|name| DEVICES.contains(name)))?;
    Some(Subject::Interface((*name).to_owned()))
}

/// An image as `rbd` takes it, between the known words.
pub(super) fn image(found: &Found<'_>) -> Option<Subject> {
    let is_name = |name: &str| {
        !name.is_empty()
            && !name.contains(['"', '\\', '@'])
            && !name.chars().any(|c| c == ' ' || is_hidden(c))
    };
    let spec = found.between.trim();
    let is_spec = spec.len() <= NAME_MAX && spec.split('/').count() <= 3 && spec.split('/').all(is_name);
    is_spec.then(|| Subject::Image(spec.to_owned()))
}

/// `umount:4711`, as the kernel has it, between the known words.
pub(super) fn task(found: &Found<'_>) -> Option<Subject> {
    let (comm, tid) = found.between.trim().rsplit_once(':')?;
    Some(Subject::Task { comm: comm.to_owned(), tid: tid.parse().ok()? })
}

/// Runs of such characters, with where they begin.
fn runs(text: &str, is_of: fn(char) -> bool) -> impl Iterator<Item = (usize, &str)> {
    let mut next = 0;
    text.split_inclusive(move |c| !is_of(c)).filter_map(move |piece| {
        let begin = next;
        next += piece.len();
        let run = piece.trim_end_matches(|c| !is_of(c));
        (!run.is_empty()).then_some((begin, run))
    })
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_')
}

fn is_of_pod(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.' | '/')
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
