//! Opens files that users and others can put in place: a FIFO would block, a device may never end.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Opens a regular file for reading; symbolic links are followed.
/// Errors: when it cannot be opened; with [`ErrorKind::InvalidInput`] when it is another kind of file.
pub fn open(path: &Path) -> io::Result<File> {
    check(OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?)
}

/// Opens a regular file as the options say. Whatever another user may have put there instead is neither followed nor waited for.
pub fn open_as(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    check(options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?)
}

/// What is in a regular file of at most so many MiB: one of any size may be named by mistake.
/// Errors: when it cannot be read, as for [`open`]; with [`ErrorKind::FileTooLarge`] when it is larger.
pub fn read(path: &Path, most_mib: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let size = open(path)?.take((most_mib << 20) + 1).read_to_end(&mut bytes)?;
    if u64::try_from(size).is_ok_and(|size| size <= most_mib << 20) {
        return Ok(bytes);
    }
    Err(io::Error::new(ErrorKind::FileTooLarge, format!("it is larger than {most_mib} MiB")))
}

/// The same file, if it is a regular one.
/// Errors: with [`ErrorKind::InvalidInput`] when it is not.
pub fn check(file: File) -> io::Result<File> {
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file")),
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn what_is_no_regular_file_is_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        for path in [&fifo, dir.path(), Path::new("/dev/zero")] {
            assert_eq!(open(path).unwrap_err().kind(), ErrorKind::InvalidInput, "{}", path.display());
        }
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(open(&file).is_ok() && open(&link).is_ok());
    }
}
