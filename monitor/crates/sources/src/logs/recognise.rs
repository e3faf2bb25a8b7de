//! The lines that are looked for, each by words that its program writes whatever the language of the node. Of a line nothing is
//! kept but the part that is known: the rest can hold anything, keys included.

use std::net::IpAddr;

use kevtmon_observation::{CephServerLine, LogSays, NfsSays, NfsServerLine, RbdRefusal};
use kevtmon_types::escape::is_hidden;

use crate::rbd::is_uuid;
use crate::runtime::is_container_id;

/// Longest name of an image, a pool, a pod, an interface or a server that is taken.
const NAME_MAX: usize = 255;
/// Longest part of a line that is kept, characters.
const TEXT_MAX: usize = 240;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Recognised {
    pub(super) says: LogSays,
    pub(super) text: String,
}

pub(super) fn of_program(line: &str) -> Option<Recognised> {
    let found = refused(line).or_else(|| endpoint_missing(line)).or_else(|| network_not_removed(line));
    let found = found.or_else(|| sandbox_missing(line)).or_else(|| teardown_failed(line));
    let (says, text) = found.or_else(|| spec_hash_changed(line))?;
    Some(Recognised { says, text: kept(text) })
}

pub(super) fn of_kernel(line: &str) -> Option<Recognised> {
    let says = if let Some(rest) = line.strip_prefix("INFO: task ") {
        let (task, _) = rest.split_once(" blocked ")?;
        let (comm, tid) = task.rsplit_once(':')?;
        LogSays::HungTask { comm: comm.to_owned(), tid: tid.parse().ok()? }
    } else if line.starts_with("device-mapper: thin: Deletion of thin device ") && line.contains(" failed") {
        LogSays::ThinDeletion
    } else if let Some(rest) = line.strip_prefix("neighbour: ") {
        // In full: the kernel quotes names that anybody chooses, as that of a program with a fault.
        match rest {
            "arp_cache: neighbor table overflow!" => LogSays::NeighborOverflow { ipv6: false },
            "ndisc_cache: neighbor table overflow!" => LogSays::NeighborOverflow { ipv6: true },
            _ => return None,
        }
    } else if let Some(server) = ceph_server(line) {
        LogSays::CephServer(server)
    } else if let Some(ifname) = device_not_freed(line) {
        LogSays::DeviceNotFreed { ifname: ifname.to_owned() }
    } else if let Some(device) = rbd_device(line) {
        LogSays::RbdDevice { device: device.to_owned() }
    } else {
        LogSays::NfsServer(nfs_server(line)?)
    };
    Some(Recognised { says, text: kept(line) })
}

/// In full (`netdev_wait_allrefs_any`, net/core/dev.c, and those before it).
fn device_not_freed(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("unregister_netdevice: waiting for ")?;
    let (ifname, count) = rest.split_once(" to become free. Usage count = ")?;
    count.parse::<i32>().ok()?;
    named(ifname)
}

/// What the kernel's client of Ceph says of a server, in full (net/ceph/mon_client.c, net/ceph/osdmap.c, fs/ceph/mds_client.c). Newer
/// kernels name the cluster: `libceph (FSID EPOCH): osd3 down` since 6.10, `ceph: [FSID CLIENT]: mds0 hung` since 6.6.
fn ceph_server(line: &str) -> Option<CephServerLine> {
    let (client, rest) = line.split_once(": ")?;
    let said = match rest.strip_prefix('[') {
        Some(cluster) if client == "ceph" => cluster.split_once("]: ")?.1,
        None if client == "ceph" || client == "libceph" || client.starts_with("libceph (") => rest,
        _ => return None,
    };
    let (server, says) = said.split_once(' ')?;
    let number = server.trim_start_matches(|c: char| c.is_ascii_lowercase());
    let kind = server.strip_suffix(number).filter(|_| number.parse::<u32>().is_ok())?;
    let is_back = match (kind, says) {
        ("osd", "down") | ("mds", "hung" | "caps stale") => false,
        ("osd", "up")
        | ("mds", "came back" | "caps renewed" | "reconnect success" | "recovery completed") => true,
        ("mon", _) => {
            let (_address, says) = says.split_once(" session ")?;
            match says {
                "lost, hunting for new mon" => false,
                "established" => true,
                _ => return None,
            }
        }
        _ => return None,
    };
    let server = if kind == "mon" { kind } else { server };
    Some(CephServerLine { server: server.to_owned(), is_back })
}

/// The device of an image whose client has lost its watch, likely since its address is blocklisted or no server responds; or whose lock
/// it takes from another client (`rbd_watch_errcb`, `rbd_try_lock`, drivers/block/rbd.c).
fn rbd_device(line: &str) -> Option<&str> {
    let (device, says) = line.strip_prefix("rbd: ")?.split_once(": ")?;
    let is_number = |text: &str| text.parse::<u64>().is_ok();
    let is_known = match says.strip_prefix("encountered watch error: -") {
        Some(errno) => is_number(errno),
        None => says.strip_prefix("breaking header lock owned by client").is_some_and(is_number),
    };
    device.strip_prefix("rbd").is_some_and(is_number).then_some(device).filter(|_| is_known)
}

/// What the kernel's client of RPC says of a server, in full as well (`call_timeout`, later `rpc_check_timeout`, and `call_decode`,
/// net/sunrpc/clnt.c).
fn nfs_server(line: &str) -> Option<NfsServerLine> {
    let (program, rest) = line.split_once(": server ")?;
    let lockd = match program {
        "nfs" => false,
        "lockd" => true,
        _ => return None,
    };
    let (server, said) = rest.split_once(' ')?;
    let says = match said {
        "not responding, still trying" => NfsSays::Waiting,
        "not responding, timed out" => NfsSays::TimedOut,
        "OK" => NfsSays::Answers,
        _ => return None,
    };
    Some(NfsServerLine { server: named(server)?.to_owned(), says, lockd })
}

/// Cut, with what does not show as blanks: it is quoted in sentences.
fn kept(text: &str) -> String {
    text.chars()
        .take(TEXT_MAX)
        .map(|c| if is_hidden(c) { ' ' } else { c })
        .collect::<String>()
        .trim()
        .to_owned()
}

/// How a program says that it was refused an image: the words before its name, those behind, and whether it says so for other
/// failures as well.
const REFUSALS: [(&str, &str, bool); 3] = [
    // Kubelets up to 1.7.
    ("rbd: image ", " is locked by other nodes", false),
    // Those in between, whatever `rbd lock add` failed for.
    ("rbd: failed to lock image ", " (maybe locked by other nodes)", true),
    // Kubelets since 1.8, and Ceph CSI.
    ("rbd image ", " is still being used", false),
];

fn refused(line: &str) -> Option<(LogSays, &str)> {
    REFUSALS.iter().find_map(|(before, behind, vague)| {
        let start = line.find(before)?;
        let rest = &line[start + before.len()..];
        let end = rest.find(behind)?;
        // So a controller says why it does not delete an image (`DeleteImage` of pkg/volume/rbd): nobody is refused it.
        if rest[end + behind.len()..].starts_with(", rbd output") {
            return None;
        }
        let mut parts = rest[..end].splitn(4, '/').map(named);
        let names = (parts.next()??, parts.next(), parts.next(), parts.next());
        let (pool, namespace, image) = match names {
            (image, None, ..) => (None, None, image),
            (pool, Some(image), None, _) => (Some(pool), None, image?),
            (pool, Some(namespace), Some(image), None) => (Some(pool), Some(namespace?), image?),
            _ => return None,
        };
        let refusal = RbdRefusal {
            pool: pool.map(str::to_owned),
            namespace: namespace.map(str::to_owned),
            image: image.to_owned(),
            held_by: watcher(&rest[end..]),
            vague: *vague,
        };
        let len = before.len() + end + behind.len();
        Some((LogSays::RbdRefused(refusal), &line[start..start + len]))
    })
}

/// The address in the answer of `rbd status`, if the line goes on with that: `watcher=10.47.136.60:0/1504107565`.
fn watcher(rest: &str) -> Option<String> {
    let (_, behind) = rest.split_once("watcher=")?;
    let is_of_address = |c: char| c.is_ascii_hexdigit() || ".:[]/".contains(c);
    let end = behind.find(|c| !is_of_address(c)).unwrap_or(behind.len());
    let address = &behind[..end];
    let (host, nonce) = address.split_once('/')?;
    let (ip, port) = host.rsplit_once(':')?;
    let ip = ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')).unwrap_or(ip);
    let is_one = ip.parse::<IpAddr>().is_ok() && port.parse::<u16>().is_ok() && nonce.parse::<u64>().is_ok();
    is_one.then(|| address.to_owned())
}

/// What Calico's plugin says of an endpoint that is gone already.
const MISSING: &str = "resource does not exist: WorkloadEndpoint";

fn endpoint_missing(line: &str) -> Option<(LogSays, &str)> {
    let start = line.find(MISSING)?;
    let behind = &line[start + MISSING.len()..];
    // The kubelet quotes it, once or more.
    let end = behind.find(['"', '\\', '\n', ';']).unwrap_or(behind.len());
    let text = &line[start..start + MISSING.len() + end];
    let says = LogSays::EndpointMissing {
        sandbox: words(line).find(|word| is_container_id(word)).map(str::to_owned),
        pod: workload(text).or_else(|| words(line).find_map(pod)),
    };
    Some((says, text))
}

/// How runtimes and kubelets say that a plugin did not remove the network of a sandbox.
const NOT_REMOVED: [&str; 3] = [
    "failed to destroy network for sandbox ",
    "NetworkPlugin cni failed to teardown pod ",
    "Error deleting ",
];
/// Why, in words of plugins: how they begin, and how they end if something is in between.
const WHY: [(&str, &str); 4] = [
    // Of Calico, once the token in its kubeconfig has expired.
    ("error getting ClusterInformation: connection is unauthorized", ""),
    ("connection is unauthorized", ""),
    // The process of the sandbox is gone, or another one has its id.
    ("failed to Statfs ", "/ns/net"),
    ("plugin's netns and netns from CNI_NETNS should not be the same", ""),
];
/// `\\\"/proc/4194304`, as it is quoted again and again.
const BETWEEN_MAX: usize = 32;

fn network_not_removed(line: &str) -> Option<(LogSays, &str)> {
    let start = NOT_REMOVED.iter().find_map(|said| line.find(*said))?;
    let text = WHY.iter().find_map(|(begin, end)| {
        let at = start + line[start..].find(begin)?;
        let behind = at + begin.len();
        let between = line[behind..].find(end).filter(|between| *between <= BETWEEN_MAX)?;
        Some(&line[at..behind + between + end.len()])
    })?;
    let sandbox = words(line).find(|word| is_container_id(word)).map(str::to_owned);
    // With the id some have the names the other way about.
    let pod = if sandbox.is_none() { words(line).find_map(pod) } else { None };
    Some((LogSays::NetworkNotRemoved { sandbox, pod }, text))
}

/// How kubelets from 1.18 to 1.23 say why they do not start (`buildContainerMapFromRuntime`).
const NO_SANDBOX: &str = "no PodsandBox found with Id '";

fn sandbox_missing(line: &str) -> Option<(LogSays, &str)> {
    let start = line.find(NO_SANDBOX)?;
    let (id, _) = line[start + NO_SANDBOX.len()..].split_once('\'').filter(|(id, _)| is_container_id(id))?;
    let text = &line[start..start + NO_SANDBOX.len() + id.len() + 1];
    Some((LogSays::SandboxMissing { sandbox: id.to_owned() }, text))
}

/// How a kubelet says that an unmount failed; what `umount` said comes behind, in whatever language.
const TEARDOWN: &str = "UnmountVolume.TearDown failed for volume ";

fn teardown_failed(line: &str) -> Option<(LogSays, &str)> {
    let start = line.find(TEARDOWN)?;
    let rest = &line[start + TEARDOWN.len()..];
    // The quotation marks are escaped where the whole is quoted.
    let (_, behind) = rest.split_once(" pod ")?;
    let uid = words(behind).next().filter(|word| is_uuid(word))?;
    let volume = rest.split(' ').next().and_then(|name| named(name.trim_matches(['"', '\\'])))?;
    let end = rest.find(volume)? + volume.len();
    let text = &line[start..start + TEARDOWN.len() + end];
    Some((LogSays::TeardownFailed { pod_uid: uid.to_owned() }, text))
}

const HASH_CHANGED: &str = "Container spec hash changed (";

fn spec_hash_changed(line: &str) -> Option<(LogSays, &str)> {
    let start = line.find(HASH_CHANGED)?;
    let (hashes, _) = line[start + HASH_CHANGED.len()..].split_once(')')?;
    let (old, new) = hashes.split_once(" vs ")?;
    let is_hash = |text: &str| text.parse::<u64>().is_ok();
    let text = &line[start..start + HASH_CHANGED.len() + hashes.len() + 1];
    (is_hash(old) && is_hash(new)).then_some((LogSays::SpecHashChanged, text))
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    line.split(move |c| !is_of_word(c)).filter(|word| !word.is_empty())
}

/// `workload=lijiaob.etcd1-0`: names of namespaces have no dots.
fn workload(text: &str) -> Option<(String, String)> {
    let (_, rest) = text.split_once("workload=")?;
    let (namespace, name) = rest.split([',', ')']).next()?.split_once('.')?;
    Some((named(namespace)?.to_owned(), named(name)?.to_owned()))
}

/// `etcd1-0_lijiaob`, as the kubelet writes it.
fn pod(word: &str) -> Option<(String, String)> {
    let (name, namespace) = word.split_once('_')?;
    let is_label = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.'))
    };
    let is_one = is_label(name) && is_label(namespace) && !namespace.contains('.') && word.len() <= NAME_MAX;
    is_one.then(|| (namespace.to_owned(), name.to_owned()))
}

/// A name without blanks, of a length that one can have.
fn named(text: &str) -> Option<&str> {
    let is_name = !text.is_empty()
        && text.len() <= NAME_MAX
        && !text.contains(['"', '\\', '@'])
        && !text.chars().any(|c| c.is_whitespace() || is_hidden(c));
    is_name.then_some(text)
}

#[cfg(test)]
mod tests;
