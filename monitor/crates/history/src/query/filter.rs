//! Conditions on events and incidents; order and number of events.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use kevtmon_core::diagnose::{self, KINDS};
use kevtmon_event::volume::is_uid;
use kevtmon_event::{Event, Kind, Pod, Severity};
use kevtmon_types::names::one_of;

use super::Record;
use super::history::IncidentView;
use super::key::{Family, Key, Lookup, keys};

/// Events on one page by default.
pub const DEFAULT_LIMIT: usize = 100;
/// Maximum number of events on one page.
pub const MAX_LIMIT: usize = 1_000;

/// Position of an event among all of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub time: Timestamp,
    /// Its number in its boot.
    pub seq: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.9}_{}", self.time, self.seq)
    }
}

impl FromStr for Position {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let read = || {
            let (time, seq) = text.rsplit_once('_')?;
            Some(Self { time: time.parse().ok()?, seq: seq.parse().ok()? })
        };
        read().ok_or_else(|| InvalidCursor { given: text.to_owned() })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a cursor: use the `next` of a page")]
pub struct InvalidCursor {
    pub given: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// The newest events; the next page is older.
    #[default]
    Newest,
    /// The oldest events; the next page is newer.
    Oldest,
}

/// Conditions, all of which an event must meet.
#[derive(Debug, Clone, PartialEq)]
pub struct EventFilter {
    /// Kinds, or families that end in a dot; any when empty.
    pub kinds: Vec<String>,
    pub severity: Option<Severity>,
    /// At this time or later.
    pub since: Option<Timestamp>,
    /// Before this time.
    pub until: Option<Timestamp>,
    /// A pod in some role: [`pod`] makes it.
    pub pod: Option<Lookup>,
    /// A container in some role.
    pub container: Option<Lookup>,
    /// At least one of these in some role; any when empty.
    pub about: Vec<Lookup>,
    /// One of these numbers; any when empty.
    pub seqs: Vec<u64>,
    /// A later number than this.
    pub after: Option<u64>,
    pub boot_id: Option<String>,
    pub order: Order,
    pub limit: usize,
    /// After this event, in the order.
    pub cursor: Option<Position>,
}

impl Default for EventFilter {
    fn default() -> Self {
        Self {
            kinds: Vec::new(),
            severity: None,
            since: None,
            until: None,
            pod: None,
            container: None,
            about: Vec::new(),
            seqs: Vec::new(),
            after: None,
            boot_id: None,
            order: Order::Newest,
            limit: DEFAULT_LIMIT,
            cursor: None,
        }
    }
}

impl EventFilter {
    pub fn wants_kind(&self, kind: &str) -> bool {
        self.kinds.is_empty()
            || self.kinds.iter().any(|wanted| match wanted.strip_suffix('.') {
                Some(_) => kind.starts_with(wanted.as_str()),
                None => kind == wanted,
            })
    }

    /// Whether an event at this position can be on a page that begins at the cursor.
    pub fn wants_position(&self, position: Position) -> bool {
        self.since.is_none_or(|since| position.time >= since)
            && self.until.is_none_or(|until| position.time < until)
            && self.after.is_none_or(|after| position.seq > after)
            && (self.seqs.is_empty() || self.seqs.contains(&position.seq))
            && self.cursor.is_none_or(|cursor| match self.order {
                Order::Newest => position < cursor,
                Order::Oldest => position > cursor,
            })
    }

    /// Whether the JSON of an event can meet the conditions on names: a cheap test without false negatives.
    pub fn may_match(&self, json: &str) -> bool {
        let holds = |lookup: &Lookup| json.contains(&lookup.key().needle());
        self.pod.iter().chain(&self.container).all(holds)
            && (self.about.is_empty() || self.about.iter().any(holds))
    }

    /// Whether an event meets every condition.
    pub fn matches(&self, record: &Record) -> bool {
        let event = &record.event;
        let position = Position { time: record.time(), seq: event.seq };
        if !self.wants_kind(&record.kind)
            || !self.wants_position(position)
            || self.severity.is_some_and(|least| event.severity < least)
            || self.boot_id.as_ref().is_some_and(|boot| event.boot_id != *boot)
        {
            return false;
        }
        self.wants_names(event)
    }

    /// Whether there are conditions on names.
    pub fn names_something(&self) -> bool {
        self.pod.is_some() || self.container.is_some() || !self.about.is_empty()
    }

    /// Whether an event meets the conditions on names.
    pub fn wants_names(&self, event: &Event) -> bool {
        if !self.names_something() {
            return true;
        }
        let keys = keys(event);
        let has = |lookup: &Lookup| keys.iter().any(|(key, _)| lookup.matches(key));
        self.pod.iter().chain(&self.container).all(has)
            && (self.about.is_empty() || self.about.iter().any(has))
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IncidentFilter {
    pub all: bool,
    /// Kinds; any when empty.
    pub kinds: Vec<String>,
    pub severity: Option<Severity>,
    /// A pod that is target or actor: [`pod`] makes it.
    pub pod: Option<Lookup>,
    /// Last seen at this time or later.
    pub since: Option<Timestamp>,
    /// These, open or closed; any when empty.
    pub ids: Vec<String>,
    /// Open or closed ones whose id begins like this.
    pub id_prefix: Option<String>,
    /// Open or closed ones with one of these events as evidence; any when empty.
    pub evidence: Vec<u64>,
    /// The boot that `evidence` is of; any when absent.
    pub boot_id: Option<String>,
}

impl IncidentFilter {
    pub fn wants(&self, view: &IncidentView) -> bool {
        let (by_id, by_evidence) = (!self.ids.is_empty(), !self.evidence.is_empty());
        let begins = |prefix: &String| view.incident.id.starts_with(prefix);
        let rests =
            |view: &IncidentView| view.incident.evidence.iter().any(|seq| self.evidence.contains(seq));
        (self.all || by_id || by_evidence || self.id_prefix.is_some() || view.is_open())
            && self.id_prefix.as_ref().is_none_or(begins)
            && (!by_id || self.ids.contains(&view.incident.id))
            && (!by_evidence || rests(view) && self.boot_id.as_ref().is_none_or(|boot| view.boot_id == *boot))
            && self.since.is_none_or(|since| view.last_seen() >= since)
            && (self.kinds.is_empty() || self.kinds.contains(&view.incident.kind))
            && self.severity.is_none_or(|least| view.incident.severity >= least)
            && self.pod.as_ref().is_none_or(|lookup| view.pods().any(|pod| names_pod(lookup, pod)))
    }

    /// The same without conditions that can be true of one update of an incident and not of a later one.
    pub fn of_any_update(&self) -> Self {
        Self { all: true, since: None, kinds: Vec::new(), severity: None, pod: None, ..self.clone() }
    }
}

fn names_pod(lookup: &Lookup, pod: &Pod) -> bool {
    let named = |text: &str| {
        text.split_once('/').is_some_and(|(namespace, name)| {
            pod.namespace.as_deref() == Some(namespace) && pod.name.as_deref() == Some(name)
        })
    };
    let Key { family, value } = lookup.key();
    match family {
        Family::Uid => pod.uid == *value,
        _ => named(value),
    }
}

/// Why a condition cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    #[error("{given:?} is not a kind of event: expected one of {}, or a family such as `neighbor.`", kinds())]
    Kind { given: String },
    #[error("{given:?} is a kind of incident, not of event: try `incidents --kind {given}`")]
    IncidentAsEvent { given: String },
    #[error("{given:?} is not a kind of incident: expected one of {}", KINDS.map(|kind| kind.name).join(", "))]
    IncidentKind { given: String },
    #[error("{given:?} is not a severity: expected {}", one_of(Severity::NAMES))]
    Severity { given: String },
    #[error("{given:?} is not a pod: expected NAMESPACE/NAME, or a uid")]
    Pod { given: String },
    #[error("{given:?} is not a container: expected the first digits of its id")]
    Container { given: String },
}

fn kinds() -> String {
    Kind::ALL.map(Kind::name).join(", ")
}

/// A kind, or the beginning of some with its dot: `neighbor.`, `neighbor.*`, `neighbor`.
pub fn kind(text: &str) -> Result<String, FilterError> {
    let text = text.strip_suffix('*').unwrap_or(text);
    let family = format!("{}.", text.strip_suffix('.').unwrap_or(text));
    if Kind::ALL.iter().any(|kind| kind.name() == text) {
        Ok(text.to_owned())
    } else if Kind::ALL.iter().any(|kind| kind.name().starts_with(&family)) {
        Ok(family)
    } else if diagnose::kind(text).is_some() {
        Err(FilterError::IncidentAsEvent { given: text.to_owned() })
    } else {
        Err(FilterError::Kind { given: text.to_owned() })
    }
}

/// A kind of incident.
pub fn incident_kind(text: &str) -> Result<String, FilterError> {
    match diagnose::kind(text).is_some() {
        true => Ok(text.to_owned()),
        false => Err(FilterError::IncidentKind { given: text.to_owned() }),
    }
}

/// A severity by its name.
pub fn severity(text: &str) -> Result<Severity, FilterError> {
    Severity::ALL
        .into_iter()
        .find(|severity| severity.name() == text)
        .ok_or_else(|| FilterError::Severity { given: text.to_owned() })
}

/// A pod by `NAMESPACE/NAME` or uid.
pub fn pod(text: &str) -> Result<Lookup, FilterError> {
    let is_name = |part: &str| !part.is_empty() && !part.contains('/');
    match text.split_once('/') {
        Some((namespace, name)) if is_name(namespace) && is_name(name) => {
            Ok(Lookup::exact(Family::Pod, text))
        }
        None if is_uid(text) => Ok(Lookup::exact(Family::Uid, text)),
        _ => Err(FilterError::Pod { given: text.to_owned() }),
    }
}

/// A container by the first digits of its id.
pub fn container(text: &str) -> Result<Lookup, FilterError> {
    let is_prefix =
        (1..=64).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    match is_prefix {
        true => Ok(Lookup::Prefix(Key::new(Family::Container, text))),
        false => Err(FilterError::Container { given: text.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_testing::sample;

    use super::*;

    fn record(event: &Event) -> Record {
        Record::read(serde_json::to_string(event).unwrap()).unwrap()
    }

    /// Kinds of the samples that a filter lets through; both ways to match must agree.
    fn passing(filter: &EventFilter) -> Vec<String> {
        let records = sample::all().iter().map(record).collect::<Vec<_>>();
        for record in records.iter().filter(|record| filter.matches(record)) {
            assert!(filter.may_match(&record.line), "{filter:?} {}", record.line);
        }
        records.into_iter().filter(|record| filter.matches(record)).map(|record| record.kind).collect()
    }

    #[test]
    fn nothing_asked_is_everything() {
        assert_eq!(passing(&EventFilter::default()).len(), sample::all().len());
    }

    #[test]
    fn a_kind_is_itself_or_a_family() {
        let of =
            |text: &str| passing(&EventFilter { kinds: vec![kind(text).unwrap()], ..EventFilter::default() });
        assert_eq!(of("mount.busy"), ["mount.busy"]);
        for family in ["neighbor.", "neighbor", "neighbor.*"] {
            assert_eq!(of(family), ["neighbor.deleted"], "{family}");
        }
        let error = kind("volume-busy").unwrap_err().to_string();
        assert!(error.contains("`incidents --kind volume-busy`"), "{error}");
        let error = kind("neighbour.deleted").unwrap_err().to_string();
        assert!(error.contains("neighbor.deleted"), "{error}");
        for wrong in ["", ".", "*", "neigh"] {
            assert!(kind(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_severity_is_the_least_one() {
        let least = |text: &str| {
            passing(&EventFilter { severity: severity(text).ok(), ..EventFilter::default() }).len()
        };
        assert!(least("warning") < least("notice") && least("notice") < least("info"));
        assert!(severity("loud").unwrap_err().to_string().contains("critical"));
    }

    #[test]
    fn a_pod_is_found_by_name_and_by_uid_whatever_its_part() {
        for text in ["lijiaob/etcd1-0", "3f0f6a0e-2f6a-4d4e-9d1f-1f2f3f4f5f6f"] {
            let filter = EventFilter { pod: pod(text).ok(), ..EventFilter::default() };
            assert_eq!(
                passing(&filter),
                ["neighbor.deleted", "mount.busy", "container.recreated", "cni.finished"]
            );
        }
        for wrong in ["etcd1-0", "a/b/c", "/b", "a/", ""] {
            assert!(pod(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_container_is_found_by_its_first_digits() {
        let filter = EventFilter { container: container("593d8a89ee37").ok(), ..EventFilter::default() };
        let all = [
            "neighbor.deleted", "mount.busy", "events.throttled", "container.exited", "container.recreated",
            "cni.finished",
        ];
        assert_eq!(passing(&filter), all);
        for wrong in ["", "etcd", "593D", &"a".repeat(65)] {
            assert!(container(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn conditions_are_all_to_be_met_and_one_name_of_several_suffices() {
        let lookups = vec![Lookup::exact(Family::Pid, "977"), Lookup::exact(Family::Pid, "1")];
        let filter = EventFilter { about: lookups, ..EventFilter::default() };
        assert_eq!(passing(&filter), ["mount.busy"]);
        assert_eq!(passing(&EventFilter { kinds: vec!["link.".into()], ..filter }), Vec::<String>::new());
    }

    #[test]
    fn a_window_includes_its_begin_and_not_its_end() {
        let time: Timestamp = "2026-01-02T03:04:05.678901234Z".parse().unwrap();
        let at = |since, until| passing(&EventFilter { since, until, ..EventFilter::default() }).len();
        assert_eq!(at(Some(time), None), sample::all().len());
        assert_eq!(at(None, Some(time)), 0);
    }

    #[test]
    fn a_cursor_goes_on_in_its_order_and_is_read_as_it_is_written() {
        let position = |nanos, seq| Position { time: Timestamp::from_nanosecond(nanos).unwrap(), seq };
        let cursor = position(1_700_000_000_123_456_789, 5);
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        assert!("5".parse::<Position>().is_err());
        let older = EventFilter { cursor: Some(cursor), ..EventFilter::default() };
        assert!(older.wants_position(position(1_700_000_000_123_456_789, 4)));
        assert!(!older.wants_position(cursor));
        let newer = EventFilter { order: Order::Oldest, ..older };
        assert!(newer.wants_position(position(1_700_000_000_123_456_789, 6)));
        assert!(!newer.wants_position(cursor));
    }
}
