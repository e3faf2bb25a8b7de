//! The sentence about a busy volume.

use super::known::Known;
use crate::escape::name;
use crate::event::wording::{
    holders_phrase, mount_point_phrase, owner_phrase, pod_label, repeated_actor_phrase, users,
};
use crate::event::{Event, Mount, MountHolder, Serves, Volume};
use crate::observation::Verdict;

/// Whose volume a holder serves.
pub(super) fn serves_phrase(serves: &Serves) -> String {
    format!(", which {} a volume of pod {}", serves.verb(), pod_label(&serves.pod))
}

/// `known`: who holds it as found earlier, where this event does not tell.
pub(super) fn summary(event: &Event, mount: &Mount, volume: &Volume, known: Option<&Known>) -> String {
    let caller = event.actor.as_deref().map(repeated_actor_phrase);
    let caller = caller.map_or_else(String::new, |caller| format!(" by {caller}"));
    let pod = match event.target.as_deref().map(owner_phrase) {
        Some(pod) if !pod.is_empty() => pod,
        _ => format!(" of pod {}", name(&volume.pod_uid)),
    };
    let is_umount = mount.is_umount();
    let held = |holders: &[MountHolder], verdict| {
        let serves = users(holders).next().and_then(|holder| holder.serves.as_ref());
        let serves = serves.filter(|serves| serves.mountpoint != mount.path);
        let serves = serves.map_or_else(String::new, serves_phrase);
        let phrase =
            if is_umount { holders_phrase(holders, verdict) } else { mount_point_phrase(mount, holders) };
        format!("{phrase}{serves}")
    };
    let verdict = event.holders_verdict.unwrap_or(Verdict::Skipped);
    let now = held(event.holders.as_deref().unwrap_or_default(), verdict);
    let before = known
        .map_or_else(String::new, |known| format!("; as last seen, {}", held(&known.holders, known.verdict)));
    let server = mount.server_phrase();
    let (volume, plugin) = (name(&volume.name), name(&volume.plugin));
    let likely = if mount.confidence.is_some() { "what is likely " } else { "" };
    let what = if is_umount { "unmounted" } else { "removed" };
    format!("{likely}volume {volume} ({plugin}){pod} cannot be {what}{caller}: {now}{before}{server}")
}
