//! What an incident says.

use kevtmon_event::wording::{repeated_actor_phrase, short_id};
use kevtmon_event::{Advice, form};
use kevtmon_types::escape::name;

use super::reason::Reason;
use super::{Deletions, SECOND, advice};

/// What the newest call for an old sandbox did, or may do.
pub(super) fn summary(known: &Deletions, id: &str, current: Option<&str>, reason: &Reason<'_>) -> String {
    let pod = format!("{}/{}", known.pod.namespace, known.pod.name);
    let by = known.actor.as_deref().map(repeated_actor_phrase);
    let by = by.map_or_else(String::new, |by| format!(" by {by}"));
    let call = format!(
        "CNI DEL of sandbox {} of pod {}{by}, which is not its current sandbox,",
        short_id(id),
        name(&pod)
    );
    let current = current.map_or_else(String::new, |id| format!(" of sandbox {}", short_id(id)));
    match reason {
        Reason::Affected(impact) => {
            let ended = if known.cni.failed() == Some(true) { "failed" } else { "succeeded" };
            let began = known.stale.map_or(impact.at, |(from, _)| from);
            let tenths = impact.at.saturating_sub(began) / (SECOND / 10);
            format!("{call} {ended}; {}.{} s after it began: {}", tenths / 10, tenths % 10, impact.message)
        }
        Reason::Succeeded => {
            format!("{call} failed, then succeeded on a retry; no loss of the network{current} was seen")
        }
        Reason::Failed(_) | Reason::Added(_) => {
            format!("{call} failed; a retry may take the network{current} away")
        }
    }
}

/// `may_be_repeated`: whether more such calls are to be feared.
pub(super) fn next_step(id: &str, may_be_repeated: bool) -> Advice {
    const SHOW: &str = "show the calls for the old sandbox and how they ended";
    let warned =
        format!("{SHOW}; do not delete the pod meanwhile: the call would hit the next pod of its name");
    let text = if may_be_repeated { warned } else { SHOW.to_owned() };
    advice(form::SHOW_CALLS, &text, &["kevtmon", "events", "--kind", "cni.finished", "--container", id])
}
