//! Which mount point a path leads to, through symbolic links: the kernel walks, from its own cache only.
//!
//! The mount point itself is never opened: that would pin the mount. The directories above it are, with `O_PATH`
//! and for a moment. `RESOLVE_CACHED` (since 5.12) fails instead of querying a file system, which could hang; the
//! process that tried to unmount has just walked the same path, so it is cached. Links are read one by one, since a
//! walk through one may update its access time, which is not done from the cache.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, open, openat2, readlinkat};
use nix::sys::stat::{Mode, SFlag, fstatat};
use thiserror::Error;

use crate::sources::procfs::dir::mnt_id;
use crate::sources::procfs::mountinfo::MountTable;

/// `RESOLVE_CACHED` of include/uapi/linux/openat2.h.
const RESOLVE_CACHED: u64 = 0x20;
/// As the kernel (`MAXSYMLINKS`).
const LINKS_MAX: usize = 40;
/// The cache walk also fails when mounts change meanwhile.
const ATTEMPTS: usize = 5;
/// File systems of which a link can be read without a request to a server.
const LOCAL: &[&str] = &[
    "aufs", "bcachefs", "btrfs", "devtmpfs", "erofs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs",
    "rootfs", "squashfs", "tmpfs", "xfs", "zfs",
];

/// Why a path could not be resolved.
#[derive(Debug, Error)]
pub(super) enum Unresolved {
    /// The process has ended, or may not be inspected.
    #[error("cannot open the root directory of process {tgid}")]
    Root {
        tgid: u32,
        #[source]
        source: io::Error,
    },
    /// `EAGAIN`: a part is not in the cache; `EINVAL`: a kernel before 5.12.
    #[error("cannot look up {name:?} in the kernel's cache")]
    Walk {
        name: String,
        #[source]
        errno: Errno,
    },
    #[error("cannot read the path of a parent directory")]
    Shown {
        #[source]
        source: io::Error,
    },
    #[error("{shown} was removed")]
    Deleted { shown: String },
    /// Its file system would have to request it.
    #[error("reading a link on {fstype} could block")]
    Remote { fstype: String },
    /// Only by opening the mount itself.
    #[error("the path ends in `..`")]
    Parent,
    #[error("too many symbolic links")]
    Links,
}

/// The mount point that an absolute path leads to, as a process with this root directory sees it; in the form in
/// which that namespace's mount table shows it. `follow`: also a link at the end, as umount does.
pub(super) fn mount_point(
    root: &Path,
    tgid: u32,
    path: &str,
    follow: bool,
    table: &MountTable,
) -> Result<String, Unresolved> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let root =
        open(root, flags, Mode::empty()).map_err(|errno| Unresolved::Root { tgid, source: errno.into() })?;
    // The directories on the way, the root first.
    let mut way = vec![root];
    let mut names: VecDeque<String> = names(path).collect();
    let mut links = 0;
    while let Some(name) = names.pop_front() {
        let is_last = names.is_empty();
        if name == ".." {
            if is_last {
                return Err(Unresolved::Parent);
            }
            // In the root it leads to the root.
            way.truncate((way.len() - 1).max(1));
            continue;
        }
        let directory = way.last().map(AsFd::as_fd).ok_or(Unresolved::Parent)?;
        // On a mount point this fails (EXDEV) before anything of the mount is opened.
        let resolve = if is_last { ResolveFlag::RESOLVE_NO_XDEV } else { ResolveFlag::empty() };
        let mut opened = open_cached(directory, &name, resolve);
        if is_last && matches!(opened, Err(Errno::EAGAIN)) && is_local(&fstype(directory, table)) {
            // A name that does not exist is often not in the cache.
            opened = openat2(directory, name.as_str(), how(resolve));
        }
        let found = match opened {
            Ok(found) => found,
            Err(errno) if is_last => {
                let path = joined(&shown_path(directory)?, &name);
                // Any other error says nothing about what is there, which may be a link.
                let is_settled = matches!(errno, Errno::EXDEV | Errno::ENOENT) || table.at(&path).is_some();
                return if is_settled { Ok(path) } else { Err(Unresolved::Walk { name, errno }) };
            }
            Err(errno) => return Err(Unresolved::Walk { name, errno }),
        };
        if is_last && !follow {
            return Ok(joined(&shown_path(directory)?, &name));
        }
        match link(&found, table)? {
            Some(target) => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Unresolved::Links);
                }
                if target.starts_with('/') {
                    way.truncate(1);
                }
                self::names(&target).rev().for_each(|name| names.push_front(name));
            }
            None if is_last => return Ok(joined(&shown_path(directory)?, &name)),
            None => way.push(found),
        }
    }
    // The path, or a link in it, was the root.
    shown_path(way.last().map(AsFd::as_fd).ok_or(Unresolved::Parent)?)
}

/// The names in a path, without those that lead nowhere.
fn names(path: &str) -> impl DoubleEndedIterator<Item = String> {
    path.split('/').filter(|name| !matches!(*name, "" | ".")).map(str::to_owned)
}

fn joined(directory: &str, name: &str) -> String {
    format!("{}/{name}", directory.trim_end_matches('/'))
}

/// Where a link leads; `None` where it is no link.
fn link(found: &OwnedFd, table: &MountTable) -> Result<Option<String>, Unresolved> {
    // From the cache, so that no file server is queried.
    let flags = AtFlags::AT_EMPTY_PATH | AtFlags::from_bits_retain(libc::AT_STATX_DONT_SYNC);
    let stat = fstatat(found, "", flags).map_err(|errno| Unresolved::Walk { name: String::new(), errno })?;
    if SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) != SFlag::S_IFLNK {
        return Ok(None);
    }
    let fstype = fstype(found.as_fd(), table);
    if !is_local(&fstype) {
        return Err(Unresolved::Remote { fstype });
    }
    let target = readlinkat(found, "").map_err(|errno| Unresolved::Walk { name: String::new(), errno })?;
    Ok(Some(target.to_string_lossy().into_owned()))
}

fn is_local(fstype: &str) -> bool {
    LOCAL.contains(&fstype)
}

/// The type of the file system that an open file is on.
fn fstype(file: BorrowedFd<'_>, table: &MountTable) -> String {
    let fdinfo = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).unwrap_or_default();
    let mount = mnt_id(&fdinfo).and_then(|id| table.by_id(id));
    mount.map_or("an unknown file system", |mount| mount.fstype.as_str()).to_owned()
}

fn how(resolve: ResolveFlag) -> OpenHow {
    OpenHow::new().flags(OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC).resolve(resolve)
}

fn open_cached(directory: BorrowedFd<'_>, name: &str, resolve: ResolveFlag) -> Result<OwnedFd, Errno> {
    let how = how(resolve | ResolveFlag::from_bits_retain(RESOLVE_CACHED));
    let mut result = Err(Errno::EAGAIN);
    for _ in 0..ATTEMPTS {
        result = openat2(directory, name, how);
        if !matches!(result, Err(Errno::EAGAIN)) {
            break;
        }
    }
    result
}

/// How the kernel shows an open directory: from the root of its mount namespace.
fn shown_path(directory: BorrowedFd<'_>) -> Result<String, Unresolved> {
    let link = format!("/proc/self/fd/{}", directory.as_raw_fd());
    let shown = fs::read_link(&link).map_err(|source| Unresolved::Shown { source })?;
    let shown = shown.to_string_lossy().into_owned();
    if shown.starts_with('/') && !shown.ends_with(" (deleted)") {
        Ok(shown)
    } else {
        Err(Unresolved::Deleted { shown })
    }
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
        assert_eq!(joined("/", "a"), "/a");
        assert_eq!(joined("/a", "b"), "/a/b");
    }
}
