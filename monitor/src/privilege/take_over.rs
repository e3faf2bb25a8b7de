//! Files of the daemon's own that are another user's: what a state directory holds after it was restored from a backup, or after
//! a start as somebody else. They are taken over while the process still may, for it keeps no capability to write to files of others.
//!
//! Nothing changes its owner that a user could have put there to have it taken from somebody: the directory and all above it are
//! root's and nobody else may write there, no symbolic link is followed, what is there is known by its name, and every name that a file has is
//! in this directory. Directories in it come first, so that nobody can change their entries any more when these are looked at.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Component, Path, PathBuf};

use nix::unistd::geteuid;

/// Deeper than this nothing of the daemon's own is.
const DEPTH: usize = 3;
/// More than the daemon ever has there.
const ENTRIES: usize = 1 << 14;
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// The state directory, and which paths below it the daemon makes itself.
#[derive(Debug, Clone)]
pub struct StateDirectory {
    pub path: PathBuf,
    /// Whether a path relative to it is the name of something that the daemon makes.
    pub is_own: fn(&Path) -> bool,
}

#[derive(Debug, Default)]
pub(super) struct Found {
    /// What root owns from now on.
    pub(super) taken: Vec<PathBuf>,
    /// What the daemon cannot write to without CAP_DAC_OVERRIDE, whose it is, and why it stays so.
    pub(super) closed: Vec<(PathBuf, u32, Why)>,
}

/// Why something is not taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// Its owner or mode cannot be changed.
    Denied,
    /// Somebody else may have put it there, or have another name for it.
    Untrusted,
}

impl StateDirectory {
    /// Takes over what is the daemon's own there.
    pub(super) fn take_over(&self) -> Found {
        let mut found = Found::default();
        let Ok(top) = fs::metadata(&self.path) else { return found };
        let may_take = if is_of_root_alone(&self.path) { Ok(()) } else { Err(Why::Untrusted) };
        if super::is_closed(&top) {
            found.closed.push((self.path.clone(), top.uid(), may_take.err().unwrap_or(Why::Denied)));
        }
        let mut files = Vec::new();
        self.directory(Path::new(""), may_take, &mut files, &mut found);
        let mut names: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        for file in &files {
            *names.entry(file.inode).or_default() += 1;
        }
        for Looked { path, file, inode, may_take } in files {
            let Ok(metadata) = file.metadata() else { continue };
            let is_here_alone = names.get(&inode).is_some_and(|count| *count == metadata.nlink());
            let is_closed = super::is_closed(&metadata);
            let may_take = if is_here_alone { may_take } else { Err(Why::Untrusted) };
            match may_take.and_then(|()| take(&file, FILE_MODE)) {
                Ok(()) => found.taken.push(path),
                Err(why) if is_closed => found.closed.push((path, metadata.uid(), why)),
                Err(_) => {}
            }
        }
        found
    }

    /// Takes over what is below a directory, given relative to the state directory, but for the files, which are collected.
    fn directory(&self, below: &Path, may_take: Result<(), Why>, files: &mut Vec<Looked>, found: &mut Found) {
        for entry in fs::read_dir(self.path.join(below)).into_iter().flatten().flatten().take(ENTRIES) {
            let name = below.join(entry.file_name());
            if !(self.is_own)(&name) {
                continue;
            }
            let path = self.path.join(&name);
            let Ok(file) = open(&path) else { continue };
            let Ok(metadata) = file.metadata() else { continue };
            let is_closed = super::is_closed(&metadata);
            let is_foreign = is_closed || !is_roots(&metadata);
            if metadata.is_dir() {
                let taken = is_foreign.then(|| may_take.and_then(|()| take(&file, DIRECTORY_MODE)));
                // What others may write to may be changed by them while it is looked at.
                let may_take = may_take.and(taken.unwrap_or(Ok(())));
                match taken {
                    Some(Ok(())) => found.taken.push(path),
                    Some(Err(why)) if is_closed => found.closed.push((path, metadata.uid(), why)),
                    Some(Err(_)) | None => {}
                }
                if name.components().count() < DEPTH {
                    self.directory(&name, may_take, files, found);
                }
            } else if metadata.is_file() && is_foreign {
                files.push(Looked { path, inode: (metadata.dev(), metadata.ino()), file, may_take });
            }
        }
    }
}

/// A file that is not the daemon's to write to, or to which others may write.
struct Looked {
    path: PathBuf,
    inode: (u64, u64),
    file: File,
    may_take: Result<(), Why>,
}

/// Whether nobody but root can have put anything at this path, nor in the directory there.
fn is_of_root_alone(directory: &Path) -> bool {
    let Ok(directory) = std::path::absolute(directory) else { return false };
    if directory.components().any(|it| matches!(it, Component::ParentDir)) {
        return false;
    }
    let is_safe = |path: &Path| {
        let is_sticky = |it: &fs::Metadata| it.uid() == 0 && it.mode() & STICKY != 0 && path != directory;
        fs::symlink_metadata(path).is_ok_and(|it| it.is_dir() && (is_roots(&it) || is_sticky(&it)))
    };
    directory.ancestors().all(is_safe)
}

/// Whether it is root's, who alone may write to it.
fn is_roots(metadata: &fs::Metadata) -> bool {
    metadata.uid() == geteuid().as_raw() && metadata.mode() & OTHERS_WRITE == 0
}

/// Neither follows a link nor waits for whoever is at the other end of a FIFO.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

fn take(file: &File, mode: u32) -> Result<(), Why> {
    change(file, mode).map_err(|_| Why::Denied)
}

fn change(file: &File, mode: u32) -> io::Result<()> {
    let own = geteuid();
    if file.metadata()?.uid() != own.as_raw() {
        fchown(file, Some(own.as_raw()), Some(nix::unistd::getegid().as_raw()))?;
    }
    // Only an owner may do that without a capability, and by now this process is.
    file.set_permissions(Permissions::from_mode(mode))?;
    match super::is_closed(&file.metadata()?) {
        false => Ok(()),
        // A file system that keeps no owners.
        true => Err(ErrorKind::PermissionDenied.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    const OTHER: u32 = 1000;

    fn is_own(name: &Path) -> bool {
        let first = name.components().next().map(Component::as_os_str);
        first.is_some_and(|first| ["events.db", "sub"].iter().any(|own| first == *own))
    }

    fn state() -> (tempfile::TempDir, StateDirectory) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        fs::create_dir_all(path.join("sub/window")).unwrap();
        (directory, StateDirectory { path, is_own })
    }

    /// A file of another user's.
    fn foreign(path: &Path) {
        fs::write(path, "x").unwrap();
        chown(path, Some(OTHER), Some(OTHER)).unwrap();
    }

    fn owner(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().uid()
    }

    #[test]
    fn what_is_its_own_by_name_becomes_roots_and_private() {
        let (_directory, state) = state();
        for name in ["events.db", "sub/1", "sub/window/2", "notes"] {
            foreign(&state.path.join(name));
        }
        // As the recorder keeps a segment for an incident: two names, both here.
        fs::hard_link(state.path.join("sub/1"), state.path.join("sub/window/1")).unwrap();
        for name in ["sub", "sub/window"] {
            chown(state.path.join(name), Some(OTHER), None).unwrap();
        }
        fs::set_permissions(state.path.join("sub/1"), Permissions::from_mode(0o4755)).unwrap();
        let found = state.take_over();
        assert!(found.closed.is_empty(), "{found:?}");
        for name in ["events.db", "sub", "sub/1", "sub/window", "sub/window/1", "sub/window/2"] {
            let path = state.path.join(name);
            assert!(found.taken.contains(&path), "{name}: {found:?}");
            let metadata = fs::metadata(&path).unwrap();
            let mode = if metadata.is_dir() { DIRECTORY_MODE } else { FILE_MODE };
            assert_eq!((metadata.uid(), metadata.mode() & 0o7777), (0, mode), "{name}");
        }
        assert_eq!(owner(&state.path.join("notes")), OTHER, "it makes no such file");
        assert!(state.take_over().taken.is_empty(), "nothing is left to take");
    }

    #[test]
    fn a_link_leads_to_nothing_that_is_taken() {
        let (directory, state) = state();
        let theirs = directory.path().join("theirs");
        foreign(&theirs);
        symlink(&theirs, state.path.join("events.db")).unwrap();
        fs::hard_link(&theirs, state.path.join("sub/1")).unwrap();
        let found = state.take_over();
        assert_eq!(owner(&theirs), OTHER);
        assert!(found.taken.is_empty(), "{found:?}");
        let closed = (state.path.join("sub/1"), OTHER, Why::Untrusted);
        assert_eq!(found.closed, [closed], "that another one has it too is said");
        // Nor does one in the place of the directory itself.
        let elsewhere = directory.path().join("elsewhere");
        symlink(&state.path, &elsewhere).unwrap();
        foreign(&state.path.join("sub/2"));
        let found = StateDirectory { path: elsewhere.clone(), is_own }.take_over();
        assert!(found.taken.is_empty() && owner(&state.path.join("sub/2")) == OTHER, "{found:?}");
        assert!(found.closed.contains(&(elsewhere.join("sub/2"), OTHER, Why::Untrusted)), "{found:?}");
    }

    #[test]
    fn where_others_may_write_nothing_is_taken() {
        let (directory, state) = state();
        let file = state.path.join("events.db");
        foreign(&file);
        for (of, mode, owner_of) in [
            (state.path.clone(), 0o777, 0),
            (state.path.clone(), 0o755, OTHER),
            (directory.path().to_owned(), 0o755, OTHER),
        ] {
            let before = fs::metadata(&of).unwrap();
            chown(&of, Some(owner_of), None).unwrap();
            fs::set_permissions(&of, Permissions::from_mode(mode)).unwrap();
            let found = state.take_over();
            assert!(found.taken.is_empty() && owner(&file) == OTHER, "{found:?}");
            assert!(found.closed.contains(&(file.clone(), OTHER, Why::Untrusted)), "{found:?}");
            chown(&of, Some(0), None).unwrap();
            fs::set_permissions(&of, before.permissions()).unwrap();
        }
        assert_eq!(state.take_over().taken, [file]);
    }

    #[test]
    fn what_others_may_write_to_becomes_roots_though_root_may_write_to_it() {
        let (_directory, state) = state();
        let file = state.path.join("events.db");
        for owner_of in [OTHER, 0] {
            fs::write(&file, "x").unwrap();
            chown(&file, Some(owner_of), Some(owner_of)).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
            assert_eq!(state.take_over().taken, std::slice::from_ref(&file));
            let metadata = fs::metadata(&file).unwrap();
            assert_eq!((metadata.uid(), metadata.mode() & 0o777), (0, FILE_MODE));
        }
        // Where it is not to be trusted it stays, and nothing is lacking.
        chown(&file, Some(OTHER), None).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        fs::set_permissions(&state.path, Permissions::from_mode(0o777)).unwrap();
        let found = state.take_over();
        assert!(found.taken.is_empty() && found.closed.is_empty() && owner(&file) == OTHER, "{found:?}");
    }

    #[test]
    fn what_root_may_not_write_to_either_is_made_writable() {
        let (_directory, state) = state();
        let file = state.path.join("events.db");
        fs::write(&file, "x").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o400)).unwrap();
        assert_eq!(state.take_over().taken, std::slice::from_ref(&file));
        assert_eq!(fs::metadata(file).unwrap().mode() & 0o777, FILE_MODE);
        let absent = StateDirectory { path: state.path.join("not/there"), is_own };
        assert!(absent.take_over().closed.is_empty());
    }
}
