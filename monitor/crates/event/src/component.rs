//! The kubelet and the runtimes of the node.

use kevtmon_observation::ComponentFacts;
use kevtmon_types::escape::name;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Details, Object, Role, Visitor};

/// The kubelet, a runtime or an adapter of one, for `component.*`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Component {
    /// `kubelet`, `dockerd`, `containerd`, `crio`, `cri-dockerd` or `podman`.
    pub name: String,
    /// Process id.
    pub pid: u32,
    /// Start on the boot clock, nanoseconds, to 10 ms.
    #[schemars(regex(pattern = "^[0-9]+$"))]
    pub start_time_ns: String,
    /// Its program, as the host's root shows it; `… (deleted)` where it was replaced.
    pub exe: Option<String>,
    /// Version, by the build information in the program, of a kubelet also by variables in it; absent where those tell none.
    pub version: Option<String>,
    /// The same of the one that ran before, where it was seen.
    pub previous_version: Option<String>,
    /// Exit code; absent where it runs, a signal ended it, or the kernel does not tell (before 6.15).
    pub exit_code: Option<i32>,
    /// The signal that ended it; absent likewise.
    pub signal: Option<i32>,
    /// How long it ran, seconds; absent while it runs.
    pub lifetime_s: Option<f64>,
}

impl Component {
    /// As part of a sentence: `kubelet v1.28.3 (pid 1893)`.
    pub fn label(&self) -> String {
        let version = self.version.as_ref().map_or_else(String::new, |version| format!(" {}", name(version)));
        format!("{}{version} (pid {})", name(&self.name), self.pid)
    }
}

impl Object for Component {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.process(Role::Object, self.pid, &self.name);
    }

    fn describe(&self, details: &mut dyn Details) {
        if let Some(exe) = &self.exe {
            details.line("exe", exe);
        }
    }
}

impl From<&ComponentFacts> for Component {
    fn from(facts: &ComponentFacts) -> Self {
        Self {
            name: facts.name.clone(),
            pid: facts.tgid,
            start_time_ns: facts.started_ns.to_string(),
            exe: facts.exe.clone(),
            version: facts.version.clone(),
            ..Self::default()
        }
    }
}
