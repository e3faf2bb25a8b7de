//! Calls of CNI plugins.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::wording::short_id;
use super::{Details, Object, Pod, Role, Visitor};

/// A call of CNI plugins, for `cni.*`: one by a runtime or kubelet, however many plugins it was chained of or delegated to.
/// Root of the node made it, in the host's mount namespace or in that of a runtime.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cni {
    /// `ADD`, `DEL`, `CHECK`, `GC`.
    pub command: String,
    /// `CNI_CONTAINERID`: of a pod that of its sandbox, 64 hex digits.
    pub container_id: Option<String>,
    /// `CNI_NETNS`, a path; absent where it is empty, as of a `DEL` after the sandbox has ended.
    pub netns: Option<String>,
    /// Network namespace that the path led to, inode number.
    pub netns_inode: Option<u32>,
    /// `CNI_IFNAME`.
    pub ifname: Option<String>,
    /// Namespace of the pod, as the caller names it.
    pub namespace: Option<String>,
    /// Name of the pod, as the caller names it.
    pub pod: Option<String>,
    /// Path of the plugin: of the one that failed, else of the first of a chain, of the last for `DEL`, and of the
    /// loopback's only where there is no other.
    pub plugin: String,
    /// Paths of all plugins of a chain, in the order in which they ran; absent for one.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub plugins: Vec<String>,
    /// Exit code of the plugin, for `cni.finished`.
    pub exit_code: Option<u32>,
    /// Signal that ended it.
    pub signal: Option<u32>,
    /// From the start of the first plugin to the end of the last one, milliseconds.
    pub duration_ms: Option<u64>,
    /// Whether a `DEL` is of an older sandbox than the pod's current one; absent where the pod or that one is not known.
    pub stale: Option<bool>,
    /// Whether the environment of the plugin is longer than what is read of one.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub truncated: bool,
}

impl Cni {
    /// Whether it has failed; `None` as long as it runs.
    pub fn failed(&self) -> Option<bool> {
        match (self.exit_code, self.signal) {
            (None, None) => None,
            (code, signal) => Some(signal.is_some() || code != Some(0)),
        }
    }

    /// The pod that the caller names, `NAMESPACE/NAME`.
    pub fn pod_name(&self) -> Option<String> {
        Some(format!("{}/{}", self.namespace.as_ref()?, self.pod.as_ref()?))
    }
}

impl Object for Cni {
    fn visit(&self, visitor: &mut dyn Visitor) {
        if self.namespace.is_some() {
            visitor.pod(
                Role::Target,
                &Pod { namespace: self.namespace.clone(), name: self.pod.clone(), ..Pod::default() },
            );
        }
    }

    fn describe(&self, details: &mut dyn Details) {
        let mut words = vec![self.command.clone()];
        words.extend(self.container_id.as_deref().map(|id| short_id(id).to_owned()));
        words.extend(self.ifname.clone());
        words.extend(self.netns.as_ref().map(|netns| format!("in {netns}")));
        words.push(format!(
            "by {}",
            if self.plugins.is_empty() { self.plugin.clone() } else { self.plugins.join(", ") }
        ));
        words.extend(self.exit_code.map(|code| format!("exit code {code}")));
        words.extend(self.signal.map(|signal| format!("signal {signal}")));
        words.extend(self.duration_ms.map(|ms| format!("{ms} ms")));
        words.extend(self.stale.filter(|stale| *stale).map(|_| "not the pod's current sandbox".to_owned()));
        details.line("cni", &words.join(" · "));
    }
}
