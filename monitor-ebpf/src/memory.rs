//! Reads kernel and user memory at offsets that the daemon resolved.

use aya_ebpf::helpers::generated::{bpf_probe_read_kernel, bpf_probe_read_user};
use kevtmon_ebpf::MISSING;

/// One offset: a field of the `OFFSETS` of the file that reads it.
macro_rules! offset {
    ($field:ident $([$index:expr])?) => {
        $crate::memory::volatile(&raw const OFFSETS.$field $([$index])?)
    };
}
pub(crate) use offset;

/// Reads what the daemon writes before load, or what the verifier is to see read here: a plain read would be folded to what
/// the compiler sees.
#[inline(always)]
pub(crate) fn volatile<T: Copy>(field: *const T) -> T {
    // SAFETY: `field` points into a static, a value of a map, or the stack.
    unsafe { core::ptr::read_volatile(field) }
}

/// A structure of the kernel that members are read from.
pub(crate) trait Structure: Copy {
    /// Whether the verifier knows its type.
    const IS_TYPED: bool;

    /// Reads a `T` that starts `offset` bytes further; zeros when it cannot be read.
    fn get<T: zerocopy::FromBytes>(self, offset: u32) -> T;

    /// Follows a pointer member.
    fn follow(self, offset: u32) -> Self;

    /// Whether there is no structure.
    #[inline(always)]
    fn is_null(self) -> bool {
        self.untyped().0 == 0
    }

    /// The same without its type. For each pointer member of an argument or of the current task the verifier searches all of the
    /// kernel's types by name, several times; where many pointers are followed, that is most of what it does.
    fn untyped(self) -> Kernel;

    /// Copies an array member; zeros when it cannot be read.
    ///
    /// # Safety
    /// `into` must be valid for writes of as many bytes.
    unsafe fn copy<T: zerocopy::FromBytes, const N: usize>(self, offset: u32, into: *mut u8);
}

/// A structure with a type known to the verifier: an argument of a BTF tracepoint, and what its pointers lead
/// to. A member is read by one instruction where [`Kernel`] takes a call, many times as long; a null pointer or
/// one that faults gives zeros just the same. What is read must be a member, or lie within one.
#[derive(Clone, Copy)]
pub(crate) struct Typed(pub(crate) u64);

impl Structure for Typed {
    const IS_TYPED: bool = true;

    #[inline(always)]
    fn get<T: zerocopy::FromBytes>(self, offset: u32) -> T {
        // The verifier knows the offsets, so this branch costs nothing.
        if offset == MISSING {
            return T::new_zeroed();
        }
        // SAFETY: the kernel handles a fault at this instruction. Volatile, so that it stays one of this width.
        unsafe { core::ptr::read_volatile(self.0.wrapping_add(u64::from(offset)) as *const T) }
    }

    #[inline(always)]
    fn follow(self, offset: u32) -> Self {
        Self(self.get(offset))
    }

    #[inline(always)]
    fn untyped(self) -> Kernel {
        Kernel(self.0)
    }

    /// Each item is read by itself.
    #[inline(always)]
    unsafe fn copy<T: zerocopy::FromBytes, const N: usize>(self, offset: u32, into: *mut u8) {
        let mut index = 0;
        while index < N {
            let item: T = match offset {
                MISSING => T::new_zeroed(),
                _ => self.get(offset.wrapping_add((index * size_of::<T>()) as u32)),
            };
            // SAFETY: by the caller's promise.
            unsafe { into.cast::<T>().add(index).write_unaligned(item) };
            index += 1;
        }
    }
}

/// An address in the kernel; 0 is null.
#[derive(Clone, Copy)]
pub(crate) struct Kernel(pub(crate) u64);

impl Structure for Kernel {
    const IS_TYPED: bool = false;

    #[inline(always)]
    fn get<T: zerocopy::FromBytes>(self, offset: u32) -> T {
        let mut value = core::mem::MaybeUninit::<T>::uninit();
        // SAFETY: `put` writes the whole value.
        unsafe {
            self.put(offset, value.as_mut_ptr());
            value.assume_init()
        }
    }

    #[inline(always)]
    fn follow(self, offset: u32) -> Self {
        Self(self.get(offset))
    }

    #[inline(always)]
    fn untyped(self) -> Kernel {
        self
    }

    #[inline(always)]
    unsafe fn copy<T: zerocopy::FromBytes, const N: usize>(self, offset: u32, into: *mut u8) {
        // SAFETY: by the caller's promise.
        unsafe { self.put(offset, into.cast::<[T; N]>()) };
    }
}

impl Kernel {
    /// Reads a `T` to where it belongs; zeros when it cannot be read. Spares the stack, which is 512 bytes.
    ///
    /// # Safety
    /// `into` must be valid for writes of a `T`.
    #[inline(always)]
    pub(crate) unsafe fn put<T: zerocopy::FromBytes>(self, offset: u32, into: *mut T) {
        // The verifier knows the offsets, so this branch costs nothing. One for a null pointer would double
        // the paths that it walks, here and in every caller; such a read only fails.
        if offset == MISSING {
            // SAFETY: by the caller's promise.
            return unsafe { into.write_bytes(0, 1) };
        }
        let source = self.0.wrapping_add(u64::from(offset)) as *const core::ffi::c_void;
        // SAFETY: by the caller's promise; probe_read checks the source and zeroes the destination on failure.
        unsafe { bpf_probe_read_kernel(into.cast(), size_of::<T>() as u32, source) };
    }
}

/// Copies the arguments of the current task; returns the bytes that count.
#[inline(always)]
pub(crate) fn copy_arguments<const N: usize>(start: u64, end: u64, into: *mut [u8; N]) -> u32 {
    if start == 0 || end <= start {
        return 0;
    }
    let mut len = end - start;
    if len > N as u64 {
        len = N as u64;
    }
    // SAFETY: `len` is at most the size of the destination; probe_read checks the source.
    match unsafe { bpf_probe_read_user(into.cast(), len as u32, start as *const _) } {
        0 => len as u32,
        _ => 0,
    }
}
