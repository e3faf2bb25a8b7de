//! How to free an image that is mapped for nobody: unmount it wherever it is mounted, unmap it, and only then look after the lock,
//! which protects it for as long as it is mapped.

use kevtmon_event::wording::holder_label;
use kevtmon_event::{Advice, MountHolder, form};
use kevtmon_observation::{Access, NsInum};

use super::super::Context;
use super::super::advice::{advice, in_namespace, of_process};
use super::ImageUse;
use crate::node::kubelet::Way;

/// Mounts of each sort whose commands are told; the rest follows once these are gone.
const MOUNTS_MAX: usize = 4;

pub(super) fn steps(context: &Context<'_>, seen: &ImageUse) -> Vec<Advice> {
    let device = seen.rbd.device.as_deref().unwrap_or_default();
    let mut steps = vec![advice(form::TELL_VOLUME, "see what happened to it", &["kevtmon", "why", device])];
    let staged = seen.staged.iter().take(MOUNTS_MAX);
    steps.extend(staged.filter_map(|(mntns, path)| unmount_staged(context, *mntns, path)));
    let mounted = seen.holders.iter().filter(|holder| holder.access == Access::Mount).take(MOUNTS_MAX);
    steps.extend(mounted.filter_map(|holder| unmount_inside(context, holder)));
    steps.push(if seen.rbd.is_by_nbd() {
        let text = "unmap it only when nothing has it open: unlike the kernel's client, rbd-nbd need not refuse it, \
                    and unwritten data is lost";
        advice(form::UNMAP_BY_NBD, text, &["rbd-nbd", "unmap", device])
    } else {
        let text = "then unmap it, which is refused (EBUSY) as long as anything has it open; never with -o force";
        advice(form::UNMAP_IMAGE, text, &["rbd", "unmap", device])
    });
    if seen.rbd.snapshot.is_none() {
        let text = "only then check for a lock and its locker; `rbd lock remove` removes it";
        steps.push(advice(form::LIST_LOCKS, text, &["rbd", "lock", "list", &seen.rbd.spec()]));
    }
    steps
}

fn unmount_staged(context: &Context<'_>, mntns: NsInum, path: &str) -> Option<Advice> {
    let text = "unmount it where the kubelet mounts it for pods";
    match context.node.kubelets.way(mntns) {
        Way::Host => Some(advice(form::UNMOUNT, text, &["umount", path])),
        Way::Through { pid, seen } => {
            let command = ["nsenter", "-t", &pid.to_string(), "-m", "umount", path];
            let step = advice(form::UNMOUNT_INSIDE, text, &command);
            Some(of_process(step, pid, seen, in_namespace("mnt", mntns)))
        }
        Way::Unknown => None,
    }
}

fn unmount_inside(context: &Context<'_>, holder: &MountHolder) -> Option<Advice> {
    let (path, mntns) = (holder.path.as_deref()?, holder.mntns?);
    // Into a namespace without a process no command leads.
    let pid = Some(holder.pid).filter(|pid| *pid != 0)?;
    let text = format!("unmount it in the mount namespace of {}", holder_label(holder));
    let step =
        advice(form::UNMOUNT_INSIDE, &text, &["nsenter", "-t", &pid.to_string(), "-m", "umount", path]);
    Some(of_process(step, pid, context.now, in_namespace("mnt", mntns)))
}
