//! What is judged of what was found.

use std::path::PathBuf;

use kevtmon_history::query::doctor::DaemonReport;
use kevtmon_observation::{SourceKind, SourceStatus};
use kevtmon_probe::cost::{Cost, ProgramCost};
use kevtmon_probe::hooks::{CRASH_LOOP, HOOKS, SWITCHED_OFF};
use kevtmon_probe::iterators;
use kevtmon_sources::kernel::Cgroups;
use kevtmon_sources::procfs::host::NODE_ROOT;

use super::judge::{of_daemon, of_node, source};
use super::*;

fn node() -> Node {
    let kernel = KernelFacts {
        release: "6.1.0".into(),
        machine: "x86_64".into(),
        btf: Ok(5 << 20),
        tracefs: Ok("/sys/kernel/tracing".into()),
        cgroups: Cgroups::V2,
        lockdown: Some("none".into()),
        proc: Ok(()),
    };
    Node { kernel, capabilities: Some(u64::MAX) }
}

fn part<'a>(parts: &'a [Part], name: &str) -> &'a Part {
    parts.iter().find(|part| part.name == name).unwrap()
}

fn report(sources: Vec<SourceStatus>) -> DaemonReport {
    DaemonReport {
        version: "1".into(),
        revision: "a".into(),
        node: "n".into(),
        pid: 7,
        state_dir: "/s".into(),
        ready: true,
        capabilities: Some("0000000000281004".into()),
        capabilities_at_start: Some("000000c001281c04".into()),
        no_new_privs: Some(true),
        calls_filtered: Some(true),
        pins: Vec::new(),
        sources,
    }
}

#[test]
fn a_node_that_has_everything_has_no_complaints() {
    let parts = of_node(&node());
    assert!(parts.iter().all(|part| part.state == Condition::Ok && part.reason.is_none()), "{parts:?}");
    assert!(part(&parts, "proc").required && part(&parts, "capabilities").required);
}

#[test]
fn what_a_daemon_has_is_listed_and_what_it_has_without_need_is_told() {
    let confined = report(Vec::new());
    let parts = of_daemon(&confined, &node());
    let found = part(&parts, "confinement");
    assert_eq!(found.state, Condition::Ok);
    assert_eq!(
        found.found.as_deref(),
        Some(
            "has CAP_DAC_READ_SEARCH, CAP_NET_ADMIN, CAP_SYS_PTRACE, CAP_SYS_ADMIN, and gains no other; system calls are \
             filtered"
        )
    );
    let capabilities = Some("0000008000281004".into());
    let open = DaemonReport { capabilities, calls_filtered: Some(false), ..confined.clone() };
    let parts = of_daemon(&open, &node());
    let lacking = part(&parts, "confinement");
    assert_eq!(lacking.state, Condition::Degraded);
    let reason = lacking.reason.as_deref().unwrap();
    assert_eq!(reason, "it has CAP_BPF without need; its system calls are not filtered");
    let untold = DaemonReport { no_new_privs: None, calls_filtered: None, ..confined };
    assert!(of_daemon(&untold, &node()).iter().all(|part| part.name != "confinement"));
}

#[test]
fn a_lockdown_of_which_the_kernel_does_not_tell_is_not_known() {
    let mut node = node();
    node.kernel.lockdown = None;
    assert_eq!(part(&of_node(&node), "lockdown").state, Condition::Unknown);
}

#[test]
fn v2_alone_and_integrity_cost_nothing_and_v1_alone_costs_a_hook() {
    let with = |cgroups: Cgroups, mode: &str| {
        let mut node = node();
        (node.kernel.cgroups, node.kernel.lockdown) = (cgroups, Some(mode.into()));
        of_node(&node)
    };
    for cgroups in [Cgroups::V2, Cgroups::Hybrid] {
        let parts = with(cgroups, "integrity");
        assert!(parts.iter().all(|part| part.state == Condition::Ok), "{parts:?}");
    }
    let parts = with(Cgroups::V1, "none");
    let found = part(&parts, "cgroups");
    assert_eq!((found.state, found.found.as_deref()), (Condition::Degraded, Some("v1")));
    assert!(found.lost.as_ref().is_some_and(|lost| lost.contains("hook.sysctl")), "{found:?}");
}

#[test]
fn a_lack_is_told_with_what_is_lost_and_how_to_get_it() {
    let mut node = node();
    node.kernel.btf = Err("No such file or directory".into());
    node.kernel.tracefs = Err("not mounted".into());
    node.kernel.lockdown = Some("confidentiality".into());
    node.kernel.cgroups = Cgroups::None;
    node.kernel.proc = Err("nothing".into());
    node.capabilities = Some(0);
    let parts = of_node(&node);
    for part in parts.iter().filter(|part| part.name != "kernel") {
        assert_ne!(part.state, Condition::Ok, "{part:?}");
        assert!(part.reason.is_some() && part.lost.is_some() && part.remedy.is_some(), "{part:?}");
    }
    assert!(part(&parts, "proc").prevents_work() && part(&parts, "capabilities").prevents_work());
    let missing = part(&parts, "capabilities").reason.as_deref().unwrap();
    assert!(missing.contains("CAP_SYS_PTRACE (see what other processes hold)"), "{missing}");
    assert!(missing.contains("CAP_BPF (load kernel programs)"), "{missing}");
}

#[test]
fn every_hook_that_is_refused_has_a_consequence_and_the_remedy_fits_the_reason() {
    let refused = |reason: &str, node: &Node| {
        HOOKS
            .iter()
            .map(|hook| source(&SourceStatus::down(SourceKind::Hook, hook.source(), reason), node))
            .collect::<Vec<_>>()
    };
    let all = |parts: &[Part], word: &str| {
        parts.iter().all(|part| part.remedy.as_ref().is_some_and(|it| it.contains(word)))
    };
    let parts = refused("neigh_update: EPERM: Operation not permitted", &node());
    assert!(parts.iter().all(|part| part.lost.is_some()) && all(&parts, "seccomp"), "{parts:?}");
    assert!(all(&refused(SWITCHED_OFF, &node()), "= \"auto\""));
    let of_crash_loop = refused(&format!("a: switched off; b: {CRASH_LOOP}"), &node());
    assert!(all(&of_crash_loop, "restart kevtmon"), "{of_crash_loop:?}");
    let without = Node { capabilities: Some(!(1 << 21 | 1 << 38 | 1 << 39)), ..node() };
    assert!(all(&refused("EPERM", &without), "CAP_BPF"));
    let mut locked = node();
    locked.kernel.lockdown = Some("confidentiality".into());
    assert!(all(&refused("EINVAL", &locked), "lockdown"));
    assert!(all(&refused("needs tracefs", &node()), "mount -t tracefs"));
    let needs = "needs the root of the control groups v2";
    let unmounted = format!("{needs}: control groups v2 are not mounted");
    assert!(all(&refused(&unmounted, &node()), "mount -t cgroup2"));
    let unseen = format!("{needs}: the root of control groups v2 is not visible");
    assert!(all(&refused(&unseen, &node()), "hostPID"));
}

#[test]
fn a_source_that_works_only_in_part_is_degraded_and_one_that_is_not_needed_absent() {
    let by = SourceStatus {
        attach_mode: Some("netlink".into()),
        reason: Some("EPERM".into()),
        ..SourceStatus::up(SourceKind::Hook, "hook.neighbor")
    };
    let found = source(&by, &node());
    assert_eq!((found.state, found.attach_mode.as_deref()), (Condition::Degraded, Some("netlink")));
    let docker = SourceStatus::down(SourceKind::Runtime, "docker:/a", "there is no socket at /a");
    assert_eq!(source(&docker, &node()).state, Condition::Absent);
    let hung = SourceStatus::down(SourceKind::Runtime, "docker:/a", "no answer within 2s");
    assert_eq!(source(&hung, &node()).state, Condition::Failed);
    let kubelet = SourceStatus::down(SourceKind::Kubelet, "kubelet:/a", "no answer within 5s");
    assert!(source(&kubelet, &node()).remedy.unwrap().starts_with("check the kubelet"));
    let remedy = source(&hung, &node()).remedy.unwrap();
    assert!(
        remedy.starts_with("curl --unix-socket /a ") && remedy.ends_with("restart the runtime"),
        "{remedy}"
    );
    let cri = SourceStatus::down(SourceKind::Runtime, "cri:/b", "no answer within 2s");
    assert!(source(&cri, &node()).remedy.unwrap().starts_with("crictl -r unix:///b "));
    let denied = "cannot connect to the socket: Permission denied (os error 13)";
    let of_user = SourceStatus::down(SourceKind::Runtime, "docker:/run/user/1000/podman/podman.sock", denied);
    assert!(source(&of_user, &node()).remedy.unwrap().contains("CAP_DAC_OVERRIDE"));
}

#[test]
fn a_hook_that_does_without_a_program_is_all_right_and_says_so() {
    let lacks = Some("without path_umount: ENOTSUPP".to_owned());
    let status = SourceStatus { lacks: lacks.clone(), ..SourceStatus::up(SourceKind::Hook, "hook.umount") };
    let found = source(&status, &node());
    assert_eq!((found.state, found.found, found.reason), (Condition::Ok, lacks, None));
}

#[test]
fn what_kernel_programs_cost_is_told_where_there_are_any() {
    assert!(judge::programs(&Cost::default()).is_none());
    let programs = vec![ProgramCost { name: "neigh_update".into(), runs: 4, run_ns: 1000 }];
    let found = judge::programs(&Cost { map_bytes: 1025, programs }).unwrap().found.unwrap();
    assert_eq!(found, "2 KiB of maps, the ring among them; neigh_update ran 4 times, 250 ns each");
}

#[test]
fn whichever_way_holders_are_found_nothing_is_lacking() {
    let by_proc = iterators::status(&Err("iter_task: EPERM".to_owned()));
    let found = source(&by_proc, &node());
    assert_eq!((found.state, found.attach_mode.as_deref()), (Condition::Ok, Some("proc")));
    assert!(found.found.unwrap().ends_with("takes longer: iter_task: EPERM"));
}

#[test]
fn netlink_that_is_down_prevents_work_and_a_sink_does_not() {
    let down = |kind, name: &str| source(&SourceStatus::down(kind, name, "gone"), &node());
    assert!(down(SourceKind::Netlink, "netlink").prevents_work());
    assert!(!down(SourceKind::Sink, "store").prevents_work());
    assert!(!down(SourceKind::Hook, "hook.umount").prevents_work());
}

#[test]
fn of_a_daemon_that_still_starts_not_all_works_yet() {
    let starting = DaemonReport { ready: false, ..report(Vec::new()) };
    let mut parts = vec![judge::daemon(&starting)];
    parts.extend(of_daemon(&starting, &node()));
    assert!(!judge::works(&parts, Some(&starting)));
    let netlink = part(&parts, "netlink");
    assert!(netlink.required && netlink.state == Condition::Unknown, "{netlink:?}");
    let version = "1 (a)".to_owned();
    let answer = DoctorReport { works: false, version, daemon: Some(starting), parts, self_test: Vec::new() };
    let text = kevtmon_render::doctor::text(&answer, &Pretty { colour: false, zone: TimeZone::UTC });
    assert!(text.starts_with("kevtmon 1 (a): the daemon is still starting\n"), "{text}");
    let ready = report(vec![SourceStatus::up(SourceKind::Netlink, "netlink")]);
    let parts = of_daemon(&ready, &node());
    assert!(judge::works(&parts, Some(&ready)) && judge::works(&parts, None));
    let failed = report(vec![SourceStatus::down(SourceKind::Netlink, "netlink", "gone")]);
    assert!(!judge::works(&of_daemon(&failed, &node()), Some(&failed)));
}

#[test]
fn what_is_said_of_a_sink_that_is_down_fits_the_reason() {
    let down = |reason: &str| source(&SourceStatus::down(SourceKind::Sink, "stdout", reason), &node());
    assert!(down("No space left on device").remedy.unwrap().contains("tried again"));
    let remedy = |reason: &str| down(reason).remedy.unwrap();
    assert!(remedy("the event store cannot open: database or disk is full").starts_with("make room"));
    let read_only = "cannot use /s/events.lock: Read-only file system (os error 30)";
    assert!(remedy(read_only).starts_with("dmesg shows"));
    assert!(remedy("the event store cannot write: disk I/O error").starts_with("see the reason"));
    let ended = down(&format!("{}: Broken pipe", kevtmon_server::sinks::ENDED));
    assert!(ended.state == Condition::Failed && ended.remedy.unwrap().contains("restart"));
}

#[test]
fn what_the_daemon_pins_and_what_it_cannot_read_is_told() {
    let clean = of_daemon(&report(Vec::new()), &node());
    assert_eq!(part(&clean, "self-pins").state, Condition::Ok);
    assert_eq!(part(&clean, "procfs").state, Condition::Ok);
    let unreached = SourceStatus {
        reason: Some("/proc/1/root: Permission denied".into()),
        ..SourceStatus::up(SourceKind::Processes, NODE_ROOT)
    };
    let unreached = source(&unreached, &node());
    assert_eq!(unreached.state, Condition::Degraded);
    assert!(unreached.lost.is_some() && unreached.remedy.unwrap().contains("spc_t"));
    let hangs = SourceStatus {
        reason: Some("reads of these processes hang; skipped: process 7".into()),
        ..SourceStatus::up(SourceKind::Processes, "procfs")
    };
    let mut report = report(vec![hangs]);
    report.pins = vec!["fd 7: net:[1]".into()];
    let parts = of_daemon(&report, &node());
    assert_eq!(part(&parts, "self-pins").reason.as_deref(), Some("fd 7: net:[1]"));
    let procfs = part(&parts, "procfs");
    assert!(procfs.state == Condition::Degraded && !procfs.prevents_work(), "{procfs:?}");
}

#[test]
fn a_daemon_that_hangs_is_a_failure_and_one_that_does_not_run_is_none() {
    let path = PathBuf::from("/s");
    assert!(without_daemon(&RemoteError::Silent { path: path.clone() }).prevents_work());
    let dead = without_daemon(&RemoteError::Dead { path: path.clone() });
    assert!(dead.state == Condition::Absent && dead.remedy.is_some(), "{dead:?}");
    assert_eq!(without_daemon(&RemoteError::Older { path }).state, Condition::Unknown);
}

#[test]
fn without_a_daemon_the_self_test_says_that_nobody_was_asked() {
    let steps = self_test::run(None, None);
    assert_eq!(steps.len(), 2);
    assert!(steps.iter().all(|step| !step.passed && step.outcome.contains("no daemon")), "{steps:?}");
}

#[test]
fn that_the_clock_was_set_is_told_with_what_it_costs() {
    let reason = Some("it was set back by 1 h, so that times from before are 1 h ahead".to_owned());
    let status = SourceStatus { reason: reason.clone(), ..SourceStatus::up(SourceKind::Clock, "clock") };
    let found = source(&status, &node());
    assert_eq!((found.state, found.reason), (Condition::Degraded, reason));
    assert!(found.lost.unwrap().starts_with("--since") && found.remedy.unwrap().contains("chrony"));
}
