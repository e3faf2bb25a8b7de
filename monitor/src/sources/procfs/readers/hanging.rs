//! What can be said of a process that hangs whoever reads it.

use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Answer, Job};
use crate::escape::name;
use crate::redact;
use crate::sources::procfs::Proc;
use crate::sources::procfs::mountinfo::{MountTable, is_fuse};

/// File systems with unanswered requests that are named.
const NAMED: usize = 3;

/// Finds out who hangs and where, from what the kernel shows without the lock that others wait for: on all kernels that
/// were tried, the command name and the mounts.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Describe {
    pub(super) tgid: u32,
}

/// What was found out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Description {
    pub(super) comm: Option<String>,
    /// FUSE file systems that the process sees and whose servers have not answered every request: source and place.
    pub(super) unanswered: Vec<(String, String)>,
}

impl Description {
    pub(super) fn phrase(&self, tgid: u32) -> String {
        let mut text = format!("process {tgid}");
        if let Some(comm) = &self.comm {
            text.push_str(&format!(" ({})", name(comm)));
        }
        for (index, (source, place)) in self.unanswered.iter().enumerate() {
            text.push_str(if index == 0 { ", which sees unanswered requests to " } else { " and " });
            text.push_str(&format!("FUSE file system {} at {}", name(source), name(place)));
        }
        text
    }
}

impl Job for Describe {
    const NAME: &'static str = "describe";
    type Reply = Description;

    fn in_background(&self) -> bool {
        true
    }

    fn run(&self, proc: &Proc) -> Answer<Description> {
        let comm =
            fs::read_to_string(proc.path(self.tgid, "comm")).ok().map(|comm| comm.trim_end().to_owned());
        let mounts = fs::read_to_string(proc.path(self.tgid, "mountinfo")).unwrap_or_default();
        let table = MountTable::parse(&mounts, "/");
        let unanswered = table.iter().filter(|mount| is_fuse(&mount.fstype) && waits(&mount.device));
        let unanswered =
            unanswered.map(|mount| (redact::mount_source(&mount.source), mount.mountpoint.clone()));
        Description { comm, unanswered: unanswered.take(NAMED).collect() }.into()
    }
}

/// Whether the connection of a FUSE file system, named by the minor number of its device, has unanswered requests.
fn waits(device: &str) -> bool {
    let Some((_, minor)) = device.split_once(':') else { return false };
    let waiting = PathBuf::from("/sys/fs/fuse/connections").join(minor).join("waiting");
    fs::read_to_string(waiting).is_ok_and(|count| count.trim().parse::<u64>().is_ok_and(|count| count > 0))
}
