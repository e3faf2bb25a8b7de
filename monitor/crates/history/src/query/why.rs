//! The story of a word: resolves it, then collects its events, incidents, their causes and evidence.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use kevtmon_core::diagnose::Suspicion;
use kevtmon_core::state::NodeState;
use kevtmon_event::{EVIDENCE_MAX, Event, Kind, Severity, Shared};
use serde::{Deserialize, Serialize};

use super::coverage::Coverage;
use super::filter::{EventFilter, IncidentFilter, MAX_LIMIT, Order};
use super::history::{Extent, History, HistoryError, IncidentView};
use super::key::keys;
use super::live;
use super::namespace::of_one_namespace;
use super::record::{Record, timestamp};
use super::stale;
use super::story::{self, Parts, Story};
use super::subject::{self, Subject, SubjectKind};

/// Maximum number of events that a word is resolved by.
const PROBED: usize = 200;
/// Maximum number of events of a subject, the newest.
const RECORDS: usize = 500;
/// Maximum length of a chain of causes.
const DEPTH: usize = 8;
/// Maximum number of incidents of a story, and of their causes.
const INCIDENTS: usize = 32;
/// Maximum number of sequence numbers or ids in one query.
const BATCH: usize = 200;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// What happened to the subject.
    Story(Box<Story>),
    /// The word matches each of these.
    Ambiguous(Vec<Subject>),
    /// Neither the model nor any event names it.
    Unknown(Nothing),
}

/// Where a word that nothing is known of was searched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Nothing {
    /// How far the events reach.
    #[serde(flatten)]
    pub extent: Extent,
    /// What is not watched on this node, so that it would not be known.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub unwatched: Vec<String>,
}

/// The story of the subject that a word resolves to.
pub fn why(history: &dyn History, word: &str) -> Result<Outcome, HistoryError> {
    let state = history.state()?;
    let of_incidents = incident_subjects(history, word)?;
    if let [only] = &of_incidents[..]
        && (only.handle == word || only.handle.ends_with(&format!(":{word}")))
    {
        return tell(history, state.as_ref(), only.clone(), None);
    }
    let about = |lookups, limit| EventFilter { about: lookups, limit, ..EventFilter::default() };
    let (probed, _) = records(history, about(subject::probes(word), PROBED))?;
    let mut subjects = of_incidents;
    subjects.extend(subject::candidates(word, state.as_ref(), &probed));
    match subjects.len() {
        0 => {}
        1 => return tell(history, state.as_ref(), subjects.remove(0), None),
        _ => return Ok(Outcome::Ambiguous(subjects)),
    }
    if let Some(event) = subject::seq(word).map(|seq| event_of(history, seq)).transpose()?.flatten() {
        return tell(history, state.as_ref(), subject::event_subject(&event), Some(event));
    }
    let extent = history.extent()?;
    let coverage = Coverage { daemon_events: &[], state: state.as_ref(), extent: &extent };
    Ok(Outcome::Unknown(Nothing { unwatched: coverage.unwatched(), extent }))
}

/// Incidents whose id is the word, or begins with it.
fn incident_subjects(history: &dyn History, word: &str) -> Result<Vec<Subject>, HistoryError> {
    let prefix = word.strip_prefix("incident:").unwrap_or(word);
    if !subject::is_id_prefix(prefix) {
        return Ok(Vec::new());
    }
    let filter = IncidentFilter { id_prefix: Some(prefix.to_owned()), ..IncidentFilter::default() };
    let mut kinds: BTreeMap<String, String> = BTreeMap::new();
    for view in history.incidents(&filter)? {
        kinds.insert(view.incident.id, view.incident.kind);
    }
    Ok(kinds.iter().map(|(id, kind)| subject::incident_subject(id, kind)).collect())
}

/// The newest event of a number.
fn event_of(history: &dyn History, seq: u64) -> Result<Option<Record>, HistoryError> {
    let filter = EventFilter { seqs: vec![seq], limit: 1, ..EventFilter::default() };
    Ok(records(history, filter)?.0.pop())
}

/// The story of a subject; of one event, where it is only that.
fn tell(
    history: &dyn History,
    state: Option<&NodeState>,
    subject: Subject,
    event: Option<Record>,
) -> Result<Outcome, HistoryError> {
    let about = |kinds: &[&str], limit| EventFilter {
        about: subject.lookups.clone(),
        kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
        limit,
        ..EventFilter::default()
    };
    let (records, truncated, of_incidents) = match event {
        Some(event) => (vec![event], false, Vec::new()),
        None => {
            let (records, truncated) = records(history, about(&[], RECORDS))?;
            let records = of_one_namespace(records, &subject, state);
            // Whatever else happened, no incident is left out for it.
            let of_incidents = if truncated {
                of_one_namespace(self::records(history, about(&["incident."], RECORDS))?.0, &subject, state)
            } else {
                Vec::new()
            };
            (records, truncated, of_incidents)
        }
    };
    let mut ids: BTreeSet<String> = records.iter().chain(&of_incidents).filter_map(incident_id).collect();
    if subject.kind == SubjectKind::Incident {
        ids.extend(subject.lookups.iter().map(|lookup| lookup.key().value.clone()));
    }
    let (mut incidents, incidents_omitted) = incidents(history, &records, ids)?;
    let extent = history.extent()?;
    match state {
        Some(state) => live::apply(&mut incidents, state),
        None => stale::without_daemon(&mut incidents, &extent),
    }
    let evidence = evidence(history, &records, &incidents)?;
    let begin = records.iter().chain(&evidence).map(Record::time);
    let begin = begin.chain(incidents.iter().map(|view| timestamp(&view.incident.first_seen))).min();
    let daemon_events = match begin {
        Some(begin) => {
            let kinds = vec!["daemon.".to_owned(), "events.lost".to_owned()];
            let before =
                EventFilter { kinds: kinds.clone(), until: Some(begin), limit: 1, ..EventFilter::default() };
            let since = EventFilter { kinds, since: Some(begin), limit: MAX_LIMIT, ..EventFilter::default() };
            let mut events = self::records(history, before)?.0;
            events.extend(self::records(history, since)?.0);
            events
        }
        None => Vec::new(),
    };
    let coverage = Coverage { daemon_events: &daemon_events, state, extent: &extent };
    let suspected = state.map_or_else(Vec::new, |state| suspected(state, &subject, &records));
    let parts =
        Parts { subject, records, truncated, evidence, incidents, incidents_omitted, suspected, coverage };
    Ok(Outcome::Story(Box::new(story::build(parts))))
}

/// What is not judged yet and concerns the subject, by what it names or by an event that shows it.
fn suspected(state: &NodeState, subject: &Subject, records: &[Record]) -> Vec<Suspicion> {
    let concerns = |suspicion: &&Suspicion| {
        let named = Event {
            target: suspicion.target.clone().map(Shared::new),
            neighbor: suspicion.neighbor.clone().map(Box::new),
            ..Event::new(Kind::Unknown, Severity::Info, String::new())
        };
        let is_shown = |Record { event, .. }: &Record| {
            event.boot_id == state.boot_id && suspicion.evidence.contains(&event.seq)
        };
        keys(&named).iter().any(|(key, _)| subject.lookups.iter().any(|lookup| lookup.matches(key)))
            || records.iter().any(is_shown)
    };
    state.suspected.iter().filter(concerns).cloned().collect()
}

fn incident_id(record: &Record) -> Option<String> {
    Some(record.event.incident.as_ref()?.id.clone())
}

/// Events of one page, and whether there are more.
fn records(history: &dyn History, filter: EventFilter) -> Result<(Vec<Record>, bool), HistoryError> {
    let page = history.events(&filter)?;
    let records = page.events.into_iter().map(|found| Record::read(found.line)).collect::<Result<_, _>>()?;
    Ok((records, page.next.is_some()))
}

/// Incidents that the events belong to, the open ones and the newest if there are many, with their causes; and how
/// many were left out.
fn incidents(
    history: &dyn History,
    records: &[Record],
    ids: BTreeSet<String>,
) -> Result<(Vec<IncidentView>, usize), HistoryError> {
    let mut known: BTreeMap<(String, String), IncidentView> = BTreeMap::new();
    let mut take = |filter: IncidentFilter| -> Result<(), HistoryError> {
        let views = history.incidents(&filter)?;
        known.extend(views.into_iter().map(|view| (view.episode(), view)));
        Ok(())
    };
    let mut seqs: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for Record { event, .. } in records {
        seqs.entry(&event.boot_id).or_default().push(event.seq);
    }
    for (boot_id, seqs) in seqs {
        for seqs in seqs.chunks(BATCH) {
            let boot_id = Some(boot_id.to_owned());
            take(IncidentFilter { evidence: seqs.to_vec(), boot_id, ..IncidentFilter::default() })?;
        }
    }
    for ids in ids.into_iter().collect::<Vec<_>>().chunks(BATCH) {
        take(IncidentFilter { ids: ids.to_vec(), ..IncidentFilter::default() })?;
    }
    let mut views: Vec<IncidentView> = known.into_values().collect();
    views.sort_by_key(|view| Reverse((view.is_open(), view.last_seen())));
    let omitted = views.len().saturating_sub(INCIDENTS);
    views.truncate(INCIDENTS);
    for _ in 0..DEPTH {
        let is_known = |id: &&String| views.iter().any(|view| view.incident.id == **id);
        let causes = views.iter().flat_map(|view| &view.incident.caused_by);
        let unknown: BTreeSet<&String> = causes.filter(|id| !is_known(id)).collect();
        let ids: Vec<String> = unknown.into_iter().take(INCIDENTS).cloned().collect();
        if ids.is_empty() || views.len() >= 2 * INCIDENTS {
            break;
        }
        let causes = history.incidents(&IncidentFilter { ids, ..IncidentFilter::default() })?;
        if causes.is_empty() {
            break;
        }
        views.extend(causes);
    }
    Ok((views, omitted))
}

/// Evidence of the incidents that is not among the records.
fn evidence(
    history: &dyn History,
    records: &[Record],
    incidents: &[IncidentView],
) -> Result<Vec<Record>, HistoryError> {
    let mut wanted: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for view in incidents {
        wanted.entry(&view.boot_id).or_default().extend(view.incident.evidence.iter().take(EVIDENCE_MAX));
    }
    for record in records {
        if let Some(seqs) = wanted.get_mut(record.event.boot_id.as_str()) {
            seqs.remove(&record.event.seq);
        }
    }
    numbered(history, wanted)
}

/// The events of these numbers of these boots, as far as they are kept.
pub(super) fn numbered(
    history: &dyn History,
    wanted: BTreeMap<&str, BTreeSet<u64>>,
) -> Result<Vec<Record>, HistoryError> {
    let mut found = Vec::new();
    for (boot_id, seqs) in wanted {
        let seqs: Vec<u64> = seqs.into_iter().collect();
        for seqs in seqs.chunks(BATCH) {
            let mut filter = EventFilter {
                seqs: seqs.to_vec(),
                boot_id: Some(boot_id.to_owned()),
                order: Order::Oldest,
                limit: seqs.len(),
                ..EventFilter::default()
            };
            loop {
                let page = history.events(&filter)?;
                for event in page.events {
                    found.push(Record::read(event.line)?);
                }
                filter.cursor = page.next;
                if filter.cursor.is_none() {
                    break;
                }
            }
        }
    }
    Ok(found)
}
