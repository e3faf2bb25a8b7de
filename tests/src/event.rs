//! One line of the daemon's output, as any reader of JSON sees it.

use std::fmt;

use serde_json::Value;

/// An event.
#[derive(Debug, Clone, PartialEq)]
pub struct Event(Value);

impl Event {
    /// Reads a line.
    ///
    /// # Errors
    /// When the line is not one JSON object.
    pub fn parse(line: &str) -> Result<Self, String> {
        match serde_json::from_str(line) {
            Ok(value @ Value::Object(_)) => Ok(Self(value)),
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

    /// Whether it is about this network namespace.
    #[must_use]
    pub fn is_in(&self, netns: u64) -> bool {
        self.number("/neighbor/netns").or_else(|| self.number("/link/netns")) == Some(netns)
    }

    /// Whether it is about a neighbor entry of this address in this namespace.
    #[must_use]
    pub fn is_neighbor(&self, netns: u64, address: &str) -> bool {
        self.is_in(netns) && self.text("/neighbor/address") == address
    }

    /// Whether it says that this entry is gone.
    #[must_use]
    pub fn is_deletion(&self, netns: u64, address: &str) -> bool {
        self.kind() == "neighbor.deleted" && self.is_neighbor(netns, address)
    }

    /// Whether somebody should look at it.
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
