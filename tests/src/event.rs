//! One line of the daemon's output, as any reader of JSON sees it.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::netns::made_at;

/// An event. A storm has a hundred thousand, and whoever waits looks at all of them again and again: a copy shares the value.
#[derive(Debug, Clone, PartialEq)]
pub struct Event(Arc<Value>);

impl Event {
    /// Reads a line.
    ///
    /// # Errors
    /// When the line is not one JSON object.
    pub fn parse(line: &str) -> Result<Self, String> {
        match serde_json::from_str(line) {
            Ok(value @ Value::Object(_)) => Ok(Self(Arc::new(value))),
            Ok(_) => Err(format!("not an object: {line}")),
            Err(error) => Err(format!("{error}: {line}")),
        }
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.text("/kind")
    }

    /// How bad it is.
    #[must_use]
    pub fn severity(&self) -> &str {
        self.text("/severity")
    }

    /// A value by JSON pointer.
    #[must_use]
    pub fn get(&self, pointer: &str) -> Option<&Value> {
        self.0.pointer(pointer)
    }

    /// Whether there is a value.
    #[must_use]
    pub fn has(&self, pointer: &str) -> bool {
        self.get(pointer).is_some()
    }

    /// A string; empty when absent.
    #[must_use]
    pub fn text(&self, pointer: &str) -> &str {
        self.get(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// A number.
    #[must_use]
    pub fn number(&self, pointer: &str) -> Option<u64> {
        self.get(pointer).and_then(Value::as_u64)
    }

    /// A list; empty when absent.
    #[must_use]
    pub fn list(&self, pointer: &str) -> &[Value] {
        self.get(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// When it happened, in seconds since the beginning of 1970.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.seconds_of("/time")
    }

    /// The same of another time in it.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn seconds_of(&self, pointer: &str) -> f64 {
        let text = self.text(pointer);
        let parts = text.split(['-', 'T', ':', 'Z']);
        let fields = parts.filter_map(|part| part.parse::<f64>().ok()).collect::<Vec<_>>();
        let [year, month, day, hour, minute, second] = fields[..] else { panic!("not a time: {text}") };
        // A year begins in March here, so that the leap day is its last.
        let months: f64 = year * 12.0 + month - 3.0;
        let (year, month) = ((months / 12.0).floor(), months % 12.0);
        let leaps = (year / 4.0).floor() - (year / 100.0).floor() + (year / 400.0).floor();
        let days = year * 365.0 + leaps + ((month * 153.0 + 2.0) / 5.0).floor() + day - 719_469.0;
        ((days * 24.0 + hour) * 60.0 + minute) * 60.0 + second
    }

    /// Whether it is this transition, such as `incident.opened`, of an incident of this kind.
    #[must_use]
    pub fn is_incident(&self, transition: &str, kind: &str) -> bool {
        self.kind() == transition && self.text("/incident/kind") == kind
    }

    /// Whether it is about this network namespace, and not about a former one of that number.
    #[must_use]
    pub fn is_in(&self, netns: u64) -> bool {
        self.number("/neighbor/netns").or_else(|| self.number("/link/netns")) == Some(netns)
            && self.seconds() >= made_at(netns)
    }

    /// Whether it is about a neighbor entry of this address in this namespace.
    #[must_use]
    pub fn is_neighbor(&self, netns: u64, address: &str) -> bool {
        self.is_in(netns) && self.text("/neighbor/address") == address
    }

    /// Whether it reports that this entry is gone.
    #[must_use]
    pub fn is_deletion(&self, netns: u64, address: &str) -> bool {
        self.kind() == "neighbor.deleted" && self.is_neighbor(netns, address)
    }

    /// Whether the holders of its mount were looked for, as far as there was time until something was found.
    #[must_use]
    pub fn has_holders_told(&self) -> bool {
        let is_cut = || {
            let reasons = self.list("/holders_unreadable").iter().filter_map(|spot| spot["reason"].as_str());
            reasons.into_iter().any(|reason| reason == "the time for one scan ran out")
        };
        match self.text("/holders_verdict") {
            "skipped" => false,
            "incomplete" => !is_cut(),
            _ => true,
        }
    }

    /// Its message, whether or not it completes an earlier one.
    #[must_use]
    pub fn sentence(&self) -> &str {
        let message = self.text("/message");
        message.strip_suffix(" (found later)").unwrap_or(message)
    }

    /// Whether its severity is at least `warning`.
    #[must_use]
    pub fn alarms(&self) -> bool {
        matches!(self.severity(), "warning" | "critical")
    }

    /// Panics with the whole event unless a value is what it should be.
    #[track_caller]
    pub fn expect(&self, pointer: &str, expected: impl Into<Value>) {
        let expected = expected.into();
        assert_eq!(self.get(pointer), Some(&expected), "{pointer} of {self}");
    }

    /// Panics with the whole event when there is a value.
    #[track_caller]
    pub fn expect_none(&self, pointer: &str) {
        assert_eq!(self.get(pointer), None, "{pointer} of {self}");
    }

    /// Panics unless the actor was seen in the kernel and is this process.
    #[track_caller]
    pub fn expect_actor(&self, pid: u32, comm: &str) {
        self.expect("/actor/source", "kernel");
        self.expect("/actor/confidence", "certain");
        self.expect("/actor/pid", pid);
        self.expect("/actor/comm", comm);
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_over_leap_days_and_centuries() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0.0),
            ("1999-12-31T23:59:59.5Z", 946_684_799.5),
            ("2000-02-29T12:00:00Z", 951_825_600.0),
            ("2023-03-01T00:00:00.000000000Z", 1_677_628_800.0),
            ("2024-12-31T00:00:01Z", 1_735_603_201.0),
        ] {
            let event = Event(Arc::new(serde_json::json!({ "time": text })));
            assert!((event.seconds() - seconds).abs() < 1e-3, "{text}: {}", event.seconds());
        }
    }
}
