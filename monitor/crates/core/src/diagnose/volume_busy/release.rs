//! What to do about a busy volume, and what does not hold it.

use std::collections::BTreeSet;

use kevtmon_event::wording::{pod_label, users};
use kevtmon_event::{
    Advice, Confidence, Event, Form, Mount, MountHolder, MountServer, Pod, ProcessLink, form,
};
use kevtmon_observation::{Access, BootNs, LoopDevice, MountedElsewhere, NsInum, ServerState, Verdict};
use kevtmon_types::escape::name;

use crate::diagnose::Context;
use crate::diagnose::advice::{
    END_INIT, advice, continue_server, delete_pod, in_namespace, is_restarted_alone, of_process,
    replace_in_pod, restart,
};
use crate::node::kubelet::Way;

/// Maximum number of links by which it is seen whether a process still uses a mount.
const LINKS_MAX: usize = 8;
/// Those who hold a mount and are each made to let go; more are counted.
pub(in crate::diagnose) const RELEASES_MAX: usize = 8;

pub(super) fn advice_for(context: &Context<'_>, event: &Event, mount: &Mount) -> Vec<Advice> {
    let age = event.holders_age_ms.unwrap_or_default().saturating_mul(1_000_000);
    let holders = event.holders.as_deref().unwrap_or_default();
    steps(context, mount, holders, event.holders_verdict, event.at.saturating_sub(age))
}

/// `seen`: when the holders were.
pub(super) fn steps(
    context: &Context<'_>,
    mount: &Mount,
    holders: &[MountHolder],
    verdict: Option<Verdict>,
    seen: BootNs,
) -> Vec<Advice> {
    let way = context.node.kubelets.way(mount.mntns);
    let mut steps = vec![look(mount, holders, way)];
    // It answers nobody, nor whoever is to let go.
    steps.extend(continue_stopped(mount, seen));
    let deepest = mount.child_mounts.iter().max_by_key(|child| child.matches('/').count());
    if let Some(child) = deepest {
        let text = if *child == mount.path { "unmount it" } else { "unmount what is mounted below it" };
        let inside = (form::UNMOUNT_INSIDE, way, mount.mntns);
        steps.extend(umount(form::UNMOUNT, inside, text, &["umount", child]));
    }
    steps.extend(release_all(context, mount, holders, seen));
    if way == Way::Host
        && let Some(above) = mounted_from(holders)
    {
        let text = "unmount the file system of the loop device whose backing file is on it";
        steps.extend(umount(
            form::UNMOUNT,
            (form::UNMOUNT_INSIDE, way, mount.mntns),
            text,
            &["umount", above],
        ));
    }
    steps.extend(mounted_elsewhere(holders).map(|there| unmount_elsewhere(there, seen)));
    // Nothing was mounted there any more; who knows what is by now. And what the kernel holds would only be hidden by that.
    if !matches!(verdict, Some(Verdict::NotAMount | Verdict::Kernel)) {
        let text = "detach it while in use; its holders keep using it unseen";
        let inside = (form::DETACH_INSIDE, way, mount.mntns);
        steps.extend(umount(form::DETACH, inside, text, &["umount", "--lazy", &mount.path]));
    }
    steps
}

/// Lets the server of a mount go on that is stopped for certain; `seen`: when it was.
pub(super) fn continue_stopped(mount: &Mount, seen: BootNs) -> Option<Advice> {
    let is_stopped = |server: &&MountServer| {
        server.state == ServerState::Stopped && server.confidence == Confidence::Certain
    };
    mount.servers.iter().find(is_stopped).map(|server| continue_server(server, seen))
}

/// Where a loop device is mounted that holds it: as long as it is, nobody can detach the device from its file.
fn mounted_from(holders: &[MountHolder]) -> Option<&str> {
    let mounts = devices(holders).flat_map(|device| &device.mounts);
    mounts.map(String::as_str).max_by_key(|point| point.matches('/').count())
}

/// The loop devices that hold the mount for certain.
fn devices(holders: &[MountHolder]) -> impl Iterator<Item = &LoopDevice> {
    holders.iter().filter(|holder| !holder.possible).filter_map(|holder| holder.loop_device.as_ref())
}

/// Where it is mounted in another mount namespace alone.
fn mounted_elsewhere(holders: &[MountHolder]) -> Option<&MountedElsewhere> {
    devices(holders).flat_map(|device| &device.elsewhere).max_by_key(|there| there.path.matches('/').count())
}

fn unmount_elsewhere(there: &MountedElsewhere, seen: BootNs) -> Advice {
    let text = format!(
        "unmount the file system of the loop device whose backing file is on it, in the mount namespace of {} (pid {})",
        name(&there.comm),
        there.pid
    );
    let command = ["nsenter", "-t", &there.pid.to_string(), "-m", "umount", &there.path];
    let step = advice(form::UNMOUNT_INSIDE, &text, &command);
    of_process(step, there.pid, seen, in_namespace("mnt", there.mntns))
}

/// An unmount in the mount namespace of the mount: elsewhere, another one or nothing is at its path. None where no way
/// into that namespace is known.
fn umount(
    here: &'static Form,
    (inside, way, mntns): (&'static Form, Way, NsInum),
    text: &str,
    words: &[&str],
) -> Option<Advice> {
    match way {
        Way::Host => Some(advice(here, text, words)),
        Way::Through { pid, seen } => {
            let pid_text = pid.to_string();
            let command = [&["nsenter", "-t", &pid_text, "-m"], words].concat();
            Some(of_process(advice(inside, text, &command), pid, seen, in_namespace("mnt", mntns)))
        }
        Way::Unknown => None,
    }
}

/// How to see what holds it. What `kevtmon holders` looks at by itself is the mount namespace of process 1.
pub(super) fn look(mount: &Mount, holders: &[MountHolder], way: Way) -> Advice {
    let is_held = !holders.is_empty() || !mount.child_mounts.is_empty();
    if way == Way::Host && is_held {
        return advice(form::SHOW_USERS, "see who holds it now", &["kevtmon", "holders", &mount.path]);
    }
    advice(form::TELL_VOLUME, "see what was found", &["kevtmon", "why", &mount.path])
}

/// What a process has in the mount, each of which is enough. Empty where something of it is no link.
pub(in crate::diagnose) fn links(holders: &[MountHolder], pid: u32, mountpoint: &str) -> Vec<ProcessLink> {
    let link = |holder: &MountHolder| {
        let link = match holder.access {
            Access::Cwd => "cwd".to_owned(),
            Access::Root => "root".to_owned(),
            Access::Exe => "exe".to_owned(),
            Access::Fd => match holder.tid {
                Some(tid) => format!("task/{tid}/fd/{}", holder.fd?),
                None => format!("fd/{}", holder.fd?),
            },
            _ => return None,
        };
        let path = holder.path.as_deref()?;
        let held = ProcessLink { link, target: mountpoint.to_owned() };
        // In the mount namespace of another, the mount is at another place.
        Some(if held.leads_to(path) { held } else { ProcessLink { target: path.to_owned(), ..held } })
    };
    let all: Option<Vec<ProcessLink>> =
        users(holders).filter(|holder| holder.pid == pid).take(LINKS_MAX).map(link).collect();
    all.unwrap_or_default()
}

/// How to make all those let go who hold the mount: as long as one of them does, no unmount succeeds.
fn release_all(context: &Context<'_>, mount: &Mount, holders: &[MountHolder], seen: BootNs) -> Vec<Advice> {
    let mut steps: Vec<Advice> = Vec::new();
    let mut more = 0;
    for holder in processes(holders) {
        let Some(step) = release(context, holder, mount) else { continue };
        // One command for all processes of a container.
        if steps.iter().any(|known| known.command == step.command) {
            continue;
        }
        if steps.len() >= RELEASES_MAX {
            more += 1;
            continue;
        }
        // Whatever it ends or restarts, it does so to somebody who may have let go by now.
        let links = links(holders, holder.pid, &mount.path);
        steps.push(of_process(step, holder.pid, seen, links));
    }
    let all = steps.len() + more;
    if all > 1 {
        for (index, step) in steps.iter_mut().enumerate() {
            step.text.push_str(&format!(" ({} of {all} found: each of them must release it)", index + 1));
        }
    }
    steps
}

/// Each process that uses the mount once, in the order of the list.
pub(in crate::diagnose) fn processes(holders: &[MountHolder]) -> impl Iterator<Item = &MountHolder> {
    let mut seen = BTreeSet::new();
    users(holders).filter(move |holder| holder.pid != 0 && seen.insert(holder.pid))
}

/// How to make a holder release the mount, in the least disruptive way. None for process 1 of the node.
fn release(context: &Context<'_>, holder: &MountHolder, mount: &Mount) -> Option<Advice> {
    let node = context.node;
    // The pod of the volume is being deleted already.
    let deleted = mount.volume.as_ref().map(|volume| volume.pod_uid.as_str());
    let pod = Pod::confirmed(holder.pod.as_ref());
    let other_pod = pod.filter(|pod| Some(pod.uid.as_str()) != deleted);
    let step = other_pod.and_then(|pod| delete_pod(context, pod, "delete the pod that holds it").pop());
    if step.is_some() {
        return step;
    }
    let in_pod = holder.container.as_ref().filter(|_| pod.is_some());
    if let Some((form, command)) = in_pod.and_then(|container| replace_in_pod(node, container)) {
        let text = match other_pod {
            Some(_) => "stop the container that holds it; the kubelet starts another one",
            None => "stop the container that holds it",
        };
        return Some(advice(form, text, &command));
    }
    if let Some((form, command)) = holder.container.as_ref().and_then(|container| restart(node, container)) {
        return Some(advice(form, "restart the container that holds it", &command));
    }
    release_process(holder)
}

/// The same for a process that nothing else is known to end.
fn release_process(holder: &MountHolder) -> Option<Advice> {
    if holder.pid == 1 {
        return None;
    }
    let pid = holder.pid.to_string();
    let is_first_of_container =
        holder.container.as_ref().is_some_and(|container| container.pid == Some(holder.pid));
    // It ignores every signal that it does not handle, but this one.
    if holder.init || is_first_of_container {
        let text = match &holder.container {
            Some(_) => "end the container that holds it by its first process",
            None => END_INIT,
        };
        return Some(advice(form::END_CONTAINER, text, &["kill", "-KILL", &pid]));
    }
    if let Some(serves) = &holder.serves {
        let text = format!(
            "end the file server that holds it; pod {} {} the volume at {}",
            pod_label(&serves.pod),
            if serves.confidence == Some(Confidence::Certain) { "loses" } else { "likely loses" },
            name(&serves.mountpoint)
        );
        return Some(advice(form::END_SERVER, &text, &["kill", &pid]));
    }
    let unit = holder.unit.as_deref().filter(|unit| is_restarted_alone(unit) && holder.container.is_none());
    Some(match unit {
        Some(unit) => {
            advice(form::RESTART_UNIT, "restart the service that holds it", &["systemctl", "restart", unit])
        }
        None => advice(form::END_PROCESS, "end the process that holds it", &["kill", &pid]),
    })
}

pub(super) fn ruled_out(event: &Event, mount: &Mount) -> Vec<String> {
    let mut healthy = Vec::new();
    let scanned = event.holders_verdict.is_some_and(|verdict| {
        !matches!(verdict, Verdict::Skipped | Verdict::Incomplete | Verdict::NotAMount)
    });
    let holders = event.holders.as_deref().unwrap_or_default();
    let held_by = |access: Access| holders.iter().any(|holder| holder.access == access);
    if scanned && mount.child_mounts.is_empty() && !held_by(Access::ChildMount) {
        healthy.push("nothing is mounted below it".to_owned());
    }
    if let [server] = &mount.servers[..]
        && !server.is_troubled()
        && server.confidence == Confidence::Certain
    {
        healthy.push(format!("the file server of that mount, {}, was not stopped", server.label()));
    }
    if event.holders_complete != Some(true) || !scanned {
        return healthy;
    }
    if !held_by(Access::Mount) {
        healthy.push("no other mount namespace has a copy of it".to_owned());
    }
    let has_none = |access| matches!(access, Access::Mount | Access::ChildMount) || access.is_kernel();
    if holders.iter().all(|holder| has_none(holder.access)) {
        healthy.push("no process found with a file, directory or program of it open".to_owned());
    }
    healthy
}

#[cfg(test)]
mod tests;
