//! What a story comes to, in one sentence. Pure.

use serde::{Deserialize, Serialize};

use super::story::{Chapter, Step};
use crate::event::{CloseReason, Confidence, Severity};

/// Causes that one sentence can carry.
const CAUSES: usize = 3;

/// The last word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// One sentence, without a stop.
    pub sentence: String,
    /// Whether something is wrong now, for all that is known.
    pub open: bool,
    /// How sure it is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub confidence: Option<Confidence>,
    /// Since when, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub since: Option<String>,
    /// Until when.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub until: Option<String>,
    /// Why it is over.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub close_reason: Option<CloseReason>,
}

/// The incident that the story is about: what nothing else came of, is open, is worst, is latest.
#[must_use]
pub fn headline(chapters: &[Chapter]) -> Option<&Chapter> {
    let is_cause = |chapter: &Chapter| {
        chapters.iter().any(|other| other.caused_by.iter().any(|cause| cause.id == chapter.id))
    };
    chapters.iter().max_by_key(|chapter| {
        (chapter.closed.is_none(), !is_cause(chapter), chapter.severity, &chapter.opened)
    })
}

/// Concludes.
#[must_use]
pub fn reach(chapters: &[Chapter], steps: &[Step]) -> Verdict {
    if let Some(chapter) = headline(chapters) {
        return Verdict {
            sentence: with_causes(chapter, chapters),
            open: chapter.closed.is_none(),
            confidence: Some(chapter.confidence),
            since: Some(chapter.opened.clone()),
            until: chapter.closed.clone(),
            close_reason: chapter.close_reason,
        };
    }
    let worst =
        steps.iter().filter(|step| step.severity >= Severity::Warning).max_by_key(|step| step.severity);
    let harmless = |sentence| Verdict {
        sentence,
        open: false,
        confidence: None,
        since: None,
        until: None,
        close_reason: None,
    };
    match (worst, steps) {
        (Some(step), _) => Verdict {
            // How sure the name is, where the sentence has one.
            confidence: step
                .actor
                .as_ref()
                .filter(|actor| step.message.contains(&actor.comm))
                .map(|actor| actor.confidence),
            since: Some(step.time.clone()),
            ..harmless(format!("{}; no incident is known of it", unstopped(&step.message)))
        },
        (None, []) => harmless("nothing was recorded about it".to_owned()),
        (None, [one]) => harmless(format!("nothing wrong was seen; {}", unstopped(&one.message))),
        (None, [.., last]) => harmless(format!(
            "nothing wrong was seen in {} events, the last of which: {}",
            steps.len(),
            unstopped(&last.message)
        )),
    }
}

fn with_causes(effect: &Chapter, chapters: &[Chapter]) -> String {
    let mut sentence = unstopped(&effect.summary).to_owned();
    let mut at = effect;
    for _ in 0..CAUSES {
        // The surest link is the one to follow.
        let cause = at.caused_by.iter().max_by_key(|cause| cause.confidence);
        let found = cause.and_then(|cause| {
            Some((chapters.iter().find(|chapter| chapter.id == cause.id)?, cause.confidence?))
        });
        let Some((cause, confidence)) = found else { break };
        let sure = match confidence {
            Confidence::Certain => "",
            Confidence::Likely => "likely ",
            Confidence::Guess => "perhaps ",
        };
        sentence.push_str(&format!(", {sure}because: {}", unstopped(&cause.summary)));
        at = cause;
    }
    sentence
}

fn unstopped(sentence: &str) -> &str {
    sentence.trim_end().trim_end_matches('.')
}
