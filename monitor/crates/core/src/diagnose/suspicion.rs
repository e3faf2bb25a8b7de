//! What looks like an incident and is not judged yet.

use kevtmon_event::{Confidence, Neighbor, Target};
use serde::{Deserialize, Serialize};

/// Something that opens an incident if it lasts.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Suspicion {
    /// Kind of that incident.
    pub kind: String,
    /// What is wrong as far as is known, in one sentence.
    pub summary: String,
    /// Why that is not judged yet.
    pub reason: String,
    /// How sure it would be.
    pub confidence: Confidence,
    /// Since when, RFC 3339.
    pub since: String,
    /// When it is judged at the earliest, RFC 3339.
    pub due: String,
    /// The owner of what is affected.
    pub target: Option<Target>,
    pub neighbor: Option<Neighbor>,
    /// Numbers of the events that show it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub evidence: Vec<u64>,
}
