//! The answer of `why` as text.

use std::fmt::Write as _;

use super::incident::{confidence, course, risk};
use super::time::Clock;
use super::{Pretty, Style, escaped, severity_style};
use crate::event::Role;
use crate::query::coverage::{Missing, Unseen};
use crate::query::record::timestamp;
use crate::query::story::{Step, Story, StoryIncident};
use crate::query::subject::Subject;

/// The subjects that a word matches, one per line, with a word that matches only it.
#[must_use]
pub fn candidates(subjects: &[Subject]) -> String {
    let width = subjects.iter().map(|subject| subject.handle.chars().count()).max().unwrap_or(0);
    let line =
        |subject: &Subject| format!("  {:<width$}  {}\n", escaped(&subject.handle), escaped(&subject.label));
    subjects.iter().map(line).collect()
}

/// A story: causes, events, verdict, advice, and what could not be seen.
#[must_use]
pub fn text(story: &Story, pretty: &Pretty, clock: &Clock) -> String {
    let mut page = Page { text: String::new(), pretty, clock };
    page.head(&format!("{} on {}", escaped(&story.subject.label), escaped(&story.node)));
    page.causes(story);
    page.steps(story);
    page.verdict(story);
    page.unseen(&story.unseen);
    page.text
}

struct Page<'a> {
    text: String,
    pretty: &'a Pretty,
    clock: &'a Clock,
}

impl Page<'_> {
    fn line(&mut self, line: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{}", line.trim_end());
    }

    fn head(&mut self, words: &str) {
        let words = self.pretty.paint(Style::Bold, words);
        self.line(&words);
    }

    fn section(&mut self, words: &str) {
        self.line("");
        self.head(words);
    }

    fn causes(&mut self, story: &Story) {
        let incidents = &story.incidents;
        if incidents.is_empty() {
            return;
        }
        self.section("Cause to effect");
        if story.incidents_omitted > 0 {
            let words = format!("  {} older incidents are left out", story.incidents_omitted);
            let words = self.pretty.paint(Style::Dim, &words);
            self.line(&words);
        }
        for incident in incidents {
            for cause in &incident.caused_by {
                let kind =
                    incidents.iter().find(|other| other.id == cause.id).map(|other| escaped(&other.kind));
                let name = kind.unwrap_or_else(|| format!("incident {}", escaped(&cause.id)));
                let sure = cause.confidence.map_or("no longer remembered", confidence);
                let line = format!("    ↓ {name} led to this ({sure})");
                let line = self.pretty.paint(Style::Dim, &line);
                self.line(&line);
            }
            let severity = self.pretty.paint(severity_style(incident.severity), incident.severity.name());
            let course =
                course(&incident.opened, incident.closed.as_deref(), incident.close_reason, self.clock);
            let times =
                if incident.count > 1 { format!(", {} times", incident.count) } else { String::new() };
            let kind = self.pretty.paint(Style::Bold, &escaped(&incident.kind));
            let sure = confidence(incident.confidence);
            self.line(&format!("  {kind}  {severity}, {sure}, {course}{times}  [{}]", escaped(&incident.id)));
            self.line(&format!("    {}", escaped(&incident.summary)));
        }
    }

    fn steps(&mut self, story: &Story) {
        if story.steps.is_empty() {
            return;
        }
        self.section("What happened");
        if story.steps_omitted > 0 {
            let words = format!("  {} lesser events are left out", story.steps_omitted);
            let words = self.pretty.paint(Style::Dim, &words);
            self.line(&words);
        }
        let times: Vec<String> =
            story.steps.iter().map(|step| self.clock.local_and_age(timestamp(&step.time))).collect();
        let wide = |widths: &mut dyn Iterator<Item = usize>| widths.max().unwrap_or(0);
        let time_width = wide(&mut times.iter().map(|time| time.chars().count()));
        let kind_width = wide(&mut story.steps.iter().map(|step| step.kind.chars().count()));
        for (step, time) in story.steps.iter().zip(times) {
            let time = self.pretty.paint(Style::Dim, &format!("{time:<time_width$}"));
            let severity =
                self.pretty.paint(severity_style(step.severity), &format!("{:<8}", step.severity.name()));
            let kind = format!("{:<kind_width$}", escaped(&step.kind));
            self.line(&format!("  {time}  {severity}  {kind}  {}", escaped(&step.message)));
            let remark = remark(step, &story.incidents);
            if !remark.is_empty() {
                let remark = self.pretty.paint(Style::Dim, &remark);
                self.line(&format!("  {:time_width$}  {:8}  {:kind_width$}  {remark}", "", "", ""));
            }
        }
    }

    fn verdict(&mut self, story: &Story) {
        let verdict = &story.verdict;
        self.section("Verdict");
        let mut facts = Vec::new();
        facts.extend(verdict.confidence.map(|sure| confidence(sure).to_owned()));
        if let Some(since) = &verdict.since {
            facts.push(match verdict.open || verdict.until.is_some() {
                true => course(since, verdict.until.as_deref(), verdict.close_reason, self.clock),
                false => self.clock.local_and_age(timestamp(since)),
            });
        }
        self.line(&format!("  {}.", escaped(&verdict.sentence)));
        if !facts.is_empty() {
            let facts = self.pretty.paint(Style::Dim, &facts.join(" · "));
            self.line(&format!("  {facts}"));
        }
        if !story.advice.is_empty() {
            self.section("Next");
        }
        for advice in &story.advice {
            let what = format!("# {} ({})", escaped(&advice.text), risk(advice.risk));
            let what = self.pretty.paint(Style::Dim, &what);
            self.line(&format!("  {}  {what}", escaped(&advice.command)));
        }
    }

    fn unseen(&mut self, unseen: &[Unseen]) {
        if unseen.is_empty() {
            return;
        }
        self.section("Could not be seen");
        for one in unseen {
            let words = format!("  - {}", self.missing(one));
            self.line(&words);
        }
    }

    fn missing(&self, Unseen { what, from, to }: &Unseen) -> String {
        let at = |time: &Option<String>| time.as_deref().map(|time| self.clock.local(timestamp(time)));
        let window = match (at(from), at(to)) {
            (Some(from), Some(to)) if from != to => format!(", {from} to {to}"),
            (Some(from), Some(_)) => format!(", {from}"),
            (Some(from), None) => format!(", since {from}"),
            (None, Some(to)) => format!(", until {to}"),
            (None, None) => String::new(),
        };
        match what {
            Missing::Daemon => match at(from) {
                Some(last) => format!("no daemon runs: nothing after {last} was seen"),
                None => "no daemon runs".to_owned(),
            },
            Missing::Gap => format!("the daemon did not watch{window}"),
            Missing::Source { source, reason } => format!("{}: {}{window}", escaped(source), escaped(reason)),
            Missing::Lost { source, reason, count, exact } => {
                let least = if *exact { "" } else { "at least " };
                format!("{least}{count} records lost in {} ({}){window}", escaped(source), escaped(reason))
            }
            Missing::Actor { kind, seq } => format!("nobody was seen doing {} (number {seq})", escaped(kind)),
            Missing::Older { looked_at } => {
                format!("only the newest {looked_at} events of it were looked at")
            }
            Missing::Forgotten => match at(to) {
                Some(to) => format!("what happened before {to} is not remembered"),
                None => "what happened earlier is not remembered".to_owned(),
            },
        }
    }
}

/// The role of the subject, unless it is the usual one, and the incidents that the event is evidence of.
fn remark(step: &Step, incidents: &[StoryIncident]) -> String {
    let mut words: Vec<String> = Vec::new();
    let usual = step.roles.iter().any(|role| matches!(role, Role::Target | Role::Object));
    if !usual {
        words.extend(step.roles.iter().map(|role| match role {
            Role::Actor => "it did this".to_owned(),
            Role::Holder => "it is a holder".to_owned(),
            Role::Peer => "it is the other end".to_owned(),
            Role::Target | Role::Object => String::new(),
        }));
    }
    let kinds = step
        .evidence_of
        .iter()
        .filter_map(|id| incidents.iter().find(|incident| incident.id == *id))
        .map(|incident| format!("evidence of {}", escaped(&incident.kind)));
    words.extend(kinds);
    words.join(" · ")
}
