//! An incident as text.

use jiff::SignedDuration;
use kevtmon_event::{CloseReason, Confidence, span};
use kevtmon_history::query::history::IncidentView;
use kevtmon_history::query::record::timestamp;
use kevtmon_history::query::stale::Stale;

use super::paragraph::Paragraphs;
use super::time::Clock;
use super::{Pretty, Style, escaped, severity_style};

/// What belongs to an incident stands below its kind.
const INDENT: usize = 9;

pub fn confidence(confidence: Confidence) -> &'static str {
    match confidence {
        Confidence::Certain => "certain",
        Confidence::Likely => "likely",
        Confidence::Guess => "a guess",
    }
}

/// `resolved: …`: the summary, behind what is to be said of it where it is not known to be so now.
pub fn headline(status: Option<&str>, summary: &str) -> String {
    status.map_or_else(|| escaped(summary), |status| format!("{status}: {}", escaped(summary)))
}

/// What was found healthy, which is as old as the summary.
pub(super) fn ruled_out(status: Option<&str>, healthy: &[String]) -> String {
    let then = if status.is_some() { " then" } else { "" };
    format!("ruled out{then}: {}", escaped(&healthy.join("; ")))
}

/// `open since …` or `closed … after …, resolved`.
pub(super) fn course(
    opened: &str,
    closed: Option<&str>,
    why: Option<CloseReason>,
    well_since: Option<&str>,
    stale: Option<&Stale>,
    clock_set_ms: i64,
    clock: &Clock,
) -> String {
    let opened = timestamp(opened);
    let Some(closed) = closed.map(timestamp) else {
        if let Some(stale) = stale {
            let last = stale.since.as_deref().map(|last| clock.local_and_age(timestamp(last)));
            let last = last
                .map_or_else(String::new, |last| format!(", and was open at {last}, the last that is known"));
            return format!(
                "opened {}{last}; it is unknown whether it is still open: {}",
                clock.local_and_age(opened),
                escaped(&stale.reason)
            );
        }
        let open = format!("open since {}", clock.local_and_age(opened));
        return match well_since {
            Some(well) => {
                format!(
                    "comes and goes, {open}; nothing is wrong since {}",
                    clock.local_and_age(timestamp(well))
                )
            }
            None => open,
        };
    };
    let reason = match why {
        Some(CloseReason::Resolved) => ", resolved",
        Some(CloseReason::Detached) => ", detached",
        Some(CloseReason::SubjectGone) => ", target removed",
        Some(CloseReason::LikelyGone) => ", target probably removed",
        Some(CloseReason::Expired) => ", no further updates",
        None => "",
    };
    let lasted = closed.duration_since(opened).saturating_sub(SignedDuration::from_millis(clock_set_ms));
    format!("closed {} after {}{reason}", clock.local_and_age(closed), span(lasted))
}

/// An incident, with its course, causes, what was ruled out, and advice.
pub fn text(view: &IncidentView, pretty: &Pretty, clock: &Clock) -> String {
    let incident = &view.incident;
    let mut page = Paragraphs::new(pretty);
    let (severity, kind) = (format!("{:<8}", incident.severity.name()), escaped(&incident.kind));
    let painted = pretty.paint(severity_style(incident.severity), &severity);
    page.line(&format!("{painted} {}", pretty.paint(Style::Bold, &kind)));
    page.put(INDENT, None, &headline(view.status(), &incident.summary));
    let (closed, well_since) = (incident.closed.as_deref(), view.well_since.as_deref());
    let set = incident.clock_set_ms;
    let mut course =
        course(&incident.opened, closed, incident.close_reason, well_since, view.stale.as_ref(), set, clock);
    if let Some(repeated) = view.repeated() {
        let last = clock.local_and_age(timestamp(&incident.last_seen));
        course.push_str(&format!(" · {}, last {last}", escaped(&repeated)));
    }
    course.push_str(&format!(" · {}", confidence(incident.confidence)));
    if incident.found_at_start {
        course.push_str(" · found at start");
    }
    page.put(INDENT, None, &course);
    let mut detail = |label: &str, words: &str| {
        let label = format!("{label:<6} ");
        page.put_behind(INDENT, &label, &pretty.paint(Style::Dim, &label), None, words);
    };
    let episode =
        if incident.episode > 1 { format!(" · episode {}", incident.episode) } else { String::new() };
    detail("id", &format!("{}{episode}", escaped(&incident.id)));
    if !incident.caused_by.is_empty() {
        detail("cause", &escaped(&incident.caused_by.join(", ")));
    }
    if !incident.ruled_out.is_empty() {
        page.put(INDENT, None, &ruled_out(view.status(), &incident.ruled_out));
    }
    incident.advice.iter().for_each(|advice| page.advice(INDENT, advice));
    if let Some(stale) = &view.stale {
        page.put(INDENT, None, &format!("next: {}", escaped(&stale.next)));
    }
    page.text
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;

    #[test]
    fn no_time_passes_by_setting_the_clock() {
        let clock = Clock { now: "2026-01-02T05:00:00Z".parse().unwrap(), zone: TimeZone::UTC };
        let (opened, closed) = ("2026-01-02T03:04:05Z", Some("2026-01-02T04:07:05Z"));
        let lasted = |by_ms| course(opened, closed, Some(CloseReason::Resolved), None, None, by_ms, &clock);
        assert_eq!(lasted(0), "closed 04:07:05 (52 min ago) after 1 h 3 min, resolved");
        assert_eq!(lasted(3_600_000), "closed 04:07:05 (52 min ago) after 3 min, resolved");
    }
}
