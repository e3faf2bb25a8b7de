//! Servers of NFS.

use kevtmon_types::is_zero::is_zero;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Details, Object, Role, Visitor, Volume};

/// A server of NFS that does not respond, for incidents of kind `nfs-server-unresponsive`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NfsServer {
    /// As the kernel names it: what is before the colon in the source of a mount.
    pub name: String,
    /// Whether calls wait until it responds, as on a hard mount; else they have failed.
    pub waits: bool,
    /// Mounts of it in the host's mount namespace: volumes of pods first, 16 at most.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub mounts: Vec<NfsServerMount>,
    /// How many more there are.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub mounts_omitted: u64,
}

/// A mount of a server of NFS.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NfsServerMount {
    /// Mount point.
    pub path: String,
    /// Mount source.
    pub source: String,
    /// The pod volume that is mounted there.
    pub volume: Option<Volume>,
}

impl Object for NfsServer {
    fn visit(&self, visitor: &mut dyn Visitor) {
        for mount in &self.mounts {
            visitor.path(Role::Object, &mount.path);
            if let Some(volume) = &mount.volume {
                visitor.pod_uid(Role::Target, &volume.pod_uid);
                visitor.volume(Role::Object, &volume.name);
            }
        }
    }

    fn describe(&self, details: &mut dyn Details) {
        let calls = if self.waits { "calls wait" } else { "calls have failed" };
        details.line("server", &format!("{} · {calls}", self.name));
        for NfsServerMount { path, source, .. } in &self.mounts {
            details.line("", &format!("{source} at {path}"));
        }
        if self.mounts_omitted > 0 {
            details.line("", &format!("{} more mounts", self.mounts_omitted));
        }
    }
}
