//! Requests and responses between client and daemon: query strings and JSON bodies.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use form_urlencoded::Serializer;
use jiff::Timestamp;
use kevtmon_types::escape::{self, to_json};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use thiserror::Error;

use super::filter::{self, EventFilter, FilterError, IncidentFilter, MAX_LIMIT, Order, Position};
use super::history::{Extent, Found, IncidentView, Page};
use super::key::Lookup;
use super::record::timestamp;
use super::time;

/// Why a request cannot be answered.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RequestError {
    /// An unknown parameter: ignoring it would give a wrong answer.
    #[error("unknown parameter {name:?}: expected one of {}", .valid.join(", "))]
    Unknown { name: String, valid: &'static [&'static str] },
    #[error("{name}: {reason}")]
    Value { name: String, reason: String },
    #[error("{name} cannot be combined with follow")]
    WithFollow { name: &'static str },
}

#[derive(Debug, Clone, PartialEq)]
pub struct EventsRequest {
    pub filter: EventFilter,
    /// Whether to stream new events.
    pub follow: bool,
}

const EVENTS: &[&str] = &[
    "kind", "severity", "since", "until", "pod", "container", "about", "about_prefix", "seq", "after",
    "boot", "order", "limit", "cursor", "follow",
];
const WHY: &[&str] = &["subject"];
/// Longest subject, in bytes: the longest path (`PATH_MAX`).
const SUBJECT_BYTES: usize = 4096;
const INCIDENTS: &[&str] =
    &["all", "kind", "pod", "severity", "since", "id", "id_prefix", "evidence", "boot"];

/// Parses the query string of `/v1/events`.
pub fn parse_events(query: &str, now: Timestamp) -> Result<EventsRequest, RequestError> {
    let mut filter = EventFilter::default();
    let mut follow = false;
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let (name, value) = (name.as_ref(), value.as_ref());
        let moment = || time::parse(value, now).map(Some).map_err(bad(name));
        match name {
            // Of a newer client: no event here has such a kind, which is an answer.
            "kind" => filter.kinds.push(match filter::kind(value) {
                Err(error @ FilterError::IncidentAsEvent { .. }) => return Err(bad(name)(error)),
                kind => kind.unwrap_or_else(|_| value.to_owned()),
            }),
            "severity" => filter.severity = Some(filter::severity(value).map_err(bad(name))?),
            "since" => filter.since = moment()?,
            "until" => filter.until = moment()?,
            "pod" => filter.pod = Some(filter::pod(value).map_err(bad(name))?),
            "container" => filter.container = Some(filter::container(value).map_err(bad(name))?),
            "about" => filter.about.push(Lookup::Exact(value.parse().map_err(bad(name))?)),
            "about_prefix" => filter.about.push(Lookup::Prefix(value.parse().map_err(bad(name))?)),
            "seq" => filter.seqs.push(value.parse().map_err(bad(name))?),
            "after" => filter.after = Some(value.parse().map_err(bad(name))?),
            "boot" => filter.boot_id = Some(value.to_owned()),
            "order" => filter.order = order(value)?,
            "limit" => filter.limit = value.parse::<usize>().map_err(bad(name))?.clamp(1, MAX_LIMIT),
            "cursor" => filter.cursor = Some(value.parse::<Position>().map_err(bad(name))?),
            "follow" => follow = flag(name, value)?,
            _ => return Err(RequestError::Unknown { name: name.to_owned(), valid: EVENTS }),
        }
    }
    let given = |name: &str| form_urlencoded::parse(query.as_bytes()).any(|(given, _)| given == name);
    let clash = ["since", "until", "seq", "order", "limit", "cursor"].into_iter().find(|name| given(name));
    match clash {
        Some(name) if follow => Err(RequestError::WithFollow { name }),
        _ => Ok(EventsRequest { filter, follow }),
    }
}

/// Writes the query string of `/v1/events`.
pub fn write_events(filter: &EventFilter, follow: bool) -> String {
    let mut query = Serializer::new(String::new());
    query.extend_pairs(filter.kinds.iter().map(|kind| ("kind", kind)));
    query.extend_pairs(filter.severity.map(|severity| ("severity", severity.name())));
    for (name, lookup) in [("pod", &filter.pod), ("container", &filter.container)] {
        query.extend_pairs(lookup.as_ref().map(|lookup| (name, &lookup.key().value)));
    }
    for lookup in &filter.about {
        let name = match lookup {
            Lookup::Exact(_) => "about",
            Lookup::Prefix(_) => "about_prefix",
        };
        query.append_pair(name, &lookup.key().to_string());
    }
    query.extend_pairs(filter.after.map(|after| ("after", after.to_string())));
    query.extend_pairs(filter.boot_id.as_ref().map(|boot| ("boot", boot)));
    if follow {
        return query.append_pair("follow", "1").finish();
    }
    query.extend_pairs(filter.since.map(|since| ("since", since.to_string())));
    query.extend_pairs(filter.until.map(|until| ("until", until.to_string())));
    query.extend_pairs(filter.seqs.iter().map(|seq| ("seq", seq.to_string())));
    query.extend_pairs((filter.order == Order::Oldest).then_some(("order", "oldest")));
    query.append_pair("limit", &filter.limit.to_string());
    query.extend_pairs(filter.cursor.map(|cursor| ("cursor", cursor.to_string()))).finish()
}

/// Parses the query string of `/v1/incidents`.
pub fn parse_incidents(query: &str, now: Timestamp) -> Result<IncidentFilter, RequestError> {
    let mut filter = IncidentFilter::default();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match name.as_ref() {
            "all" => filter.all = flag("all", &value)?,
            // One of a newer client that no incident here has is an answer: there are none.
            "kind" => filter.kinds.push(value.into_owned()),
            "pod" => filter.pod = Some(filter::pod(&value).map_err(bad("pod"))?),
            "severity" => filter.severity = Some(filter::severity(&value).map_err(bad("severity"))?),
            "since" => filter.since = Some(time::parse(&value, now).map_err(bad("since"))?),
            "id" => filter.ids.push(value.into_owned()),
            "id_prefix" => filter.id_prefix = Some(value.into_owned()),
            "evidence" => filter.evidence.push(value.parse().map_err(bad("evidence"))?),
            "boot" => filter.boot_id = Some(value.into_owned()),
            name => return Err(RequestError::Unknown { name: name.to_owned(), valid: INCIDENTS }),
        }
    }
    Ok(filter)
}

/// Writes the query string of `/v1/incidents`.
pub fn write_incidents(filter: &IncidentFilter) -> String {
    let mut query = Serializer::new(String::new());
    query.extend_pairs(filter.all.then_some(("all", "1")));
    query.extend_pairs(filter.kinds.iter().map(|kind| ("kind", kind)));
    query.extend_pairs(filter.pod.as_ref().map(|pod| ("pod", &pod.key().value)));
    query.extend_pairs(filter.severity.map(|severity| ("severity", severity.name())));
    query.extend_pairs(filter.since.map(|since| ("since", since.to_string())));
    query.extend_pairs(filter.ids.iter().map(|id| ("id", id)));
    query.extend_pairs(filter.id_prefix.as_ref().map(|prefix| ("id_prefix", prefix)));
    query.extend_pairs(filter.evidence.iter().map(|seq| ("evidence", seq.to_string())));
    query.extend_pairs(filter.boot_id.as_ref().map(|boot| ("boot", boot))).finish()
}

/// Parses the query string of `/v1/why`.
pub fn parse_why(query: &str) -> Result<String, RequestError> {
    let mut subject = String::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match name.as_ref() {
            "subject" => subject = value.trim().to_owned(),
            name => return Err(RequestError::Unknown { name: name.to_owned(), valid: WHY }),
        }
    }
    match subject.len() {
        0 => Err(bad("subject")("name a pod, container, address, path, interface or process")),
        length if length > SUBJECT_BYTES => {
            Err(bad("subject")(format!("{length} bytes are more than {SUBJECT_BYTES}")))
        }
        _ => Ok(subject),
    }
}

/// Writes the query string of `/v1/why`.
pub fn write_why(subject: &str) -> String {
    Serializer::new(String::new()).append_pair("subject", subject).finish()
}

fn bad<E: ToString>(name: &str) -> impl Fn(E) -> RequestError {
    let name = name.to_owned();
    move |error| RequestError::Value { name: name.clone(), reason: error.to_string() }
}

fn order(value: &str) -> Result<Order, RequestError> {
    match value {
        "newest" => Ok(Order::Newest),
        "oldest" => Ok(Order::Oldest),
        _ => Err(bad("order")(format!("{value:?} is not newest or oldest"))),
    }
}

fn flag(name: &str, value: &str) -> Result<bool, RequestError> {
    match value {
        "1" | "true" | "" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(bad(name)(format!("{value:?} is not 1 or 0"))),
    }
}

/// Answer of `/v1/events`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, Deserialize)]
pub struct EventsAnswer<'a> {
    /// How far the history reaches.
    pub extent: Extent,
    /// Cursor of the next page.
    pub next: Option<String>,
    /// The events, as they were emitted.
    #[serde(borrow)]
    pub events: Vec<&'a RawValue>,
}

/// Answer of `/v1/incidents`.
#[derive(Debug, Serialize, Deserialize)]
pub struct IncidentsAnswer {
    /// Each by its newest event.
    pub incidents: Vec<IncidentView>,
}

/// Answer of `/v1/version`.
#[derive(Debug, Serialize, Deserialize)]
pub struct VersionAnswer {
    /// Major version of the interface.
    pub api: u32,
    /// Version of the event schema.
    pub schema: u32,
    /// Version of the program.
    pub version: String,
    /// Git revision of the program.
    pub revision: String,
    pub node: String,
    /// State directory of the daemon, as it sees it.
    pub state_dir: PathBuf,
}

/// A page as a body. The events are copied as they are.
pub fn write_page(page: &Page, extent: Extent) -> Result<String, serde_json::Error> {
    let next = page.next.map(|next| next.to_string());
    let mut body = to_json(&EventsAnswer { extent, next, events: Vec::new() })?;
    // The list of events is the last field.
    body.truncate(body.len() - "]}".len());
    body.reserve(page.events.iter().map(|found| found.line.len() + 1).sum::<usize>() + 2);
    for (index, found) in page.events.iter().enumerate() {
        if index > 0 {
            body.push(',');
        }
        // Whoever wrote it may have escaped less.
        body.push_str(&escape::json(&found.line));
    }
    body.push_str("]}");
    Ok(body)
}

/// A body as a page.
pub fn read_page(body: &str) -> Result<(Page, Extent), serde_json::Error> {
    let answer: EventsAnswer<'_> = serde_json::from_str(body)?;
    let events = answer.events.into_iter().map(|event| found(event.get())).collect::<Result<_, _>>()?;
    let next = answer.next.map(|next| next.parse().map_err(serde::de::Error::custom)).transpose()?;
    Ok((Page { events, next }, answer.extent))
}

/// An event with its position, parsed from its JSON.
pub fn found(line: &str) -> Result<Found, serde_json::Error> {
    #[derive(Deserialize)]
    struct Place<'a> {
        time: Cow<'a, str>,
        seq: u64,
    }
    let place: Place<'_> = serde_json::from_str(line)?;
    Ok(Found { position: Position { time: timestamp(&place.time), seq: place.seq }, line: Arc::from(line) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::key::{Family, Key};
    use crate::test_support::memory;

    fn now() -> Timestamp {
        "2026-01-02T03:04:05Z".parse().unwrap()
    }

    #[test]
    fn a_question_is_read_as_it_is_written() {
        let filter = EventFilter {
            kinds: vec!["mount.busy".into(), "neighbor.".into()],
            severity: filter::severity("notice").ok(),
            since: Some(now()),
            until: Some(now()),
            pod: filter::pod("lijiaob/etcd1-0").ok(),
            container: filter::container("593d").ok(),
            about: vec![
                Lookup::exact(Family::Path, "/mnt/a b&c=d%41+é"),
                Lookup::Prefix(Key::new(Family::Container, "0")),
            ],
            seqs: vec![1, 2],
            after: Some(7),
            boot_id: Some("b".into()),
            order: Order::Oldest,
            limit: 17,
            cursor: Some(Position { time: now(), seq: 3 }),
        };
        let read = parse_events(&write_events(&filter, false), now()).unwrap();
        assert_eq!(read, EventsRequest { filter, follow: false });
        let plain = EventFilter { kinds: vec!["link.".into()], after: Some(9), ..EventFilter::default() };
        let read = parse_events(&write_events(&plain, true), now()).unwrap();
        assert_eq!(read, EventsRequest { filter: plain, follow: true });
        let incidents = IncidentFilter {
            all: true,
            kinds: vec!["volume-busy".into(), "of-a-newer-version".into()],
            severity: filter::severity("warning").ok(),
            pod: filter::pod("lijiaob/etcd1-0").ok(),
            since: Some(now()),
            ids: vec!["a b".into()],
            id_prefix: Some("a".into()),
            evidence: vec![3, 5],
            boot_id: Some("b".into()),
        };
        assert_eq!(parse_incidents(&write_incidents(&incidents), now()), Ok(incidents));
    }

    #[test]
    fn a_subject_is_read_as_it_is_written() {
        for subject in ["lijiaob/etcd1-0", "/mnt/a b&c=d%41+é", "interface:4026531833/2"] {
            assert_eq!(parse_why(&write_why(subject)).as_deref(), Ok(subject));
        }
        for query in ["", "subject=", "subject=+", "word=x", &write_why(&"x".repeat(SUBJECT_BYTES + 1))] {
            assert!(parse_why(query).is_err(), "{query}");
        }
    }

    #[test]
    fn what_cannot_be_understood_is_refused_and_named() {
        let said = |query: &str| parse_events(query, now()).unwrap_err().to_string();
        assert!(said("colour=red").contains("unknown parameter \"colour\": expected one of kind, "));
        assert!(said("severity=loud").starts_with("severity: "));
        assert!(said("kind=volume-busy").contains("incidents"));
        assert!(said("since=yesterday").contains("1h30m"));
        assert!(said("limit=-1").starts_with("limit: "));
        assert!(said("cursor=1").contains("next"));
        assert!(said("follow=1&limit=3").contains("limit cannot be combined with follow"));
        assert!(parse_incidents("every=1", now()).is_err());
    }

    #[test]
    fn every_parameter_is_documented() {
        let manual = include_str!("../../../../../docs/queries.md");
        for name in EVENTS.iter().chain(INCIDENTS).chain(WHY) {
            assert!(manual.contains(&format!("`{name}`")) || manual.contains(&format!("`{name}=")), "{name}");
        }
        for family in Family::NAMES {
            assert!(manual.contains(&format!("`{family}`")), "{family}");
        }
    }

    #[test]
    fn a_limit_is_held_within_bounds() {
        let limit = |query: &str| parse_events(query, now()).unwrap().filter.limit;
        assert_eq!((limit("limit=0"), limit("limit=999999"), limit("")), (1, MAX_LIMIT, 100));
    }

    #[test]
    fn the_place_of_an_event_is_found_whatever_the_order_of_its_fields() {
        let event = memory::event(7);
        let line = serde_json::to_string(&event).unwrap();
        let sorted = serde_json::to_value(&event).unwrap().to_string();
        assert_ne!(line, sorted);
        assert_eq!(found(&line).unwrap().position, found(&sorted).unwrap().position);
        assert!(found("{\"schema\":1,\"time\":\"x\",\"seq\":7,").is_err());
    }

    #[test]
    fn a_page_is_read_as_it_is_written_to_the_letter() {
        let events: Vec<Found> =
            (1..4).map(|seq| found(&serde_json::to_string(&memory::event(seq)).unwrap()).unwrap()).collect();
        let page = Page { next: Some(events[0].position), events };
        let extent = Extent { last_seq: 9, node: "n".into(), ..Extent::default() };
        assert_eq!(read_page(&write_page(&page, extent.clone()).unwrap()).unwrap(), (page, extent));
    }
}
