//! What the kernel has in memory of an open file, without a request to whoever serves its file system. By statx(2): since Linux
//! 6.11 fstatat(2) does not pass that on for an open file.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;

pub(in super::super) fn mode(file: BorrowedFd<'_>) -> Result<u32, Errno> {
    statx(file, libc::STATX_TYPE).map(|stat| stat.stx_mode.into())
}

/// The time of the last change of its attributes, its names and, of a directory, the names in it: seconds and nanoseconds. No
/// program can set it.
pub(super) fn ctime(file: BorrowedFd<'_>) -> Result<(i64, u32), Errno> {
    let time = statx(file, libc::STATX_CTIME)?.stx_ctime;
    Ok((time.tv_sec, time.tv_nsec))
}

/// Whether it is immutable, and whether it is append-only: as its directory it can lose no file then.
pub(in super::super) fn flags(file: BorrowedFd<'_>) -> Result<[bool; 2], Errno> {
    let set = statx(file, libc::STATX_TYPE)?.stx_attributes;
    let has = |flag: libc::c_int| set & u64::from(flag.unsigned_abs()) != 0;
    Ok([has(libc::STATX_ATTR_IMMUTABLE), has(libc::STATX_ATTR_APPEND)])
}

fn statx(file: BorrowedFd<'_>, mask: u32) -> Result<libc::statx, Errno> {
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the name ends with NUL, and the kernel writes one structure.
    let result = unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, mask, found.as_mut_ptr()) };
    Errno::result(result)?;
    // SAFETY: zeros are a valid one, and the kernel has written it.
    let found = unsafe { found.assume_init() };
    if found.stx_mask & mask == mask { Ok(found) } else { Err(Errno::ENODATA) }
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
