//! Loop devices: which file each is made of, and on which file system that is.
//!
//! The name of the file is as this process sees it (`d_path`), and names no mount. Its file system is asked of the device, which
//! asks the file: only where no server has to answer. The device is opened for the time of the question, for reading; whoever
//! unbinds it meanwhile has it unbound when it is closed again.

use std::fs::{self, File};
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, SFlag, fstat};
use zerocopy::{FromBytes, FromZeros as _};

/// Of include/uapi/linux/loop.h.
const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
/// Block devices that are looked at.
const DEVICES_MAX: usize = 65_536;

/// `struct loop_info64`.
#[repr(C)]
#[derive(FromBytes)]
struct Status {
    /// Of the file system of the file, as stat(2) gives it.
    device: u64,
    inode: u64,
    _rest: [u64; 27],
}

const _: () = assert!(size_of::<Status>() == 232 && offset_of!(Status, inode) == 8);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loop {
    pub name: String,
    pub file: String,
    /// `major:minor` of the device, and of its partitions.
    pub numbers: Vec<String>,
}

/// All that have a file of which this holds; `sys`: where sysfs is.
pub fn bound(sys: &Path, mut wanted: impl FnMut(&str) -> bool) -> Vec<Loop> {
    let names = names(&sys.join("block")).take(DEVICES_MAX);
    let found = names.filter(|name| name.starts_with("loop")).filter_map(|name| {
        let file = file(sys, &name).filter(|file| wanted(file))?;
        Some(Loop { numbers: numbers(sys, &name), name, file })
    });
    found.collect()
}

fn file(sys: &Path, name: &str) -> Option<String> {
    text(&sys.join("block").join(name).join("loop/backing_file"))
}

/// The names in a directory of sysfs.
pub fn names(directory: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok())
}

/// What a file of sysfs has.
pub fn text(file: &Path) -> Option<String> {
    let text = fs::read(file).ok()?;
    let text = String::from_utf8_lossy(text.strip_suffix(b"\n").unwrap_or(&text)).into_owned();
    (!text.is_empty()).then_some(text)
}

fn numbers(sys: &Path, name: &str) -> Vec<String> {
    let directory = sys.join("block").join(name);
    let parts = names(&directory).filter(|part| part.starts_with(name)).map(|part| directory.join(part));
    std::iter::once(directory.clone()).chain(parts).filter_map(|place| text(&place.join("dev"))).collect()
}

impl Loop {
    /// `major:minor` of the file system that its file is on, as stat(2) gives it.
    /// Errors: where there is no node of the device, or it has another file by now.
    pub fn file_system(&self, sys: &Path) -> io::Result<String> {
        let device = self.open()?;
        let mut status = Status::new_zeroed();
        // SAFETY: the kernel writes one structure of this size.
        Errno::result(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut status) })?;
        if file(sys, &self.name).as_ref() != Some(&self.file) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(format!("{}:{}", libc::major(status.device), libc::minor(status.device)))
    }

    /// Opens the node of the device, once it is known to be one.
    fn open(&self) -> io::Result<File> {
        let path = Path::new("/dev").join(&self.name);
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let node: OwnedFd = open(&path, flags, Mode::empty())?;
        let stat = fstat(&node)?;
        let number = format!("{}:{}", libc::major(stat.st_rdev), libc::minor(stat.st_rdev));
        let is_block = SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFBLK;
        if !is_block || self.numbers.first() != Some(&number) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let again = format!("/proc/self/fd/{}", node.as_raw_fd());
        File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(again)
    }

    pub fn users(&self, sys: &Path) -> Vec<String> {
        names(&sys.join("block").join(&self.name).join("holders")).take(16).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_devices_with_a_file_that_is_wanted_are_listed_with_their_partitions() {
        let sys = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = sys.path().join("block").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("loop0/dev", "7:0\n");
        write("loop1/dev", "7:1\n");
        write("loop1/loop/backing_file", "/v/a b\n");
        write("loop1/loop1p1/dev", "259:3\n");
        write("loop1/holders/dm-0", "");
        write("loop2/loop/backing_file", "/other\n");
        write("sda/loop/backing_file", "/v/x\n");
        let found = bound(sys.path(), |file| file.starts_with("/v"));
        let numbers = vec!["7:1".to_owned(), "259:3".to_owned()];
        let expected = Loop { name: "loop1".into(), file: "/v/a b".into(), numbers };
        assert_eq!(found, [expected]);
        assert_eq!(found[0].users(sys.path()), ["dm-0"]);
    }

    #[test]
    fn what_is_no_node_of_the_device_is_not_opened() {
        let device = Loop { name: "null".into(), file: "/v/x".into(), numbers: vec!["1:3".into()] };
        assert_eq!(device.open().unwrap_err().kind(), io::ErrorKind::NotFound, "a character device");
    }
}
