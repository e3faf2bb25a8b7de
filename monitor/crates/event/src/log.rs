//! A line of a log.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Details, Object};

/// A line of a log, for `rbd.attach_refused` and `log.quoted`. A program has written it: it is quoted, and is no fact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Log {
    /// The log: `/dev/kmsg`, or the path of a file.
    pub name: String,
    /// The part of the line that was recognised.
    pub text: String,
    /// Whether the program writes such a line for other failures as well.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub vague: bool,
}

impl Object for Log {
    fn describe(&self, details: &mut dyn Details) {
        details.line("log", &format!("{}: {}", self.name, self.text));
    }
}
