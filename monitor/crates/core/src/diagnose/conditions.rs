//! Incidents that are found by state: the kind tells which conditions hold now, and all else follows from that.
//!
//! A condition is told once it has held for the time of its kind, again when it reads otherwise, and closed when it holds no more.
//! Since when it holds, what has been told of it and when to look next is kept here, over restarts too.

use std::collections::BTreeMap;
use std::fmt::Debug;

use kevtmon_event::{CloseReason, Event, Severity};
use kevtmon_observation::BootNs;
use kevtmon_types::settings::{Threshold, Thresholds};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::finding::{Findings, IncidentKey, Report};
use super::pod_network::SETTLE;
use super::{CAPACITY, Context, Diagnosis, IncidentKind, ModelChange, Suspicion, seconds};

pub(super) trait Conditions: Debug + Default + Send + Serialize + DeserializeOwned + 'static {
    const SPEC: &'static IncidentKind;
    /// For how long a condition holds before it is told.
    const HOLD: &'static Threshold;
    /// Whether it may be told and closed before every source has reported.
    const BEFORE_READY: bool = false;
    /// What it keeps of each condition.
    type Memory: Debug + Clone + Default + PartialEq + Send + Serialize + DeserializeOwned;

    fn event(&mut self, _seen: &Seen<'_, Self::Memory>, _event: &Event, _findings: &mut Findings) -> Look {
        Look::No
    }

    fn change(
        &mut self,
        seen: &Seen<'_, Self::Memory>,
        change: &ModelChange<'_>,
        findings: &mut Findings,
    ) -> Look;

    /// The conditions that hold now; `None` where that is not known, which leaves everything as it is.
    fn conditions(
        &mut self,
        seen: &Seen<'_, Self::Memory>,
        findings: &mut Findings,
    ) -> Option<Vec<Condition<Self::Memory>>>;

    /// What else follows once the incidents are up to date; returns when to look again, besides for what is not told yet.
    fn settle(&self, _seen: &Seen<'_, Self::Memory>, _findings: &mut Findings) -> Option<BootNs> {
        None
    }

    /// Whether what was told is to be told again.
    fn is_news(known: &Known<Self::Memory>, report: &Report, memory: &Self::Memory) -> bool {
        known.told.as_ref() != Some(&Reported::of(report)) || known.memory != *memory
    }

    /// Why the incident of a condition that holds no more is closed, if the kind has not closed it itself; `None` keeps it open.
    fn ended(&self, _context: &Context<'_>, _subject: &str, _memory: &Self::Memory) -> Option<CloseReason> {
        Some(CloseReason::Resolved)
    }

    /// What is told if it lasts.
    fn suspected(&self, _seen: &Seen<'_, Self::Memory>) -> Vec<Suspicion> {
        Vec::new()
    }

    /// The subject of an incident that the previous run left open, and what is kept of it.
    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<(String, Self::Memory)>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    No,
    /// In a moment: many changes come together.
    Soon,
    Now,
}

impl Look {
    pub(super) fn soon_if(matters: bool) -> Self {
        if matters { Self::Soon } else { Self::No }
    }

    pub(super) fn now_if(matters: bool) -> Self {
        if matters { Self::Now } else { Self::No }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Seen<'a, M> {
    pub(super) context: &'a Context<'a>,
    pub(super) hold: BootNs,
    known: &'a BTreeMap<String, Known<M>>,
}

impl<M> Seen<'_, M> {
    pub(super) fn is_open(&self, subject: &str) -> bool {
        self.known.get(subject).is_some_and(|known| known.told.is_some())
    }

    pub(super) fn since(&self, subject: &str) -> Option<BootNs> {
        self.known.get(subject).map(|known| known.since)
    }

    pub(super) fn memory(&self, subject: &str) -> Option<&M> {
        self.known.get(subject).map(|known| &known.memory)
    }

    pub(super) fn memories(&self) -> impl Iterator<Item = &M> {
        self.known.values().map(|known| &known.memory)
    }

    /// The subjects of those with an open incident.
    pub(super) fn open(&self) -> impl Iterator<Item = &str> {
        self.known.iter().filter(|(_, known)| known.told.is_some()).map(|(subject, _)| subject.as_str())
    }
}

/// Something that is wrong now.
#[derive(Debug)]
pub(super) struct Condition<M> {
    pub(super) subject: String,
    /// `None`: whether it still holds is not known now.
    pub(super) report: Option<Report>,
    /// Since when, where the state tells; else since it was found first.
    pub(super) since: Option<BootNs>,
    /// For how long it holds before it is told, if not for the time of the kind.
    pub(super) hold: Option<BootNs>,
    pub(super) not_before: BootNs,
    pub(super) memory: M,
}

impl<M: Default> Condition<M> {
    /// One that holds. Since when, and whether it was there at the start once it is known, is set when it is told.
    pub(super) fn new(report: Report) -> Self {
        let (subject, report) = (report.subject.clone(), Some(report));
        Self { report, ..Self::unknown(subject) }
    }

    /// One of which it is not known now whether it holds: what is known of it stays.
    pub(super) fn unknown(subject: String) -> Self {
        Self { subject, report: None, since: None, hold: None, not_before: 0, memory: M::default() }
    }
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Known<M> {
    since: BootNs,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    found_at_start: bool,
    /// What its incident says, if one is open; nothing yet of one that an earlier run opened.
    told: Option<Reported>,
    pub(super) memory: M,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Reported {
    severity: Option<Severity>,
    summary: String,
    ruled_out: Option<Vec<String>>,
}

impl Reported {
    fn of(report: &Report) -> Self {
        let (summary, ruled_out) = (report.summary.clone(), report.ruled_out.clone());
        Self { severity: Some(report.severity), summary, ruled_out }
    }
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound = "")]
struct ByState<K: Conditions> {
    #[serde(skip)]
    hold: BootNs,
    kind: K,
    #[serde(default = "BTreeMap::new", skip_serializing_if = "BTreeMap::is_empty")]
    known: BTreeMap<String, Known<K::Memory>>,
    next: Option<BootNs>,
}

pub(super) fn start<K: Conditions>(thresholds: &Thresholds) -> Box<dyn Diagnosis> {
    let hold = seconds(thresholds.get(K::HOLD));
    Box::new(ByState::<K> { hold, kind: K::default(), known: BTreeMap::new(), next: None })
}

impl<K: Conditions> ByState<K> {
    fn wake(&mut self, at: BootNs) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    fn follow(&mut self, look: Look, context: &Context<'_>, findings: &mut Findings) {
        match look {
            Look::No => {}
            Look::Soon => self.wake(context.now.saturating_add(SETTLE)),
            Look::Now => self.look(context, findings),
        }
    }

    fn look(&mut self, context: &Context<'_>, findings: &mut Findings) {
        self.next = None;
        let seen = Seen { context, hold: self.hold, known: &self.known };
        let Some(conditions) = self.kind.conditions(&seen, findings) else { return };
        let conditions: BTreeMap<String, Condition<K::Memory>> =
            conditions.into_iter().map(|condition| (condition.subject.clone(), condition)).collect();
        self.end_others(context, &conditions, findings);
        for condition in conditions.into_values() {
            self.found(context, condition, findings);
        }
        let seen = Seen { context, hold: self.hold, known: &self.known };
        self.kind.settle(&seen, findings).into_iter().for_each(|at| self.wake(at));
    }

    fn end_others(
        &mut self,
        context: &Context<'_>,
        conditions: &BTreeMap<String, Condition<K::Memory>>,
        findings: &mut Findings,
    ) {
        let is_over = |subject: &String, known: &mut Known<K::Memory>| {
            if conditions.contains_key(subject) || known.told.is_none() {
                return !conditions.contains_key(subject);
            }
            let reason = self.kind.ended(context, subject, &known.memory).filter(|_| is_judged::<K>(context));
            if let Some(reason) = reason {
                findings.close(subject.clone(), reason, None);
            }
            reason.is_some()
        };
        self.known.extract_if(.., is_over).for_each(drop);
    }

    fn found(&mut self, context: &Context<'_>, condition: Condition<K::Memory>, findings: &mut Findings) {
        let Condition { subject, report, since, hold, not_before, memory } = condition;
        let Some(mut report) = report else { return };
        if self.known.len() >= CAPACITY && !self.known.contains_key(&subject) {
            return findings.discard();
        }
        let known = self.known.entry(subject).or_insert_with(|| Known {
            since: context.now,
            found_at_start: report.found_at_start,
            told: None,
            memory: K::Memory::default(),
        });
        known.since = since.unwrap_or(known.since);
        let due = known.since.saturating_add(hold.unwrap_or(self.hold)).max(not_before);
        if due > context.now {
            // What has begun again is not told as what has lasted, also of an open one.
            if known.told.is_none() {
                known.memory = memory;
            }
            return self.wake(due);
        }
        if !is_judged::<K>(context) {
            return;
        }
        if known.told.is_some() && !K::is_news(known, &report, &memory) {
            let effect = || IncidentKey { kind: K::SPEC.name, subject: report.subject.clone() };
            report.caused_by.iter().for_each(|cause| findings.link(effect(), cause.clone()));
            return;
        }
        (known.told, known.memory) = (Some(Reported::of(&report)), memory);
        (report.first, report.found_at_start) = (known.since, known.found_at_start);
        findings.report(report);
    }
}

/// Before every source has reported, whom a condition is about may not be known yet.
fn is_judged<K: Conditions>(context: &Context<'_>) -> bool {
    K::BEFORE_READY || context.ready.is_some()
}

impl<K: Conditions> Diagnosis for ByState<K> {
    fn kind(&self) -> &'static str {
        K::SPEC.name
    }

    fn event(&mut self, context: &Context<'_>, event: &Event, findings: &mut Findings) {
        let seen = Seen { context, hold: self.hold, known: &self.known };
        let look = self.kind.event(&seen, event, findings);
        self.follow(look, context, findings);
    }

    fn change(&mut self, context: &Context<'_>, change: &ModelChange<'_>, findings: &mut Findings) {
        let seen = Seen { context, hold: self.hold, known: &self.known };
        let look = self.kind.change(&seen, change, findings);
        self.follow(look, context, findings);
    }

    fn tick(&mut self, context: &Context<'_>, findings: &mut Findings) {
        if self.next.is_some_and(|next| next <= context.now) {
            self.look(context, findings);
        }
    }

    fn suspected(&self, context: &Context<'_>) -> Vec<Suspicion> {
        self.kind.suspected(&Seen { context, hold: self.hold, known: &self.known })
    }

    fn deadline(&self) -> Option<BootNs> {
        self.next
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<String> {
        let incident = event.incident.as_deref()?;
        let (subject, memory) = self.kind.resume(context, event)?;
        let since = context.clock.boot_ns(&incident.first_seen).unwrap_or(context.now);
        let (found_at_start, told) = (incident.found_at_start, Some(Reported::default()));
        self.known.insert(subject.clone(), Known { since, found_at_start, told, memory });
        Some(subject)
    }

    fn save(&self) -> Result<Value, serde_json::Error> {
        serde_json::to_value(self)
    }

    fn restore(&mut self, saved: Value) -> Result<(), serde_json::Error> {
        *self = Self { hold: self.hold, ..serde_json::from_value(saved)? };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_event::{Confidence, WallClock};
    use kevtmon_types::settings::Unit;

    use super::*;
    use crate::diagnose::{Finding, Incidents, duplicate_pod_ip};
    use crate::test_support::model::Model;

    static AFTER: Threshold = Threshold { key: "fake", doc: "", default: 10, unit: Unit::Count };

    /// Reads the conditions out of what it is told: `a=x` holds and reads so, `a=x@7` since then, of `a?` nobody knows whether it
    /// holds.
    #[derive(Debug, Default, Serialize, Deserialize)]
    struct Fake {
        holds: Option<Vec<String>>,
    }

    impl Conditions for Fake {
        const SPEC: &'static IncidentKind = &duplicate_pod_ip::SPEC;
        const HOLD: &'static Threshold = &AFTER;
        type Memory = ();

        fn change(&mut self, _: &Seen<'_, ()>, _: &ModelChange<'_>, _: &mut Findings) -> Look {
            Look::Now
        }

        fn conditions(&mut self, seen: &Seen<'_, ()>, _: &mut Findings) -> Option<Vec<Condition<()>>> {
            let (now, at_start) = (seen.context.now, seen.context.ready.is_none());
            let condition = |text: &String| match text.split_once('=') {
                Some((subject, summary)) => {
                    let (subject, summary) = (subject.to_owned(), summary.to_owned());
                    let report = Report::new(subject, Severity::Info, Confidence::Likely, summary, now);
                    let since = report.summary.split_once('@').and_then(|(_, since)| since.parse().ok());
                    Condition { since, ..Condition::new(Report { found_at_start: at_start, ..report }) }
                }
                None => Condition::unknown(text.trim_end_matches('?').to_owned()),
            };
            Some(self.holds.as_ref()?.iter().map(condition).collect())
        }

        fn resume(&mut self, _: &Context<'_>, event: &Event) -> Option<(String, ())> {
            Some((event.message.clone(), ()))
        }
    }

    struct Run {
        fake: ByState<Fake>,
        ready: Option<BootNs>,
    }

    impl Run {
        fn new(ready: Option<BootNs>) -> Self {
            let fake = ByState { hold: 10, kind: Fake::default(), known: BTreeMap::new(), next: None };
            Self { fake, ready }
        }

        /// What is found at this time: `+` told, `-` closed, `!` discarded.
        fn at(&mut self, now: BootNs, holds: Option<&[&str]>) -> Vec<String> {
            self.fake.kind.holds = holds.map(|holds| holds.iter().map(|text| (*text).to_owned()).collect());
            self.act(now, |fake, context, findings| fake.change(context, &ModelChange::Ipam, findings))
        }

        fn tick(&mut self, now: BootNs) -> Vec<String> {
            self.act(now, |fake, context, findings| fake.tick(context, findings))
        }

        fn act(
            &mut self,
            now: BootNs,
            act: impl FnOnce(&mut ByState<Fake>, &Context<'_>, &mut Findings),
        ) -> Vec<String> {
            let (model, incidents, mut findings) =
                (Model::default(), Incidents::default(), Findings::default());
            let (node, clock, ready) = (&model.view(), WallClock::default(), self.ready);
            act(&mut self.fake, &Context { now, clock, node, incidents: &incidents, ready }, &mut findings);
            let text = |finding| match finding {
                Finding::Report(report) => {
                    let at_start = if report.found_at_start { " at start" } else { "" };
                    format!("+{}={} since {}{at_start}", report.subject, report.summary, report.first)
                }
                Finding::Close { subject, .. } => format!("-{subject}"),
                Finding::Discarded => "!".to_owned(),
                other => format!("{other:?}"),
            };
            findings.items.into_iter().map(text).collect()
        }
    }

    #[test]
    fn a_condition_is_told_once_it_has_held_anew_when_it_reads_otherwise_and_until_it_holds_no_more() {
        let mut run = Run::new(Some(0));
        assert_eq!(run.at(5, Some(&["a=x", "b=y"])), [""; 0]);
        assert_eq!((run.fake.deadline(), run.tick(14)), (Some(15), vec![]));
        // What goes in time is none, and has its time again when it comes back.
        assert_eq!(run.at(14, Some(&["a=x"])), [""; 0]);
        assert_eq!(run.at(14, Some(&["a=x", "b=y"])), [""; 0]);
        assert_eq!((run.tick(15), run.fake.deadline()), (vec!["+a=x since 5".to_owned()], Some(24)));
        assert_eq!(run.at(20, Some(&["a=x", "b=y"])), [""; 0], "it is told");
        assert_eq!(run.at(21, Some(&["a=z", "b=y"])), ["+a=z since 5"]);
        assert_eq!(run.at(24, Some(&["b=y"])), ["-a", "+b=y since 14"]);
        assert_eq!((run.at(25, Some(&[])), run.fake.deadline()), (vec!["-b".to_owned()], None));
    }

    #[test]
    fn what_begins_anew_is_not_told_before_its_time_though_the_incident_is_open() {
        let mut run = Run::new(Some(0));
        assert_eq!(run.at(15, Some(&["a=x@5"])), ["+a=x@5 since 5"]);
        assert_eq!((run.at(20, Some(&["a=z@18"])), run.fake.deadline()), (vec![], Some(28)));
        assert_eq!(run.tick(28), ["+a=z@18 since 18"]);
    }

    #[test]
    fn of_what_is_not_known_any_more_nothing_is_told_and_nothing_closed() {
        let mut run = Run::new(Some(0));
        run.at(0, Some(&["a=x", "b=y"]));
        assert_eq!(run.at(10, Some(&["a=x", "b?", "c?"])), ["+a=x since 0"]);
        assert_eq!(run.at(20, None), [""; 0]);
        assert_eq!(run.at(30, Some(&["a?", "b=y", "c?"])), ["+b=y since 0"]);
        assert_eq!(run.at(31, Some(&[])), ["-a", "-b"]);
    }

    #[test]
    fn before_every_source_has_reported_it_is_only_found() {
        let mut run = Run::new(None);
        run.at(0, Some(&["a=x"]));
        assert_eq!((run.tick(10), run.at(99, Some(&["a=x"]))), (vec![], vec![]));
        run.ready = Some(100);
        assert_eq!(run.at(100, Some(&["a=x"])), ["+a=x since 0 at start"]);
        run.ready = None;
        assert_eq!(run.at(101, Some(&[])), [""; 0]);
        run.ready = Some(102);
        assert_eq!(run.at(102, Some(&[])), ["-a"]);
    }

    #[test]
    fn what_an_earlier_run_has_told_goes_on() {
        let mut event = kevtmon_testing::sample::deletion();
        event.message = "a".into();
        let first_seen = WallClock::default().text(1);
        let incident = kevtmon_testing::numbered::incident("0", 1);
        event.incident = Some(Box::new(kevtmon_event::Incident { first_seen, ..incident }));
        let mut run = Run::new(Some(0));
        run.act(50, |fake, context, _| assert_eq!(fake.resume(context, &event), Some("a".into())));
        let restored = run.fake.save().unwrap();
        let mut run = Run::new(Some(0));
        run.fake.restore(restored).unwrap();
        assert_eq!(run.fake.hold, 10);
        assert_eq!(run.at(51, Some(&["a=x"])), ["+a=x since 1"], "it needs no time to be believed");
        assert_eq!(run.at(52, Some(&["a=x"])), [""; 0]);
        assert_eq!(run.at(53, Some(&[])), ["-a"]);
    }

    #[test]
    fn conditions_are_bounded_in_number() {
        let all: Vec<String> = (0..=CAPACITY).map(|number| format!("{number:05}=x")).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let mut run = Run::new(Some(0));
        assert_eq!(run.at(0, Some(&all)), ["!"]);
        let told = run.at(10, Some(&all));
        assert_eq!((told.len(), told.last().map(String::as_str)), (CAPACITY + 1, Some("!")));
    }
}
