//! Collects what a story is made of, with questions that each name what they want.

use std::collections::{BTreeMap, BTreeSet};

use super::blind::Watch;
use super::filter::{EventFilter, IncidentFilter, MAX_LIMIT, Order};
use super::history::{History, HistoryError, IncidentView};
use super::record::{Record, timestamp};
use super::story::{self, Material, Story};
use super::subject::{self, Subject};
use crate::event::EVIDENCE_MAX;

/// Most events that tell what a word means.
const PROBED: usize = 200;
/// Most events of a subject, the newest.
const RECORDS: usize = 500;
/// Causes of causes of causes …
const DEPTH: usize = 8;
/// Most incidents of a story.
const INCIDENTS: usize = 32;

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The story.
    Told(Box<Story>),
    /// The word can mean all of these.
    Ambiguous(Vec<Subject>),
    /// Nobody has heard of it.
    Unknown,
}

/// Tells the story of what a word means.
///
/// # Errors
/// When the history cannot be read.
pub fn why(history: &dyn History, word: &str) -> Result<Outcome, HistoryError> {
    let state = history.state()?;
    let about = |lookups, limit| EventFilter { about: lookups, limit, ..EventFilter::default() };
    let (probed, _) = records(history, about(subject::probes(word), PROBED))?;
    let mut subjects = subject::candidates(word, state.as_ref(), &probed);
    let subject = match subjects.len() {
        0 => return Ok(Outcome::Unknown),
        1 => subjects.remove(0),
        _ => return Ok(Outcome::Ambiguous(subjects)),
    };
    let (records, truncated) = records(history, about(subject.lookups.clone(), RECORDS))?;
    let incidents = incidents(history, &records)?;
    let evidence = evidence(history, &records, &incidents)?;
    let begin = records.iter().chain(&evidence).map(Record::time);
    let begin = begin.chain(incidents.iter().map(|view| timestamp(&view.incident.first_seen))).min();
    let said = match begin {
        Some(begin) => {
            let kinds = vec!["daemon.".to_owned(), "events.lost".to_owned()];
            let before =
                EventFilter { kinds: kinds.clone(), until: Some(begin), limit: 1, ..EventFilter::default() };
            let since = EventFilter { kinds, since: Some(begin), limit: MAX_LIMIT, ..EventFilter::default() };
            let mut said = self::records(history, before)?.0;
            said.extend(self::records(history, since)?.0);
            said
        }
        None => Vec::new(),
    };
    let extent = history.extent()?;
    let watch = Watch { said: &said, state: state.as_ref(), extent: &extent };
    let material = Material { subject, records, truncated, evidence, incidents, watch };
    Ok(Outcome::Told(Box::new(story::tell(material))))
}

/// Events of one page, and whether there are more.
fn records(history: &dyn History, filter: EventFilter) -> Result<(Vec<Record>, bool), HistoryError> {
    let page = history.events(&filter)?;
    let records = page.events.into_iter().map(|found| Record::read(found.line)).collect::<Result<_, _>>()?;
    Ok((records, page.next.is_some()))
}

/// Incidents that the events are part of, and what led to them.
fn incidents(history: &dyn History, records: &[Record]) -> Result<Vec<IncidentView>, HistoryError> {
    let seqs: BTreeSet<(&str, u64)> =
        records.iter().map(|record| (record.event.boot_id.as_str(), record.event.seq)).collect();
    let rests_on_them = |view: &IncidentView| {
        view.incident.evidence.iter().any(|seq| seqs.contains(&(view.boot_id.as_str(), *seq)))
    };
    let mut known: BTreeMap<String, IncidentView> = BTreeMap::new();
    if let Some(since) = records.iter().map(Record::time).min() {
        let filter = IncidentFilter { all: true, since: Some(since), ids: Vec::new() };
        for view in history.incidents(&filter)?.into_iter().filter(rests_on_them) {
            known.insert(view.incident.id.clone(), view);
        }
    }
    let mut wanted: Vec<String> =
        records.iter().filter_map(|record| Some(record.event.incident.as_ref()?.id.clone())).collect();
    for _ in 0..DEPTH {
        wanted.extend(known.values().flat_map(|view| view.incident.caused_by.clone()));
        wanted.retain(|id| !known.contains_key(id));
        wanted.sort_unstable();
        wanted.dedup();
        wanted.truncate(INCIDENTS.saturating_sub(known.len()));
        if wanted.is_empty() {
            break;
        }
        let ids = std::mem::take(&mut wanted);
        for view in history.incidents(&IncidentFilter { all: true, since: None, ids })? {
            known.insert(view.incident.id.clone(), view);
        }
    }
    Ok(known.into_values().collect())
}

/// What the incidents rest on and is not there yet.
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
    let mut evidence = Vec::new();
    for (boot_id, seqs) in wanted {
        let seqs: Vec<u64> = seqs.into_iter().collect();
        // A question has to fit into a request.
        for seqs in seqs.chunks(200) {
            let filter = EventFilter {
                seqs: seqs.to_vec(),
                boot_id: Some(boot_id.to_owned()),
                order: Order::Oldest,
                limit: seqs.len(),
                ..EventFilter::default()
            };
            evidence.extend(self::records(history, filter)?.0);
        }
    }
    Ok(evidence)
}
