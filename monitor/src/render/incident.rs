//! An incident as text.

use std::fmt::Write as _;

use super::time::{Clock, span};
use super::{Pretty, Style, escaped, severity_style};
use crate::event::{CloseReason, Confidence, Risk};
use crate::query::history::IncidentView;
use crate::query::record::timestamp;

pub(super) fn confidence(confidence: Confidence) -> &'static str {
    match confidence {
        Confidence::Certain => "certain",
        Confidence::Likely => "likely",
        Confidence::Guess => "a guess",
    }
}

pub(super) fn risk(risk: Risk) -> &'static str {
    match risk {
        Risk::Read => "only looks",
        Risk::Restart => "restarts something",
        Risk::Destructive => "loses something",
    }
}

/// `open since …` or `… to …, resolved`.
pub(super) fn course(opened: &str, closed: Option<&str>, why: Option<CloseReason>, clock: &Clock) -> String {
    let opened = timestamp(opened);
    let Some(closed) = closed.map(timestamp) else {
        return format!("open since {}", clock.local_and_age(opened));
    };
    let reason = match why {
        Some(CloseReason::Resolved) => ", resolved",
        Some(CloseReason::SubjectGone) => ", what it happened to is gone",
        Some(CloseReason::Expired) => ", not heard of again",
        None => "",
    };
    let lasted = span(closed.duration_since(opened));
    format!("closed {} after {lasted}{reason}", clock.local_and_age(closed))
}

/// An incident, with its course, causes and advice.
#[must_use]
pub fn text(view: &IncidentView, pretty: &Pretty, clock: &Clock) -> String {
    let incident = &view.incident;
    let mut text = String::new();
    let severity = format!("{:<8}", incident.severity.name());
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{} {}  {}",
        pretty.paint(severity_style(incident.severity), &severity),
        pretty.paint(Style::Bold, &escaped(&incident.kind)),
        escaped(&incident.summary),
    );
    let mut course = course(&incident.opened, incident.closed.as_deref(), incident.close_reason, clock);
    if incident.count > 1 {
        let last = clock.local_and_age(timestamp(&incident.last_seen));
        let _ = write!(course, " · seen {} times, last {last}", incident.count);
    }
    let _ = write!(course, " · {}", confidence(incident.confidence));
    if incident.found_at_start {
        course.push_str(" · found at start");
    }
    let mut detail = |label: &str, words: &str| {
        let label = format!("{label:<6}");
        let _ = writeln!(text, "         {} {words}", pretty.paint(Style::Dim, &label));
    };
    detail("", &course);
    detail("id", &escaped(&incident.id));
    if !incident.caused_by.is_empty() {
        detail("cause", &escaped(&incident.caused_by.join(", ")));
    }
    for advice in &incident.advice {
        let what = format!("# {} ({})", escaped(&advice.text), risk(advice.risk));
        detail("do", &format!("{}  {}", escaped(&advice.command), pretty.paint(Style::Dim, &what)));
    }
    text
}
