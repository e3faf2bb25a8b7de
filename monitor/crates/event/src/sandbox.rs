//! The sandbox that a container of a pod needs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Details, Object};

/// A sandbox that is gone while a container of it is still there, for incidents of kind `orphan-container`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sandbox {
    /// Its container id, 64 hex digits.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    pub id: String,
    /// Whether dockershim or cri-dockerd still has a checkpoint of it, with which a kubelet takes it for one that has ended;
    /// absent where that is not known, or the runtime keeps none.
    pub checkpoint: Option<bool>,
    /// Version of the kubelet that runs, or ran last, which is what it depends on whether it starts again; absent where it
    /// is not known.
    pub kubelet_version: Option<String>,
}

impl Object for Sandbox {
    fn describe(&self, details: &mut dyn Details) {
        let checkpoint = match self.checkpoint {
            Some(true) => ", with a checkpoint",
            Some(false) => ", without a checkpoint",
            None => "",
        };
        details.line("lacks", &format!("sandbox {}{checkpoint}", self.id));
    }
}
