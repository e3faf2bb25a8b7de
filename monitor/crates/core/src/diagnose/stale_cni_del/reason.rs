//! Why an incident opens.

use kevtmon_event::Confidence;

use super::Impact;

/// Why an incident opens, or what is new about an open one.
pub(super) enum Reason<'a> {
    /// The call that this event tells of has failed.
    Failed(u64),
    /// The newest call has succeeded, after one that failed, and no harm is known.
    Succeeded,
    /// A newer sandbox was added, by the call that this event tells of.
    Added(Option<u64>),
    /// The network of the current sandbox was harmed after a call.
    Affected(&'a Impact),
}

impl<'a> Reason<'a> {
    pub(super) fn seq(&self) -> Option<u64> {
        match self {
            Self::Failed(seq) => Some(*seq),
            Self::Succeeded => None,
            Self::Added(seq) => *seq,
            Self::Affected(impact) => Some(impact.seq),
        }
    }

    pub(super) fn impact(&self) -> Option<&'a Impact> {
        if let Self::Affected(impact) = self { Some(impact) } else { None }
    }

    /// What was found of the sandbox that was the current one does not hold for the next.
    pub(super) fn ruled_out(&self) -> Option<Vec<String>> {
        matches!(self, Self::Added(_) | Self::Affected(_)).then(Vec::new)
    }

    /// That a call is about an old sandbox, and that it failed, was seen. That it did harm follows from the time alone.
    pub(super) fn confidence(&self) -> Confidence {
        if matches!(self, Self::Affected(_)) { Confidence::Likely } else { Confidence::Certain }
    }
}
