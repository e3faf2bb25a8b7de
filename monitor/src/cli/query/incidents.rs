//! `incidents`: what is wrong, and what was.

use std::fmt::Write as _;

use clap::Args;

use super::{Desk, Failure, Place};
use crate::cli::exit;
use crate::event::{CloseReason, Confidence, Risk};
use crate::query::filter::IncidentFilter;
use crate::query::history::IncidentView;
use crate::query::moment::{Clock, span};
use crate::query::record::timestamp;
use crate::sinks::pretty::{Ink, Pretty, severity_ink, shown};

/// Arguments of `incidents`.
#[derive(Debug, Default, Args)]
pub struct IncidentsArgs {
    /// Closed ones too
    #[arg(long)]
    pub all: bool,
    /// One JSON object a line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would show it in the help")]
    pub place: Place,
}

impl IncidentsArgs {
    pub(super) fn answer(&self, desk: &mut Desk<'_>) -> Result<u8, Failure> {
        let filter = IncidentFilter { all: self.all, ..IncidentFilter::default() };
        let views = desk.source.history().incidents(&filter)?;
        if views.is_empty() {
            return Ok(desk.nothing(if self.all { "no incidents" } else { "no open incidents" }));
        }
        for view in &views {
            match self.json {
                true => desk.json(view)?,
                false => desk.out.write_all(text(view, &desk.pretty, &desk.clock).as_bytes())?,
            }
        }
        Ok(exit::OK)
    }
}

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

pub(super) fn text(view: &IncidentView, pretty: &Pretty, clock: &Clock) -> String {
    let incident = &view.incident;
    let mut text = String::new();
    let severity = format!("{:<8}", incident.severity.name());
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{} {}  {}",
        pretty.ink(severity_ink(incident.severity), &severity),
        pretty.ink(Ink::Bold, &shown(&incident.kind)),
        shown(&incident.summary),
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
        let _ = writeln!(text, "         {} {words}", pretty.ink(Ink::Dim, &label));
    };
    detail("", &course);
    detail("id", &shown(&incident.id));
    if !incident.caused_by.is_empty() {
        detail("cause", &shown(&incident.caused_by.join(", ")));
    }
    for advice in &incident.advice {
        let what = format!("# {} ({})", shown(&advice.text), risk(advice.risk));
        detail("do", &format!("{}  {}", shown(&advice.command), pretty.ink(Ink::Dim, &what)));
    }
    text
}
