//! What to do about mounts that are left: nothing but the end of the namespace that has them lets go of all.

use kevtmon_event::{Advice, Confidence, ContainerPart, Pod, form};
use kevtmon_observation::Propagation;

use super::super::Context;
use super::super::advice::{
    END_INIT, advice, delete_pod, in_namespace, is_restarted_alone, of_process, replace_in_pod, restart,
};
use super::Leak;

pub(super) fn steps(context: &Context<'_>, leak: &Leak) -> Vec<Advice> {
    let look = advice(form::SHOW_LEAKS, "see all mounts that are left", &["kevtmon", "holders", "--leaks"]);
    // Nothing is ended for what is only likely, or is shared as it was asked for; nor whoever has ended.
    if leak.holder.pid == 1
        || leak.mount.without_process
        || leak.mount.confidence != Confidence::Certain
        || is_shared_memory(leak)
    {
        return vec![look];
    }
    let release = release(context, leak);
    let links = in_namespace("mnt", leak.mount.mntns);
    vec![look, of_process(release, leak.holder.pid, context.now, links)]
}

/// Whether a container has the shared memory of another one as its own: both were told to share it.
fn is_shared_memory(leak: &Leak) -> bool {
    leak.mount.part == Some(ContainerPart::Shm) && leak.mount.identity.mount_point == "/dev/shm"
}

/// Whether the holder is the first process of a pid namespace, or of a container as its runtime tells.
fn is_first(leak: &Leak) -> bool {
    let pid = leak.holder.pid;
    leak.mount.init || leak.holder.container.as_ref().is_some_and(|container| container.pid == Some(pid))
}

/// How to make the holder let go, in the least disruptive way.
fn release(context: &Context<'_>, leak: &Leak) -> Advice {
    let node = context.node;
    let actor = &leak.holder;
    let is_private = leak.mount.propagation == Propagation::Private;
    let later = match &leak.mount.bind {
        // What is mounted below a directory is unmounted there with that propagation, the directory itself is not.
        Some(bind) if is_private && bind.destination != leak.mount.identity.mount_point => {
            "; with mount propagation HostToContainer (rslave) it would have been unmounted there, too"
        }
        _ => "",
    };
    let of_deleted = leak.mount.volume.as_ref().map(|volume| volume.pod_uid.as_str());
    let pod = Pod::confirmed(actor.pod.as_ref());
    let text = format!("delete the pod that has it; without a controller it does not come back{later}");
    let other_pod = pod.filter(|pod| Some(pod.uid.as_str()) != of_deleted);
    if let Some(step) = other_pod.and_then(|pod| delete_pod(context, pod, &text).pop()) {
        return step;
    }
    let in_pod = actor.container.as_ref().filter(|_| pod.is_some());
    if let Some((form, command)) = in_pod.and_then(|container| replace_in_pod(node, container)) {
        let text = format!("stop the container that has it; the kubelet starts another one{later}");
        return advice(form, &text, &command);
    }
    let by_engine = actor.container.as_ref().and_then(|container| restart(node, container));
    if let Some((form, command)) = by_engine {
        return advice(form, &format!("restart the container that has it{later}"), &command);
    }
    let unit = actor.unit.as_deref().filter(|unit| is_restarted_alone(unit) && actor.container.is_none());
    match unit {
        Some(unit) => {
            advice(form::RESTART_UNIT, "restart the service that has it", &["systemctl", "restart", unit])
        }
        // It ignores every signal that it does not handle, but this one.
        None if is_first(leak) => {
            advice(form::END_CONTAINER, END_INIT, &["kill", "-KILL", &actor.pid.to_string()])
        }
        None => advice(
            form::END_PROCESS,
            "end the process that has it; the mount goes with the last process of its mount namespace",
            &["kill", &actor.pid.to_string()],
        ),
    }
}
