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

    /// Both addresses in 32 bits, which tell neither. Another place may get the addresses of one that is gone.
    #[inline(always)]
    pub(crate) fn fold(self) -> u32 {
        const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
        ((self.mnt ^ self.dentry.rotate_left(32)).wrapping_mul(ODD) >> 32) as u32
    }

    /// The first where `mask` is all ones, the second where it is zero.
    #[inline(always)]
    pub(crate) fn either(mask: u64, first: Self, second: Self) -> Self {
        Self { mnt: either(mask, first.mnt, second.mnt), dentry: either(mask, first.dentry, second.dentry) }
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
        let slot = &mut 0;
        let hashed: u64 = Kernel(dentry).get(offset!(dentry_hashed));
        let parent: u64 = Kernel(dentry).get(offset!(dentry_parent));
        let mut marks = u64::from(path_mark::DELETED)
            & equal(slot, hashed, 0)
            & !equal(slot, parent, dentry)
            & !equal(slot, dentry, 0);
        // Whether the root directory was met by another mount before any was left, and a name above it.
        let (mut crossed, mut met, mut named) = (0, 0, 0);
        let mut depth = 0;
        while depth < DEPTH {
            let arrived =
                equal(slot, mnt, root.mnt) & equal(slot, dentry, root.dentry) & !equal(slot, dentry, 0);
            marks |= arrived & u64::from(path_mark::ROOT);
            // Reads through null give zeros, so nothing more is found.
            mnt &= !arrived;
            dentry &= !arrived;

            // The root of a mount has no name of its own: the mount point does.
            let crossing = equal(slot, dentry, Kernel(mnt).get(offset!(vfsmount_root)));
            let name = Kernel(dentry).get::<u64>(offset!(dentry_name)) & !crossing;
            // SAFETY: by the caller's promise; probe_read checks the source and zeroes the slot on failure.
            let copied = unsafe {
                bpf_probe_read_kernel_str((&raw mut (*into)[depth]).cast(), NAME as u32, name as *const _)
            };
            marks |= equal(slot, copied as u64, NAME as u64) & u64::from(path_mark::CUT);

            let inner = offset!(mount_vfsmount);
            let mount = Kernel(mnt.wrapping_sub(u64::from(inner)));
            let above = mount.get::<u64>(offset!(mount_parent)).wrapping_add(u64::from(inner));
            let next_mnt = either(crossing, above, mnt);
            let next_dentry = either(
                crossing,
                mount.get(offset!(mount_mountpoint)),
                Kernel(dentry).get(offset!(dentry_parent)),
            );
            let stuck =
                equal(slot, next_mnt, mnt) & equal(slot, next_dentry, dentry) & !equal(slot, dentry, 0);
            marks |= stuck & crossing & u64::from(path_mark::OTHER_TREE);
            marks |= stuck & !crossing & u64::from(path_mark::LOOSE);
            named |= met & !equal(slot, name, 0);
            met |= equal(slot, dentry, root.dentry) & !equal(slot, dentry, 0) & !crossed;
            crossed |= crossing;
            mnt = next_mnt & !stuck;
            dentry = next_dentry & !stuck;
            depth += 1;
        }
        marks |= met & !named & u64::from(path_mark::ROOT_COPY);
        marks as u32
    }
}

/// All ones if equal, else zero. What the compiler can see through it makes a comparison of, and that is a branch.
#[inline(always)]
pub(crate) fn equal(slot: &mut u64, a: u64, b: u64) -> u64 {
    let difference = a ^ b;
    let negative = opaque(slot, difference.wrapping_neg());
    !opaque(slot, (((difference | negative) as i64) >> 63) as u64)
}

/// All ones if the first is less, else zero. Both have less than 64 bits.
#[inline(always)]
pub(crate) fn less(slot: &mut u64, a: u64, b: u64) -> u64 {
    let difference = opaque(slot, a.wrapping_sub(b));
    opaque(slot, ((difference as i64) >> 63) as u64)
}

/// The same value, by way of the stack.
#[inline(always)]
fn opaque(slot: &mut u64, value: u64) -> u64 {
    let slot = core::ptr::from_mut(slot);
    // SAFETY: a local of the caller.
    unsafe {
        core::ptr::write_volatile(slot, value);
        core::ptr::read_volatile(slot)
    }
}

/// The first where `mask` is all ones, the second where it is zero.
#[inline(always)]
pub(crate) fn either(mask: u64, first: u64, second: u64) -> u64 {
    (first & mask) | (second & !mask)
}
