//! The sentence about a busy volume.

use kevtmon_event::wording::{
    holders_phrase, mount_point_phrase, owner_phrase, pod_label, repeated_actor_phrase, users,
};
use kevtmon_event::{Event, Mount, MountHolder, Serves, Volume, WallClock, call_noun};
use kevtmon_observation::{BootNs, Verdict};
use kevtmon_types::clock::MS;
use kevtmon_types::escape::name;
use serde::{Deserialize, Serialize};

use super::known::Known;

/// A sentence about a busy volume, in parts.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Sentence {
    refused: String,
    /// Who holds it, and what is to be said of its file server.
    held: String,
    /// When that was seen; `None` where it names nobody, who may be gone at any time.
    pub(super) seen: Option<BootNs>,
    /// Who was seen before, where that was not found out.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    before: String,
}

impl Sentence {
    pub(super) fn text(&self, clock: WallClock) -> String {
        let Self { refused, held, seen, before } = self;
        let held = seen.map_or_else(|| held.clone(), |seen| told_at(clock, seen, held));
        format!("{refused}: {held}{before}")
    }
}

/// `at 12:00:03 UTC held by etcd (pid 7) with an open file`: who holds something may let go, or end, at any time after that.
pub(super) fn told_at(clock: WallClock, seen: BootNs, held: &str) -> String {
    format!("at {} {held}", clock.time_of_day(seen))
}

/// Whose volume a holder serves.
pub(super) fn serves_phrase(serves: &Serves) -> String {
    format!(", which {} a volume of pod {}", serves.verb(), pod_label(&serves.pod))
}

/// `known`: who holds it as found earlier, where this event does not tell.
pub(super) fn sentence(
    clock: WallClock,
    (event, mount, volume): (&Event, &Mount, &Volume),
    known: Option<&Known>,
) -> Sentence {
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
    let holders = event.holders.as_deref().unwrap_or_default();
    let now = held(holders, verdict);
    let before =
        |known: &Known| format!("; {}", told_at(clock, known.at, &held(&known.holders, known.verdict)));
    // Of a removal it is that very mount that is in the way, and its end is seen.
    let is_below = is_umount && verdict == Verdict::ChildMount;
    let names_some = !holders.is_empty() || is_below || !mount.servers.is_empty();
    let age = event.holders_age_ms.unwrap_or_default().saturating_mul(MS);
    let (volume, plugin) = (name(&volume.name), name(&volume.plugin));
    let likely = if mount.confidence.is_some() { "what is likely " } else { "" };
    let what = match call_noun(&mount.syscall) {
        "unmount" => "unmounted",
        "rename" => "renamed",
        _ => "removed",
    };
    Sentence {
        refused: format!("{likely}volume {volume} ({plugin}){pod} cannot be {what}{caller}"),
        held: format!("{now}{}", mount.server_phrase()),
        seen: names_some.then(|| event.at.saturating_sub(age)),
        before: known.map_or_else(String::new, before),
    }
}
