//! `[hooks]` of the configuration file: each hook, and the ring buffer.

use std::path::PathBuf;

use kevtmon_ebpf::lanes::Rate;
use kevtmon_types::settings::{Description, Valid, Values, settings};

use super::BpfConfig;
use super::hooks::{HOOKS, HookChoices, wants_programs};

settings! { "hooks":
    /// Size of the ring buffer in KiB; it counts twice as resident memory.
    // Its pages are mapped twice; a smaller one does not survive a burst.
    RING_KIB: u32 = "ring_kib", default 1024, valid Valid::PowerOfTwo(64, 2048);
    /// Records a second that one source may make on average: one control group in one network namespace, in unmounting on the
    /// host or elsewhere, or in executing CNI plugins. All groups there together may make four times as many. What is beyond that is counted, and summed up in `events.throttled`. Default gateways of pods, containers and the host
    /// are exempt up to 64 a second each.
    SOURCE_RATE: u32 = "source_rate", default 2000, valid Valid::Range(1, 1_000_000);
    /// Records that one source may make at once, and has back after a pause.
    SOURCE_BURST: u32 = "source_burst", default 4096, valid Valid::Range(1, 1_000_000);
    /// Records a second that an unprivileged user may make on average, in all namespaces that are his together.
    USER_RATE: u32 = "user_rate", default 2000, valid Valid::Range(1, 1_000_000);
    /// Records that he may make at once, and has back after a pause.
    USER_BURST: u32 = "user_burst", default 4096, valid Valid::Range(1, 1_000_000);
    /// Whether the kernel itself lists who may hold a mount, where it can (BPF iterators). Without that, and where no hook
    /// uses programs, all processes are read in /proc, which finds the same and takes many times as long.
    ITERATORS: bool = "iterators", default true;
    /// File with the types (BTF) of this kernel, for one that does not have them in `/sys/kernel/btf/vmlinux`; empty for none. Its
    /// name must be that of `uname -r` with `.btf`, and it must be of this build (`uname -v`): with other types, events would be
    /// wrong.
    BTF: PathBuf = "btf", default PathBuf::new();
}

/// All of the table, in the order of the file.
pub fn descriptions() -> impl Iterator<Item = &'static dyn Description> {
    HOOKS.iter().map(|hook| *hook as &dyn Description).chain(SETTINGS.iter().copied())
}

impl BpfConfig {
    pub fn from_values(values: &Values, log: bool) -> Self {
        let hooks = HookChoices::from_values(values);
        Self {
            iterators: values.get(&ITERATORS)
                && HOOKS.iter().any(|hook| wants_programs(hook, hooks.of(hook))),
            ring_bytes: values.get(&RING_KIB) << 10,
            user_rate: Rate::new(values.get(&USER_RATE), values.get(&USER_BURST)),
            source_rate: Rate::new(values.get(&SOURCE_RATE), values.get(&SOURCE_BURST)),
            hooks,
            types: Some(values.get(&BTF)).filter(|path| !path.as_os_str().is_empty()),
            log,
            withheld: None,
        }
    }
}
