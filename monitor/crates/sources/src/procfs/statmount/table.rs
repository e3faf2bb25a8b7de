//! All mounts of a namespace as a table, without a process in it: since 6.11.

use std::io;
use std::ops::ControlFlow;

use nix::errno::Errno;
use zerocopy::FromBytes;

use super::{Basics, LISTED, MountNamespace, SYS_STATMOUNT};
use crate::procfs::mountinfo::{Mount, MountTable};

/// Of include/uapi/linux/mount.h.
const ALL: u64 = super::STATMOUNT_SB_BASIC | super::STATMOUNT_MNT_BASIC | 0x8 | 0x10 | 0x20;
const MNT_SHARED: u64 = 1 << 20;
const MNT_SLAVE: u64 = 1 << 19;
/// Where `struct statmount` has the places of its texts, and where these begin.
const FSTYPE: usize = 36;
const ROOT: usize = 104;
const POINT: usize = 108;
const TEXTS: usize = 512;
/// Two paths, and the type of a file system.
const SIZE: usize = TEXTS + 2 * 4096 + 256;

impl MountNamespace {
    /// Its mounts; `None` if none of them is wanted, by the device of its file system and whether it shares or receives what is
    /// mounted on it. The table is cut where one of them has longer names than are read.
    /// Errors: where the kernel does not tell, or there are more than `most`.
    pub fn table_with(
        &self,
        most: usize,
        is_wanted: impl Fn(&str, bool) -> bool,
    ) -> io::Result<Option<MountTable>> {
        let mut ids = Vec::new();
        let beyond = self.each_page(|more| {
            ids.extend(more);
            if more.len() == LISTED && ids.len() > most {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        if beyond.is_some() {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        if !self.has_any(&ids, is_wanted) {
            return Ok(None);
        }
        let mut buffer = vec![0_u64; SIZE.div_ceil(size_of::<u64>())];
        let mut is_cut = false;
        let mut mount = |id: &u64| {
            let found = self.mount(*id, &mut buffer);
            is_cut |= found.as_ref().is_err_and(|error| error.raw_os_error() != Some(libc::ENOENT));
            found.ok()
        };
        let mut table: MountTable = ids.iter().filter_map(&mut mount).collect();
        if is_cut {
            table.cut();
        }
        Ok(Some(table))
    }

    /// Whether any of its mounts is wanted, by the device of its file system and whether it shares or receives what is mounted
    /// on it.
    pub fn has_one(&self, is_wanted: impl Fn(&str, bool) -> bool) -> io::Result<bool> {
        let mut has = false;
        self.each_id(|id| has = has || self.has_any(&[id], &is_wanted))?;
        Ok(has)
    }

    /// One that went meanwhile is left out.
    fn has_any(&self, ids: &[u64], is_wanted: impl Fn(&str, bool) -> bool) -> bool {
        let is_wanted = |stat: Basics| is_wanted(&stat.device(), stat.propagates());
        ids.iter().filter_map(|id| self.stat(*id).ok()).any(is_wanted)
    }

    fn mount(&self, unique: u64, buffer: &mut [u64]) -> io::Result<Mount> {
        let request = self.request(unique, ALL);
        let size = size_of_val(buffer);
        // SAFETY: the request is as long as it says, and the kernel writes at most the given size.
        Errno::result(unsafe {
            libc::syscall(SYS_STATMOUNT, &raw const request, buffer.as_mut_ptr(), size, 0)
        })?;
        let bytes: Vec<u8> = buffer.iter().flat_map(|word| word.to_ne_bytes()).collect();
        parse(&bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

fn parse(bytes: &[u8]) -> Option<Mount> {
    let (basics, _) = Basics::read_from_prefix(bytes).ok()?;
    let group = |flag, group: u64| (basics.propagation & flag != 0).then_some(group);
    Some(Mount {
        id: u64::from(basics.reused_id),
        parent: u64::from(basics.reused_parent),
        device: basics.device(),
        root: text(bytes, ROOT)?,
        mountpoint: text(bytes, POINT)?,
        shared: group(MNT_SHARED, basics.peer_group),
        master: group(MNT_SLAVE, basics.master),
        fstype: text(bytes, FSTYPE)?,
        source: String::new(),
    })
}

/// The text whose place is at this one.
fn text(bytes: &[u8], at: usize) -> Option<String> {
    let offset = u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?);
    let text = bytes.get(TEXTS.checked_add(usize::try_from(offset).ok()?)?..)?;
    let text = text.split(|byte| *byte == 0).next()?;
    Some(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::Proc;

    #[test]
    fn the_table_is_that_of_a_process_in_the_namespace() {
        let through_proc = MountNamespace::of(&Proc::default().dir(std::process::id()).unwrap());
        let Ok(namespace) = through_proc else {
            eprintln!("this kernel tells no namespace's mounts");
            return;
        };
        let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let table = MountTable::parse(&text, "/");
        let root = table.at("/").unwrap();
        let told = namespace.table_with(100_000, |device, _| device == root.device).unwrap().unwrap();
        // Others mount and unmount meanwhile.
        let (known, is) =
            (told.by_id(root.id).unwrap(), |mount: &Mount| Mount { source: String::new(), ..mount.clone() });
        assert_eq!(*known, is(root));
        let proc = table.at("/proc").unwrap();
        assert_eq!(*told.by_id(proc.id).unwrap(), is(proc));
        assert!(namespace.table_with(100_000, |device, _| device == "0:999999").unwrap().is_none());
    }
}
