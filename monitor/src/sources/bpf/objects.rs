//! The eBPF objects that are built into the daemon. Each is loaded by itself, so that a map or program that one
//! kernel refuses takes no other object down with it.

/// An eBPF object, as `cargo xtask ebpf` built it.
#[derive(Debug)]
pub struct Object {
    /// Name in errors.
    pub name: &'static str,
    /// The ELF file; empty in a daemon that was built without it.
    pub bytes: &'static [u8],
}

/// Programs on tracepoints and BTF-typed tracepoints.
pub const CORE: Object =
    Object { name: "core", bytes: aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/kevtmon-ebpf.o")) };
