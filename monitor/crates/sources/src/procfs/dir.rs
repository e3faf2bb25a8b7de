//! One process or task, reached through an open handle of its directory in /proc.
//!
//! The handle belongs to one process for ever: every read fails once that is gone, so a process that reuses the id
//! cannot be mistaken for it. It pins nothing but the id. What is read goes to
//! memory at once; no file of another process stays open. The texts are not parsed here.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{Mode, fstat, fstatat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use nix::unistd::{Whence, lseek};
use rustix::fs::{RawDir, Statx, StatxFlags};
/// A number as the name of an entry.
pub use rustix::path::DecInt as NumberName;

use super::Proc;
use super::readers::reading;

/// No text of /proc that is read whole is longer, and no more is read of one that is read in lines.
pub const MAX_TEXT: u64 = 64 << 20;

/// `d_path` fails beyond this (`PATH_MAX`).
const MAX_LINK: usize = 4096;
/// `STATX_MNT_ID_UNIQUE` of include/uapi/linux/stat.h.
const STATX_MNT_ID_UNIQUE: u32 = 0x4000;

/// Takes some 1,300 entries per call.
const ENTRIES: usize = 32 << 10;

/// An open directory of /proc, of a process with this id.
#[derive(Debug)]
pub struct Dir(OwnedFd, u32);

/// Where link targets and directory entries are read to; one for a whole scan.
#[derive(Debug)]
pub struct Buffer(Box<[MaybeUninit<u8>]>);

impl Default for Buffer {
    fn default() -> Self {
        Self(Box::new_uninit_slice(ENTRIES.max(MAX_LINK)))
    }
}

impl Proc {
    /// Opens the directory of a process.
    /// Errors: `ENOENT` when there is no such process, `EBUSY` for one that is left out.
    pub fn dir(&self, tgid: u32) -> io::Result<Dir> {
        if self.is_aside(tgid) {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        let path = self.path(tgid, "");
        Ok(Dir(open(&path, DIRECTORY, Mode::empty())?, tgid))
    }
}

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

impl Dir {
    /// Opens a directory below.
    pub fn at(&self, name: &CStr) -> io::Result<Self> {
        reading(self.1);
        Ok(Self(openat(&self.0, name, DIRECTORY, Mode::empty())?, self.1))
    }

    /// Opens what a magic link leads to. It stays pinned until the handle is closed.
    pub fn handle(&self, name: &CStr) -> io::Result<OwnedFd> {
        reading(self.1);
        Ok(openat(&self.0, name, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?)
    }

    /// Opens the root directory of the process, for lookups below it only (`O_PATH`).
    pub fn root(&self) -> io::Result<OwnedFd> {
        reading(self.1);
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(openat(&self.0, c"root", flags, Mode::empty())?)
    }

    /// Target of a magic link; never follows it.
    /// Errors: as readlink(2); `ENOENT` for a link that this process does not have, `ENAMETOOLONG` for a target
    /// that the kernel cannot show.
    pub fn link<'b>(&self, name: &CStr, buffer: &'b mut Buffer) -> io::Result<Cow<'b, str>> {
        reading(self.1);
        let (target, _) = rustix::fs::readlinkat_raw(&self.0, name, &mut buffer.0[..MAX_LINK])?;
        Ok(String::from_utf8_lossy(target))
    }

    /// Id of the mount that a magic link leads to; `None` before Linux 5.8. The kernel answers without a request to a file
    /// server, but on some network file systems it makes sure first that the target is still there. The mount is in use
    /// during the call.
    pub fn mount_of(&self, name: &CStr) -> io::Result<Option<u64>> {
        // The id comes unasked. Who asks for nothing is answered also by the FUSE file systems of users.
        let found = self.statx(name, 0)?;
        Ok((found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id))
    }

    /// The id that is never reused of the mount that a magic link leads to; `None` before Linux 6.8. No file server is asked.
    /// Errors: as statx(2); `EACCES` for a FUSE file system whose user shows it to nobody.
    pub fn unique_mount_of(&self, name: &CStr) -> io::Result<Option<u64>> {
        let found = self.statx(name, STATX_MNT_ID_UNIQUE)?;
        Ok((found.stx_mask & STATX_MNT_ID_UNIQUE != 0).then_some(found.stx_mnt_id))
    }

    /// Device and inode number of what a magic link leads to. As [`Self::mount_of`].
    pub fn file_id(&self, name: &CStr) -> io::Result<([u32; 2], u64)> {
        let found = self.statx(name, StatxFlags::INO.bits())?;
        Ok(([found.stx_dev_major, found.stx_dev_minor], found.stx_ino))
    }

    /// `major:minor` of the block device that a magic link leads to; `None` where that is none. As [`Self::mount_of`].
    pub fn block_device(&self, name: &CStr) -> io::Result<Option<String>> {
        let found = self.statx(name, StatxFlags::TYPE.bits())?;
        let is_block = u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFBLK;
        Ok(is_block.then(|| format!("{}:{}", found.stx_rdev_major, found.stx_rdev_minor)))
    }

    /// What the kernel knows of what a magic link leads to, without asking a file server.
    fn statx(&self, name: &CStr, mask: u32) -> io::Result<Statx> {
        reading(self.1);
        let flags = rustix::fs::AtFlags::NO_AUTOMOUNT | rustix::fs::AtFlags::STATX_DONT_SYNC;
        Ok(rustix::fs::statx(&self.0, name, flags, StatxFlags::from_bits_retain(mask))?)
    }

    /// The protocol of a socket among the entries of `/proc/PID/fd`, such as `UNIX-STREAM` or `TCP`; the socket itself answers.
    /// `own`: the directory of this process in /proc.
    /// Errors: as getxattr(2); `ENOTSUP` for what is no socket.
    pub fn socket_protocol<'b>(
        &self,
        own: &Path,
        entry: &NumberName,
        buffer: &'b mut Buffer,
    ) -> io::Result<Cow<'b, str>> {
        reading(self.1);
        let directory = own.join("fd").join(self.0.as_raw_fd().to_string());
        let path = directory.join(entry.as_c_str().to_str().unwrap_or_default());
        let (name, _) = rustix::fs::getxattr(path, c"system.sockprotoname", &mut buffer.0[..])?;
        Ok(String::from_utf8_lossy(name.split(|byte| *byte == 0).next().unwrap_or_default()))
    }

    /// A whole file, read at once and closed: one that its process cannot make as long as it likes, or whose end does not
    /// matter.
    /// Errors: as openat(2) and read(2); `ESRCH` when the process went away, `EINVAL` for the mounts of a zombie.
    pub fn text<'b>(&self, name: &CStr, buffer: &'b mut Vec<u8>) -> io::Result<Cow<'b, str>> {
        Ok(self.beginning(name, MAX_TEXT, buffer)?.0)
    }

    /// The beginning of a file, at most this many bytes, and whether that is all of it.
    pub fn beginning<'b>(
        &self,
        name: &CStr,
        most: u64,
        buffer: &'b mut Vec<u8>,
    ) -> io::Result<(Cow<'b, str>, bool)> {
        reading(self.1);
        let file = File::from(openat(&self.0, name, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?);
        buffer.clear();
        buffer.reserve(4096);
        let read = file.take(most).read_to_end(buffer)?;
        Ok((String::from_utf8_lossy(buffer), u64::try_from(read).is_ok_and(|read| read < most)))
    }

    /// What the memory of the process has at an address, at most so many bytes.
    /// Errors: as openat(2) and pread(2); `EIO` where nothing is.
    pub fn memory(&self, at: u64, most: usize) -> io::Result<Vec<u8>> {
        reading(self.1);
        let file = File::from(openat(&self.0, c"mem", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?);
        let mut bytes = vec![0; most];
        let read = file.read_at(&mut bytes, at)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// Entries of this directory that are numbers (descriptors, tasks), in the kernel's order.
    pub fn numbers(&self, buffer: &mut Buffer, numbers: &mut Vec<u32>) -> io::Result<()> {
        numbers.clear();
        while self.more_numbers(buffer, numbers)? {}
        Ok(())
    }

    /// Adds the next of these entries, some 1,300 at most; false at the end.
    pub fn more_numbers(&self, buffer: &mut Buffer, numbers: &mut Vec<u32>) -> io::Result<bool> {
        reading(self.1);
        let mut entries = RawDir::new(&self.0, &mut buffer.0);
        while let Some(entry) = entries.next() {
            let number = |name: &CStr| name.to_str().ok()?.parse::<u32>().ok();
            numbers.extend(number(entry?.file_name()));
            if entries.is_buffer_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Has `/proc/PID/fd` listed from this descriptor on, or a few before: its entries follow `.` and `..`
    /// (`proc_readfd_common`, fs/proc/fd.c). Any other directory is listed from its beginning.
    pub fn list_from(&self, fd: u32) -> io::Result<()> {
        if fstatfs(&self.0)?.filesystem_type() != PROC_SUPER_MAGIC {
            return Ok(());
        }
        lseek(&self.0, i64::from(fd) + 2, Whence::SeekSet)?;
        Ok(())
    }

    /// Number of tasks of the process, without listing them; `None` if unknown.
    pub fn task_count(&self) -> Option<u64> {
        let stat = fstatat(&self.0, c"task", AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
        #[allow(clippy::useless_conversion, reason = "not all architectures have 64 bits for it")]
        let links = u64::from(stat.st_nlink);
        // The link count of a directory is two and one for each directory in it; some file systems report 1.
        links.checked_sub(2)
    }

    /// The size that this directory claims. Of `/proc/PID/fd` it is the number of descriptors since 6.2, and
    /// zero before (`proc_fd_getattr`, fs/proc/fd.c).
    pub fn size(&self) -> u64 {
        fstat(&self.0).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0))
    }

    /// Who owns this directory: whose process it is, but root where the process may not be inspected by its own user.
    pub fn owner(&self) -> Option<u32> {
        Some(fstat(&self.0).ok()?.st_uid)
    }

    /// Whether the process is still there.
    pub fn is_there(&self, text: &mut Vec<u8>) -> bool {
        self.text(c"stat", text).is_ok()
    }
}

/// Whether an error of /proc means that the process, task or descriptor is not there (any more).
pub fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// The mount id in the text of `/proc/PID/fdinfo/N`; kernels before 3.15 do not show it.
pub fn mnt_id(fdinfo: &str) -> Option<u64> {
    fdinfo.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn an_open_descriptor_is_listed_with_its_path_and_mount() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let fd = u32::try_from(file.as_file().as_raw_fd()).unwrap();
        let dir = Proc::default().dir(std::process::id()).unwrap();
        let (mut buffer, mut text, mut fds) = (Buffer::default(), Vec::new(), Vec::new());
        let list = dir.at(c"fd").unwrap();
        list.numbers(&mut buffer, &mut fds).unwrap();
        assert!(fds.contains(&fd), "{fd} in {fds:?}");
        let path = file.path().to_str().unwrap();
        assert_eq!(list.link(NumberName::new(fd).as_c_str(), &mut buffer).unwrap(), path);
        let info = dir.at(c"fdinfo").unwrap();
        let id = mnt_id(&info.text(NumberName::new(fd).as_c_str(), &mut text).unwrap()).unwrap();
        let own = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(own.lines().any(|line| line.starts_with(&format!("{id} "))), "{id} in {own}");
    }

    #[test]
    fn descriptors_are_listed_from_any_one_on() {
        let files: Vec<_> = (0..40).map(|_| tempfile::tempfile().unwrap()).collect();
        let fds: Vec<u32> = files.iter().map(|file| u32::try_from(file.as_raw_fd()).unwrap()).collect();
        let from = fds[20];
        let list = Proc::default().dir(std::process::id()).unwrap().at(c"fd").unwrap();
        list.list_from(from).unwrap();
        let mut listed = Vec::new();
        list.numbers(&mut Buffer::default(), &mut listed).unwrap();
        assert!(fds.iter().filter(|fd| **fd >= from).all(|fd| listed.contains(fd)), "{listed:?}");
        assert!(!listed.contains(&0), "{listed:?}");
    }

    #[test]
    fn a_process_that_does_not_exist_is_gone_rather_than_refused() {
        assert!(is_gone(&Proc::default().dir(u32::MAX).unwrap_err()));
        let dir = Proc::default().dir(std::process::id()).unwrap();
        assert!(is_gone(&dir.link(c"fd/4000000", &mut Buffer::default()).unwrap_err()));
        assert!(!is_gone(&io::Error::from_raw_os_error(libc::EACCES)));
    }

    #[test]
    fn more_entries_than_fit_into_one_call_are_all_listed() {
        let root = tempfile::tempdir().unwrap();
        let fds = root.path().join("7/fd");
        fs::create_dir_all(&fds).unwrap();
        for fd in 0..3000 {
            fs::write(fds.join(fd.to_string()), "").unwrap();
        }
        let mut listed = Vec::new();
        let dir = Proc::new(root.path()).dir(7).unwrap();
        dir.at(c"fd").unwrap().numbers(&mut Buffer::default(), &mut listed).unwrap();
        listed.sort_unstable();
        assert_eq!(listed, (0..3000).collect::<Vec<_>>());
    }

    #[test]
    fn fdinfo_of_an_old_kernel_has_no_mount_id() {
        assert_eq!(mnt_id("pos:\t0\nflags:\t0100002\nmnt_id:\t19\nino:\t63107\n"), Some(19));
        assert_eq!(mnt_id("pos:\t0\nflags:\t0100002\n"), None);
    }
}
