//! A diagnosis with a lifecycle: what is wrong now, since when, why, and what to do.

use kevtmon_types::is_zero::is_zero;
use kevtmon_types::names::named;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Advice, Confidence, Details, Object, Role, Severity, Visitor, span};

/// A diagnosis with a lifecycle, for `incident.*`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Incident {
    /// Hash of node, boot, kind and subject: the same fault has the same id after a restart.
    pub id: String,
    /// Kind of the diagnosis: `gateway-neighbor-lost`, `volume-busy`, …
    pub kind: String,
    /// How bad it is; can rise while it is open.
    pub severity: Severity,
    /// How certain the diagnosis is; can rise while it is open.
    pub confidence: Confidence,
    /// When it opened, RFC 3339.
    #[schemars(extend("format" = "date-time"))]
    pub opened: String,
    /// When it closed.
    #[schemars(extend("format" = "date-time"))]
    pub closed: Option<String>,
    /// Time of the first evidence.
    #[schemars(extend("format" = "date-time"))]
    pub first_seen: String,
    /// Time of the newest evidence.
    #[schemars(extend("format" = "date-time"))]
    pub last_seen: String,
    /// How often the fault was observed; of what, is in `counted`.
    pub count: u64,
    /// What `count` counts, in the plural: `refused unmounts`.
    pub counted: String,
    /// Since when it counts, where that is later than `first_seen`: what was counted before had another cause.
    #[schemars(extend("format" = "date-time"))]
    pub counted_since: Option<String>,
    /// Counts how often an incident of this id opened, from 1: each opening is an episode with times and evidence of
    /// its own.
    #[schemars(range(min = 1))]
    pub episode: u32,
    /// By how many milliseconds the wall clock was set while it was open, positive if forward: so much of the time from `opened` to
    /// `closed` did not pass.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub clock_set_ms: i64,
    /// Why it closed.
    pub close_reason: Option<CloseReason>,
    /// The fault existed before the daemon started.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub found_at_start: bool,
    /// Ids of the incidents that caused this one.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub caused_by: Vec<String>,
    /// What was done to the node, where that is likely why: the same for all incidents of it.
    pub host_cause: Option<HostCause>,
    /// One sentence with actor and target. That of a closed incident tells of the time before it closed.
    pub summary: String,
    /// What was checked and found healthy, before it closed.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub ruled_out: Vec<String>,
    /// What to do, most useful first; nothing once it has closed.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub advice: Vec<Advice>,
    /// Sequence numbers of its evidence, the first and the newest events.
    #[schemars(length(max = EVIDENCE_MAX))]
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub evidence: Vec<u64>,
    /// How many more events are evidence.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub evidence_omitted: u64,
}

/// Evidence that an incident lists.
pub const EVIDENCE_MAX: usize = 32;

/// What was done to the network of the node, by which several pods lose theirs.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostCause {
    /// What was done.
    pub change: HostChange,
    /// Network namespace of the node, inode number.
    pub netns: u32,
    /// Index of the bridge; absent where it is no bridge's.
    pub ifindex: Option<u32>,
    /// Its name.
    pub ifname: Option<String>,
}

named! {
    /// What is done to the network of a node.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    HostChange {
        /// A bridge was set down.
        BridgeDown = "bridge-down",
        /// A bridge got another MAC address.
        BridgeMac = "bridge-mac",
        /// It forwards no IPv4 packets.
        ForwardingOff = "forwarding-off",
        /// Its default route was deleted.
        DefaultRouteDeleted = "default-route-deleted",
    }
}

impl HostCause {
    /// A text that no other cause on this node has.
    pub fn key(&self) -> String {
        format!("{}/{}/{}", self.change.name(), self.netns, self.ifindex.unwrap_or_default())
    }
}

/// Why an incident closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CloseReason {
    /// The fault is resolved.
    Resolved,
    /// The mount was detached while it was in use: whoever holds it uses it on, unseen.
    Detached,
    /// What was affected is gone.
    SubjectGone,
    /// What is gone is only likely what was affected.
    LikelyGone,
    /// It was not observed for too long.
    Expired,
}

impl CloseReason {
    /// How it ended, to stand before the summary.
    pub fn phrase(self) -> &'static str {
        match self {
            Self::Resolved => "resolved",
            Self::Detached => "detached, not resolved",
            Self::SubjectGone => "closed (target removed)",
            Self::LikelyGone => "closed (target probably removed)",
            Self::Expired => "expired (no further updates)",
        }
    }
}

impl Incident {
    /// Closes it. Its advice was for the state that has ended.
    pub fn close(&mut self, time: String, reason: CloseReason) {
        self.closed = Some(time);
        self.close_reason = Some(reason);
        self.advice.clear();
    }

    /// The message of its event: the summary, after how it ended, or with how often it was observed.
    pub fn message(&self) -> String {
        let summary = &self.summary;
        match (self.close_reason, self.repeated()) {
            (Some(reason), _) => format!("{}: {summary}", reason.phrase()),
            (None, Some(repeated)) => format!("{summary} ({repeated})"),
            (None, None) => summary.clone(),
        }
    }

    /// What was counted and over which time: `8 refused unmounts over 1 min`; `None` if it was observed once.
    pub fn repeated(&self) -> Option<String> {
        if self.count < 2 {
            return None;
        }
        let since = self.counted_since.as_deref().unwrap_or(&self.first_seen);
        let moment = |text: &str| text.parse::<jiff::Timestamp>().ok();
        // Which of the times are of before the clock was set is not known.
        let passed = moment(since).zip(moment(&self.last_seen)).filter(|_| self.clock_set_ms == 0);
        let passed = passed.map(|(since, last)| match span(last.duration_since(since)) {
            short if short == "0 s" => " within 1 s".to_owned(),
            passed => format!(" over {passed}"),
        });
        Some(format!("{} {}{}", self.count, self.counted, passed.unwrap_or_default()))
    }
}

impl Object for Incident {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.incident(Role::Object, &self.id);
    }

    fn describe(&self, details: &mut dyn Details) {
        let episode = if self.episode > 1 { format!(" · episode {}", self.episode) } else { String::new() };
        details.line("id", &format!("{}{episode}", self.id));
        if !self.ruled_out.is_empty() {
            details.line("fine", &self.ruled_out.join("; "));
        }
        for Advice { text, command, .. } in &self.advice {
            details.line("do", &format!("{command}  # {text}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::test_support::numbered::incident;

    #[test]
    fn a_count_says_of_what_and_over_which_time() {
        let mut it = incident("a", 1);
        it.first_seen = "2026-01-02T03:04:05Z".into();
        let mut repeated = |count, counted: &str, since: Option<&str>, last: &str| {
            (it.count, it.counted) = (count, counted.into());
            (it.counted_since, it.last_seen) = (since.map(str::to_owned), last.into());
            it.repeated()
        };
        let unmounts = "refused unmounts";
        assert_eq!(repeated(1, unmounts, None, "2026-01-02T03:04:05Z"), None);
        assert_eq!(
            repeated(2, unmounts, None, "2026-01-02T03:04:05.5Z").unwrap(),
            "2 refused unmounts within 1 s"
        );
        assert_eq!(
            repeated(9, unmounts, None, "2026-01-02T04:24:05Z").unwrap(),
            "9 refused unmounts over 1 h 20 min"
        );
        let since = Some("2026-01-02T04:23:59Z");
        assert_eq!(
            repeated(2, unmounts, since, "2026-01-02T04:24:05Z").unwrap(),
            "2 refused unmounts over 6 s",
            "what had another cause does not count"
        );
        it.clock_set_ms = 3_600_000;
        assert_eq!(it.repeated().unwrap(), "2 refused unmounts", "over which time is not known");
    }
}
