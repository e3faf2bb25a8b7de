//! From what was found to parts of the report: how each is, what is lost, how to get it. Nothing is looked at here.

use crate::observation::{SourceKind, SourceStatus};
use crate::privilege::Lacks;
use crate::query::doctor::{Condition, DaemonReport, Part};
use crate::sources::bpf::hooks::{HOOKS, SWITCHED_OFF};
use crate::sources::kernel::{Cgroups, KernelFacts};

/// The source that is needed besides /proc.
pub(super) const NETLINK: &str = "netlink";
/// What reads /proc, among the sources.
pub(super) const READERS: &str = "procfs";

/// What the node offers, and what the one who uses it may do.
pub(super) struct Node {
    pub(super) kernel: KernelFacts,
    /// Effective capabilities of the daemon, or of this process where none runs.
    pub(super) capabilities: Option<u64>,
}

/// The daemon that answers.
pub(super) fn daemon(report: &DaemonReport) -> Part {
    let found = format!("pid {}, version {} ({})", report.pid, report.version, report.revision);
    match report.ready {
        true => Part::ok(super::DAEMON, found),
        false => Part { found: Some(found), ..Part::new(super::DAEMON, Condition::Degraded) }.because(
            "it is not ready yet",
            "not every source has been tried",
            "ask again in a few seconds",
        ),
    }
}

/// Its effective capabilities.
pub(super) fn mask(report: &DaemonReport) -> Option<u64> {
    u64::from_str_radix(report.capabilities.as_deref()?, 16).ok()
}

/// What the daemon tells of its sources, and of itself.
pub(super) fn of_daemon(report: &DaemonReport, node: &Node) -> Vec<Part> {
    let mut parts: Vec<Part> = report.sources.iter().map(|status| source(status, node)).collect();
    if !report.sources.iter().any(|status| status.source == READERS) {
        parts.push(Part::ok(READERS, "no process hangs whoever reads its files").required());
    }
    parts.push(match &report.pins[..] {
        [] => Part::ok("self-pins", "kevtmon keeps no mount and no namespace of others"),
        pins => Part::new("self-pins", Condition::Degraded).because(
            pins.join("; "),
            "what it pins stays in use: volumes may not be unmounted, network devices may stay",
            "ask again in a second: scans hold such things for a moment; if it stays, run it in the host's mount \
             namespace, and report it",
        ),
    });
    parts
}

/// What the kernel and the privileges allow.
pub(super) fn of_node(node: &Node) -> Vec<Part> {
    let kernel = &node.kernel;
    let proc = match &kernel.proc {
        Ok(()) => Part::ok("proc", "mounted, and shows processes"),
        Err(reason) => Part::new("proc", Condition::Failed).because(
            reason,
            "no process and no namespace can be told",
            "mount -t proc proc /proc, or give the container the host's process namespace",
        ),
    };
    vec![
        proc.required(),
        capabilities(node),
        Part::ok("kernel", format!("Linux {} on {}", kernel.release, kernel.machine)),
        btf(kernel),
        tracefs(kernel),
        lockdown(kernel),
        cgroups(kernel),
    ]
}

fn capabilities(node: &Node) -> Part {
    const NAME: &str = "capabilities";
    let Some(mask) = node.capabilities else {
        let unread = Part::new(NAME, Condition::Unknown);
        return unread.because("they cannot be read from /proc", "", "");
    };
    let lacks = Lacks::of(mask);
    let grant = "run it as root, or grant them: AmbientCapabilities= and CapabilityBoundingSet= of a unit, \
                 securityContext.capabilities of a container";
    if !lacks.required.is_empty() {
        let all: Vec<_> = lacks.required.into_iter().chain(lacks.optional).collect();
        let reason = format!("missing: {}", Lacks::listed(&all));
        return Part::new(NAME, Condition::Failed).required().because(
            reason,
            "kevtmon does not start",
            grant,
        );
    }
    if !lacks.optional.is_empty() {
        let reason = format!("missing: {}", Lacks::listed(&lacks.optional));
        let lost = "the hooks that need them name nobody, or other namespaces are seen late";
        return Part::new(NAME, Condition::Degraded).required().because(reason, lost, grant);
    }
    Part::ok(NAME, "all that are used").required()
}

fn btf(kernel: &KernelFacts) -> Part {
    match &kernel.btf {
        Ok(bytes) => Part::ok("btf", format!("{} KiB of type information", bytes >> 10)),
        Err(reason) => Part::new("btf", Condition::Failed).because(
            format!("/sys/kernel/btf/vmlinux: {reason}"),
            "no hook works: nobody is named for what happens, and it is found by state alone",
            NEEDS_BTF,
        ),
    }
}

const NEEDS_BTF: &str = "a kernel built with CONFIG_DEBUG_INFO_BTF=y, and its /sys where kevtmon runs";

fn tracefs(kernel: &KernelFacts) -> Part {
    match &kernel.tracefs {
        Ok(path) => Part::ok("tracefs", format!("at {}", path.display())),
        Err(reason) => Part::new("tracefs", Condition::Degraded).because(
            reason,
            "hooks on tracepoints of system calls (umount, remove) do not work, unless the daemon can mount it",
            NEEDS_TRACEFS,
        ),
    }
}

const NEEDS_TRACEFS: &str = "mount -t tracefs tracefs /sys/kernel/tracing";

fn lockdown(kernel: &KernelFacts) -> Part {
    match kernel.lockdown.as_deref() {
        None => Part::new("lockdown", Condition::Unknown).because(
            "/sys/kernel/security/lockdown cannot be read: the kernel has none, or securityfs is not mounted",
            "",
            "",
        ),
        Some(mode) if mode != CONFIDENTIALITY => Part::ok("lockdown", mode),
        Some(mode) => Part::new("lockdown", Condition::Degraded).because(
            format!("mode {mode}"),
            "the kernel lets no program read its memory, so that hooks are refused",
            NO_LOCKDOWN,
        ),
    }
}

const CONFIDENTIALITY: &str = "confidentiality";
const NO_LOCKDOWN: &str = "boot with lockdown=integrity, or without it";

fn cgroups(kernel: &KernelFacts) -> Part {
    let found = match kernel.cgroups {
        Cgroups::V2 => "v2",
        Cgroups::Hybrid => "hybrid: v1 hierarchies, and v2 beside them",
        Cgroups::V1 => "v1",
        Cgroups::None => {
            return Part::new("cgroups", Condition::Degraded).because(
                "no hierarchy is mounted at /sys/fs/cgroup",
                "no control group names a container, pod or unit",
                "mount them, or give the container the host's /sys/fs/cgroup",
            );
        }
    };
    Part::ok("cgroups", found)
}

/// A source, hook or sink by its status.
pub(super) fn source(status: &SourceStatus, node: &Node) -> Part {
    let reason = status.reason.clone().unwrap_or_default();
    let is_absent = status.absent || status.kind == SourceKind::Runtime && reason.contains(NO_SOCKET);
    let state = match (status.up, &status.reason) {
        (true, None) => Condition::Ok,
        (true, Some(_)) => Condition::Degraded,
        (false, _) if is_absent => Condition::Absent,
        (false, _) => Condition::Failed,
    };
    let part = Part {
        rung: status.rung.clone(),
        required: [NETLINK, READERS].contains(&status.source.as_str()),
        ..Part::new(&status.source, state)
    };
    if state == Condition::Ok {
        return part;
    }
    let (lost, remedy) = consequences(status, node);
    part.because(reason, lost, remedy)
}

/// In the reason of a runtime without a socket.
const NO_SOCKET: &str = "there is no socket";

/// What is lost while a source is as it is, and how to get it back.
fn consequences(status: &SourceStatus, node: &Node) -> (String, String) {
    let text = |lost: &str, remedy: &str| (lost.to_owned(), remedy.to_owned());
    match status.kind {
        SourceKind::Hook => hook(status, node),
        SourceKind::Netlink => text(
            "changes in other network namespaces are found when they are read again, not when they happen",
            "CAP_NET_BROADCAST and CAP_NET_ADMIN, and a kernel since 4.2",
        ),
        SourceKind::Runtime
            if status.absent || status.reason.as_ref().is_some_and(|it| it.contains(NO_SOCKET)) =>
        {
            text(
                "containers are known by their control groups, and by what runtimes keep on disk",
                "--runtime docker=PATH or cri=PATH, if there is a runtime elsewhere",
            )
        }
        SourceKind::Runtime => text(
            "its containers are read from disk every few seconds; what is not there is missing",
            "look at the runtime: it does not answer on this socket",
        ),
        SourceKind::Processes if status.source == READERS => text(
            "these processes are left out of every scan: that they hold something is not seen",
            "end what they wait for, such as a dead FUSE or NFS server (fusectl abort, umount --lazy)",
        ),
        SourceKind::Processes => text("", "run kevtmon in the namespaces of the host"),
        SourceKind::Sink => text(
            "events are discarded there, and counted in kevtmon's metrics, until it works again",
            "see the reason; it is tried again by itself",
        ),
        SourceKind::Configuration => text(
            "the configuration from before stays in effect",
            "kevtmon config check, then send SIGHUP again",
        ),
    }
}

fn hook(status: &SourceStatus, node: &Node) -> (String, String) {
    let hook = HOOKS.iter().find(|hook| hook.source() == status.source);
    let lost = hook.map_or("", |hook| hook.without).to_owned();
    let reason = status.reason.as_deref().unwrap_or_default();
    let missing = node.capabilities.map(Lacks::of).unwrap_or_default();
    let lacks_bpf: Vec<_> = missing
        .optional
        .into_iter()
        .filter(|(it, _)| ["CAP_BPF", "CAP_PERFMON"].contains(&it.name))
        .collect();
    let remedy = match hook {
        Some(hook) if reason == SWITCHED_OFF => format!("{} = \"auto\" in [hooks] of the configuration", hook.name),
        _ if !lacks_bpf.is_empty() => format!("{}, or CAP_SYS_ADMIN", Lacks::listed(&lacks_bpf)),
        _ if node.kernel.btf.is_err() => NEEDS_BTF.to_owned(),
        _ if node.kernel.lockdown.as_deref() == Some(CONFIDENTIALITY) => NO_LOCKDOWN.to_owned(),
        _ if reason.contains("tracefs") => NEEDS_TRACEFS.to_owned(),
        _ if reason.contains("EPERM") || reason.contains("Operation not permitted") => {
            "the kernel refuses it whatever the capabilities: look at the seccomp filter (bpf, perf_event_open) and the \
             security modules"
                .to_owned()
        }
        _ => "another kernel: this one lacks what the hook needs; report the reason if it is newer than 5.11".to_owned(),
    };
    (lost, remedy)
}
