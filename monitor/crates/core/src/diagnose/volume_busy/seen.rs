//! Who holds a busy volume is told of the time at which that was seen. Refused calls that are only counted have it looked
//! again whether those still do: the time is brought up to date, or nothing more is certain.

use kevtmon_event::Confidence;
use kevtmon_observation::BootNs;
use serde::{Deserialize, Serialize};

use super::VolumeBusy;
use super::wording::Sentence;
use crate::diagnose::Context;
use crate::diagnose::finding::Findings;
use crate::node::mounts::{BusyMount, MountKey};

/// What the newest report of a refused call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Said {
    pub(super) sentence: Sentence,
    pub(super) place: MountKey,
    pub(super) confidence: Confidence,
}

impl VolumeBusy {
    /// It was looked whether those hold a mount still who did, as a call was refused that is only counted; `seen`: when all of
    /// them were seen again. `None` where that is not known.
    pub(super) fn checked(
        &mut self,
        context: &Context<'_>,
        mount: &BusyMount,
        seen: Option<BootNs>,
        findings: &mut Findings,
    ) {
        let Some(subject) = self.subject_of(mount) else { return };
        let Some(busy) = self.busy.get_mut(&subject) else { return };
        let Some(said) = &mut busy.said else { return };
        let place = MountKey::new(mount.key.mntns, mount.path());
        let mut parts = busy.mounts.iter();
        let Some(part) = parts.find(|part| part.is(&place, mount.identity.as_ref())) else { return };
        let Some(told) = said.sentence.seen.as_mut().filter(|_| part.place == said.place) else { return };
        let confidence = match seen {
            Some(seen) => {
                *told = seen.max(*told);
                said.confidence
            }
            None => said.confidence.min(Confidence::Likely),
        };
        let summary = said.sentence.text(context.clock);
        busy.summary.clone_from(&summary);
        findings.renew(subject, summary, confidence);
    }
}
