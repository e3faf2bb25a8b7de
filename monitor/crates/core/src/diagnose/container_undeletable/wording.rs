//! What the incident says, and the next steps.

use kevtmon_event::wording::{
    container_label, holders_phrase, mount_point_phrase, repeated_actor_phrase, target_label, users,
};
use kevtmon_event::{Advice, Confidence, MountHolder, ProcessLink, Target, form};
use kevtmon_observation::{ContainerFacts, Verdict};
use kevtmon_types::escape::name;

use super::obstacle::Obstructed;
use super::refusal::Refusal;
use super::{Removal, Victim, of_state};
use crate::diagnose::advice::{advice, of_process, remove};
use crate::diagnose::volume_busy::release::{RELEASES_MAX, links, processes};
use crate::node::kubelet::Way;
use crate::node::view::NodeView;

pub(super) fn summary(target: &Target, facts: &ContainerFacts, victim: &Victim) -> String {
    let owner = target_label(target).unwrap_or_else(|| "a container".to_owned());
    let subject = match (&target.container, target.confirmed_pod()) {
        (Some(container), Some(_)) => format!("container {} of {owner}", container_label(container)),
        // Its own label, with what it claims.
        _ => owner,
    };
    let state = match of_state(facts.state) {
        Removal::Failed => "could not be removed, and is dead",
        Removal::GoesOn => "is being removed, and is still there",
        Removal::Refused | Removal::None => "has ended and cannot be removed",
    };
    let said = facts.removal_error.as_deref();
    let said = said.map(|error| format!("; the runtime says {}", name(error))).unwrap_or_default();
    let reason = match (victim.obstructed.as_deref(), victim.refusal.as_deref(), victim.cleared) {
        (Some(obstructed), ..) => obstructed.reason(),
        (None, Some(refusal), _) => refused(refusal),
        (None, None, Some(Confidence::Certain)) => "what blocked it is gone".to_owned(),
        (None, None, Some(_)) => "what blocked it is likely gone".to_owned(),
        (None, None, None) => "the refused call was not seen".to_owned(),
    };
    // Whether it is the reason, nobody has seen.
    let left = victim.left.as_deref().map(|left| format!(", but {left}")).unwrap_or_default();
    format!("{subject} {state}: {reason}{left}{said}")
}

fn refused(refusal: &Refusal) -> String {
    let Some(mount) = refusal.objects.mount.as_deref() else { return String::new() };
    let by = refusal.objects.actor.as_deref().map(repeated_actor_phrase);
    let by = by.map(|by| format!(" by {by}")).unwrap_or_default();
    let holders = refusal.objects.holders.as_deref().unwrap_or_default();
    let verdict = refusal.objects.holders_verdict.unwrap_or(Verdict::Skipped);
    let likely = if mount.confidence.is_some() { "what is likely " } else { "" };
    let why = match (mount.is_umount(), mount.identity.is_some()) {
        (true, _) => holders_phrase(holders, verdict),
        (false, true) => mount_point_phrase(mount, holders),
        (false, false) => "the mount in the way was not found".to_owned(),
    };
    let what = if mount.is_umount() { "umount" } else { &mount.syscall };
    format!("{what} of {likely}{}{by} was refused: {why}", name(&mount.path))
}

/// What holds it is made to let go; then it is removed again, by its runtime.
pub(super) fn advice_for(node: &NodeView<'_>, target: &Target, victim: &Victim) -> Vec<Advice> {
    let obstructed = victim.obstructed.as_deref();
    let mut steps: Vec<Advice> = obstructed.and_then(Obstructed::advice).into_iter().collect();
    let mount = victim.refusal().and_then(|refusal| Some((refusal, refusal.objects.mount.as_deref()?)));
    if let Some((refusal, mount)) = mount.filter(|(_, mount)| mount.identity.is_some()) {
        let is_here = node.kubelets.way(mount.mntns) == Way::Host;
        let point = mount.elsewhere().unwrap_or(&mount.path);
        if is_here {
            let command = ["kevtmon", "holders", point];
            steps.push(advice(form::SHOW_USERS, "see who holds it now", &command));
        }
        let holders = refusal.objects.holders.as_deref().unwrap_or_default();
        let release = |holder| release(holder, refusal, links(holders, holder.pid, point));
        steps.extend(processes(holders).filter_map(release).take(RELEASES_MAX));
        // It is the reason by itself, whoever uses it.
        if is_here && !mount.is_umount() {
            let likely = if mount.confidence.is_some() { "likely " } else { "" };
            let first = match users(holders).next() {
                Some(_) => ", after its holder has released it: before, the unmount is refused",
                None => "",
            };
            let text = format!("unmount what is {likely}in the way{first}");
            steps.push(advice(form::UNMOUNT, &text, &["umount", point]));
        }
    }
    let is_held = mount.is_some_and(|(refusal, mount)| {
        !mount.child_mounts.is_empty()
            || users(refusal.objects.holders.as_deref().unwrap_or_default()).next().is_some()
    });
    if !is_held && victim.cleared.is_none() && obstructed.is_none() {
        let text = "see whether another mount namespace still has a mount of it";
        steps.push(advice(form::SHOW_LEAKS, text, &["kevtmon", "holders", "--leaks"]));
    }
    let again = target.container.as_ref().and_then(|container| remove(node, container, false));
    // What the kubelet made, it removes again by itself.
    if let Some((form, command)) = again.filter(|(form, _)| *form == form::REMOVE_BY_DOCKER) {
        let when = if obstructed.is_some() { "its files can be removed" } else { "nothing holds it" };
        let text = format!("remove it again once {when}; never delete its files by hand");
        steps.push(advice(form, &text, &command));
    }
    steps
}

/// A process of the node that belongs to no container or service is ended. Who is in one is named, and restarted by whoever
/// knows what that means.
fn release(holder: &MountHolder, refusal: &Refusal, links: Vec<ProcessLink>) -> Option<Advice> {
    let is_of_service = holder.unit.as_deref().is_some_and(|unit| unit.ends_with(".service"));
    // What a first process of a pid namespace is, and ends with, is not known here; and it ignores that signal.
    let is_first = holder.init || holder.pid == 1;
    if holder.container.is_some() || is_of_service || holder.serves.is_some() || is_first {
        return None;
    }
    let command = ["kill", &holder.pid.to_string()];
    let step = advice(form::END_PROCESS, "end the process that holds it", &command);
    let age = refusal.objects.holders_age_ms.unwrap_or_default().saturating_mul(1_000_000);
    Some(of_process(step, holder.pid, refusal.last.saturating_sub(age), links))
}
