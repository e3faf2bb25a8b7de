//! Why an incident opens.

use super::Harm;
use crate::event::Confidence;

/// Why an incident opens, or what is new about an open one.
pub(super) enum Reason<'a> {
    /// The call that this event tells of has failed.
    Failed(u64),
    /// A newer sandbox was added, by the call that this event tells of.
    Added(Option<u64>),
    /// The network of the current sandbox was harmed after a call.
    Harmed(&'a Harm),
}

impl<'a> Reason<'a> {
    pub(super) fn seq(&self) -> Option<u64> {
        match self {
            Self::Failed(seq) => Some(*seq),
            Self::Added(seq) => *seq,
            Self::Harmed(harm) => Some(harm.seq),
        }
    }

    pub(super) fn harm(&self) -> Option<&'a Harm> {
        match self {
            Self::Harmed(harm) => Some(harm),
            Self::Failed(_) | Self::Added(_) => None,
        }
    }

    /// What was found of the sandbox that was the current one does not hold for the next.
    pub(super) fn ruled_out(&self) -> Option<Vec<String>> {
        match self {
            Self::Failed(_) => None,
            Self::Added(_) | Self::Harmed(_) => Some(Vec::new()),
        }
    }

    /// That a call is about an old sandbox, and that it failed, was seen. That it did harm follows from the time alone.
    pub(super) fn confidence(&self) -> Confidence {
        match self {
            Self::Failed(_) | Self::Added(_) => Confidence::Certain,
            Self::Harmed(_) => Confidence::Likely,
        }
    }
}
