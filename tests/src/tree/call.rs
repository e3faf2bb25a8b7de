//! An unmount whose caller asks the kernel which mount its path leads to, and ends with the call.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `STATX_MNT_ID_UNIQUE` of include/uapi/linux/stat.h.
const UNIQUE: u32 = 0x4000;

/// What the caller of an unmount found out from the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Truth {
    /// The caller.
    pub pid: u32,
    /// The mount that its path leads to; 0 if to none.
    pub mount: u64,
    /// The same by the id that is never reused; 0 before 6.8.
    pub unique: u64,
    /// 0 if the mount is gone.
    pub errno: i32,
}

/// Unmounts in a process that has this root and current directory, and ends at once. It enters a control group first, by its
/// file of processes.
pub fn umount(path: &str, root: &Path, cwd: &Path, group: Option<&Path>) -> Truth {
    let c = |text: &[u8]| CString::new(text).expect("no NUL");
    let below = Path::new("/").join(cwd.strip_prefix(root).unwrap_or(Path::new("")));
    let (path, root) = (c(path.as_bytes()), c(root.as_os_str().as_bytes()));
    let cwd = c(below.as_os_str().as_bytes());
    let procs = group.map(|procs| OpenOptions::new().write(true).open(procs).expect("a control group"));
    let mut ends = [0; 2];
    // SAFETY: writes two descriptors.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: just made, and owned by nothing else.
    let [mut read, write] = ends.map(|end| unsafe { File::from_raw_fd(end) });
    // SAFETY: the child only makes system calls, with what was prepared before.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: as above; every pointer is to something alive.
        unsafe {
            let mut answer = [0_u64; 3];
            let is_grouped = procs
                .as_ref()
                .is_none_or(|procs| libc::write(procs.as_raw_fd(), c"0".as_ptr().cast(), 1) == 1);
            if is_grouped && libc::chroot(root.as_ptr()) == 0 && libc::chdir(cwd.as_ptr()) == 0 {
                for (index, mask) in [libc::STATX_MNT_ID, UNIQUE].into_iter().enumerate() {
                    let mut found = MaybeUninit::<libc::statx>::zeroed().assume_init();
                    libc::statx(libc::AT_FDCWD, path.as_ptr(), 0, mask, &raw mut found);
                    let is_root = found.stx_attributes & libc::STATX_ATTR_MOUNT_ROOT as u64 != 0;
                    if is_root && found.stx_mask & mask != 0 {
                        answer[index] = found.stx_mnt_id;
                    }
                }
                let result = libc::umount2(path.as_ptr(), 0);
                answer[2] =
                    if result == 0 { 0 } else { u64::from((*libc::__errno_location()).unsigned_abs()) };
            } else {
                answer[2] = u64::from(libc::ENODATA.unsigned_abs());
            }
            libc::write(write.as_raw_fd(), answer.as_ptr().cast(), size_of_val(&answer));
            libc::_exit(0);
        }
    }
    drop(write);
    let mut bytes = [0; 24];
    read.read_exact(&mut bytes).expect("the caller answers");
    // SAFETY: a child of this process, waited for once.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let pid = u32::try_from(pid).expect("a child was made");
    let errno = i32::try_from(word(16)).expect("an errno");
    Truth { pid, mount: word(0), unique: word(8), errno }
}

/// The mount that a path leads to.
pub(super) fn mount_of(path: &str) -> u64 {
    let path = CString::new(path).expect("no NUL");
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path ends with NUL, and the kernel writes one structure; zeros are a valid one.
    unsafe {
        libc::statx(libc::AT_FDCWD, path.as_ptr(), 0, libc::STATX_MNT_ID, found.as_mut_ptr());
        found.assume_init().stx_mnt_id
    }
}
