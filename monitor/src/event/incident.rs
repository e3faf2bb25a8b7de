//! A diagnosis with a lifecycle: what is wrong now, since when, why, and what to do.

use serde::{Deserialize, Serialize};

use super::{Confidence, Severity};

/// An incident, as each of its events carries it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Incident {
    /// Hash of node, boot, kind and subject: the same trouble has the same id after a restart.
    pub id: String,
    /// `gateway-neighbor-lost`, …
    pub kind: String,
    /// How bad it is; can rise while it is open.
    pub severity: Severity,
    /// How sure the diagnosis is; can rise while it is open.
    pub confidence: Confidence,
    /// When it opened, RFC 3339.
    pub opened: String,
    /// When it closed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub closed: Option<String>,
    /// Time of the first evidence.
    pub first_seen: String,
    /// Time of the newest evidence.
    pub last_seen: String,
    /// How often it was seen.
    pub count: u64,
    /// Why it closed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub close_reason: Option<CloseReason>,
    /// It was there before the daemon looked.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub found_at_start: bool,
    /// Ids of the incidents that led to this one.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub caused_by: Vec<String>,
    /// One sentence with actor and target.
    pub summary: String,
    /// What to do, most useful first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub advice: Vec<Advice>,
    /// Sequence numbers of the events it rests on, at most [`EVIDENCE_MAX`], the first and the newest.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub evidence: Vec<u64>,
    /// How many more there were.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub evidence_omitted: u64,
}

/// Evidence that an incident lists.
pub const EVIDENCE_MAX: usize = 32;

/// Why an incident closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CloseReason {
    /// The trouble is over.
    Resolved,
    /// What it happened to is gone.
    SubjectGone,
    /// Nothing was heard of it for too long.
    Expired,
}

/// A next step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// What it does, in words.
    pub text: String,
    /// The exact command.
    pub command: String,
    /// What it may cost.
    pub risk: Risk,
}

/// What a command may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Risk {
    /// Only looks.
    Read,
    /// Restarts something.
    Restart,
    /// Loses something.
    Destructive,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}
