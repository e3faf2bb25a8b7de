//! The eBPF object that is built into the daemon.

#[cfg(not(test))]
pub(super) use kevtmon_types::build_info::programs;

/// What `cargo xtask ebpf` has built; empty before it has.
#[cfg(test)]
pub(super) fn programs() -> &'static [u8] {
    static BUILT: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../target/bpf/kevtmon-ebpf.o"))
            .unwrap_or_default()
    });
    &BUILT
}
