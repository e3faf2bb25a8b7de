//! Phrases shared by event messages and incident summaries.

use std::borrow::Cow;
use std::collections::BTreeSet;

use kevtmon_observation::{Access, Verdict};
use kevtmon_types::escape::name;
use without_process::possible_holders;
pub use without_process::{kernel_label, nfs_label};

use super::culprit::{Culprit, RunBy, culprit};
use crate::{Actor, AncestorRef, Container, Join, Mount, MountHolder, Neighbor, Pod, Target};

mod without_process;

/// The owner of a target as the end of a phrase, ` of pod NAMESPACE/NAME`; empty for the host.
pub fn owner_phrase(target: &Target) -> String {
    match (target.pod.is_some() || target.container.is_some(), target_label(target)) {
        (_, None) => String::new(),
        (true, Some(label)) => format!(" of {label}"),
        (false, Some(label)) => format!(" in {label}"),
    }
}

/// The same of what is in a network namespace: one of which nothing is known, by its number, so that it is not taken for
/// the host's.
pub fn place_phrase(target: &Target, netns: u32) -> String {
    match owner_phrase(target) {
        owner if owner.is_empty() && target.join != Join::Host => format!(" in net:[{netns}]"),
        owner => owner,
    }
}

/// The owner of a target, `pod NAMESPACE/NAME`: the pod if there is one, else the container, else the namespace by its
/// name, unit, control group or process; `None` for the host.
pub fn target_label(target: &Target) -> Option<String> {
    Some(match (&target.pod, &target.container) {
        (Some(pod), Some(container)) if pod.claimed => claimant_label(container, pod),
        (Some(pod), _) => format!("pod {}", pod_label(pod)),
        (None, Some(container)) => format!("container {}", container_label(container)),
        (None, None) => match (&target.netns_name, &target.process) {
            (Some(netns), _) => format!("namespace {}", name(netns)),
            (None, None) => return None,
            // Its owner chooses the names of processes and control groups.
            (None, Some(process)) if target.userns.is_some() => {
                format!("a network namespace of another user namespace (pid {})", process.pid)
            }
            (None, Some(process)) => {
                let group = target.unit.as_ref().or(target.cgroup.as_ref().filter(|path| *path != "/"));
                let group = group.map_or_else(String::new, |group| format!(", {}", name(group)));
                // There any user chooses the names of his processes.
                let process_name = match target.is_foreign() {
                    true => "a process in another user namespace".into(),
                    false => name(&process.comm),
                };
                format!("the network namespace of {process_name} (pid {}{group})", process.pid)
            }
        },
    })
}

/// A pod by namespace and name, else by its uid.
pub fn pod_label(pod: &Pod) -> String {
    match (&pod.namespace, &pod.name) {
        (Some(namespace), Some(pod)) => name(&format!("{namespace}/{pod}")).into_owned(),
        _ => name(&pod.uid).into_owned(),
    }
}

/// A container that only says that it is of a pod.
fn claimant_label(container: &Container, pod: &Pod) -> String {
    format!("container {} (claims to be pod {})", container_label(container), pod_label(pod))
}

/// The first digits of a container's id: as many as runtimes show and take.
pub fn short_id(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}

/// A container's name, or its short id.
pub fn container_label(container: &Container) -> Cow<'_, str> {
    name(container.name.as_deref().unwrap_or_else(|| short_id(&container.id)))
}

/// Who did it, by command name and pid: `calico (pid 28997)`, with the pod or container of the actor. Where the actor is
/// a tool, the program that uses it: `calico (pid 28997), run by kubelet, by means of ip`; `ip (pid 28998), a child of calico
/// (pid 28997)` where it is not certain that calico uses it.
pub fn actor_phrase(actor: &Actor) -> String {
    if let Some(text) = foreign_actor_phrase(actor).or_else(|| user_actor_phrase(actor)) {
        return text;
    }
    let Culprit { comm, pid, user, run_by, tool } = culprit(actor);
    let mut text = user.map_or_else(|| format!("{} (pid {pid})", name(comm)), ancestor_phrase);
    let of_actor = process_owner_phrase(actor.container.as_ref(), actor.pod.as_ref());
    // A tool can be in another container than who uses it, of whom that is not always known.
    let of_culprit = user.map(|user| process_owner_phrase(user.container.as_ref(), user.pod.as_ref()));
    text.push_str(of_culprit.as_ref().unwrap_or(&of_actor));
    match run_by {
        RunBy::Nobody => {}
        RunBy::Program(above) => {
            let user = user_process_phrase(uid_on_host(above), &above.comm, above.pid);
            let program = user.unwrap_or_else(|| name(&above.comm).into_owned());
            text.push_str(&format!(", run by {program}"));
        }
        RunBy::Shell(above) => text.push_str(&format!(", run by {}", ancestor_phrase(above))),
        RunBy::ChildOf(above) => text.push_str(&format!(", a child of {}", ancestor_phrase(above))),
    }
    if let Some(tool) = tool {
        let is_elsewhere = of_culprit.as_ref() != Some(&of_actor);
        text.push_str(&format!(", by means of {}{}", name(tool), if is_elsewhere { &of_actor } else { "" }));
    }
    text
}

/// The same before a verb: a comma ends what is set off by one.
pub fn actor_subject(actor: &Actor) -> String {
    let mut text = actor_phrase(actor);
    if text.contains(", ") {
        text.push(',');
    }
    text
}

/// A process above an actor: any user chooses the names of his.
fn ancestor_phrase(process: &AncestorRef) -> String {
    user_process_phrase(uid_on_host(process), &process.comm, process.pid)
        .unwrap_or_else(|| format!("{} (pid {})", name(&process.comm), process.pid))
}

/// The id of an unprivileged user of the host who runs a process above an actor.
fn uid_on_host(process: &AncestorRef) -> Option<u32> {
    process.uid.filter(|_| process.container.is_none())
}

/// An actor in another user namespace: any user can make one, and choose the names of his processes. In a container they mean as
/// much as in a container without one.
fn foreign_actor_phrase(actor: &Actor) -> Option<String> {
    if actor.userns.is_none() || actor.container.is_some() {
        return None;
    }
    let uid = actor.uid.map_or_else(String::new, |uid| format!("uid {uid}, "));
    Some(format!("a process in another user namespace ({uid}pid {})", actor.pid))
}

/// An actor on the host that an unprivileged user runs: the name of the process is what that user calls it.
fn user_actor_phrase(actor: &Actor) -> Option<String> {
    let uid = actor.uid.filter(|_| actor.container.is_none());
    user_process_phrase(uid, &actor.comm, actor.pid)
}

/// A process on the host that an unprivileged user runs.
fn user_process_phrase(uid: Option<u32>, comm: &str, pid: u32) -> Option<String> {
    let uid = uid.filter(|uid| *uid != 0)?;
    Some(format!("a process of uid {uid} called {} (pid {pid})", name(comm)))
}

/// A process by its name and id, with its pod or container; on the host any user chooses the names of his.
pub fn process_phrase(
    uid: Option<u32>,
    comm: &str,
    pid: u32,
    container: Option<&Container>,
    pod: Option<&Pod>,
) -> String {
    let uid = uid.filter(|_| container.is_none());
    let process = user_process_phrase(uid, comm, pid);
    let process = process.unwrap_or_else(|| format!("{} (pid {pid})", name(comm)));
    format!("{process}{}", process_owner_phrase(container, pod))
}

/// The owner of a process as the end of a phrase, ` of pod NAMESPACE/NAME`; empty for the host.
fn process_owner_phrase(container: Option<&Container>, pod: Option<&Pod>) -> String {
    match (pod, container) {
        (Some(pod), Some(container)) if pod.claimed => format!(" of {}", claimant_label(container, pod)),
        (Some(pod @ Pod { namespace: Some(_), name: Some(_), .. }), _) => {
            format!(" of pod {}", pod_label(pod))
        }
        (_, Some(container)) => format!(" of container {}", container_label(container)),
        (_, None) => String::new(),
    }
}

/// Who tries something again and again, as [`actor_phrase`], but without the id of a process that lives for one attempt.
pub fn repeated_actor_phrase(actor: &Actor) -> String {
    if let Some(text) = foreign_actor_phrase(actor).or_else(|| user_actor_phrase(actor)) {
        return text;
    }
    let culprit = culprit(actor);
    match (culprit.tool, culprit.run_by, &actor.unit) {
        (Some(_), ..) => actor_phrase(actor),
        (None, RunBy::Shell(above), _) => {
            format!("{}, run by {}", name(&actor.comm), ancestor_phrase(above))
        }
        (None, RunBy::ChildOf(above), _) => {
            format!("{}, a child of {}", name(&actor.comm), ancestor_phrase(above))
        }
        (None, _, Some(unit)) => format!("{} of {}", name(&actor.comm), name(unit)),
        (None, _, None) => name(&actor.comm).into_owned(),
    }
}

/// Those that use the mount for certain. The others only may, or have a copy of it in their mount namespace, for which no unmount
/// is refused.
pub fn users(holders: &[MountHolder]) -> impl Iterator<Item = &MountHolder> {
    holders.iter().filter(|holder| holder.access != Access::Mount && !holder.possible)
}

pub const HELD_BY_KERNEL: &str = "no holder found in 10 s: held by the kernel, by a pending call, or by a process that \
                                  uses it intermittently";
pub const RELEASED: &str = "its holder has released it";
pub const NO_HOLDER_YET: &str = "no holder found yet";
pub const SCAN_INCOMPLETE: &str = "no holder found; scan incomplete";

/// The holders of a busy mount, as the end of a sentence; only the first one by name.
pub fn holders_phrase(holders: &[MountHolder], verdict: Verdict) -> String {
    let Some(first) = users(holders).next() else {
        let reason = match verdict {
            Verdict::ChildMount => "another file system is mounted below it",
            Verdict::Kernel => HELD_BY_KERNEL,
            Verdict::Transient => RELEASED,
            Verdict::None => NO_HOLDER_YET,
            Verdict::NotAMount => "holder unknown: nothing was mounted there at the time of the scan",
            Verdict::Skipped => "holders not scanned",
            Verdict::Incomplete => SCAN_INCOMPLETE,
            Verdict::Processes | Verdict::MountNamespace => "no holder found",
        };
        let reason = possible_holders(holders).unwrap_or_else(|| reason.to_owned());
        return match copies_phrase(holders) {
            Some(copies) => {
                format!(
                    "{reason}; a copy is also mounted in {copies}, which does not refuse the unmount by itself"
                )
            }
            None => reason,
        };
    };
    let mut text = format!("held by {}", holder_label(first));
    text.push_str(match first.access {
        Access::Fd => " with an open file",
        Access::Cwd => " as its current directory",
        Access::Root => " as its root directory",
        Access::Exe => " as its executable",
        Access::Mmap => " with a mapped file",
        Access::Socket => " with a socket that is bound to a file",
        Access::Mount => " by a copy in its mount namespace",
        Access::ChildMount => " by a mount below it",
        Access::Netns => " as its network namespace",
        Access::InFlight => " with a file in a socket",
        Access::IoUring => " with a file of an io_uring",
        Access::Call => " with a pending system call",
        Access::PerfEvent => " with a perf event, possibly a probe in a file",
        Access::Loop | Access::Swap | Access::Export | Access::Uprobe | Access::Nfs => "",
    });
    // The kernel holds each thing by itself.
    let who = |holder: &MountHolder| (holder.pid, holder.path.clone().filter(|_| holder.pid == 0));
    let own = who(first);
    let others: BTreeSet<_> = users(holders).map(who).filter(|other| *other != own).collect();
    if !others.is_empty() {
        text.push_str(&format!(" and {} more", others.len()));
    }
    text
}

/// Why what a mount is on cannot be removed or renamed, with who uses that mount.
pub fn mount_point_phrase(mount: &Mount, holders: &[MountHolder]) -> String {
    let reason = match mount.elsewhere() {
        Some(point) => format!("a file system is mounted on the same directory, at {}", name(point)),
        None => "a file system is mounted there".to_owned(),
    };
    match users(holders).next() {
        Some(_) => format!("{reason}, {}", holders_phrase(holders, Verdict::Processes)),
        None => reason,
    }
}

/// The mount namespaces that have a copy of a mount, by the first one; `None` where there is none.
pub fn copies_phrase(holders: &[MountHolder]) -> Option<String> {
    let copies = || holders.iter().filter(|holder| holder.access == Access::Mount);
    let first = copies().next()?;
    let mut others: Vec<u32> = copies().map(|holder| holder.pid).filter(|pid| *pid != first.pid).collect();
    others.sort_unstable();
    others.dedup();
    let others = match others.len() {
        0 => String::new(),
        more => format!(" and of {more} more"),
    };
    Some(match first.pid {
        0 => format!("{}{others}", holder_label(first)),
        // It has no process, but for this one that has it open.
        _ if first.fd.is_some() => {
            format!("a mount namespace kept open by {}{others}", holder_label(first))
        }
        _ => format!("the mount namespace of {}{others}", holder_label(first)),
    })
}

/// A holder by its command name, id and container; on the host any user chooses the names of his processes.
pub fn holder_label(holder: &MountHolder) -> String {
    if holder.pid == 0 {
        return kernel_label(holder);
    }
    let uid = holder.uid.filter(|_| holder.container.is_none());
    if let Some(text) = user_process_phrase(uid, &holder.comm, holder.pid) {
        return text;
    }
    let container =
        holder.container.as_ref().map(|container| format!(" of container {}", container_label(container)));
    format!("{} (pid {}){}", name(&holder.comm), holder.pid, container.unwrap_or_default())
}

/// The cause of a neighbor change as the end of a sentence; `actor_named`: the sentence ends with the actor.
pub fn cause_phrase(neighbor: &Neighbor, actor_named: bool) -> String {
    let circumstance = match (neighbor.after_exit, neighbor.other_netns) {
        (true, _) => " after its container had exited",
        (false, true) => ", in another namespace than the one known by that number",
        (false, false) => "",
    };
    if let Some(netns) = neighbor.ended_netns.filter(|_| !actor_named) {
        let other = if neighbor.ended_lower { "lower device" } else { "peer" };
        return format!(
            "{circumstance} because the link was deleted with its {other}, whose network namespace {netns} ended"
        );
    }
    let cause = match (neighbor.cause.as_str(), actor_named) {
        // Which of the two was asked for, the kernel does not tell.
        ("link-down", _) if neighbor.link_moved => " as the link was set down and moved to another namespace",
        ("link-down", true) => ", by setting the link down",
        ("link-down", false) => " because the link was set down",
        ("link-deleted", true) => ", by deleting the link",
        ("link-deleted", false) => " because the link was deleted",
        ("lladdr-changed", true) => ", by changing the link's MAC address",
        ("lladdr-changed", false) => " because the link's MAC address changed",
        ("noarp", true) => ", by switching ARP off",
        ("noarp", false) => " because ARP was switched off",
        ("last-address-removed", true) => ", by removing the link's last address",
        ("last-address-removed", false) => " because the link lost its last address",
        ("netns-exit", _) => " because its namespace ended",
        ("gc", _) => " by garbage collection",
        _ => "",
    };
    format!("{circumstance}{cause}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::sample;

    #[test]
    fn a_copy_in_another_namespace_is_neither_named_nor_counted_as_what_refuses() {
        // One process in two ways, and another one that has a copy in its mount namespace.
        let holders = sample::busy().holders.unwrap();
        let held = "held by etcd (pid 4123) of container etcd with an open file";
        assert_eq!(holders_phrase(&holders, Verdict::Processes), held);
        let copy = &holders[2..];
        let alone = "a copy is also mounted in the mount namespace of rsync (pid 977), which does not refuse the \
                     unmount by itself";
        let kernel = holders_phrase(copy, Verdict::Kernel);
        assert_eq!(kernel, format!("{HELD_BY_KERNEL}; {alone}"));
        let user = MountHolder { uid: Some(1000), comm: "kubelet".into(), ..copy[0].clone() };
        let held = holders_phrase(&[MountHolder { access: Access::Cwd, ..user }], Verdict::Processes);
        assert_eq!(held, "held by a process of uid 1000 called kubelet (pid 977) as its current directory");
        let went = holders_phrase(&[], Verdict::Transient);
        assert_eq!(went, RELEASED);
        let detached = holders_phrase(copy, Verdict::MountNamespace);
        assert_eq!(detached, format!("no holder found; {alone}"));
        let mut two = copy.to_vec();
        two.push(MountHolder { pid: 978, ..copy[0].clone() });
        let two = copies_phrase(&two).unwrap();
        assert_eq!(two, "the mount namespace of rsync (pid 977) and of 1 more");
    }
}
