//! What is said of a veth device whose pod is gone.

use kevtmon_event::wording::{nfs_label, pod_label, process_phrase};
use kevtmon_event::{Advice, MountHolder, Pod, form};
use kevtmon_observation::{Access, LinkFacts};
use kevtmon_types::escape::name;

use super::VethEnd;
use crate::diagnose::Context;
use crate::diagnose::advice::{advice, in_namespace, of_process};
use crate::node::kubelet::Way;
use crate::node::view::{NodeView, RuntimeAvailability};

/// What keeps a network namespace that no list shows: sockets hold the one they were made in, and so do those of file systems.
/// Mount tables show the address of some clients of NFS.
const UNLISTED: &str = "an open socket of it, or a client of NFS or Ceph in the kernel";
/// What keeps the namespace that a summary names.
const NAMED_MAX: usize = 2;

/// `pod`: whose it was, and whether a pod of which it may be lives elsewhere.
pub(super) fn summary(
    node: &NodeView<'_>,
    link: &LinkFacts,
    (pod, lives): (Option<&Pod>, bool),
    end: &VethEnd,
) -> String {
    let ifname = name(&link.ifname);
    let mut text = match pod {
        Some(pod) => {
            let what = if lives { "its pod has another network namespace" } else { "its pod is gone" };
            format!("veth {ifname} of pod {} is still on this node: {what}", pod_label(pod))
        }
        None if lives => {
            format!(
                "veth {ifname} is still on this node: the pod that it is called after has another network namespace"
            )
        }
        None if node.runtimes == RuntimeAvailability::Absent => {
            format!("veth {ifname} is still on this node: no process is behind it")
        }
        None => format!("veth {ifname} is still on this node: no pod that runs here has it"),
    };
    match end.netns {
        Some(netns) if netns == node.host_netns => {
            text.push_str(", and both of its ends are in the network namespace of the host");
            return text;
        }
        Some(netns) => {
            let of = end.name.as_ref().map_or_else(String::new, |of| format!("{} ", name(of)));
            text.push_str(&format!(", its other end is in network namespace {of}net:[{netns}]"));
        }
        None => {
            text.push_str(&format!(", and its other end was not found: possibly {UNLISTED}, held it alone"));
            return text;
        }
    }
    let (named, rest) = end.keepers.split_at(end.keepers.len().min(NAMED_MAX));
    let is_sure = named.first().is_some_and(|first| !first.possible);
    let likely = |of: &MountHolder| if is_sure && of.possible { "likely " } else { "" };
    let mut keepers: Vec<String> = named.iter().map(|of| format!("{}{}", likely(of), keeper(of))).collect();
    if !rest.is_empty() {
        keepers.push(format!("{} more", rest.len()));
    }
    text.push_str(&match keepers.is_empty() {
        true => format!(", no holder found: possibly held by {UNLISTED}"),
        false if named.iter().any(|keeper| keeper.possible && keeper.access != Access::Nfs) => {
            format!(", possibly held by {}", keepers.join(" and "))
        }
        false if is_sure => format!(", held by {}", keepers.join(" and ")),
        false => format!(", likely held by {}", keepers.join(" and ")),
    });
    text
}

fn keeper(of: &MountHolder) -> String {
    let path = name(of.path.as_deref().unwrap_or_default());
    let mount = if of.access == Access::Nfs { nfs_label(of) } else { format!("the mount {path}") };
    if of.pid == 0 {
        return mount;
    }
    let process = process_phrase(of.uid, &of.comm, of.pid, of.container.as_ref(), of.pod.as_ref());
    match of.access {
        Access::Mount | Access::Nfs => format!("{mount} in the mount namespace of {process}"),
        Access::Fd => format!("{process} with an open file"),
        Access::Socket => format!("{process} with a socket ({path})"),
        _ => format!("{process} as its network namespace"),
    }
}

pub(super) fn ruled_out(node: &NodeView<'_>, end: &VethEnd) -> Vec<String> {
    let who =
        if node.runtimes == RuntimeAvailability::Absent { "process" } else { "container of any runtime" };
    // Those of other pods may be.
    let who =
        if end.keepers.iter().any(super::is_of_living_container) { "container of its pod" } else { who };
    match end.netns {
        Some(_) if end.complete => vec![format!("no {who} is in that network namespace")],
        _ => Vec::new(),
    }
}

pub(super) fn steps(context: &Context<'_>, link: &LinkFacts, end: &VethEnd) -> Vec<Advice> {
    let command = ["ip", "-details", "link", "show", "dev", &link.ifname];
    let text = "see the device and the id of the namespace of its other end";
    let of_nfs = end.keepers.iter().filter(|keeper| keeper.access == Access::Nfs);
    let unmounts = of_nfs.filter_map(|keeper| unmount(context, keeper)).take(NAMED_MAX);
    std::iter::once(advice(form::SHOW_LINK, text, &command)).chain(unmounts).collect()
}

/// How to unmount what is mounted by NFS. Not in containers, nor what kubelets mount: pods may use that, and it goes with them.
fn unmount(context: &Context<'_>, of: &MountHolder) -> Option<Advice> {
    let (path, mntns, kubelets) = (of.path.as_deref()?, of.mntns?, context.node.kubelets);
    let is_of_kubelet = kubelets.has_below_root(mntns, path) || path.contains("/kubernetes.io");
    if is_of_kubelet || of.container.is_some() || of.pod.is_some() {
        return None;
    }
    let text = "unmount it if nothing uses it; the namespace may end with its last such mount";
    if of.pid == 0 {
        let is_host = kubelets.way(mntns) == Way::Host;
        return is_host.then(|| advice(form::UNMOUNT, text, &["umount", path]));
    }
    let command = ["nsenter", "-t", &of.pid.to_string(), "-m", "umount", path];
    let step = advice(form::UNMOUNT_INSIDE, text, &command);
    Some(of_process(step, of.pid, context.now, in_namespace("mnt", mntns)))
}
