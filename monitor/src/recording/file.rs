//! The file of `--record`: when it is full it becomes `FILE.1`, and the one before that goes.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::tape::{Begin, Reel};
use crate::event::Incident;

/// A recording names programs, paths and addresses of the whole node.
pub(super) const PRIVATE: u32 = 0o600;

/// Two files that take turns.
#[derive(Debug)]
pub(super) struct RotatingFile {
    path: PathBuf,
    older: PathBuf,
    file: File,
    /// Whether the last write stopped within a line.
    torn: bool,
}

impl RotatingFile {
    /// Begins an empty file; one that has something in it is kept as `FILE.1`.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let mut older = OsString::from(path);
        older.push(".1");
        let older = PathBuf::from(older);
        match fs::metadata(path) {
            Ok(there) if !there.is_file() => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
            }
            Ok(there) if there.len() > 0 => fs::rename(path, &older)?,
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(Self { path: path.to_owned(), older, file: create_private(path)?, torn: false })
    }
}

impl Reel for RotatingFile {
    fn begin(&mut self, begin: Begin) -> io::Result<()> {
        match begin {
            Begin::NewFile => {
                fs::rename(&self.path, &self.older)?;
                self.file = create_private(&self.path)?;
                self.torn = false;
            }
            Begin::SameFile if self.torn => {
                self.file.write_all(b"\n")?;
                self.torn = false;
            }
            Begin::SameFile => {}
        }
        Ok(())
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        self.file.write_all(lines).inspect_err(|_| self.torn = true)
    }

    fn note(&mut self, _incident: &Incident, _opened: bool) {}

    fn rest(&mut self) {}
}

/// Makes an empty file that only its owner reads.
///
/// # Errors
/// When it cannot be made.
pub fn create_private(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(PRIVATE).open(path)?;
    // The mode is that of a new file only.
    file.set_permissions(Permissions::from_mode(PRIVATE))?;
    Ok(file)
}
