//! What the kernel has in memory of an open file, without a request to whoever serves its file system. By statx(2): since Linux
//! 6.11 fstatat(2) does not pass that on for an open file.

use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use rustix::fs::{AtFlags, Statx, StatxAttributes, StatxFlags};

pub(in super::super) fn mode(file: BorrowedFd<'_>) -> Result<u32, Errno> {
    statx(file, StatxFlags::TYPE).map(|stat| stat.stx_mode.into())
}

/// The time of the last change of its attributes, its names and, of a directory, the names in it: seconds and nanoseconds. No
/// program can set it.
pub(super) fn ctime(file: BorrowedFd<'_>) -> Result<(i64, u32), Errno> {
    let time = statx(file, StatxFlags::CTIME)?.stx_ctime;
    Ok((time.tv_sec, time.tv_nsec))
}

/// Whether it is immutable, and whether it is append-only: as its directory it can lose no file then.
pub(in super::super) fn flags(file: BorrowedFd<'_>) -> Result<[bool; 2], Errno> {
    let set = statx(file, StatxFlags::TYPE)?.stx_attributes;
    Ok([set.contains(StatxAttributes::IMMUTABLE), set.contains(StatxAttributes::APPEND)])
}

fn statx(file: BorrowedFd<'_>, mask: StatxFlags) -> Result<Statx, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found =
        rustix::fs::statx(file, c"", flags, mask).map_err(|errno| Errno::from_raw(errno.raw_os_error()))?;
    if found.stx_mask & mask.bits() == mask.bits() { Ok(found) } else { Err(Errno::ENODATA) }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn it_is_what_the_kernel_has() {
        let directory = tempfile::tempdir().unwrap();
        let file = File::open(directory.path()).unwrap();
        let known = fs::metadata(directory.path()).unwrap();
        assert_eq!(mode(file.as_fd()).unwrap(), known.mode());
        let (seconds, nanoseconds) = ctime(file.as_fd()).unwrap();
        assert_eq!((seconds, i64::from(nanoseconds)), (known.ctime(), known.ctime_nsec()));
    }
}
