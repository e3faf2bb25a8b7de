//! What refuses the removal of a file of a container though nothing holds it: looked for where its runtime says that it was refused.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use kevtmon_observation::{Fact, FileFlag, FoundObstacle, Obstacle, RefusedRemoval, RemovalError};
use kevtmon_sources::Sender;
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::mountinfo::{MountTable, unescape};
use kevtmon_sources::procfs::readers::{Job, Readers, reading_none};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;
use nix::sys::statfs::fstatfs;
use nix::sys::statvfs::FsFlags;
use serde::{Deserialize, Serialize};

use super::resolve::{cached_stat, is_local};

const PATIENCE: Duration = Duration::from_secs(10);

/// Looks at a path of the node, and at the directory that it is in.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FindObstacle(RefusedRemoval);

impl Job for FindObstacle {
    const NAME: &'static str = "obstacle";
    type Reply = Obstacle;
    const WAITS_FOR_DISK: bool = true;

    fn run(&self, proc: &Proc) -> Self::Reply {
        let root = proc.host_root();
        // What has a server may hang.
        let table = proc.host_dir().and_then(|(_, process)| process.mount_table("/", |_| true).ok());
        let is_remote =
            |table: MountTable| table.covering(&self.0.path).is_some_and(|mount| !is_local(&mount.fstype));
        if table.is_some_and(is_remote) {
            return Obstacle::Unknown;
        }
        reading_none();
        let swaps = std::fs::read_to_string(proc.root().join("swaps")).unwrap_or_default();
        match is_swap(&swaps, &self.0.path) {
            true => Obstacle::Swap,
            false => obstacle(&root, &self.0).unwrap_or(Obstacle::Unknown),
        }
    }
}

/// Whether a file is in `/proc/swaps`. It cannot be unlinked (`IS_SWAPFILE`), with the same error as one with a flag.
fn is_swap(swaps: &str, path: &str) -> bool {
    swaps
        .lines()
        .skip(1)
        .any(|line| line.split_whitespace().next().is_some_and(|file| unescape(file) == path))
}

fn obstacle(root: &Path, refused: &RefusedRemoval) -> Result<Obstacle, Errno> {
    let root = open(root, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let path = Path::new(&*refused.path);
    for path in [Some(path), path.parent()].into_iter().flatten() {
        let file = match open_below(&root, path) {
            // It was removed since.
            Err(Errno::ENOENT) => continue,
            opened => opened?,
        };
        if refused.error == RemovalError::ReadOnly {
            let is_read_only = fstatfs(&file)?.flags().contains(FsFlags::ST_RDONLY);
            return Ok(if is_read_only { Obstacle::ReadOnly } else { Obstacle::None });
        }
        // With either flag a file cannot be unlinked, and nothing in a directory can (`may_delete` in fs/namei.c).
        let flag = match cached_stat::flags(file.as_fd())? {
            [true, _] => FileFlag::Immutable,
            [false, true] => FileFlag::AppendOnly,
            [false, false] => continue,
        };
        let is_directory = cached_stat::mode(file.as_fd())? & libc::S_IFMT == libc::S_IFDIR;
        return Ok(Obstacle::Flag { flag, path: path.to_string_lossy().into(), is_directory });
    }
    Ok(Obstacle::None)
}

/// Opens nothing but the place, through no link.
fn open_below(root: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
    let below = path.strip_prefix("/").map_err(|_| Errno::EINVAL)?;
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    openat2(root, below, OpenHow::new().flags(flags).resolve(resolve))
}

/// Looks, and sends what is found; where no reader can look now, that nothing is known.
pub fn look_and_send(readers: &Readers, tx: &Sender, container: String, refused: RefusedRemoval) {
    let job = FindObstacle(refused.clone());
    readers.tell(tx, (job, PATIENCE, "cannot look for what refuses a removal"), |found| {
        let found = found.unwrap_or(Obstacle::Unknown);
        Some(Fact::Obstacle(Box::new(FoundObstacle { container, refused, found })))
    });
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::process::Command;

    use super::*;

    fn look(root: &Path, path: &str, error: RemovalError) -> Obstacle {
        let refused = RefusedRemoval { path: path.into(), error };
        obstacle(root, &refused).unwrap_or(Obstacle::Unknown)
    }

    /// False where the file system has no such flags.
    fn chattr(change: &str, path: &Path) -> bool {
        Command::new("chattr").arg(change).arg(path).status().is_ok_and(|status| status.success())
    }

    #[test]
    fn a_file_is_looked_at_and_the_directory_that_it_is_in() {
        let root = tempfile::tempdir().unwrap();
        let (directory, file) = (root.path().join("d"), root.path().join("d/k"));
        fs::create_dir(&directory).unwrap();
        File::create(&file).unwrap();
        let at = |path: &str| look(root.path(), path, RemovalError::NotPermitted);
        assert_eq!(
            (at("/d/k"), at("/d/gone"), at("/gone/k")),
            (Obstacle::None, Obstacle::None, Obstacle::None)
        );
        std::os::unix::fs::symlink("d", root.path().join("link")).unwrap();
        assert_eq!((at("/link/k"), at("/../d/k")), (Obstacle::Unknown, Obstacle::Unknown));
        for (set, clear, flag) in [("+i", "-i", FileFlag::Immutable), ("+a", "-a", FileFlag::AppendOnly)] {
            for (path, shown, is_directory) in [(&file, "/d/k", false), (&directory, "/d", true)] {
                if !chattr(set, path) {
                    return;
                }
                let expected = Obstacle::Flag { flag, path: shown.into(), is_directory };
                let found = (at("/d/k"), at("/d"));
                assert!(chattr(clear, path));
                assert_eq!(found.0, expected);
                assert_eq!(found.1, if is_directory { expected } else { Obstacle::None });
            }
        }
    }

    #[test]
    fn a_swap_file_is_known_by_the_list_of_the_kernel() {
        let swaps =
            "Filename Type Size Used Priority\n/d/diff/swap file 1024 0 -2\n/dev/vdb partition 1 0 -3\n";
        assert!(is_swap(swaps, "/d/diff/swap") && !is_swap(swaps, "/d/diff") && !is_swap(swaps, "Filename"));
    }

    #[test]
    fn a_file_system_is_read_only_or_is_not() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(look(root.path(), "/k", RemovalError::ReadOnly), Obstacle::None);
    }
}
