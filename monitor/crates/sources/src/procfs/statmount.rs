//! Mounts by the id that is never reused: statmount(2) and listmount(2), since 6.8; for the namespaces of others since
//! 6.11. No mount is opened, no path is walked, no file system is queried.

use std::io;
use std::mem::{offset_of, size_of};
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, OwnedFd};

use kevtmon_observation::NsInum;
use nix::errno::Errno;
use nix::sys::stat::fstat;
use zerocopy::{FromBytes, FromZeros as _};

use super::dir::Dir;
use super::mountinfo::Mount;
use super::pidfd::owned;

mod table;

/// The same on every architecture.
const SYS_STATMOUNT: libc::c_long = 457;
const SYS_LISTMOUNT: libc::c_long = 458;
/// `_IOR(NSIO, 11, struct mnt_ns_info)` and 12 of include/uapi/linux/nsfs.h, since 6.12.
const NS_MNT_GET_NEXT: libc::Ioctl = 0x8010_b70b;
const NS_MNT_GET_PREV: libc::Ioctl = 0x8010_b70c;
/// `_IOR(NSIO, 0x5, __u64)` of include/uapi/linux/nsfs.h.
const NS_GET_MNTNS_ID: libc::Ioctl = 0x8008_b705;
/// Of include/uapi/linux/mount.h.
const STATMOUNT_SB_BASIC: u64 = 1;
const STATMOUNT_MNT_BASIC: u64 = 2;
const LSMT_ROOT: u64 = u64::MAX;
/// Size of the request before it had a namespace.
const MNT_ID_REQ_SIZE_VER0: u32 = 24;
/// Ids that one call lists.
const LISTED: usize = 512;

/// `struct mnt_id_req`.
#[repr(C)]
#[derive(Debug)]
struct MountRequest {
    size: u32,
    spare: u32,
    mount: u64,
    param: u64,
    namespace: u64,
}

/// The beginning of `struct statmount`.
#[repr(C)]
#[derive(Debug, FromBytes)]
struct Basics {
    size: u32,
    options: u32,
    mask: u64,
    device_major: u32,
    device_minor: u32,
    magic: u64,
    super_block_flags: u32,
    fstype: u32,
    id: u64,
    parent: u64,
    reused_id: u32,
    reused_parent: u32,
    attributes: u64,
    propagation: u64,
    peer_group: u64,
    master: u64,
}

const _: () = assert!(offset_of!(Basics, id) == 40 && offset_of!(Basics, attributes) == 64);
const _: () = assert!(size_of::<Basics>() == 96);
const _: () = assert!(size_of::<MountRequest>() == 32);

/// A mount namespace whose mounts are asked for. It must not be kept: it pins the namespace.
#[derive(Debug)]
pub struct MountNamespace {
    /// 0 is the caller's own.
    id: u64,
    _pinned: Option<OwnedFd>,
}

impl MountNamespace {
    pub fn own() -> Self {
        Self { id: 0, _pinned: None }
    }

    /// That of a process.
    /// Errors: when the process is gone or may not be inspected; `ENOTTY` before 6.11.
    pub fn of(process: &Dir) -> io::Result<Self> {
        let handle = process.handle(c"ns/mnt")?;
        let mut id = 0_u64;
        // SAFETY: the request writes one u64.
        Errno::result(unsafe { libc::ioctl(handle.as_raw_fd(), NS_GET_MNTNS_ID, &raw mut id) })?;
        Ok(Self { id, _pinned: Some(handle) })
    }

    /// Calls this with every other mount namespace of the node, its inode number first, until it returns false.
    /// Errors: `ENOTTY` before 6.12.
    pub fn for_each_other(
        process: &Dir,
        mut call: impl FnMut(NsInum, Self) -> io::Result<bool>,
    ) -> io::Result<()> {
        for direction in [NS_MNT_GET_NEXT, NS_MNT_GET_PREV] {
            let mut at = process.handle(c"ns/mnt")?;
            while let Some((next, id)) = neighbor(&at, direction)? {
                let number = NsInum::try_from(fstat(&next)?.st_ino).map_err(io::Error::other)?;
                at = next;
                if !call(number, Self { id, _pinned: None })? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The unique id of a mount of its table, if the mount is still there.
    pub fn unique_id(&self, mount: &Mount) -> Option<u64> {
        let is_it = |id: &u64| self.stat(*id).is_ok_and(|stat| stat.is(mount));
        let page = |ids: &[u64]| {
            ids.iter().copied().find(is_it).map_or(ControlFlow::Continue(()), ControlFlow::Break)
        };
        self.each_page(page).ok()?
    }

    /// The unique ids of some mounts of its table, in their order; none of those that are not there any more.
    pub fn unique_ids(&self, mounts: &[&Mount]) -> Vec<Option<u64>> {
        let mut found = vec![None; mounts.len()];
        // Where the list ends early, the others are not known.
        let _ = self.each_id(|id| {
            let Ok(stat) = self.stat(id) else { return };
            if let Some(index) = mounts.iter().position(|mount| stat.is(mount)) {
                found[index] = Some(id);
            }
        });
        found
    }

    /// The unique id of the mount that was made last of those that it has. All with a lower id were made before.
    pub fn newest(&self) -> io::Result<u64> {
        let mut newest = 0;
        self.each_id(|id| newest = newest.max(id))?;
        Ok(newest)
    }

    /// Whether it has more mounts than this. The kernel is asked for no more: of those that are mounted on one another, each
    /// costs it a walk through all below.
    pub fn has_more_than(&self, most: usize) -> io::Result<bool> {
        let mut count = 0;
        let more = self.each_page(|ids| {
            count += ids.len();
            if count > most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(more.is_some())
    }

    fn each_id(&self, mut each: impl FnMut(u64)) -> io::Result<()> {
        self.each_page(|ids| {
            ids.iter().copied().for_each(&mut each);
            ControlFlow::<()>::Continue(())
        })
        .map(drop)
    }

    /// Lists the ids until one page of them ends the search.
    fn each_page<B>(&self, mut each: impl FnMut(&[u64]) -> ControlFlow<B>) -> io::Result<Option<B>> {
        let mut after = 0;
        loop {
            let ids = self.list(after)?;
            if let ControlFlow::Break(found) = each(&ids) {
                return Ok(Some(found));
            }
            match ids.last().filter(|_| ids.len() == LISTED) {
                Some(last) => after = *last,
                None => return Ok(None),
            }
        }
    }

    /// Whether the mount with this unique id is in the namespace; `None` where the kernel does not tell.
    pub fn has(&self, unique: u64) -> Option<bool> {
        match self.stat(unique) {
            Ok(_) => Some(true),
            // Also if we may not look into the namespace.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                self.list(0).is_ok_and(|ids| !ids.is_empty()).then_some(false)
            }
            Err(_) => None,
        }
    }

    fn request(&self, mount: u64, param: u64) -> MountRequest {
        let all = u32::try_from(size_of::<MountRequest>()).unwrap_or(MNT_ID_REQ_SIZE_VER0);
        let size = if self.id == 0 { MNT_ID_REQ_SIZE_VER0 } else { all };
        MountRequest { size, spare: 0, mount, param, namespace: self.id }
    }

    /// Unique ids of the mounts after this one, in ascending order.
    fn list(&self, after: u64) -> io::Result<Vec<u64>> {
        let request = self.request(LSMT_ROOT, after);
        let mut ids = vec![0_u64; LISTED];
        // SAFETY: the request is as long as it says, and the kernel writes at most the given number of ids.
        let listed =
            unsafe { libc::syscall(SYS_LISTMOUNT, &raw const request, ids.as_mut_ptr(), ids.len(), 0) };
        ids.truncate(usize::try_from(listed).map_err(|_| io::Error::last_os_error())?);
        Ok(ids)
    }

    fn stat(&self, unique: u64) -> io::Result<Basics> {
        let request = self.request(unique, STATMOUNT_SB_BASIC | STATMOUNT_MNT_BASIC);
        let mut basics = Basics::new_zeroed();
        let size = size_of::<Basics>();
        // SAFETY: the request is as long as it says, and the kernel writes at most the given size.
        Errno::result(unsafe { libc::syscall(SYS_STATMOUNT, &raw const request, &raw mut basics, size, 0) })?;
        Ok(basics)
    }
}

/// `struct mnt_ns_info`.
#[repr(C)]
#[derive(Debug, Default)]
struct NamespaceInfo {
    size: u32,
    mounts: u32,
    id: u64,
}

/// The namespace after this one, or before it, with its id; `None` at the end.
fn neighbor(of: &OwnedFd, direction: libc::Ioctl) -> io::Result<Option<(OwnedFd, u64)>> {
    let mut info = NamespaceInfo { size: 16, ..NamespaceInfo::default() };
    // SAFETY: the request writes one structure of the size that it has, and returns a new descriptor or -1.
    match unsafe { owned(libc::ioctl(of.as_raw_fd(), direction, &raw mut info)) } {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        found => Ok(Some((found?, info.id))),
    }
}

const _: () = assert!(size_of::<NamespaceInfo>() == 16);

impl Basics {
    /// Whether it describes the mount of this line of a mount table.
    fn is(&self, mount: &Mount) -> bool {
        u64::from(self.reused_id) == mount.id
            && u64::from(self.reused_parent) == mount.parent
            && self.device() == mount.device
    }

    /// Whether it shares or receives what is mounted on it.
    fn propagates(&self) -> bool {
        self.peer_group != 0 || self.master != 0
    }

    /// As in a mount table.
    fn device(&self) -> String {
        format!("{}:{}", self.device_major, self.device_minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::Proc;
    use crate::procfs::mountinfo::MountTable;

    #[test]
    fn every_mount_of_the_own_namespace_has_an_id_of_its_own() {
        let own = MountNamespace::own();
        let Ok(ids) = own.list(0) else {
            eprintln!("this kernel has no listmount(2)");
            return;
        };
        let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let table = MountTable::parse(&text, "/");
        let root = table.at("/").unwrap();
        let unique = own.unique_id(root).unwrap();
        assert!(unique >= 1 << 31 && ids.contains(&unique), "{unique} in {ids:?}");
        let mounts: Vec<&Mount> = table.iter().collect();
        let all = own.unique_ids(&mounts);
        let index = mounts.iter().position(|mount| mount.id == root.id).unwrap();
        assert_eq!(all[index], Some(unique));
        assert!(own.newest().unwrap() >= all.iter().copied().flatten().max().unwrap());
        assert!(own.has_more_than(0).unwrap() && own.has_more_than(ids.len() - 1).unwrap());
        assert!(!own.has_more_than(100_000).unwrap());
        assert_eq!(own.has(unique), Some(true));
        assert_eq!(own.has(u64::MAX - 1), Some(false));
        let through_proc = MountNamespace::of(&Proc::default().dir(std::process::id()).unwrap());
        match through_proc {
            Ok(through_proc) => assert_eq!(through_proc.unique_id(root), Some(unique)),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOTTY)),
        }
    }
}
