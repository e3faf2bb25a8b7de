//! The conclusion of a story, in one sentence.

use kevtmon_core::diagnose::Suspicion;
use kevtmon_event::{CloseReason, Confidence, Kind, Severity};
use kevtmon_types::escape::name;
use kevtmon_types::is_zero::is_zero;
use serde::{Deserialize, Serialize};

use super::stale::Stale;
use super::story::{Step, StoryIncident};

/// Maximum number of causes in the sentence.
const CAUSES: usize = 3;

/// The conclusion of a story.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// One sentence, without a full stop.
    pub sentence: String,
    /// Whether something is wrong now, as far as is known.
    pub open: bool,
    /// How sure it is.
    pub confidence: Option<Confidence>,
    /// Since when, RFC 3339.
    pub since: Option<String>,
    pub until: Option<String>,
    /// By how many milliseconds the wall clock was set between the two.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub clock_set_ms: i64,
    /// Why it is over.
    pub close_reason: Option<CloseReason>,
    /// It is open because it opens again and again, and nothing has been wrong since then.
    pub well_since: Option<String>,
    /// It is open as far as is known: it is not watched now.
    pub stale: Option<Stale>,
    /// When what is not judged yet is judged at the earliest.
    pub judged: Option<String>,
    /// Where nothing wrong was seen: what is not watched on this node, so that it would not have been seen.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub unwatched: Vec<String>,
}

/// The incident that the story is about: open before closed, effects before causes, then by severity and time.
pub fn main_incident(incidents: &[StoryIncident]) -> Option<&StoryIncident> {
    let is_cause = |incident: &StoryIncident| {
        incidents.iter().any(|other| other.caused_by.iter().any(|cause| cause.id == incident.id))
    };
    incidents.iter().max_by_key(|incident| {
        let is_open = incident.closed.is_none();
        (is_wrong(incident), is_open, !is_cause(incident), incident.severity, &incident.opened)
    })
}

/// Whether something is wrong now.
fn is_wrong(incident: &StoryIncident) -> bool {
    incident.closed.is_none() && incident.well_since.is_none()
}

pub fn conclude(
    incidents: &[StoryIncident],
    suspected: &[Suspicion],
    down: &[String],
    steps: &[Step],
) -> Verdict {
    let main = main_incident(incidents);
    // No incident that is over stands for it.
    if !down.is_empty() && suspected.is_empty() && !main.is_some_and(is_wrong) {
        let known = if main.is_some_and(|main| main.closed.is_none()) {
            ""
        } else {
            "; no open incident is known of it"
        };
        return Verdict {
            sentence: format!("{}{known}", down.join("; ")),
            open: true,
            confidence: Some(Confidence::Certain),
            ..Verdict::default()
        };
    }
    let mut verdict = of_events(incidents, suspected, steps);
    if !down.is_empty() {
        verdict.sentence = format!("{}; besides, {}", without_stop(&verdict.sentence), down.join("; "));
    }
    verdict
}

fn of_events(incidents: &[StoryIncident], suspected: &[Suspicion], steps: &[Step]) -> Verdict {
    let main = main_incident(incidents);
    // What is over does not stand for what may be wrong now.
    if let Some(first) = suspected.first().filter(|_| !main.is_some_and(is_wrong)) {
        return Verdict {
            sentence: format!("{}; not judged yet: {}", without_stop(&first.summary), first.reason),
            confidence: Some(first.confidence),
            since: Some(first.since.clone()),
            judged: Some(first.due.clone()),
            ..Verdict::default()
        };
    }
    if let Some(incident) = main {
        return Verdict {
            sentence: with_causes(incident, incidents),
            open: is_wrong(incident),
            confidence: Some(incident.confidence),
            since: Some(incident.opened.clone()),
            until: incident.closed.clone(),
            clock_set_ms: incident.clock_set_ms,
            close_reason: incident.close_reason,
            well_since: incident.well_since.clone(),
            stale: incident.stale.clone(),
            judged: None,
            unwatched: Vec::new(),
        };
    }
    let worst =
        steps.iter().filter(|step| step.severity >= Severity::Warning).max_by_key(|step| step.severity);
    let harmless = |sentence| Verdict { sentence, ..Verdict::default() };
    match (worst, steps) {
        (Some(step), _) => Verdict {
            // The confidence of the actor, where the sentence names it.
            confidence: step
                .actor
                .as_ref()
                .filter(|actor| actor.userns.is_some() || step.message.contains(&*name(&actor.comm)))
                .map(|actor| actor.confidence),
            since: Some(step.time.clone()),
            ..harmless(format!(
                "{}{}; no incident is known of it",
                without_stop(&step.message),
                later(step, steps)
                    .map(|later| format!("; later: {}", without_stop(&later.message)))
                    .unwrap_or_default()
            ))
        },
        (None, []) => harmless("nothing was recorded about it".to_owned()),
        (None, [one]) => harmless(format!("no incident is known of it; {}", without_stop(&one.message))),
        (None, [.., last]) => harmless(format!(
            "no incident is known of it; the last of {} events: {}",
            steps.len(),
            without_stop(&last.message)
        )),
    }
}

/// How the mount of a refused unmount went after all.
fn later<'a>(step: &Step, steps: &'a [Step]) -> Option<&'a Step> {
    let is = |step: &Step, kinds: &[Kind]| kinds.iter().any(|kind| kind.name() == step.kind);
    let last = step.repeated.as_ref().map_or(&step.time, |repeated| &repeated.until);
    let ends = [Kind::MountReleased, Kind::MountDetached];
    steps.iter().rfind(|other| is(step, &[Kind::MountBusy]) && is(other, &ends) && other.time > *last)
}

fn with_causes(effect: &StoryIncident, incidents: &[StoryIncident]) -> String {
    let mut status = effect.status();
    let mut sentence = behind(status, &effect.summary);
    let mut at = effect;
    for _ in 0..CAUSES {
        // Follow the link of highest confidence.
        let cause = at.caused_by.iter().max_by_key(|cause| cause.confidence);
        let found = cause.and_then(|cause| {
            Some((incidents.iter().find(|incident| incident.id == cause.id)?, cause.confidence?))
        });
        let Some((cause, confidence)) = found else { break };
        let sure = match confidence {
            Confidence::Certain => "",
            Confidence::Likely => "likely ",
            Confidence::Guess => "perhaps ",
        };
        // What is said of the effect holds for the cause behind it, too, unless something else is said.
        let said = cause.status().filter(|said| status != Some(said));
        sentence.push_str(&format!(", {sure}because: {}", behind(said, &cause.summary)));
        (at, status) = (cause, cause.status());
    }
    sentence
}

/// A summary, behind what is to be said of it.
fn behind(status: Option<&str>, summary: &str) -> String {
    let summary = without_stop(summary);
    status.map_or_else(|| summary.to_owned(), |status| format!("{status}: {summary}"))
}

fn without_stop(sentence: &str) -> &str {
    sentence.trim_end().trim_end_matches('.')
}
