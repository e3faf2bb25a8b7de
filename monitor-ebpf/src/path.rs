//! A `struct path` (a mount and a dentry), walked up to a root across mounts: its names as seen from that root.
//!
//! No lock is held: a rename or a mount at that moment can show names of before and after together. Choices are
//! made by arithmetic, because each branch would multiply the paths that the verifier walks; `bpf_loop`, which would
//! walk any depth, exists since 5.17 only.

use aya_ebpf::helpers::generated::bpf_probe_read_kernel_str;
use kevtmon_ebpf::path_mark;

use crate::memory::{Kernel, Structure as _, offset};
use crate::task::OFFSETS;

/// A place in a mount tree.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// `struct vfsmount`.
    mnt: u64,
    dentry: u64,
}

impl Place {
    /// Null. A walk to it ends at the topmost mount, with `OTHER_TREE`.
    pub(crate) const NOWHERE: Self = Self { mnt: 0, dentry: 0 };

    /// The `struct mount` that it is on.
    #[inline(always)]
    pub(crate) fn mount(self) -> Kernel {
        Kernel(self.mnt.wrapping_sub(u64::from(offset!(mount_vfsmount))))
    }

    /// Not 0 if the two are different places.
    #[inline(always)]
    pub(crate) fn differs(self, other: Self) -> u64 {
        (self.mnt ^ other.mnt) | (self.dentry ^ other.dentry)
    }

    /// Reads a `struct path` that is embedded in `structure`, `path` bytes from its start.
    #[inline(always)]
    pub(crate) fn read(structure: Kernel, path: u32) -> Self {
        let path = Kernel(structure.0.wrapping_add(u64::from(path)));
        Self { mnt: path.get(offset!(path_mnt)), dentry: path.get(offset!(path_dentry)) }
    }

    /// The root directory of a task; null once the task has given up its file systems.
    #[inline(always)]
    pub(crate) fn root_of(task: Kernel) -> Self {
        Self::read(task.follow(offset!(task_fs)), offset!(fs_root))
    }

    /// Writes the names from the leaf to `root`, and returns bits of [`path_mark`]. A slot stays empty where a mount
    /// is crossed, and above the end.
    ///
    /// # Safety
    /// `into` must be valid for writes.
    #[inline(always)]
    pub(crate) unsafe fn walk<const NAME: usize, const DEPTH: usize>(
        self,
        root: Self,
        into: *mut [[u8; NAME]; DEPTH],
    ) -> u32 {
        let Self { mut mnt, mut dentry } = self;
        let hashed: u64 = Kernel(dentry).get(offset!(dentry_hashed));
        let parent: u64 = Kernel(dentry).get(offset!(dentry_parent));
        let mut marks =
            u64::from(path_mark::DELETED) & equal(hashed, 0) & !equal(parent, dentry) & !equal(dentry, 0);
        // Whether the root directory was met by another mount before any was left, and a name above it.
        let (mut crossed, mut met, mut named) = (0, 0, 0);
        let mut depth = 0;
        while depth < DEPTH {
            let arrived = equal(mnt, root.mnt) & equal(dentry, root.dentry) & !equal(dentry, 0);
            marks |= arrived & u64::from(path_mark::ROOT);
            // Reads through null give zeros, so nothing more is found.
            mnt &= !arrived;
            dentry &= !arrived;

            // The root of a mount has no name of its own: the mount point does.
            let crossing = equal(dentry, Kernel(mnt).get(offset!(vfsmount_root)));
            let name = Kernel(dentry).get::<u64>(offset!(dentry_name)) & !crossing;
            // SAFETY: by the caller's promise; probe_read checks the source and zeroes the slot on failure.
            let copied = unsafe {
                bpf_probe_read_kernel_str((&raw mut (*into)[depth]).cast(), NAME as u32, name as *const _)
            };
            marks |= equal(copied as u64, NAME as u64) & u64::from(path_mark::CUT);

            let inner = offset!(mount_vfsmount);
            let mount = Kernel(mnt.wrapping_sub(u64::from(inner)));
            let above = mount.get::<u64>(offset!(mount_parent)).wrapping_add(u64::from(inner));
            let next_mnt = either(crossing, above, mnt);
            let next_dentry = either(
                crossing,
                mount.get(offset!(mount_mountpoint)),
                Kernel(dentry).get(offset!(dentry_parent)),
            );
            let stuck = equal(next_mnt, mnt) & equal(next_dentry, dentry) & !equal(dentry, 0);
            marks |= stuck & crossing & u64::from(path_mark::OTHER_TREE);
            marks |= stuck & !crossing & u64::from(path_mark::LOOSE);
            named |= met & !equal(name, 0);
            met |= equal(dentry, root.dentry) & !equal(dentry, 0) & !crossed;
            crossed |= crossing;
            mnt = next_mnt & !stuck;
            dentry = next_dentry & !stuck;
            depth += 1;
        }
        marks |= met & !named & u64::from(path_mark::ROOT_COPY);
        marks as u32
    }
}

/// All ones if equal, else zero.
#[inline(always)]
fn equal(a: u64, b: u64) -> u64 {
    let difference = a ^ b;
    opaque((difference | difference.wrapping_neg()) >> 63).wrapping_sub(1)
}

/// The first where `mask` is all ones, the second where it is zero.
#[inline(always)]
fn either(mask: u64, first: u64, second: u64) -> u64 {
    (first & mask) | (second & !mask)
}

/// Keeps the compiler from making a branch of arithmetic.
#[inline(always)]
fn opaque(value: u64) -> u64 {
    // SAFETY: a local.
    unsafe { core::ptr::read_volatile(&raw const value) }
}
