//! An entry, as a line of JSON: `journalctl --output=json` writes a value as text, as numbers where it has bytes that do not show
//! in a terminal, as null where it is longer than 4 KiB, and as a list where the field is there more than once (`output_json`
//! of systemd's src/shared/logs-show.c).

use std::borrow::Cow;

use serde::Deserialize;

use super::Moment;

/// Longest line that is looked at: the message as numbers takes a third, and before systemd 236 all fields are printed.
const LINE_MAX: usize = 64 * 1024;
/// The program prints such lines of its own between the entries.
const REMARK: &[u8] = b"-- ";

#[derive(Debug, Default)]
pub(super) struct Lines {
    begun: Vec<u8>,
    /// Whether more came than is kept.
    is_cut: bool,
}

impl Lines {
    /// Takes what was read. `on_line` tells how many values of a line are malformed; a line that is too long is one.
    pub(super) fn take(&mut self, bytes: &[u8], malformed: &mut u64, mut on_line: impl FnMut(&[u8]) -> u64) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, is_end) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            self.is_cut |= self.begun.len() + text.len() > LINE_MAX;
            if !self.is_cut {
                self.begun.extend_from_slice(text);
            }
            if is_end {
                let Self { begun, is_cut } = std::mem::take(self);
                let is_entry = !begun.is_empty() && !begun.starts_with(REMARK);
                *malformed += match (is_cut, is_entry) {
                    (true, _) => 1,
                    (false, true) => on_line(&begun),
                    (false, false) => 0,
                };
            }
        }
    }
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Value {
    Text(String),
    Bytes(Vec<u8>),
    Several(Vec<Self>),
    TooLong(()),
    #[default]
    #[serde(skip)]
    Absent,
}

impl Value {
    fn is(&self, text: &str) -> bool {
        matches!(self, Self::Text(value) if value == text)
    }

    fn number(&self) -> Option<u64> {
        if let Self::Text(text) = self { text.parse().ok() } else { None }
    }

    /// Hands its lines on; how many values are no text or too long.
    fn lines(&self, on_line: &mut dyn FnMut(&str)) -> u64 {
        let text = match self {
            Self::Text(text) => Cow::Borrowed(text.as_str()),
            Self::Bytes(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Cow::Borrowed(text),
                Err(_) => return 1,
            },
            Self::Several(values) => return values.iter().map(|value| value.lines(on_line)).sum(),
            Self::TooLong(()) => return 1,
            Self::Absent => return 0,
        };
        text.lines().for_each(on_line);
        0
    }
}

/// An entry: of all its fields those that are wanted.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Entry {
    #[serde(rename = "MESSAGE", default)]
    message: Value,
    /// The unit of the process that wrote it, by its control group.
    #[serde(rename = "_SYSTEMD_UNIT", default)]
    unit: Value,
    #[serde(rename = "_BOOT_ID", default)]
    boot: Value,
    /// When journald got it, microseconds.
    #[serde(rename = "__MONOTONIC_TIMESTAMP", default)]
    monotonic: Value,
}

impl Entry {
    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        // A list of values would do as well.
        serde_json::from_slice(line).ok().filter(|_| line.starts_with(b"{"))
    }

    pub(super) fn is_of(&self, unit: &str) -> bool {
        self.unit.is(unit)
    }

    /// Whether it was there before that moment, as far as it tells.
    pub(super) fn is_before(&self, since: &Moment) -> bool {
        let is_of_boot = self.boot == Value::Absent || self.boot.is(&since.boot);
        !is_of_boot || self.monotonic.number().is_some_and(|monotonic| monotonic < since.monotonic)
    }

    /// Whether it is so many microseconds old.
    pub(super) fn is_late(&self, now: &Moment, by: u64) -> bool {
        self.monotonic.number().is_some_and(|monotonic| monotonic.saturating_add(by) < now.monotonic)
    }

    /// Hands the lines of its message on; how many values are no text or too long.
    pub(super) fn lines(&self, on_line: &mut dyn FnMut(&str)) -> u64 {
        self.message.lines(on_line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(entry: &str) -> (Vec<String>, u64) {
        let mut lines = Vec::new();
        let malformed =
            Entry::parse(entry.as_bytes()).unwrap().lines(&mut |line| lines.push(line.to_owned()));
        (lines, malformed)
    }

    /// As systemd 252 has written them.
    #[test]
    fn a_message_is_text_numbers_a_list_or_nothing() {
        for (message, expected, malformed) in [
            ("\"world\"", &["world"][..], 0),
            ("[97,9,98,27,91,49,109,99]", &["a\tb\u{1b}[1mc"], 0),
            ("[\"one\",\"two\"]", &["one", "two"], 0),
            ("[\"one\",[255,254],null]", &["one"], 2),
            ("\"first\\nsecond\"", &["first", "second"], 0),
            ("null", &[], 1),
            ("[255,254,97]", &[], 1),
            ("\"\"", &[], 0),
        ] {
            let entry =
                format!("{{\"MESSAGE\":{message},\"_SYSTEMD_UNIT\":\"kubelet.service\",\"PRIORITY\":\"6\"}}");
            let expected = expected.iter().map(|&line| line.to_owned()).collect();
            assert_eq!(lines(&entry), (expected, malformed), "{message}");
        }
        assert_eq!(lines("{\"_SYSTEMD_UNIT\":\"kubelet.service\"}"), (Vec::new(), 0));
    }

    #[test]
    fn what_is_no_entry_is_none() {
        let deep = "[".repeat(100_000);
        let deep = format!("{{\"MESSAGE\":{deep}");
        for line in ["", "x", "[]", "{", "{\"MESSAGE\":7}", "{\"MESSAGE\":[256]}", "{\"MESSAGE\":{}}", &deep]
        {
            assert_eq!(Entry::parse(line.as_bytes()), None, "{}", &line[..line.len().min(40)]);
        }
        assert_eq!(Entry::parse(b"{\"MESSAGE\":\"\xff\"}"), None);
    }

    #[test]
    fn only_the_field_of_journald_tells_the_unit() {
        let is_of = |entry: &str| Entry::parse(entry.as_bytes()).unwrap().is_of("kubelet.service");
        assert!(is_of("{\"_SYSTEMD_UNIT\":\"kubelet.service\"}"));
        for entry in [
            "{\"UNIT\":\"kubelet.service\"}",
            "{\"SYSTEMD_UNIT\":\"kubelet.service\",\"_SYSTEMD_UNIT\":\"init.scope\"}",
            "{\"_SYSTEMD_UNIT\":[\"kubelet.service\",\"init.scope\"]}",
            "{\"_SYSTEMD_UNIT\":null}",
        ] {
            assert!(!is_of(entry), "{entry}");
        }
    }

    #[test]
    fn what_was_there_before_or_was_written_long_ago_is_old() {
        let at = |boot: &str, monotonic: u64| {
            let entry = format!("{{\"_BOOT_ID\":\"{boot}\",\"__MONOTONIC_TIMESTAMP\":\"{monotonic}\"}}");
            Entry::parse(entry.as_bytes()).unwrap()
        };
        let moment = |monotonic| Moment { boot: "b1".into(), monotonic };
        let before = [at("b1", 99), at("b1", 100), at("b0", 100)].map(|entry| entry.is_before(&moment(100)));
        assert_eq!(before, [true, false, true]);
        let late = [at("b1", 39), at("b1", 40)].map(|entry| entry.is_late(&moment(100), 60));
        assert_eq!(late, [true, false]);
        let without = Entry::parse(b"{}").unwrap();
        assert!(!without.is_before(&moment(100)) && !without.is_late(&moment(100), 60));
    }

    #[test]
    fn lines_are_put_together_and_those_that_are_too_long_are_left_out_and_counted() {
        let (mut lines, mut malformed, mut found) = (Lines::default(), 0, Vec::new());
        let long = vec![b'x'; LINE_MAX + 1];
        for part in [&b"a"[..], b"b\n\n-- Journal begins --\nc\n", &long, b"y", b"\nd\nrest"] {
            lines.take(part, &mut malformed, |line| {
                found.push(String::from_utf8_lossy(line).into_owned());
                u64::from(line == b"d")
            });
        }
        assert_eq!((found, malformed), (["ab", "c", "d"].map(str::to_owned).to_vec(), 2));
    }
}
