//! Containers that were made instead of others.

use kevtmon_types::escape::name;
use kevtmon_types::names::named;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::wording::short_id;
use super::{Container, Details, Object, Role, Visitor};

/// How a container of a pod was made instead of another one, for `container.recreated`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Recreation {
    /// Name of the container in its pod.
    pub name: String,
    /// Why, by what differs between the two.
    pub reason: RecreationReason,
    /// The container before.
    pub previous: Container,
    /// How many containers of this name the pod had before: the kubelet's restart count.
    pub attempt: Option<u32>,
    /// The same of the container before.
    pub previous_attempt: Option<u32>,
    /// Hash of the specification that it was made by, as the kubelet computed it.
    pub spec_hash: Option<SpecHash>,
    /// The same of the container before.
    pub previous_spec_hash: Option<SpecHash>,
    /// Container id of the sandbox of the container before, where it is another one.
    pub previous_sandbox_id: Option<String>,
    /// Whether the sandbox is the same; absent where that is not known.
    pub same_sandbox: Option<bool>,
    /// It happened before the daemon started.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub found_at_start: bool,
}

/// A hash of the specification of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SpecHash {
    /// In hexadecimal, as in the container's labels.
    #[schemars(regex(pattern = "^[0-9a-f]+$"))]
    pub hex: String,
    /// In decimal, as in the kubelet's log.
    #[schemars(regex(pattern = "^[0-9]+$"))]
    pub decimal: String,
}

impl From<u64> for SpecHash {
    fn from(hash: u64) -> Self {
        Self { hex: format!("{hash:x}"), decimal: hash.to_string() }
    }
}

named! {
    /// Why a container was made instead of another one.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    RecreationReason {
        /// Its image is the same, and the kubelet computed another hash of its specification.
        SpecHashChanged = "spec-hash-changed",
        /// Its specification is the same: the container before had ended, or was ended.
        Exited = "exited",
        /// Its image is another one.
        ImageChanged = "image-changed",
        /// What it was made by is not known.
        Unknown = "unknown",
    }
}

impl Object for Recreation {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.container(Role::Peer, &self.previous);
    }

    fn describe(&self, details: &mut dyn Details) {
        let id = short_id(&self.previous.id);
        let hash = |hash: &Option<SpecHash>| {
            hash.as_ref().map_or_else(String::new, |hash| format!(", hash {} ({})", hash.hex, hash.decimal))
        };
        let attempt =
            |attempt: Option<u32>| attempt.map_or_else(String::new, |attempt| format!(", attempt {attempt}"));
        let before = format!("{id}{}{}", attempt(self.previous_attempt), hash(&self.previous_spec_hash));
        details.line("before", &before);
        details
            .line("now", &format!("{}{}{}", name(&self.name), attempt(self.attempt), hash(&self.spec_hash)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_written_as_the_label_has_it_and_as_the_kubelet_logs_it() {
        let hash = SpecHash::from(1_559_107_639);
        assert_eq!((hash.hex.as_str(), hash.decimal.as_str()), ("5cee1837", "1559107639"));
    }
}
