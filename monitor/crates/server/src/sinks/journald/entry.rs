//! An event as an entry of the journal, in its native protocol: a line for each field, and fields with line breaks by length.

use kevtmon_event::{Event, Severity, SharedEvent};
use kevtmon_types::escape::Escaped;

use super::catalog;

/// Of the sink in the journal: `journalctl -t kevtmon`.
const IDENTIFIER: &str = "kevtmon";

/// Appends the entry of an event.
pub(super) fn write(event: &SharedEvent, entry: &mut Vec<u8>) {
    let mut entry = Entry(entry);
    entry.shown("MESSAGE", &event.message);
    entry.field("PRIORITY", priority(event.severity));
    entry.field("MESSAGE_ID", &catalog::message_id(event));
    entry.field("SYSLOG_IDENTIFIER", IDENTIFIER);
    entry.field("KEVTMON_KIND", event.kind.name());
    entry.field("KEVTMON_SEVERITY", event.severity.name());
    entry.field("KEVTMON_SEQ", &event.seq.to_string());
    entry.field("KEVTMON_TIME", &event.time);
    entry.shown("KEVTMON_NODE", &event.node);
    if let Some(incident) = &event.incident {
        entry.field("KEVTMON_INCIDENT", &incident.id);
        entry.field("KEVTMON_INCIDENT_KIND", &incident.kind);
    }
    parties(event, &mut entry);
    entry.field("KEVTMON_EVENT", event.line());
}

/// Who is affected, and who did it. A pod that only a label claims is none.
fn parties(event: &Event, entry: &mut Entry<'_>) {
    if let Some(target) = &event.target {
        if let Some(pod) = target.pod.as_ref().filter(|pod| !pod.claimed) {
            entry.known("K8S_POD_NAME", pod.name.as_deref());
            entry.known("K8S_NAMESPACE_NAME", pod.namespace.as_deref());
            entry.shown("K8S_POD_UID", &pod.uid);
        }
        if let Some(container) = &target.container {
            entry.shown("CONTAINER_ID", &container.id);
            entry.known("CONTAINER_NAME", container.name.as_deref());
        }
    }
    let Some(actor) = &event.actor else { return };
    entry.field("ACTOR_PID", &actor.pid.to_string());
    entry.shown("ACTOR_COMM", &actor.comm);
    entry.known("ACTOR_EXE", actor.exe.as_deref());
    entry.known("ACTOR_UNIT", actor.unit.as_deref());
    entry.known("ACTOR_CONTAINER_ID", actor.container.as_ref().map(|container| container.id.as_str()));
    if let Some(pod) = actor.pod.as_ref().filter(|pod| !pod.claimed) {
        entry.known("ACTOR_K8S_POD_NAME", pod.name.as_deref());
        entry.known("ACTOR_K8S_NAMESPACE_NAME", pod.namespace.as_deref());
    }
}

/// As of syslog(3).
fn priority(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical => "2",
        Severity::Warning => "4",
        Severity::Notice => "5",
        Severity::Info => "6",
        Severity::Debug => "7",
    }
}

struct Entry<'a>(&'a mut Vec<u8>);

impl Entry<'_> {
    /// A field that kevtmon chooses itself.
    fn field(&mut self, name: &str, value: &str) {
        self.0.extend_from_slice(name.as_bytes());
        if value.contains('\n') {
            self.0.push(b'\n');
            let length = u64::try_from(value.len()).unwrap_or(u64::MAX);
            self.0.extend_from_slice(&length.to_le_bytes());
        } else {
            self.0.push(b'=');
        }
        self.0.extend_from_slice(value.as_bytes());
        self.0.push(b'\n');
    }

    /// A field that others choose: nothing in it controls a terminal.
    fn shown(&mut self, name: &str, value: &str) {
        self.field(name, &Escaped(value).to_string());
    }

    fn known(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.shown(name, value);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use kevtmon_testing::sample;

    use super::*;

    /// The fields of an entry, as the journal reads them.
    pub(in crate::sinks::journald) fn fields(mut entry: &[u8]) -> BTreeMap<String, String> {
        let mut fields = BTreeMap::new();
        while !entry.is_empty() {
            let end = entry.iter().position(|byte| [b'=', b'\n'].contains(byte)).unwrap();
            let name = String::from_utf8(entry[..end].to_vec()).unwrap();
            let is_line = entry[end] == b'=';
            entry = &entry[end + 1..];
            let length = if is_line {
                entry.iter().position(|byte| *byte == b'\n').unwrap()
            } else {
                let (length, rest) = entry.split_first_chunk().unwrap();
                entry = rest;
                usize::try_from(u64::from_le_bytes(*length)).unwrap()
            };
            let value = String::from_utf8(entry[..length].to_vec()).unwrap();
            assert_eq!(entry[length], b'\n');
            entry = &entry[length + 1..];
            assert!(fields.insert(name, value).is_none(), "each field comes once");
        }
        fields
    }

    fn of(event: Event) -> BTreeMap<String, String> {
        let mut entry = Vec::new();
        write(&event.into(), &mut entry);
        fields(&entry)
    }

    #[test]
    fn an_entry_has_the_fields_that_people_filter_by() {
        let event = sample::deletion();
        let actor = event.actor.clone().unwrap();
        let fields = of(event.clone());
        for (name, value) in [
            ("MESSAGE", event.message.as_str()),
            ("PRIORITY", "4"),
            ("SYSLOG_IDENTIFIER", "kevtmon"),
            ("KEVTMON_KIND", "neighbor.deleted"),
            ("KEVTMON_SEQ", "42"),
            ("K8S_NAMESPACE_NAME", "lijiaob"),
            ("K8S_POD_NAME", "etcd1-0"),
            ("K8S_POD_UID", "3f0f6a0e-2f6a-4d4e-9d1f-1f2f3f4f5f6f"),
            ("ACTOR_PID", &actor.pid.to_string()),
            ("ACTOR_EXE", actor.exe.as_deref().unwrap()),
        ] {
            assert_eq!(fields.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert_eq!(fields["MESSAGE_ID"].len(), 32);
        assert_eq!(fields["CONTAINER_ID"].len(), 64);
        let whole: Event = serde_json::from_str(&fields["KEVTMON_EVENT"]).unwrap();
        assert_eq!(whole.seq, 42);
    }

    #[test]
    fn every_event_is_one_entry_and_every_name_is_one_that_the_journal_takes() {
        for event in sample::all() {
            for name in of(event).keys() {
                let is_valid = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
                assert!(
                    name.bytes().all(is_valid) && name.starts_with(|c: char| c.is_ascii_uppercase()),
                    "{name}"
                );
                assert!(name.len() <= 64, "{name}");
            }
        }
    }

    #[test]
    fn what_others_choose_makes_no_field_and_controls_no_terminal() {
        let mut event = sample::deletion();
        event.message = "gone\nPRIORITY=0\x1b[2J".into();
        event.actor.as_mut().unwrap().comm = "a\nb".into();
        let fields = of(event);
        assert_eq!(fields["MESSAGE"], "gone\\nPRIORITY=0\\x1b[2J");
        assert_eq!((fields["ACTOR_COMM"].as_str(), fields["PRIORITY"].as_str()), ("a\\nb", "4"));
    }

    #[test]
    fn a_pod_that_is_only_claimed_is_not_named() {
        let mut event = sample::deletion();
        event.target.as_mut().unwrap().pod.as_mut().unwrap().claimed = true;
        assert!(!of(event).contains_key("K8S_POD_NAME"));
    }

    #[test]
    fn a_value_with_line_breaks_is_written_by_its_length() {
        let mut entry = Vec::new();
        Entry(&mut entry).field("A", "b\nc");
        assert_eq!(entry, b"A\n\x03\0\0\0\0\0\0\0b\nc\n");
    }

    #[test]
    fn severities_are_priorities() {
        let all: Vec<&str> = Severity::ALL.into_iter().map(priority).collect();
        assert_eq!(all, ["7", "6", "5", "4", "2"]);
    }
}
