//! The table of hooks. Each hook is described in a file below; loading, configuration, metrics, events and
//! documentation iterate over [`HOOKS`], and nothing else names a single hook.

mod choice;
mod exec;
mod fallback;
mod link;
mod neighbor;
mod remove;
mod route;
mod sysctl;
mod umount;

pub use choice::{Choice, HookChoices};
pub use fallback::{CRASH_LOOP, HookStatus, SWITCHED_OFF};
pub(super) use fallback::{wants_programs, wants_untyped_programs};
use kevtmon_ebpf::Counter;
use kevtmon_metrics::KernelMetric;
use kevtmon_observation::{BootNs, Fact};
use kevtmon_types::namespace::NsInum;

use super::btf::{Btf, BtfError};
use super::cni::PartialCalls;
use super::decode::DecodeError;

/// Every hook, in the order in which they are attached and shown.
pub const HOOKS: &[&Hook] =
    &[&neighbor::HOOK, &umount::HOOK, &remove::HOOK, &link::HOOK, &sysctl::HOOK, &exec::HOOK];

/// A kind of kernel activity that is observed, and the ways to observe it.
#[derive(Debug)]
pub struct Hook {
    /// Name in the configuration and in metrics.
    pub name: &'static str,
    /// What it observes, in the plural: `neighbor changes`.
    pub observes: &'static str,
    /// What is not known while it is on none of its attach modes.
    pub without: &'static str,
    /// The ways to observe it, the best first.
    pub attach_modes: &'static [AttachMode],
    /// Where its programs read the kernel's structures, besides those of the current task.
    pub offsets: Option<Offsets>,
    /// What its programs write and count.
    pub records: Records,
    /// The reason in events and metrics of what is lost because the kernel skipped a run of one of them.
    pub skipped: &'static str,
}

/// One way to observe.
#[derive(Debug)]
pub struct AttachMode {
    /// Name in the configuration, in events and in metrics.
    pub name: &'static str,
    /// Its limitation, for the documentation of the setting.
    pub note: Option<&'static str>,
    /// What is not known on it; `None` for the best.
    pub lost: Option<&'static str>,
    pub mechanism: Mechanism,
}

/// How a attach mode observes.
#[derive(Debug)]
pub enum Mechanism {
    /// All of these programs: some of them alone would miss or misreport part of the activity.
    Programs(&'static [Program]),
    /// Live neighbor messages of the netlink source, which are not subscribed to otherwise.
    NeighborMessages,
}

/// A program of the eBPF object.
#[derive(Debug)]
pub struct Program {
    pub name: &'static str,
    pub attach: Attach,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attach {
    /// A tracepoint whose arguments have BTF types (`tp_btf`).
    BtfTracepoint(&'static str),
    /// The same tracepoint without types (`raw_tp`), for a kernel that has none: what is read needs those of a file.
    RawTracepoint(&'static str),
    /// A tracepoint of system calls, of tracefs.
    Tracepoint(&'static str),
    /// The same of a program that reads no structure of the kernel, and so needs none of its types.
    UntypedTracepoint(&'static str),
    /// The start of each of these system calls, by its tracepoint of tracefs: `sys_enter_NAME`.
    Starts(&'static [&'static str]),
    /// The return of each of these system calls, by its tracepoint of tracefs: `sys_exit_NAME`.
    Returns(&'static [&'static str]),
    /// The start of a kernel function (`fentry`). What it adds can be done without: some kernels refuse it, and then the attach mode
    /// has the other programs only.
    Function(&'static str),
    /// The same by a kprobe, only where the kernel refuses the former: the kernel skips more of its runs (`skipped.rs`).
    Kprobe(&'static str),
    /// Every access to a file below `/proc/sys` (`cgroup/sysctl`), at the root of the v2 hierarchy of control groups.
    Sysctl,
    /// Nothing: the daemon runs it. A raw tracepoint program, which has been possible since Linux 5.10.
    OnRequest,
}

const fn raw_tp(name: &'static str, tracepoint: &'static str) -> Program {
    Program { name, attach: Attach::RawTracepoint(tracepoint) }
}

/// A program on the tracepoint of its name.
const fn tp_btf(name: &'static str) -> Program {
    Program { name, attach: Attach::BtfTracepoint(name) }
}

impl Attach {
    /// Whether it takes the kernel's types.
    pub(super) fn needs_types(self) -> bool {
        !matches!(self, Self::UntypedTracepoint(_))
    }

    /// The kernel function that it is at the start of.
    pub(super) fn function(self) -> Option<&'static str> {
        match self {
            Self::Function(name) | Self::Kprobe(name) => Some(name),
            _ => None,
        }
    }

    /// The tracepoints of system calls that it is on.
    pub(super) fn syscall_events(self) -> Vec<String> {
        let each = |of: &str, calls: &[&str]| -> Vec<String> {
            calls.iter().map(|call| format!("{of}{call}")).collect()
        };
        match self {
            Self::Tracepoint(name) | Self::UntypedTracepoint(name) => vec![name.to_owned()],
            Self::Starts(calls) => each("sys_enter_", calls),
            Self::Returns(calls) => each("sys_exit_", calls),
            _ => Vec::new(),
        }
    }
}

/// Offsets that the daemon writes into a program's global before load.
#[derive(Debug, Clone, Copy)]
pub struct Offsets {
    pub global: &'static str,
    /// Its bytes, or which member this kernel does not have.
    pub resolve: fn(&Btf<'_>) -> Result<Vec<u8>, BtfError>,
}

/// What programs write to the ring and count.
#[derive(Debug)]
pub struct Records {
    /// `Header::kind` of each layout, and how it is decoded.
    pub kinds: &'static [(u32, Decode)],
    /// Counters that are exported.
    pub counts: &'static [Count],
    /// Counters of records that were lost.
    pub losses: &'static [LossCount],
}

/// How records of one layout are decoded.
#[derive(Debug, Clone, Copy)]
pub enum Decode {
    /// Each is a fact; the second argument is the host's network namespace.
    Fact(fn(&[u8], NsInum) -> Result<Fact, DecodeError>),
    /// Some together are a fact, of the time at which the first one was written.
    Part(fn(&mut PartialCalls, &[u8]) -> PartDecoded),
}

/// The fact that a part completes, if it does, and its time.
pub type PartDecoded = Result<Option<(BootNs, Fact)>, DecodeError>;

/// A counter that is exported: exact even when the ring is full.
#[derive(Debug, Clone, Copy)]
pub struct Count {
    pub counter: Counter,
    /// The metric it is part of.
    pub metric: KernelMetric,
    /// Values of the metric's labels.
    pub labels: &'static [&'static str],
}

/// A counter of records that were lost.
#[derive(Debug, Clone, Copy)]
pub struct LossCount {
    pub counter: Counter,
    pub reason: &'static str,
}

impl Hook {
    /// Its name among the sources.
    pub fn source(&self) -> String {
        format!("hook.{}", self.name)
    }

    pub(super) fn programs(&self) -> impl Iterator<Item = &'static Program> {
        self.attach_modes.iter().flat_map(|attach_mode| match attach_mode.mechanism {
            Mechanism::Programs(programs) => programs,
            Mechanism::NeighborMessages => &[],
        })
    }
}

/// What all programs write, those of hooks and what they share.
pub(super) fn records() -> impl Iterator<Item = &'static Records> {
    [&super::task::RECORDS, &super::budgets::RECORDS]
        .into_iter()
        .chain(HOOKS.iter().map(|hook| &hook.records))
}

#[cfg(test)]
mod tests;
