//! One event, parsed. What a newer version wrote is parsed as far as possible: unknown fields are ignored, an
//! unknown kind keeps its name and message, an object that cannot be parsed is left out.

use std::sync::Arc;

use jiff::Timestamp;
use kevtmon_event::{Event, Kind, SCHEMA};
use serde_json::{Map, Value};
use thiserror::Error;

/// Fields that every event has.
const REQUIRED: [&str; 8] = ["schema", "time", "seq", "boot_id", "node", "kind", "severity", "message"];

/// An event, and the line that it was read from.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Its kind as it is written; `event.kind` is [`Kind::Unknown`] if this version does not have it.
    pub kind: String,
    /// What could be parsed.
    pub event: Event,
    /// Its JSON.
    pub line: Arc<str>,
}

/// Why a line is no event.
#[derive(Debug, Error)]
pub enum RecordError {
    /// Not JSON, or without a field that every event has.
    #[error("not an event: {source}")]
    Malformed {
        #[from]
        source: serde_json::Error,
    },
    #[error("events of schema {theirs} cannot be read by this kevtmon, which reads schema {SCHEMA}")]
    Schema { theirs: u64 },
}

impl Record {
    /// Reads a line.
    pub fn read(line: impl Into<Arc<str>>) -> Result<Self, RecordError> {
        let line = line.into();
        match serde_json::from_str::<Event>(&line) {
            Ok(event) => {
                check(event.schema.into())?;
                Ok(Self { kind: event.kind.name().to_owned(), event, line })
            }
            Err(_) => Self::read_leniently(line),
        }
    }

    fn read_leniently(line: Arc<str>) -> Result<Self, RecordError> {
        let mut rest: Map<String, Value> = serde_json::from_str(&line)?;
        if let Some(theirs) = rest.get("schema").and_then(Value::as_u64) {
            check(theirs)?;
        }
        let mut known: Map<String, Value> =
            REQUIRED.iter().filter_map(|name| Some(((*name).to_owned(), rest.remove(*name)?))).collect();
        let kind = known.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        let unknown = !Kind::ALL.iter().any(|known| known.name() == kind);
        if unknown && !kind.is_empty() {
            known.insert("kind".to_owned(), Kind::DaemonReady.name().into());
        }
        if !is_readable(&known) {
            // A severity that is not known yet is at least worth reading.
            known.insert("severity".to_owned(), "notice".into());
        }
        for (name, value) in rest {
            known.insert(name.clone(), value);
            if !is_readable(&known) {
                known.remove(&name);
            }
        }
        let mut event: Event = serde_json::from_value(Value::Object(known))?;
        if unknown {
            event.kind = Kind::Unknown;
        }
        Ok(Self { kind, event, line })
    }

    /// When it happened; the epoch where the time is not readable.
    pub fn time(&self) -> Timestamp {
        timestamp(&self.event.time)
    }
}

/// A time of the schema; the epoch where it is not readable.
pub fn timestamp(text: &str) -> Timestamp {
    text.parse().unwrap_or(Timestamp::UNIX_EPOCH)
}

fn check(theirs: u64) -> Result<(), RecordError> {
    if theirs == u64::from(SCHEMA) { Ok(()) } else { Err(RecordError::Schema { theirs }) }
}

fn is_readable(known: &Map<String, Value>) -> bool {
    serde_json::from_value::<Event>(Value::Object(known.clone())).is_ok()
}

#[cfg(test)]
mod tests {
    use kevtmon_event::Severity;
    use kevtmon_testing::sample;
    use serde_json::json;

    use super::*;

    fn newer(change: impl FnOnce(&mut Value)) -> Result<Record, RecordError> {
        let mut value = serde_json::to_value(sample::busy()).unwrap();
        change(&mut value);
        Record::read(value.to_string())
    }

    #[test]
    fn what_this_version_writes_is_read_whole() {
        for event in sample::all() {
            let record = Record::read(serde_json::to_string(&event).unwrap()).unwrap();
            assert_eq!(record.kind, event.kind.name());
            assert_eq!(record.event, Event { at: 0, ..event });
        }
    }

    #[test]
    fn an_unknown_kind_keeps_its_name_message_and_objects() {
        let record = newer(|event| event["kind"] = "disk.full".into()).unwrap();
        assert_eq!((record.kind.as_str(), record.event.kind), ("disk.full", Kind::Unknown));
        assert_eq!(record.event.message, sample::busy().message);
        assert_eq!(record.event.holders, sample::busy().holders);
    }

    #[test]
    fn unknown_fields_and_values_cost_only_themselves() {
        let record = newer(|event| {
            event["moon"] = json!({"phase": "full"});
            event["severity"] = "apocalyptic".into();
            event["holders_verdict"] = "gremlins".into();
            event["mount"]["phase"] = 3.into();
        })
        .unwrap();
        assert_eq!(record.event.severity, Severity::Notice);
        assert_eq!(record.event.holders_verdict, None);
        assert_eq!(record.event.mount, sample::busy().mount);
        assert!(record.line.contains("gremlins"));
    }

    #[test]
    fn another_schema_is_refused_naming_both() {
        for change in [json!(2), json!(7)] {
            let error = newer(|event| event["schema"] = change.clone()).unwrap_err().to_string();
            assert!(error.contains(&format!("schema {change}")) && error.contains("schema 1"), "{error}");
        }
        let error = newer(|event| {
            event["schema"] = 2.into();
            event["kind"] = "disk.full".into();
        });
        assert!(matches!(error, Err(RecordError::Schema { theirs: 2 })));
    }

    #[test]
    fn a_line_without_what_every_event_has_is_none() {
        for line in ["", "{}", "[]", "{\"schema\":1}", "null"] {
            assert!(Record::read(line).is_err(), "{line}");
        }
        assert!(
            newer(|event| {
                event.as_object_mut().unwrap().remove("kind");
            })
            .is_err()
        );
    }
}
