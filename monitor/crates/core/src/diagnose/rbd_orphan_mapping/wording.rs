//! What is said of images that are mapped for nobody.

use jiff::SignedDuration;
use kevtmon_event::wording::{copies_phrase, holder_label, pod_label};
use kevtmon_event::{MountHolder, Target, span};
use kevtmon_observation::{Access, BootNs};
use kevtmon_types::escape::name;

use super::ImageUse;

/// One sentence: what is mapped, who holds it, which pod used it last. `after`: so long at least.
pub(super) fn summary(seen: &ImageUse, last_pod: Option<&Target>, after: BootNs) -> String {
    let rbd = &seen.rbd;
    let address = rbd.client_addr.as_ref().map_or_else(String::new, |address| format!(" (client {address})"));
    let time = span(SignedDuration::from_nanos(i64::try_from(after).unwrap_or(i64::MAX)));
    let mut text = format!(
        "{} is still mapped as {}{address}, though no pod has used it for {time}",
        rbd.label(),
        rbd.device.as_deref().unwrap_or_default()
    );
    if let Some((first, others)) = seen.staged.split_first() {
        let more =
            if others.is_empty() { String::new() } else { format!(" and {} more places", others.len()) };
        text.push_str(&format!("; the host still has it mounted at {}{more}", name(&first.1)));
    }
    let (copies, open): (Vec<MountHolder>, Vec<MountHolder>) =
        seen.holders.iter().cloned().partition(|holder| holder.access == Access::Mount);
    if let Some(copies) = copies_phrase(&copies) {
        text.push_str(&format!("; it is mounted in {copies}"));
    }
    if let Some((first, others)) = open.split_first() {
        let more = if others.is_empty() { String::new() } else { format!(" (and {} more)", others.len()) };
        text.push_str(&format!("; {}{more} still has it open", holder_label(first)));
    }
    if seen.staged.is_empty() && seen.holders.is_empty() {
        text.push_str(if seen.complete { "; no holder found" } else { "; no holder found; scan incomplete" });
    }
    if let Some(pod) = last_pod.and_then(|target| target.pod.as_ref()) {
        text.push_str(&format!("; pod {} used it last", pod_label(pod)));
    }
    text
}
