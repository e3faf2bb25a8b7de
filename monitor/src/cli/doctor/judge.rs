//! From what was found to parts of the report: how each is, what is lost, how to get it. Nothing is looked at here.

use kevtmon_history::query::doctor::{Condition, DaemonReport, Part};
use kevtmon_observation::{SourceKind, SourceStatus};
use kevtmon_probe::cost::{Cost, ProgramCost};
use kevtmon_probe::hooks::{CRASH_LOOP, HOOKS, SWITCHED_OFF};
use kevtmon_probe::iterators;
use kevtmon_server::sinks::ENDED;
use kevtmon_sources::kernel::{CONFIDENTIALITY, Cgroups, KernelFacts};
use kevtmon_sources::procfs::host::NODE_ROOT;

use crate::privilege::{Confinement, Lacks};

/// The source that is needed besides /proc.
pub(super) const NETLINK: &str = "netlink";
/// What reads /proc, among the sources.
pub(super) const READERS: &str = "procfs";

/// What the node offers, and what the one who uses it may do.
pub(super) struct Node {
    pub(super) kernel: KernelFacts,
    /// Capabilities with which the daemon started, or those of this process where none runs.
    pub(super) capabilities: Option<u64>,
}

/// The daemon that answers.
pub(super) fn daemon(report: &DaemonReport) -> Part {
    let found = format!("pid {}, version {} ({})", report.pid, report.version, report.revision);
    match report.ready {
        true => Part::ok(super::DAEMON, found),
        false => Part { found: Some(found), ..Part::new(super::DAEMON, Condition::Degraded) }
            .because("it is not ready yet", "not every source has been tried", "ask again in a few seconds"),
    }
}

/// Whether all that is required works: of a daemon that still starts that is not so yet.
pub(super) fn works(parts: &[Part], daemon: Option<&DaemonReport>) -> bool {
    daemon.is_none_or(|report| report.ready) && !parts.iter().any(Part::prevents_work)
}

/// The capabilities with which it started. What it lacked then is missing in its work.
pub(super) fn at_start(report: &DaemonReport) -> Option<u64> {
    let shown = report.capabilities_at_start.as_deref().or(report.capabilities.as_deref());
    u64::from_str_radix(shown?, 16).ok()
}

fn mask(report: &DaemonReport) -> Option<u64> {
    u64::from_str_radix(report.capabilities.as_deref()?, 16).ok()
}

/// What the daemon tells of its sources, and of itself.
pub(super) fn of_daemon(report: &DaemonReport, node: &Node) -> Vec<Part> {
    let mut parts: Vec<Part> = report.sources.iter().map(|status| source(status, node)).collect();
    let has = |name: &str| report.sources.iter().any(|status| status.source == name);
    if !report.ready && !has(NETLINK) {
        let missing = Part::new(NETLINK, Condition::Unknown).required();
        parts.push(missing.because("it has not come up yet", "", ""));
    }
    if !has(READERS) {
        parts.push(Part::ok(READERS, "no process hangs its readers").required());
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
    parts.extend(confinement(report));
    parts
}

/// What its kernel programs cost; `None` where there are none.
pub(super) fn programs(cost: &Cost) -> Option<Part> {
    let each = |program: &ProgramCost| {
        let ProgramCost { name, runs, run_ns } = program;
        format!("{name} ran {runs} times, {} ns each", run_ns.checked_div(*runs).unwrap_or_default())
    };
    let maps = format!("{} KiB of maps, the ring among them", cost.map_bytes.div_ceil(1024));
    let told = std::iter::once(maps).chain(cost.programs.iter().map(each));
    (cost.map_bytes > 0).then(|| Part::ok("programs", told.collect::<Vec<_>>().join("; ")))
}

/// What the daemon may do, and can no longer do.
fn confinement(report: &DaemonReport) -> Option<Part> {
    const NAME: &str = "confinement";
    let Confinement { capabilities, needless } = Confinement::of(mask(report)?);
    let (gains, filtered) = (!report.no_new_privs?, report.calls_filtered?);
    let kept = capabilities.join(", ");
    let lacks: Vec<String> = [
        (!needless.is_empty()).then(|| format!("it has {} without need", needless.join(", "))),
        gains.then(|| "what it executes may gain privileges (no_new_privs is not set)".to_owned()),
        (!filtered).then(|| "its system calls are not filtered".to_owned()),
    ]
    .into_iter()
    .flatten()
    .collect();
    if lacks.is_empty() {
        let found = format!("has {kept}, and gains no other; system calls are filtered");
        return Some(Part::ok(NAME, found));
    }
    let part = Part { found: Some(format!("has {kept}")), ..Part::new(NAME, Condition::Degraded) };
    Some(part.because(
        lacks.join("; "),
        "who takes the daemon over can do more than kevtmon has to",
        "see its log for why; filters need a kernel with CONFIG_SECCOMP_FILTER",
    ))
}

/// What the kernel and the privileges allow.
pub(super) fn of_node(node: &Node) -> Vec<Part> {
    let kernel = &node.kernel;
    let proc = match &kernel.proc {
        Ok(()) => Part::ok("proc", "mounted, and shows processes"),
        Err(reason) => Part::new("proc", Condition::Failed).because(
            reason,
            "processes and namespaces cannot be read",
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
        return Part::new(NAME, Condition::Failed)
            .required()
            .because(reason, "kevtmon does not start", grant);
    }
    if !lacks.optional.is_empty() {
        let reason = format!("missing: {}", Lacks::listed(&lacks.optional));
        let lost = "the hooks that need them report no actor, or other namespaces are read late";
        return Part::new(NAME, Condition::Degraded).required().because(reason, lost, grant);
    }
    Part::ok(NAME, "all that are used").required()
}

fn btf(kernel: &KernelFacts) -> Part {
    match &kernel.btf {
        Ok(bytes) => Part::ok("btf", format!("{} KiB of type information", bytes >> 10)),
        Err(reason) => Part::new("btf", Condition::Failed).because(
            format!("/sys/kernel/btf/vmlinux: {reason}"),
            "unless a file has the types (btf in [hooks]), every hook but that of unmounts, which names a caller by pid, name \
             and user; with the file, umount, neighbor and sysctl work, and remove before Linux 5.15",
            NEEDS_BTF,
        ),
    }
}

const NEEDS_BTF: &str = "a kernel built with CONFIG_DEBUG_INFO_BTF=y, and its /sys where kevtmon runs; for some hooks \
                         a file with its types does: btf in [hooks]";

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

const NO_LOCKDOWN: &str = "boot with lockdown=integrity, or without it";

fn cgroups(kernel: &KernelFacts) -> Part {
    let found = match kernel.cgroups {
        Cgroups::V2 => "v2",
        Cgroups::Hybrid => "hybrid: v1 hierarchies, and v2 beside them",
        Cgroups::V1 => {
            let part = Part { found: Some("v1".to_owned()), ..Part::new("cgroups", Condition::Degraded) };
            return part.because(
                "no hierarchy of v2 is mounted",
                "who switches forwarding or proxy_arp off is not known (hook.sysctl)",
                NEEDS_CGROUP2,
            );
        }
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

const NEEDS_CGROUP2: &str = "mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified, then restart kevtmon";

/// A source, hook or sink by its status.
pub(super) fn source(status: &SourceStatus, node: &Node) -> Part {
    if status.source == iterators::SOURCE {
        return holders(status);
    }
    let reason = status.reason.clone().unwrap_or_default();
    let is_absent = status.absent || status.kind == SourceKind::Runtime && reason.contains(NO_SOCKET);
    let state = match (status.up, &status.reason) {
        (true, None) => Condition::Ok,
        (true, Some(_)) => Condition::Degraded,
        (false, _) if is_absent => Condition::Absent,
        (false, _) => Condition::Failed,
    };
    let part = Part {
        attach_mode: status.attach_mode.clone(),
        required: [NETLINK, READERS].contains(&status.source.as_str()),
        found: status.lacks.clone(),
        ..Part::new(&status.source, state)
    };
    if state == Condition::Ok {
        return part;
    }
    let (lost, remedy) = consequences(status, node);
    part.because(reason, lost, remedy)
}

/// How holders are found: whatever the way, the same ones are.
fn holders(status: &SourceStatus) -> Part {
    let found = match &status.reason {
        None => "the kernel lists who may hold a mount".to_owned(),
        Some(reason) => format!("all processes are read, which finds the same and takes longer: {reason}"),
    };
    Part { attach_mode: status.attach_mode.clone(), ..Part::ok(&status.source, found) }
}

/// In the reason of a runtime without a socket.
const NO_SOCKET: &str = "there is no socket";

/// The same of one whose socket this process may not connect to (EACCES).
const DENIED: &str = "Permission denied";

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
        SourceKind::Runtime if status.reason.as_ref().is_some_and(|it| it.contains(DENIED)) => text(
            "its containers are read from disk every few seconds; what is not there is missing",
            "its socket is another user's: start kevtmon with CAP_DAC_OVERRIDE, which it keeps where such a socket is \
             configured (AmbientCapabilities= and CapabilityBoundingSet= of a unit, securityContext.capabilities of a container)",
        ),
        SourceKind::Runtime => text(
            "its containers, but for those that its files on disk show",
            &format!("{}: if that hangs or fails, too, restart the runtime", asking(&status.source)),
        ),
        SourceKind::Processes if status.source == READERS => text(
            "scans skip these processes: what they hold is not seen",
            "end what they wait for, such as a dead FUSE or NFS server (fusectl abort, umount --lazy)",
        ),
        SourceKind::Processes if status.source == NODE_ROOT => text(
            "sockets of runtimes, and directories of kubelets and CNI plugins, where kevtmon has none in its own root",
            "let it read /proc/1/root: seLinuxOptions.type spc_t and appArmorProfile Unconfined of a container",
        ),
        SourceKind::Processes => text("", "run kevtmon in the namespaces of the host"),
        SourceKind::Kubelet => text(
            "pods that no runtime tells are named later or not at all, and it is not known which were deleted",
            "check the kubelet, which needs the feature gate PodsAPI, and pods_api in [kubelet] of the configuration",
        ),
        SourceKind::Logs => text(
            "what this log says is not quoted for incidents",
            "see the reason; where kernel.dmesg_restrict is set, /dev/kmsg takes CAP_SYSLOG at the start (CapabilityBoundingSet= of \
             a unit), and a container that is not privileged has no /dev/kmsg; journalctl is in no container of kevtmon",
        ),
        SourceKind::Sink => {
            let (lost, remedy) = sink(status.reason.as_deref().unwrap_or_default());
            text(lost, remedy)
        }
        SourceKind::Configuration => text(
            "the configuration from before stays in effect",
            "kevtmon config check, then send SIGHUP again",
        ),
        SourceKind::Clock => text(
            "--since and ages are off by that where they reach back beyond it",
            "add that time to --since, and have the time service step the clock at boot only (chrony: makestep 1 3)",
        ),
    }
}

/// A command that asks a runtime by its socket.
fn asking(source: &str) -> String {
    match source.split_once(':').unwrap_or_default() {
        ("cri", path) => format!("crictl -r unix://{path} version"),
        (_, path) => format!("curl --unix-socket {path} http://d/_ping"),
    }
}

/// In the reasons of sinks whose disk is full: of the kernel, and of SQLite.
const FULL: [&str; 2] = ["No space left on device", "database or disk is full"];

/// In those of sinks whose disk may not be written to.
const READ_ONLY: [&str; 2] = ["Read-only file system", "readonly database"];

/// What is lost while a sink is down, and how to get it back.
fn sink(reason: &str) -> (&'static str, &'static str) {
    if reason.contains(ENDED) {
        return (
            "this sink gets no more events; the others do",
            "its reader closed the pipe: restart kevtmon with another reader, or with --output none",
        );
    }
    let says = |words: &[&str]| words.iter().any(|word| reason.contains(*word));
    let remedy = if says(&FULL) {
        "make room on its disk, 4 MiB at least: df shows how full it is; it is tried again by itself"
    } else if says(&READ_ONLY) {
        "dmesg shows whether the kernel made its disk read-only: repair it (fsck) before it is mounted rw; or another directory: \
         --state-dir"
    } else {
        "see the reason; it is tried again by itself"
    };
    ("events are discarded there, and counted in kevtmon's metrics, until it works again", remedy)
}

fn hook(status: &SourceStatus, node: &Node) -> (String, String) {
    let hook = HOOKS.iter().find(|hook| hook.source() == status.source);
    let attach_mode = hook.and_then(|hook| {
        hook.attach_modes.iter().find(|attach_mode| status.attach_mode.as_deref() == Some(attach_mode.name))
    });
    let lost = match (hook, attach_mode) {
        (_, Some(attach_mode)) => attach_mode.lost,
        (hook, None) => hook.map(|hook| hook.without),
    };
    let lost = lost.unwrap_or_default().to_owned();
    let reason = status.reason.as_deref().unwrap_or_default();
    let missing = node.capabilities.map(Lacks::of).unwrap_or_default();
    let lacks_bpf: Vec<_> = missing
        .optional
        .into_iter()
        .filter(|(it, _)| ["CAP_BPF", "CAP_PERFMON"].contains(&it.name))
        .collect();
    let remedy = match hook {
        Some(hook) if reason == SWITCHED_OFF => format!("{} = \"auto\" in [hooks] of the configuration", hook.name),
        _ if reason.contains(CRASH_LOOP) => "see the log for how those starts ended; once the daemon has run for a minute or is \
             stopped, its next start loads them again: systemctl restart kevtmon"
            .to_owned(),
        _ if !lacks_bpf.is_empty() => format!("{}, or CAP_SYS_ADMIN", Lacks::listed(&lacks_bpf)),
        _ if node.kernel.btf.is_err() => NEEDS_BTF.to_owned(),
        _ if node.kernel.lockdown.as_deref() == Some(CONFIDENTIALITY) => NO_LOCKDOWN.to_owned(),
        _ if reason.contains("tracefs") => NEEDS_TRACEFS.to_owned(),
        _ if reason.contains("control groups v2 are not mounted") => NEEDS_CGROUP2.to_owned(),
        _ if reason.contains("control groups v2 is not visible") => {
            "the host's process namespace (hostPID), in which kevtmon may read /proc/1/root".to_owned()
        }
        _ if reason.contains("EPERM") || reason.contains("Operation not permitted") => {
            "the kernel refuses it in spite of the capabilities: check the seccomp filter (bpf, perf_event_open) and \
             the security modules"
                .to_owned()
        }
        _ => "another kernel: this one lacks what the hook needs; report the reason if it is Linux 5.10 or newer"
            .to_owned(),
    };
    (lost, remedy)
}
