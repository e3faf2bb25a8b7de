//! Capabilities (capabilities(7)): each thread has its own, and threads and processes that it starts have no others.

use std::io;

use kevtmon_types::kernel_release::KernelRelease;
use rustix::thread::{self, CapabilitySet, CapabilitySets};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capability {
    pub name: &'static str,
    bit: u32,
}

pub const DAC_OVERRIDE: Capability = Capability { name: "CAP_DAC_OVERRIDE", bit: 1 };
pub const DAC_READ_SEARCH: Capability = Capability { name: "CAP_DAC_READ_SEARCH", bit: 2 };
/// Give up capabilities for all programs that are executed.
pub const SETPCAP: Capability = Capability { name: "CAP_SETPCAP", bit: 8 };
pub const NET_BIND_SERVICE: Capability = Capability { name: "CAP_NET_BIND_SERVICE", bit: 10 };
/// Hear of all network namespaces on one socket.
pub const NET_BROADCAST: Capability = Capability { name: "CAP_NET_BROADCAST", bit: 11 };
/// Configure networks, and see of sockets what others may not.
pub const NET_ADMIN: Capability = Capability { name: "CAP_NET_ADMIN", bit: 12 };
pub const SYS_PTRACE: Capability = Capability { name: "CAP_SYS_PTRACE", bit: 19 };
/// Enter namespaces, mount, and much else.
pub const SYS_ADMIN: Capability = Capability { name: "CAP_SYS_ADMIN", bit: 21 };
/// Exceed limits of resources.
pub const SYS_RESOURCE: Capability = Capability { name: "CAP_SYS_RESOURCE", bit: 24 };
/// Open the kernel's log where `kernel.dmesg_restrict` is set.
pub const SYSLOG: Capability = Capability { name: "CAP_SYSLOG", bit: 34 };
/// Attach kernel programs that trace.
pub const PERFMON: Capability = Capability { name: "CAP_PERFMON", bit: 38 };
pub const BPF: Capability = Capability { name: "CAP_BPF", bit: 39 };

impl Capability {
    /// Whether a mask in the form of `CapEff` of proc_pid_status(5) has it.
    pub const fn is_in(self, mask: u64) -> bool {
        mask & 1 << self.bit != 0
    }
}

/// The mask of these, in the form of `CapEff` of proc_pid_status(5).
pub fn mask(of: &[Capability]) -> u64 {
    of.iter().fold(0, |mask, capability| mask | 1 << capability.bit)
}

/// The names of those in a mask; the number of one that is not known.
pub fn names(mask: u64) -> Vec<String> {
    let name = |bit: u32| match CapabilitySet::from_bits_retain(1 << bit).iter_names().next() {
        Some((name, _)) => format!("CAP_{name}"),
        None => format!("capability {bit}"),
    };
    (0..u64::BITS).filter(|bit| mask & 1 << bit != 0).map(name).collect()
}

/// Gives up all others of this thread, for good.
pub fn keep(kept: &[Capability]) -> io::Result<()> {
    let kept = CapabilitySet::from_bits_retain(mask(kept));
    let CapabilitySets { effective, permitted, inheritable } = thread::capabilities(None)?;
    let sets = CapabilitySets {
        effective: effective & kept,
        permitted: permitted & kept,
        inheritable: inheritable & kept,
    };
    Ok(thread::set_capabilities(None, sets)?)
}

/// Has no program that this thread executes gain more than the thread has (`no_new_privs`), nor than these.
/// Errors: when the kernel refuses the first.
pub fn gain_none_but(kept: &[Capability]) -> io::Result<()> {
    thread::set_no_new_privs(true)?;
    let kept = mask(kept);
    for bit in (0..u64::BITS).filter(|bit| kept & 1 << bit == 0) {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        // Without CAP_SETPCAP the set stays, and beyond the last capability there is none: the first call suffices by itself.
        if thread::remove_capability_from_bounding_set(capability).is_err() {
            break;
        }
    }
    Ok(())
}

/// What a thread needs to use maps of kernel programs that are loaded: since Linux 5.19 nothing (kernel/bpf/syscall.c), before
/// it CAP_BPF if `kernel.unprivileged_bpf_disabled` is set, now or later.
pub fn to_use_maps() -> Option<Capability> {
    (!KernelRelease(5, 19).is_running()).then_some(BPF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_the_names_that_the_kernel_documents() {
        assert_eq!(
            names(0x0028_1804),
            ["CAP_DAC_READ_SEARCH", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_SYS_PTRACE", "CAP_SYS_ADMIN"]
        );
        assert_eq!(names(1 << 39 | 1 << 7 | 1 << 63), ["CAP_SETUID", "CAP_BPF", "capability 63"]);
        assert!(names(0).is_empty());
        let all = [
            DAC_OVERRIDE, DAC_READ_SEARCH, SETPCAP, NET_BIND_SERVICE, NET_BROADCAST, NET_ADMIN, SYS_PTRACE,
            SYS_ADMIN, SYS_RESOURCE, SYSLOG, PERFMON, BPF,
        ];
        for capability in all {
            assert_eq!(names(mask(&[capability])), [capability.name]);
            assert!(capability.is_in(mask(&all)) && !capability.is_in(0));
        }
    }

    #[test]
    fn what_a_thread_gives_up_is_gone_for_it_and_for_those_that_it_starts() {
        let held = || thread::capabilities(None).unwrap();
        let before = held();
        let of_child = std::thread::spawn(move || {
            keep(&[DAC_READ_SEARCH]).unwrap();
            assert!(mask(&[DAC_READ_SEARCH]) | held().permitted.bits() == mask(&[DAC_READ_SEARCH]));
            assert!(thread::set_capabilities(None, before).is_err() || before == held(), "for good");
            std::thread::spawn(held).join().unwrap()
        });
        let of_child = of_child.join().unwrap();
        assert_eq!(of_child.effective, before.effective & CapabilitySet::DAC_READ_SEARCH);
        assert_eq!(of_child.permitted, before.permitted & CapabilitySet::DAC_READ_SEARCH);
        assert_eq!(held(), before, "other threads keep theirs");
    }
}
