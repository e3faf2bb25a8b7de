//! Reads a recording line by line, in bounded memory. Unknown lines are reported with their number; only a file that is
//! no recording, or of another version, is an error.

use std::io::{self, BufRead, Read};

use kevtmon_observation::Observation;
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use super::format::{BUNDLE, BundleHeader, Header, RECORDING, VERSION};

/// Longest line, in bytes: the containers of a large node are one line.
const LINE_MAX: u64 = 64 << 20;
/// Most characters of an unknown line that are quoted.
const QUOTED: usize = 60;

/// Why a recording cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    #[error("cannot read it")]
    Io(#[from] io::Error),
    #[error("it is empty")]
    Empty,
    #[error("line 1 is not the header of a recording or bundle: {found}")]
    Foreign { found: String },
    #[error(
        "line {line}: {format} of version {found}; this kevtmon {} reads version {VERSION}",
        kevtmon_types::build_info::VERSION
    )]
    Version { line: u64, format: String, found: u64 },
    #[error("line {line}: the header is damaged")]
    Header { line: u64, source: serde_json::Error },
    #[error("line {line} is longer than {} MiB", LINE_MAX >> 20)]
    TooLong { line: u64 },
}

/// A line of a recording.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    Bundle(Box<BundleHeader>),
    Part(Box<Header<'static>>),
    Observation(Observation),
    /// An unknown line.
    Skipped(Skipped),
    /// The writer did not finish this line, the last one or the last before another part.
    Cut {
        /// Counted from 1.
        line: u64,
    },
}

/// An unknown line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Counted from 1.
    pub line: u64,
    pub what: String,
}

#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    /// Of the line in `text`, counted from 1.
    number: u64,
    text: Vec<u8>,
    /// Whether `text` was not handed out yet.
    peeked: bool,
}

impl<R: BufRead> Reader<R> {
    /// Reads a recording or bundle.
    pub fn new(input: R) -> Self {
        Self { input, number: 0, text: Vec::new(), peeked: false }
    }

    /// The next line; `None` at the end.
    /// Errors: when it cannot be read, or is of another version. Nothing can be read after that.
    pub fn next_line(&mut self) -> Result<Option<Line>, ReadError> {
        if !self.advance()? {
            return if self.number == 0 { Err(ReadError::Empty) } else { Ok(None) };
        }
        let line = self.number;
        if line > 1
            && let Ok(observation) = serde_json::from_slice(&self.text)
        {
            return Ok(Some(Line::Observation(observation)));
        }
        let Ok(value) = serde_json::from_slice::<Value>(&self.text) else {
            // A writer may be killed while it writes the first line, too.
            if line == 1 && !self.text.starts_with(b"{\"format\":\"kevtmon-") {
                return Err(self.foreign());
            }
            let what = format!("not JSON: {}", self.quoted());
            // A writer that is killed in the middle of a line leaves it; its successor begins another part.
            let last = !self.advance()? || self.text.starts_with(b"{\"format\":");
            self.peeked = !self.text.is_empty();
            return Ok(Some(if last { Line::Cut { line } } else { Line::Skipped(Skipped { line, what }) }));
        };
        if let Some(format) = value.get("format").and_then(Value::as_str)
            && (format == RECORDING || format == BUNDLE)
        {
            return self.header(format, &value).map(Some);
        }
        if line == 1 {
            return Err(self.foreign());
        }
        Ok(Some(Line::Skipped(Skipped { line, what: self.what(&value) })))
    }

    fn header(&self, format: &str, value: &Value) -> Result<Line, ReadError> {
        let line = self.number;
        let found = value.get("version").and_then(Value::as_u64).unwrap_or(0);
        if found != u64::from(VERSION) {
            return Err(ReadError::Version { line, format: format.to_owned(), found });
        }
        let damaged = |source| ReadError::Header { line, source };
        if format == BUNDLE {
            Box::deserialize(value).map(Line::Bundle).map_err(damaged)
        } else {
            Box::deserialize(value).map(Line::Part).map_err(damaged)
        }
    }

    /// What a line holds that is JSON, but none of ours.
    fn what(&self, value: &Value) -> String {
        let fact = value.get("fact").and_then(|fact| match fact {
            Value::Object(fact) => fact.keys().next().map(String::as_str),
            fact => fact.as_str(),
        });
        let error = serde_json::from_slice::<Observation>(&self.text).err();
        match (fact, error) {
            (Some(fact), Some(error)) if error.to_string().starts_with("unknown variant") => {
                format!("unknown kind of fact {fact:?}")
            }
            (Some(fact), Some(error)) => format!("a fact {fact:?} that is not understood: {error}"),
            _ => format!("no observation: {}", self.quoted()),
        }
    }

    fn foreign(&self) -> ReadError {
        ReadError::Foreign { found: self.quoted() }
    }

    fn quoted(&self) -> String {
        let text = String::from_utf8_lossy(&self.text);
        let start: String = text.chars().take(QUOTED).collect();
        if start.len() < text.len() { format!("{start:?}…") } else { format!("{start:?}") }
    }

    /// Reads the next line that is not blank into `text`, without its newline; false at the end.
    fn advance(&mut self) -> Result<bool, ReadError> {
        if std::mem::take(&mut self.peeked) {
            return Ok(true);
        }
        loop {
            self.text.clear();
            let line = self.number + 1;
            if self.input.by_ref().take(LINE_MAX).read_until(b'\n', &mut self.text)? == 0 {
                return Ok(false);
            }
            self.number = line;
            if self.text.last() == Some(&b'\n') {
                self.text.pop();
            } else if u64::try_from(self.text.len()).is_ok_and(|length| length >= LINE_MAX) {
                return Err(ReadError::TooLong { line });
            }
            if !self.text.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = r#"{"format":"kevtmon-recording","version":1,"started":"","settings":{"node":"n","boot_id":"b","version":"0","host_netns":1,"cmdline":"host","sources":{}}}"#;
    const TICK: &str = r#"{"at":5,"fact":"tick"}"#;

    fn read(text: &str) -> Result<Vec<Line>, ReadError> {
        let mut reader = Reader::new(text.as_bytes());
        std::iter::from_fn(|| reader.next_line().transpose()).collect()
    }

    fn complaint(text: &str) -> String {
        read(text).unwrap_err().to_string()
    }

    #[test]
    fn a_header_needs_no_more_than_what_a_core_needs() {
        let lines = read(&format!("{HEADER}\n\n{TICK}\n")).unwrap();
        assert!(matches!(&lines[..], [Line::Part(header), Line::Observation(_)] if header.part == 0));
    }

    #[test]
    fn another_version_is_refused_naming_both() {
        let text = HEADER.replace("\"version\":1,", "\"version\":2,");
        assert_eq!(
            complaint(&text),
            format!(
                "line 1: kevtmon-recording of version 2; this kevtmon {} reads version 1",
                kevtmon_types::build_info::VERSION
            )
        );
        assert!(complaint(&format!("{HEADER}\n{TICK}\n{text}\n")).starts_with("line 3: "));
    }

    #[test]
    fn what_is_no_recording_is_refused_with_how_it_begins() {
        assert_eq!(complaint(""), "it is empty");
        for text in ["hello\n", TICK, "[1]", "{\"format\":\"other\"}"] {
            assert!(complaint(text).contains("line 1 is not the header"), "{text}");
        }
        assert!(complaint(&HEADER.replace("\"node\":\"n\",", "")).contains("line 1: the header is damaged"));
    }

    #[test]
    fn an_unknown_kind_of_fact_is_told_with_its_line_and_the_rest_is_read() {
        let lines = read(&format!("{HEADER}\n{{\"at\":1,\"fact\":{{\"flood\":{{}}}}}}\n{TICK}\n")).unwrap();
        assert_eq!(
            lines[1],
            Line::Skipped(Skipped { line: 2, what: "unknown kind of fact \"flood\"".into() })
        );
        assert!(matches!(lines[2], Line::Observation(_)));
    }

    #[test]
    fn a_known_fact_that_lacks_something_says_what() {
        let lines = read(&format!("{HEADER}\n{{\"at\":1,\"fact\":{{\"netns_gone\":{{}}}}}}\n")).unwrap();
        let Line::Skipped(skipped) = &lines[1] else { panic!("{lines:?}") };
        assert!(skipped.what.contains("netns_gone") && skipped.what.contains("missing field"), "{skipped:?}");
    }

    #[test]
    fn a_last_line_that_was_cut_is_said_to_be() {
        for cut in 1..TICK.len() {
            let lines = read(&format!("{HEADER}\n{TICK}\n{}", &TICK[..cut])).unwrap();
            assert_eq!(lines[2], Line::Cut { line: 3 }, "{cut}");
        }
    }

    #[test]
    fn a_cut_line_in_the_middle_is_one_only_before_another_part() {
        let lines = read(&format!("{HEADER}\n{{\"at\":\n{HEADER}\n{TICK}\n")).unwrap();
        assert!(matches!(&lines[1..], [Line::Cut { line: 2 }, Line::Part(_), Line::Observation(_)]));
        let lines = read(&format!("{HEADER}\n{{\"at\":\n{TICK}\n")).unwrap();
        assert!(matches!(&lines[1..], [Line::Skipped(_), Line::Observation(_)]), "{lines:?}");
    }

    #[test]
    fn a_first_line_that_was_cut_spoils_no_part_that_follows() {
        let cut = &HEADER[..HEADER.len() - 20];
        let lines = read(&format!("{cut}\n{HEADER}\n{TICK}\n")).unwrap();
        assert!(matches!(&lines[..], [Line::Cut { line: 1 }, Line::Part(_), Line::Observation(_)]));
        assert_eq!(read(cut).unwrap(), [Line::Cut { line: 1 }]);
    }

    #[test]
    fn text_that_is_not_unicode_is_skipped() {
        let mut bytes = format!("{HEADER}\n").into_bytes();
        bytes.extend_from_slice(b"\xff\xfe\n{\"at\":5,\"fact\":\"tick\"}\n");
        let mut reader = Reader::new(&bytes[..]);
        reader.next_line().unwrap();
        assert!(matches!(reader.next_line().unwrap(), Some(Line::Skipped(Skipped { line: 2, .. }))));
        assert!(matches!(reader.next_line().unwrap(), Some(Line::Observation(_))));
    }
}
