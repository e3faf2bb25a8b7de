//! Mounts that are left in another mount namespace after the host has unmounted them.

use kevtmon_observation::{BindMount, MountIdentity, Propagation};
use kevtmon_types::escape::name;
use kevtmon_types::names::names;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::wording::{actor_phrase, container_label, pod_label, short_id};
use super::{Actor, Confidence, Container, Details, Object, Pod, Role, StagedVolume, Visitor, Volume};

/// Those of one holder that an event lists; `incident.count` has how many there are.
pub const LEAKS_MAX: usize = 32;

names! {
    /// What of a container a mount was.
    ContainerPart {
        /// Its root directory.
        Root = "root",
        /// Its `/dev/shm`.
        Shm = "shm",
        /// Anything else.
        Other = "other",
    }
}

impl JsonSchema for ContainerPart {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ContainerPart".into()
    }

    fn json_schema(_generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "What of a container a mount was: its root directory, its `/dev/shm`, or anything else.",
            "enum": Self::NAMES,
        })
    }
}

/// A copy of a mount of a container, of a volume, or of another mount of the host, in the mount namespace of somebody else; the
/// host has its file system mounted no longer.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LeakedMount {
    /// Where the host had it mounted; absent where only that it is nowhere on the host is known.
    pub path: Option<String>,
    /// `certain` where the copy was there while the host had it mounted; `likely` where only what the holder's runtime was
    /// told to mount tells what it is, or that a process of the node has it where a kubelet would have mounted it, the kernel does
    /// not number mounts for good, the host had the same directory of its file system as volumes of several pods or only one above
    /// it, or the text of `path` alone tells that it was a container's; then none is named.
    pub confidence: Confidence,
    /// The copy.
    pub identity: MountIdentity,
    /// Mount namespace that has it, inode number.
    pub mntns: u32,
    /// A process in that namespace.
    pub pid: u32,
    /// Whether that is the first process of a pid namespace other than the node's: it ignores every signal that it does not
    /// handle, but for SIGKILL.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub init: bool,
    /// File system type.
    pub fstype: String,
    /// Mount source.
    pub source: String,
    /// Which mounts and unmounts elsewhere reach the copy.
    pub propagation: Propagation,
    /// The pod volume that it was.
    pub volume: Option<Volume>,
    /// The volume that was staged there, for all pods of the node.
    pub staged: Option<StagedVolume>,
    /// What of a container it was.
    pub part: Option<ContainerPart>,
    /// That container, where it is known which.
    pub container: Option<Container>,
    /// The pod of the volume, or of the container.
    pub pod: Option<Pod>,
    /// The mount of a directory of the host by which the holder has it, by what its runtime was told.
    pub bind: Option<BindMount>,
    /// Whether no process is in that namespace any more, since Linux 6.12: an open file or a mount of `nsfs` keeps it.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub without_process: bool,
}

impl LeakedMount {
    /// Whether a block device stays in use for it.
    pub fn is_of_block_device(&self) -> bool {
        let has_number = self.identity.device.split(':').next().is_some_and(|major| major != "0");
        has_number || matches!(self.fstype.as_str(), "btrfs" | "bcachefs")
    }

    /// What it was, as sentences say it.
    pub fn phrase(&self) -> String {
        let likely = if self.confidence == Confidence::Certain { "" } else { "what is likely " };
        if let Some(volume) = &self.volume {
            let pod = self.pod.as_ref().map_or_else(|| name(&volume.pod_uid).into_owned(), pod_label);
            return format!("{likely}volume {} ({}) of pod {pod}", name(&volume.name), name(&volume.plugin));
        }
        if let Some(staged) = &self.staged {
            return format!("{likely}{}", staged.phrase());
        }
        if let (None, Some(path)) = (self.part, &self.path) {
            return format!("{likely}the file system of {}", name(path));
        }
        let part = match self.part {
            Some(ContainerPart::Root) => "the root file system",
            Some(ContainerPart::Shm) => "the shared memory",
            Some(ContainerPart::Other) | None => "a mount",
        };
        let of = match (&self.container, Pod::confirmed(self.pod.as_ref())) {
            (Some(container), Some(pod)) => {
                format!("container {} of pod {}", container_label(container), pod_label(pod))
            }
            (Some(container), None) if container.name.is_some() => {
                format!("container {}", container_label(container))
            }
            (Some(container), None) => format!("container {}", short_id(&container.id)),
            (None, _) => match &self.path {
                Some(path) => format!("a container, {},", name(path)),
                None => return "a file system that the host does not have".to_owned(),
            },
        };
        format!("{likely}{part} of {of}")
    }

    /// Whether a process serves it.
    pub fn is_of_file_server(&self) -> bool {
        self.fstype == "fuse" || self.fstype.starts_with("fuse.")
    }
}

/// Who has such mounts, as sentences say it: a container, a unit, else the process.
pub fn leak_holder(actor: &Actor) -> String {
    match (&actor.container, Pod::confirmed(actor.pod.as_ref()), &actor.unit) {
        (Some(container), Some(pod), _) => {
            format!("container {} of pod {}", container_label(container), pod_label(pod))
        }
        (Some(container), None, _) => format!("container {}", container_label(container)),
        (None, _, Some(unit)) if unit.ends_with(".service") && actor.userns.is_none() => {
            format!("unit {}", name(unit))
        }
        _ => actor_phrase(actor),
    }
}

impl Object for Vec<LeakedMount> {
    fn visit(&self, visitor: &mut dyn Visitor) {
        for leak in self {
            if let Some(path) = &leak.path {
                visitor.path(Role::Object, path);
            }
            visitor.device(Role::Object, &leak.identity.device);
            if let Some(volume) = &leak.volume {
                visitor.pod_uid(Role::Target, &volume.pod_uid);
                visitor.volume(Role::Object, &volume.name);
            }
            if let Some(name) = leak.staged.as_ref().and_then(|staged| staged.name.as_ref()) {
                visitor.volume(Role::Object, name);
            }
            visitor.owner(Role::Target, leak.container.as_ref(), leak.pod.as_ref());
        }
    }

    fn describe(&self, details: &mut dyn Details) {
        for (index, leak) in self.iter().enumerate() {
            let certain = if leak.confidence == Confidence::Certain { "" } else { "likely " };
            let label = if index == 0 { "left" } else { "" };
            let path = leak.path.as_deref().unwrap_or("unknown mount");
            details.line(label, &format!("{certain}{}", name(path)));
            let bind = leak.bind.as_ref().map_or_else(String::new, |bind| {
                let propagation = bind.propagation.as_deref().unwrap_or(leak.propagation.name());
                format!(" · by {} at {} ({propagation})", name(&bind.source), name(&bind.destination))
            });
            let (fstype, source) = (name(&leak.fstype), name(&leak.source));
            let at = name(&leak.identity.mount_point);
            details.line("", &format!("{fstype} {source} · {} at {at}{bind}", leak.propagation.name()));
        }
    }
}
