//! The file of `--record`: when it is full it is renamed to `FILE.1`, replacing the one before.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use kevtmon_types::regular_file;

use super::record_queue::{PartStart, SegmentWriter};

/// A recording names programs, paths and addresses of the whole node.
pub(super) const PRIVATE: u32 = 0o600;

/// The current file and the one before it.
#[derive(Debug)]
pub(super) struct RotatingFile {
    path: PathBuf,
    older: PathBuf,
    file: File,
    /// Whether the last write ended within a line.
    is_torn: bool,
}

impl RotatingFile {
    /// Creates an empty file; an existing one with content is kept as `FILE.1`.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let mut older = OsString::from(path);
        older.push(".1");
        let older = PathBuf::from(older);
        if look(path)?.is_some_and(|there| there.len() > 0) {
            fs::rename(path, &older)?;
        }
        Ok(Self { path: path.to_owned(), older, file: create_private(path)?, is_torn: false })
    }
}

/// The regular file at a path, if there is one. Who can write to the directory could aim a link at any file of the node.
/// Errors: with [`io::ErrorKind::InvalidInput`] when it is something else.
pub(super) fn look(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(there) if !there.is_file() => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
        }
        Ok(there) => Ok(Some(there)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl SegmentWriter for RotatingFile {
    fn start_part(&mut self, start: PartStart) -> io::Result<()> {
        match start {
            PartStart::NewFile => {
                fs::rename(&self.path, &self.older)?;
                self.file = create_private(&self.path)?;
                self.is_torn = false;
            }
            PartStart::SameFile if self.is_torn => {
                self.file.write_all(b"\n")?;
                self.is_torn = false;
            }
            PartStart::SameFile => {}
        }
        Ok(())
    }

    fn write_lines(&mut self, lines: &[u8]) -> io::Result<()> {
        self.file.write_all(lines).inspect_err(|_| self.is_torn = true)
    }
}

/// Creates an empty file that only its owner can read. Symbolic links are not followed.
pub fn create_private(path: &Path) -> io::Result<File> {
    let file = regular_file::open_as(File::options().write(true).create(true).mode(PRIVATE), path)?;
    file.set_len(0)?;
    // `mode` applies to new files only. Another user's cannot be changed, nor need it be where it is private.
    if file.metadata()?.mode() & 0o777 != PRIVATE {
        file.set_permissions(Permissions::from_mode(PRIVATE))?;
    }
    Ok(file)
}
