//! Calls that are refused while a mount is busy: what a caller gave, and what was captured of it during the call.

use std::borrow::Cow;

use kevtmon_types::names::names;
use serde::{Deserialize, Serialize};

use crate::{BootNs, NsInum, TaskRef};

names! {
    /// A system call that the kernel refuses while a mount is busy.
    MountSyscall {
        /// umount(2) and umount2(2), which are one system call.
        Umount2 = "umount2",
        /// rmdir(2).
        Rmdir = "rmdir",
        /// unlink(2).
        Unlink = "unlink",
        /// unlinkat(2).
        Unlinkat = "unlinkat",
        /// rename(2).
        Rename = "rename",
        /// renameat(2).
        Renameat = "renameat",
        /// renameat2(2).
        Renameat2 = "renameat2",
        /// mount(2), for what is busy because something else uses it.
        Mount = "mount",
        /// fsconfig(2), by which newer programs make what they mount, before they say where.
        Fsconfig = "fsconfig",
    }
}

impl MountSyscall {
    /// The one that is left out of a saved state.
    pub const fn umount2() -> Self {
        Self::Umount2
    }

    /// Whether it is about what was to be mounted.
    pub fn is_mount(self) -> bool {
        matches!(self, Self::Mount | Self::Fsconfig)
    }

    /// Whether it is about a mount, rather than about the name that something is mounted on.
    pub fn is_umount(&self) -> bool {
        *self == Self::Umount2
    }
}

/// A call that the kernel refuses while a mount is busy, whether it did or not. Of those other than umount(2) only refused
/// ones are observed.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UmountAttempt {
    pub syscall: MountSyscall,
    pub actor: TaskRef,
    /// The caller's mount namespace; 0 where it is not known.
    pub mntns: NsInum,
    /// As the caller gave it; may be relative. Empty where it could not be read, and of fsconfig(2), which is given none.
    pub path: String,
    /// Where the path starts from; absent where a recording does not tell it, and then the path is believed.
    pub origin: Option<Box<PathOrigin>>,
    /// `MNT_*` and `UMOUNT_*`; `AT_*` of unlinkat(2), `RENAME_*` of renameat2(2), `MS_*` of mount(2); of fsconfig(2) `MS_RDONLY`,
    /// and its command if that is `FSCONFIG_CMD_CREATE_EXCL`.
    pub flags: u32,
    /// The other path of a rename, which may be the one that is busy; what was to be mounted, masked.
    pub second: Option<Box<SecondPath>>,
    /// Positive errno; `None` when the call succeeded.
    #[serialize_always]
    pub errno: Option<u16>,
}

impl UmountAttempt {
    /// `MNT_DETACH` of include/linux/fs.h.
    const MNT_DETACH: u32 = 2;
    /// `UMOUNT_NOFOLLOW`.
    const UMOUNT_NOFOLLOW: u32 = 8;

    /// Whether a link at the end of its path is followed.
    pub fn follows(&self) -> bool {
        self.syscall.is_umount() && self.flags & Self::UMOUNT_NOFOLLOW == 0
    }

    /// Whether it detaches a mount that is in use.
    pub fn is_lazy(&self) -> bool {
        self.syscall.is_umount() && self.flags & Self::MNT_DETACH != 0
    }

    /// Whether its path ends in no name that could be removed or renamed, which is refused whatever is mounted: `/`, `.` and
    /// `..` (`filename_parentat` in fs/namei.c).
    pub fn is_nameless(&self) -> bool {
        let last = |path: &str| path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned();
        let is_nameless = |path: &str| !path.is_empty() && matches!(&*last(path), "" | "." | "..");
        let second = self.second.as_ref().map(|second| second.path.as_str());
        !self.syscall.is_umount() && (is_nameless(&self.path) || second.is_some_and(is_nameless))
    }

    /// What tells the path from the same text given elsewhere: the path from the topmost mount of the namespace, with
    /// its links. It begins with an ellipsis where that is not known, so that it is like no path that is. Empty where the call
    /// is given no path.
    pub fn place(&self) -> Cow<'_, str> {
        let Some(origin) = self.origin.as_ref().filter(|_| self.syscall != MountSyscall::Fsconfig) else {
            return Cow::Borrowed(&self.path);
        };
        let is_absolute = self.path.starts_with('/');
        let start = if is_absolute { &origin.root } else { &origin.cwd };
        match start.as_ref().and_then(|directory| directory.path.as_deref()) {
            Some(start) if origin.doubt.is_none_or(|doubt| doubt == PathUncertainty::ReadLate) => match start
            {
                "/" if is_absolute => Cow::Borrowed(&self.path),
                start => Cow::Owned(format!(
                    "{}/{}",
                    start.trim_end_matches('/'),
                    self.path.trim_start_matches('/')
                )),
            },
            _ => Cow::Owned(format!("…{}", self.path)),
        }
    }
}

/// The path that something was to be renamed to, or what was to be mounted, which need be no path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecondPath {
    /// As the caller gave it; may be relative. Of an overlay by mount(2) its upper directory, empty where that is not known.
    pub path: String,
    /// Where it starts from.
    pub origin: PathOrigin,
    /// The type of file system that was to be mounted, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fstype: Option<String>,
}

/// Where the path of a call starts from, captured during the call: callers end within milliseconds.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathOrigin {
    pub root: Option<CallerDirectory>,
    /// The caller's current directory, or that of the descriptor that it gave; only for a relative path.
    pub cwd: Option<CallerDirectory>,
    /// Why the path may not be the one that the kernel used.
    pub doubt: Option<PathUncertainty>,
    /// The mounts that the call has seen; `None` where they changed during the call.
    pub table: Option<TableMark>,
    /// The mount that the kernel found there itself, where it shows that.
    pub target: Option<MeantMount>,
    /// When the call began, if its start was seen.
    pub began: Option<CallStart>,
}

/// When a call began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallStart {
    pub at: BootNs,
    /// Offset from boot time to wall-clock time when it was heard of: the latter may be set at any time.
    pub realtime_offset_ns: i64,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeantMount {
    /// Mount id; reused as soon as the mount is gone.
    pub id: u64,
    /// The id that is never reused, since 6.8.
    pub unique: Option<u64>,
}

/// What tells the mount table of a namespace, as a call has seen it, from what it becomes.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableMark {
    /// Stands for the namespace; means something to the programs of this run of the daemon only.
    pub handle: u64,
    /// Number of the namespace that is never reused.
    pub id: u64,
    /// Number of the last change of the table.
    pub event: u64,
    /// Highest unique id of a mount in it, since 6.8.
    pub newest: Option<u64>,
}

/// A directory as the kernel names it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallerDirectory {
    pub mount_id: u32,
    /// Its path, across mounts, from the topmost mount of its mount namespace; `None` for a directory that was removed,
    /// or is too deep or has too long a name to be captured.
    pub path: Option<String>,
}

names! {
    /// Why the path of a call may not be the one that the kernel used.
    PathUncertainty {
        /// The call began before it was observed.
        StartUnseen = "start-unseen",
        /// The path cannot be read any more.
        Unread = "unread",
        /// The path in the caller's memory was overwritten during the call.
        Changed = "changed",
        /// The path could only be read after the call.
        ReadLate = "read-late",
        /// The caller's root or current directory was replaced during the call.
        DirectoryChanged = "directory-changed",
        /// Nothing tells where the path starts from: without the kernel's types, its caller is not read.
        CallerUnread = "caller-unread",
    }
}

impl PathUncertainty {
    /// As a reason for an answer that is not complete.
    pub fn reason(self) -> &'static str {
        match self {
            Self::StartUnseen => {
                "the start of the call was not observed, so neither its path nor its result is certain"
            }
            Self::Unread => "the path of the call could not be read from the caller's memory",
            Self::Changed => "the caller overwrote the path during the call",
            Self::ReadLate => "the path of the call could be read only after it",
            Self::DirectoryChanged => "the caller's root or current directory was replaced during the call",
            Self::CallerUnread => {
                "this hook reads no BTF here, so the mount namespace and the directories of the caller are unknown"
            }
        }
    }
}
