//! Which mount a path leads to, as its caller saw it: through symbolic links, across mounts, below its root directory.
//!
//! Paths here are canonical: from the topmost mount of a namespace, without links. The kernel looks them up, below the
//! root of a living process of that namespace, from its own cache only: `RESOLVE_CACHED` (since 5.12) fails instead of
//! querying a file system, which could hang; whoever tried to unmount has just walked the same path, so it is
//! cached. Links are read one by one, since a walk through one may update its access time, which is not done from the
//! cache.
//!
//! The mount itself is never opened: that would pin it. Which one is meant follows from the mount table, by the id of
//! the mount that the directory above is on. Directories above are open one at a time, for a moment.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use kevtmon_sources::procfs::dir::{Dir, mnt_id};
use kevtmon_sources::procfs::mountinfo::{Mount, MountTable};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2, readlinkat};
use nix::sys::stat::SFlag;
use thiserror::Error;

pub(super) mod cached_stat;
pub(super) mod replaced;

/// `RESOLVE_CACHED` of include/uapi/linux/openat2.h.
const RESOLVE_CACHED: u64 = 0x20;
/// Names that are walked at most: each is looked up from the top, and a path of 4 KiB with links in it has a hundred
/// thousand.
const STEPS_MAX: usize = 512;
/// As the kernel (`MAXSYMLINKS`).
const LINKS_MAX: usize = 40;
/// The cache walk also fails when mounts change meanwhile.
const ATTEMPTS: usize = 5;
/// File systems of which a link can be read without a request to a server.
const LOCAL: &[&str] = &[
    "aufs", "bcachefs", "bpf", "btrfs", "cgroup", "cgroup2", "configfs", "cramfs", "debugfs", "devpts",
    "devtmpfs", "efivarfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfs", "hfsplus", "hugetlbfs",
    "iso9660", "jfs", "mqueue", "msdos", "nilfs2", "ntfs3", "overlay", "pstore", "ramfs", "reiserfs",
    "rootfs", "securityfs", "squashfs", "sysfs", "tmpfs", "tracefs", "udf", "vfat", "xfs", "zfs", "zonefs",
];

#[derive(Debug, Error)]
pub(super) enum Unresolved {
    #[error("no process in its mount namespace has a root directory that can be opened")]
    NoProcess,
    #[error("its caller's root or current directory could not be captured, or was removed")]
    NotCaptured,
    /// An absolute link in it leads below the caller's root directory.
    #[error("{path} is an absolute link; the root directory of the caller is unknown")]
    UnknownRoot { path: String },
    /// The directory of this path is another one for the process that is walked from.
    #[error("{path} is on another mount now than it was for the caller")]
    Elsewhere { path: String },
    #[error("no process that sees {path} is left in its mount namespace")]
    OutOfSight { path: String },
    /// `EAGAIN`: a part is not in the cache.
    #[error("cannot look up {path} in the kernel's cache")]
    Walk { path: String, source: Errno },
    #[error("kernels before 5.12 cannot look up a path without querying its file systems")]
    TooOld,
    #[error("the mounts at {path} changed during the lookup")]
    Changed { path: String },
    #[error("cannot read on which mount a directory is")]
    MountId(#[source] io::Error),
    /// Its file system would have to request it.
    #[error("reading a link on {fstype} could block")]
    Remote { fstype: String },
    /// Only by opening the mount itself.
    #[error("the path ends in `..`")]
    Parent,
    #[error("the path is not UTF-8")]
    NotText,
    #[error("too many symbolic links")]
    Links,
    #[error("it leads through more than {STEPS_MAX} names")]
    Long,
}

impl Unresolved {
    /// Whether another process of the namespace may see what this one does not.
    pub(super) fn may_be_seen_by_another(&self) -> bool {
        matches!(self, Self::NoProcess | Self::Elsewhere { .. } | Self::OutOfSight { .. })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Anchor {
    pub(super) path: String,
    /// The mount that it is on, where that is known.
    pub(super) mount_id: Option<u64>,
}

/// A path, and where it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Origin {
    /// The caller's root directory; `None` where it is not known, and the path begins at the root of the namespace.
    pub(super) root: Option<Anchor>,
    /// The caller's current directory; `None` for an absolute path.
    pub(super) cwd: Option<Anchor>,
    pub(super) path: String,
    /// Whether a link at its end is followed.
    pub(super) follow: bool,
}

#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) path: String,
    pub(super) mount: Option<Mount>,
    /// Where there is none: the mount that it lies on, if there is something at the path.
    pub(super) lies_on: Option<u64>,
    /// Each directory, link and mount that led there.
    walked: BTreeSet<String>,
}

/// The view of a process: its root directory, and the mounts of its namespace.
#[derive(Debug)]
pub(super) struct View<'t> {
    top: OwnedFd,
    /// Where the root directory is; `/` but for a chroot.
    shown: Vec<String>,
    table: &'t MountTable,
}

impl<'t> View<'t> {
    pub(super) fn open(process: &Dir, shown: &str, table: &'t MountTable) -> Result<Self, Unresolved> {
        let top = process.root().map_err(|_| Unresolved::NoProcess)?;
        Ok(Self { top, shown: names(shown).collect(), table })
    }

    pub(super) fn resolve(&self, origin: &Origin) -> Result<Resolved, Unresolved> {
        let mut walked = BTreeSet::new();
        let (path, end) = self.walk(origin, &mut walked)?;
        let (mount, lies_on) = match end {
            Step::Mount(mount) => (Some(*mount), None),
            Step::Other { lies_on } => (None, Some(lies_on)),
            Step::Directory | Step::Link(_) | Step::Nothing => (None, None),
        };
        Ok(Resolved { path, mount, lies_on, walked })
    }

    fn walk(&self, origin: &Origin, walked: &mut BTreeSet<String>) -> Result<(String, Step), Unresolved> {
        if origin.path.contains(char::REPLACEMENT_CHARACTER) {
            return Err(Unresolved::NotText);
        }
        let root = origin.root.as_ref().map(|root| self.anchor(root)).transpose()?;
        let mut at = match &origin.cwd {
            Some(cwd) => self.anchor(cwd)?,
            None => root.clone().unwrap_or_default(),
        };
        for anchor in root.iter().chain([&at]) {
            walked.extend((1..=anchor.len()).map(|end| format!("/{}", anchor[..end].join("/"))));
        }
        // What ends in a slash is a directory, so a link there is followed.
        let follow = origin.follow || origin.path.ends_with('/') || origin.path.ends_with("/.");
        let mut rest: VecDeque<String> = names(&origin.path).collect();
        let (mut links, mut steps) = (0, 0);
        while let Some(name) = rest.pop_front() {
            let is_last = rest.is_empty();
            steps += 1;
            if steps > STEPS_MAX {
                return Err(Unresolved::Long);
            }
            if name == ".." {
                if is_last {
                    return Err(Unresolved::Parent);
                }
                // In the root it leads to the root.
                if root.as_ref() != Some(&at) {
                    at.pop();
                }
                continue;
            }
            walked.insert(joined(&at, &name));
            let step = if is_last { self.last(&at, &name)? } else { self.directory(&at, &name)? };
            match step {
                Step::Link(target) if !is_last || follow => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Unresolved::Links);
                    }
                    if target.starts_with('/') {
                        let unknown = || Unresolved::UnknownRoot { path: joined(&at, &name) };
                        at = root.clone().ok_or_else(unknown)?;
                    }
                    names(&target).rev().for_each(|name| rest.push_front(name));
                }
                Step::Directory => at.push(name),
                // Where a directory above is gone, nothing is mounted below it.
                step => {
                    let path = rest.iter().fold(joined(&at, &name), |path, name| path + "/" + name);
                    return Ok((path, step));
                }
            }
        }
        // The path, or a link in it, was a directory that was walked already.
        self.stack_of(&at)
    }

    /// Canonical names of a directory, after it was found to be the one that is meant.
    fn anchor(&self, anchor: &Anchor) -> Result<Vec<String>, Unresolved> {
        let at: Vec<String> = names(&anchor.path).collect();
        let Some(expected) = anchor.mount_id else { return Ok(at) };
        let is_mount = self.table.by_id(expected).is_some_and(|mount| mount.mountpoint == anchor.path);
        let found = match at.split_last() {
            // The mount that is meant may be this one, so it is not opened.
            Some((name, above)) if is_mount => match self.last(above, name)? {
                Step::Mount(mount) => mount.id,
                _ => return Err(Unresolved::Changed { path: anchor.path.clone() }),
            },
            _ => mount_of(self.open_directory(&at)?.as_fd())?,
        };
        if found == expected { Ok(at) } else { Err(Unresolved::Elsewhere { path: anchor.path.clone() }) }
    }

    /// What a name in the middle of a path is.
    fn directory(&self, at: &[String], name: &str) -> Result<Step, Unresolved> {
        let path = joined(at, name);
        let below = self.below(&path, at.iter().map(String::as_str).chain([name]))?;
        match open_cached(self.top.as_fd(), &below, OFlag::O_DIRECTORY, ResolveFlag::empty()) {
            Ok(_) => Ok(Step::Directory),
            Err(Errno::ENOTDIR) => {
                let found = open_cached(self.top.as_fd(), &below, OFlag::empty(), ResolveFlag::empty());
                let found = found.map_err(|errno| not_walked(&path, errno))?;
                match self.link(&found)? {
                    Some(target) => Ok(Step::Link(target)),
                    None => Err(not_walked(&path, Errno::ENOTDIR)),
                }
            }
            Err(Errno::ENOENT) => Ok(Step::Nothing),
            Err(Errno::EAGAIN) => self.uncached_directory(at, name),
            Err(errno) => Err(not_walked(&path, errno)),
        }
    }

    /// What a name in the middle of a path is that is not in the cache: one that does not exist, or that nobody used for
    /// long. Only on a file system that has no server.
    fn uncached_directory(&self, at: &[String], name: &str) -> Result<Step, Unresolved> {
        let above = self.open_directory(at)?;
        let opened = match is_local(&self.fstype(above.as_fd())) {
            true => openat2(&above, name, how(OFlag::O_DIRECTORY, ResolveFlag::RESOLVE_NO_XDEV)),
            false => Err(Errno::EAGAIN),
        };
        match opened {
            Ok(_) => Ok(Step::Directory),
            Err(Errno::ENOENT) => Ok(Step::Nothing),
            Err(_) => Err(not_walked(&joined(at, name), Errno::EAGAIN)),
        }
    }

    /// What the last name of a path is; a mount there is not opened.
    fn last(&self, at: &[String], name: &str) -> Result<Step, Unresolved> {
        let path = joined(at, name);
        let directory = self.open_directory(at)?;
        let parent = mount_of(directory.as_fd())?;
        if let Some(mount) = self.table.topmost(&path, parent) {
            return Ok(Step::Mount(Box::new(mount.clone())));
        }
        // On a mount point this fails before anything of the mount is opened.
        let no_mount = ResolveFlag::RESOLVE_NO_XDEV;
        let mut opened = open_cached(directory.as_fd(), name, OFlag::empty(), no_mount);
        if matches!(opened, Err(Errno::EAGAIN)) && is_local(&self.fstype(directory.as_fd())) {
            // A name that does not exist is often not in the cache.
            opened = openat2(&directory, name, how(OFlag::empty(), no_mount));
        }
        drop(directory);
        match opened {
            Ok(found) => Ok(self.link(&found)?.map_or(Step::Other { lies_on: parent }, Step::Link)),
            Err(Errno::ENOENT) => Ok(Step::Nothing),
            Err(Errno::EXDEV) => Err(Unresolved::Changed { path }),
            Err(errno) => Err(not_walked(&path, errno)),
        }
    }

    /// The topmost mount at a directory. Its own mount may be it, so the one above tells.
    fn stack_of(&self, at: &[String]) -> Result<(String, Step), Unresolved> {
        let Some((name, above)) = at.split_last() else {
            let top = mount_of(self.top.as_fd())?;
            let mount = self.table.topmost("/", top).or_else(|| self.table.by_id(top));
            let mount = mount.cloned().map(Box::new);
            return Ok(("/".to_owned(), mount.map_or(Step::Other { lies_on: top }, Step::Mount)));
        };
        Ok((joined(above, name), self.last(above, name)?))
    }

    /// A path as it is looked up from the root directory.
    fn below<'n>(&self, path: &str, names: impl Iterator<Item = &'n str>) -> Result<String, Unresolved> {
        let mut names = names.peekable();
        for shown in &self.shown {
            if names.next_if(|name| name == shown).is_none() {
                return Err(Unresolved::OutOfSight { path: path.to_owned() });
            }
        }
        let below: Vec<&str> = names.collect();
        Ok(if below.is_empty() { ".".to_owned() } else { below.join("/") })
    }

    fn open_directory(&self, at: &[String]) -> Result<OwnedFd, Unresolved> {
        let path = format!("/{}", at.join("/"));
        let below = self.below(&path, at.iter().map(String::as_str))?;
        open_cached(self.top.as_fd(), &below, OFlag::O_DIRECTORY, ResolveFlag::empty())
            .map_err(|errno| not_walked(&path, errno))
    }

    /// Where a link leads; `None` where it is no link.
    fn link(&self, found: &OwnedFd) -> Result<Option<String>, Unresolved> {
        let mode = cached_stat::mode(found.as_fd()).map_err(|errno| not_walked("a link", errno))?;
        if SFlag::from_bits_truncate(mode & SFlag::S_IFMT.bits()) != SFlag::S_IFLNK {
            return Ok(None);
        }
        let fstype = self.fstype(found.as_fd());
        if !is_local(&fstype) {
            return Err(Unresolved::Remote { fstype });
        }
        let target = readlinkat(found, "").map_err(|errno| not_walked("a link", errno))?;
        target.into_string().map(Some).map_err(|_| Unresolved::NotText)
    }

    /// The type of the file system that an open file is on.
    fn fstype(&self, file: BorrowedFd<'_>) -> String {
        let mount = mount_of(file).ok().and_then(|id| self.table.by_id(id));
        mount.map_or("an unknown file system", |mount| mount.fstype.as_str()).to_owned()
    }
}

enum Step {
    Directory,
    Link(String),
    Mount(Box<Mount>),
    /// At the end of a path, what is neither a link nor a mount; on this mount.
    Other {
        lies_on: u64,
    },
    /// No directory, link or mount that would lead on.
    Nothing,
}

fn names(path: &str) -> impl DoubleEndedIterator<Item = String> {
    path.split('/').filter(|name| !matches!(*name, "" | ".")).map(str::to_owned)
}

fn joined(at: &[String], name: &str) -> String {
    at.iter().map(String::as_str).chain([name]).fold(String::new(), |path, name| path + "/" + name)
}

fn not_walked(path: &str, errno: Errno) -> Unresolved {
    match errno {
        Errno::EINVAL | Errno::ENOSYS => Unresolved::TooOld,
        source => Unresolved::Walk { path: path.to_owned(), source },
    }
}

pub(super) fn is_local(fstype: &str) -> bool {
    LOCAL.contains(&fstype)
}

fn mount_of(file: BorrowedFd<'_>) -> Result<u64, Unresolved> {
    let fdinfo = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()));
    let id = mnt_id(&fdinfo.map_err(Unresolved::MountId)?);
    id.ok_or_else(|| Unresolved::MountId(io::Error::from(io::ErrorKind::InvalidData)))
}

fn how(flags: OFlag, resolve: ResolveFlag) -> OpenHow {
    OpenHow::new().flags(OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | flags).resolve(resolve)
}

/// Opens from the cache, through no link.
fn open_cached(
    directory: BorrowedFd<'_>,
    path: &str,
    flags: OFlag,
    resolve: ResolveFlag,
) -> Result<OwnedFd, Errno> {
    let cached = ResolveFlag::from_bits_retain(RESOLVE_CACHED) | ResolveFlag::RESOLVE_NO_SYMLINKS;
    let how = how(flags, resolve | cached);
    let mut result = Err(Errno::EAGAIN);
    for _ in 0..ATTEMPTS {
        result = openat2(directory, path, how);
        if !matches!(result, Err(Errno::EAGAIN)) {
            break;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_nowhere_are_left_out() {
        assert_eq!(names("//a/./b/../c/.").collect::<Vec<_>>(), ["a", "b", "..", "c"]);
        assert_eq!(names("/").count(), 0);
    }

    #[test]
    fn a_directory_and_a_name_are_joined_by_one_slash() {
        assert_eq!(joined(&[], "a"), "/a");
        assert_eq!(joined(&["a".to_owned()], "b"), "/a/b");
    }
}
