//! The mount that a process is the file server of: a FUSE server gets its mount point as an argument. The argument is
//! anybody's to choose, so it is believed only of root of the node, who has the FUSE device open, and only if a FUSE
//! file system is mounted there.

use crate::sources::procfs::dir::{Buffer, Dir, NumberName};
use crate::sources::procfs::mountinfo::{MountTable, is_fuse};
use crate::sources::procfs::root::is_root_of_node;

const DEVICE: &str = "/dev/fuse";

/// The mount point of the FUSE file system that a process serves.
pub(super) fn mountpoint(process: &Dir) -> Option<String> {
    let (mut links, mut text) = (Buffer::default(), Vec::new());
    let cmdline = process.text(c"cmdline", &mut text).ok()?.into_owned();
    if !cmdline.split('\0').any(|argument| argument.starts_with('/')) {
        return None;
    }
    // Mount points are as the process sees them only without a chroot.
    if process.link(c"root", &mut links).ok()? != "/" || !is_root_of_node(process, &mut links, &mut text) {
        return None;
    }
    let table = MountTable::parse(&process.text(c"mountinfo", &mut text).ok()?, "/");
    let found = named(&cmdline, &table)?;
    (has_device(process, &mut links)).then(|| found.to_owned())
}

/// The last argument at which a FUSE file system is mounted.
fn named<'c>(cmdline: &'c str, table: &MountTable) -> Option<&'c str> {
    let paths = cmdline.split('\0').skip(1).filter(|argument| argument.starts_with('/'));
    let is_served = |path: &&str| table.at(path).is_some_and(|mount| is_fuse(&mount.fstype));
    paths.filter(is_served).last()
}

fn has_device(process: &Dir, links: &mut Buffer) -> bool {
    let Ok(fds) = process.at(c"fd") else { return false };
    let mut numbers = Vec::new();
    fds.numbers(links, &mut numbers).is_ok()
        && numbers
            .into_iter()
            .any(|fd| fds.link(NumberName::new(fd).as_c_str(), links).is_ok_and(|link| link == DEVICE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_names_what_is_served_only_where_fuse_is_mounted() {
        let table = MountTable::parse(
            "1 0 8:1 / / rw - ext4 d rw\n2 1 0:9 / /v rw - fuse.glusterfs g rw\n\
             3 1 0:8 / /c rw - fuse x rw\n4 3 0:7 / /c rw - tmpfs t rw\n5 1 0:6 / /f rw - fusectl f rw",
            "/",
        );
        assert_eq!(named("glusterfs\0--volfile-id=a\0/v\0", &table), Some("/v"));
        for arguments in ["glusterfs\0/v/in\0", "glusterfs\0/\0", "x\0/c\0", "x\0/f\0", "/v\0", "x v"] {
            assert_eq!(named(arguments, &table), None, "{arguments:?}");
        }
    }
}
