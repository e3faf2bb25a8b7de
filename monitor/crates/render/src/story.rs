//! The answer of `why` as text.

use kevtmon_event::Role;
use kevtmon_history::query::coverage::{Missing, Unseen};
use kevtmon_history::query::record::timestamp;
use kevtmon_history::query::story::{Step, Story, StoryIncident};
use kevtmon_history::query::subject::Subject;
use kevtmon_types::escape::name;

use super::event::not_read;
use super::incident::{confidence, course, headline, ruled_out};
use super::paragraph::Paragraphs;
use super::time::Clock;
use super::{Pretty, Style, escaped, severity_style};

/// The subjects that a word matches, one per line, with a word that matches only it.
pub fn candidates(subjects: &[Subject]) -> String {
    let width = subjects.iter().map(|subject| subject.handle.chars().count()).max().unwrap_or(0);
    let line =
        |subject: &Subject| format!("  {:<width$}  {}\n", escaped(&subject.handle), escaped(&subject.label));
    subjects.iter().map(line).collect()
}

/// A story: causes, events, verdict, advice, and what could not be seen.
pub fn text(story: &Story, pretty: &Pretty, clock: &Clock) -> String {
    let mut page = Page { out: Paragraphs::new(pretty), clock };
    page.head(&format!("{} on {}", escaped(&story.subject.label), escaped(&story.node)));
    page.now(&story.now);
    page.causes(story);
    page.steps(story);
    page.suspected(story);
    page.verdict(story);
    page.unseen(&story.unseen);
    page.out.text
}

struct Page<'a> {
    out: Paragraphs<'a>,
    clock: &'a Clock,
}

impl Page<'_> {
    fn head(&mut self, words: &str) {
        self.out.put(0, Some(Style::Bold), words);
    }

    fn section(&mut self, words: &str) {
        self.out.line("");
        self.head(words);
    }

    fn dim(&mut self, indent: usize, words: &str) {
        self.out.put(indent, Some(Style::Dim), words);
    }

    fn now(&mut self, facts: &[String]) {
        if facts.is_empty() {
            return;
        }
        self.section("Known now");
        facts.iter().for_each(|fact| self.out.put(2, None, &escaped(fact)));
    }

    fn causes(&mut self, story: &Story) {
        let incidents = &story.incidents;
        if incidents.is_empty() {
            return;
        }
        self.section("Cause to effect");
        if story.incidents_omitted > 0 {
            self.dim(2, &format!("{} older incidents are left out", story.incidents_omitted));
        }
        for incident in incidents {
            for cause in &incident.caused_by {
                let kind =
                    incidents.iter().find(|other| other.id == cause.id).map(|other| escaped(&other.kind));
                let name = kind.unwrap_or_else(|| format!("incident {}", escaped(&cause.id)));
                let sure = cause.confidence.map_or("no longer remembered", confidence);
                self.dim(4, &format!("↓ {name} led to this ({sure})"));
            }
            self.incident(incident);
        }
    }

    fn incident(&mut self, incident: &StoryIncident) {
        let pretty = self.out.pretty;
        let severity = pretty.paint(severity_style(incident.severity), incident.severity.name());
        let kind = pretty.paint(Style::Bold, &escaped(&incident.kind));
        let sure = confidence(incident.confidence);
        self.out.line(&format!("  {kind}  {severity}, {sure}  [{}]", escaped(&incident.id)));
        let (closed, well_since) = (incident.closed.as_deref(), incident.well_since.as_deref());
        let mut course = course(
            &incident.opened,
            closed,
            incident.close_reason,
            well_since,
            incident.stale.as_ref(),
            incident.clock_set_ms,
            self.clock,
        );
        if let Some(repeated) = &incident.repeated {
            course.push_str(&format!(", {}", escaped(repeated)));
        }
        if incident.episode > 1 {
            course.push_str(&format!(", episode {}", incident.episode));
        }
        self.dim(4, &course);
        self.out.put(4, None, &headline(incident.status(), &incident.summary));
        if !incident.ruled_out.is_empty() {
            self.dim(4, &ruled_out(incident.status(), &incident.ruled_out));
        }
    }

    fn steps(&mut self, story: &Story) {
        if story.steps.is_empty() {
            return;
        }
        self.section("What happened");
        if story.steps_omitted > 0 {
            self.dim(2, &format!("{} lesser events are left out", story.steps_omitted));
        }
        for step in &story.steps {
            let pretty = self.out.pretty;
            let time = pretty.paint(Style::Dim, &self.clock.local_and_age(timestamp(&step.time)));
            let severity = pretty.paint(severity_style(step.severity), step.severity.name());
            self.out.line(&format!("  {time}  {severity}  {}", escaped(&step.kind)));
            self.out.put(4, None, &escaped(&step.message));
            let remark = remark(step, &story.incidents);
            if !remark.is_empty() {
                self.dim(4, &remark);
            }
            if let Some(repeated) = &step.repeated {
                let until = self.clock.local(timestamp(&repeated.until));
                self.dim(4, &format!("… {} more like it until {until}", repeated.count));
            }
        }
    }

    /// What is not judged yet; the verdict has the first, where it is about that.
    fn suspected(&mut self, story: &Story) {
        let told = usize::from(story.verdict.judged.is_some());
        let Some(rest) = story.suspected.get(told..).filter(|rest| !rest.is_empty()) else { return };
        self.section("Not judged yet");
        for suspicion in rest {
            self.out.put(2, None, &format!("{}.", escaped(&suspicion.summary)));
            let since = self.clock.local_and_age(timestamp(&suspicion.since));
            let due = self.clock.local(timestamp(&suspicion.due));
            self.dim(2, &format!("since {since} · judged at {due}: {}", escaped(&suspicion.reason)));
        }
    }

    fn verdict(&mut self, story: &Story) {
        let verdict = &story.verdict;
        self.section("Verdict");
        let mut facts = Vec::new();
        facts.extend(verdict.confidence.map(|sure| confidence(sure).to_owned()));
        if let Some(since) = &verdict.since {
            let (until, well_since) = (verdict.until.as_deref(), verdict.well_since.as_deref());
            facts.push(match verdict.open || until.is_some() || well_since.is_some() {
                true => course(
                    since,
                    until,
                    verdict.close_reason,
                    well_since,
                    verdict.stale.as_ref(),
                    verdict.clock_set_ms,
                    self.clock,
                ),
                false if verdict.judged.is_some() => {
                    format!("since {}", self.clock.local_and_age(timestamp(since)))
                }
                false => self.clock.local_and_age(timestamp(since)),
            });
        }
        if let Some(due) = &verdict.judged {
            facts.push(format!("judged at {}", self.clock.local(timestamp(due))));
        }
        self.out.put(2, None, &format!("{}.", escaped(&verdict.sentence)));
        if !facts.is_empty() {
            self.dim(2, &facts.join(" · "));
        }
        if !verdict.unwatched.is_empty() {
            self.out.put(2, None, &not_watched(&verdict.unwatched));
        }
        if !story.advice.is_empty() || verdict.stale.is_some() {
            self.section("Next");
        }
        if let Some(stale) = &verdict.stale {
            self.out.put(2, None, &format!("{}.", escaped(&stale.next)));
        }
        story.advice.iter().for_each(|advice| self.out.advice(2, advice));
    }

    fn unseen(&mut self, unseen: &[Unseen]) {
        if unseen.is_empty() {
            return;
        }
        self.section("Could not be seen");
        for one in unseen {
            let words = self.missing(one);
            self.out.put_behind(2, "- ", "- ", None, &words);
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
                Some(last) => format!("no daemon answers: nothing after {last} is known"),
                None => "no daemon answers".to_owned(),
            },
            Missing::Gap => format!("the daemon did not watch{window}"),
            Missing::Source { source, reason } => format!("{}: {}{window}", escaped(source), escaped(reason)),
            Missing::Lost { source, reason, count, exact } => {
                let least = if *exact { "" } else { "at least " };
                let records = if *count == 1 { "record" } else { "records" };
                format!("{least}{count} {records} lost in {} ({}){window}", escaped(source), escaped(reason))
            }
            Missing::Actor { kind, seq } => format!("{} (number {seq}): actor unknown", escaped(kind)),
            Missing::Holders { path, unreadable, .. } => {
                let least = format!("who else held {}", name(path));
                match &unreadable[..] {
                    [] => least,
                    [only] => format!("{least}: {}", not_read(only)),
                    [first, rest @ ..] => format!("{least}: {}, and {} more", not_read(first), rest.len()),
                }
            }
            Missing::Older { looked_at } => {
                format!("only the newest {looked_at} events of it were read")
            }
            Missing::Forgotten => match at(to) {
                Some(to) => format!("no events before {to} are kept"),
                None => "no earlier events are kept".to_owned(),
            },
        }
    }
}

/// What was not watched, for where nothing wrong was seen.
pub fn not_watched(causes: &[String]) -> String {
    format!("Not watched on this node: {}.", escaped(&causes.join("; ")))
}

/// The role of the subject, unless it is the usual one, and the incidents that the event is evidence of.
fn remark(step: &Step, incidents: &[StoryIncident]) -> String {
    let mut words: Vec<String> = Vec::new();
    let usual = step.roles.iter().any(|role| matches!(role, Role::Target | Role::Object));
    if !usual {
        words.extend(step.roles.iter().map(|role| match role {
            Role::Actor => "it did this".to_owned(),
            Role::Holder => "it holds the mount or a copy of it".to_owned(),
            Role::Server => "it serves the file system".to_owned(),
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

#[cfg(test)]
mod tests;
