//! What is judged of what was found.

use std::path::PathBuf;

use super::judge::{of_daemon, of_node, source};
use super::*;
use crate::observation::{SourceKind, SourceStatus};
use crate::query::doctor::DaemonReport;
use crate::sources::bpf::hooks::{HOOKS, SWITCHED_OFF};
use crate::sources::kernel::Cgroups;

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
        capabilities: Some("000001ffffffffff".into()),
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
fn a_lockdown_of_which_the_kernel_does_not_tell_is_not_known() {
    let mut node = node();
    node.kernel.lockdown = None;
    assert_eq!(part(&of_node(&node), "lockdown").state, Condition::Unknown);
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
    let without = Node { capabilities: Some(!(1 << 21 | 1 << 38 | 1 << 39)), ..node() };
    assert!(all(&refused("EPERM", &without), "CAP_BPF"));
    let mut locked = node();
    locked.kernel.lockdown = Some("confidentiality".into());
    assert!(all(&refused("EINVAL", &locked), "lockdown"));
    assert!(all(&refused("needs tracefs", &node()), "mount -t tracefs"));
}

#[test]
fn a_source_that_works_only_in_part_is_degraded_and_one_that_is_not_needed_absent() {
    let by = SourceStatus {
        rung: Some("netlink".into()),
        reason: Some("EPERM".into()),
        ..SourceStatus::up(SourceKind::Hook, "hook.neighbor")
    };
    let found = source(&by, &node());
    assert_eq!((found.state, found.rung.as_deref()), (Condition::Degraded, Some("netlink")));
    let docker = SourceStatus::down(SourceKind::Runtime, "docker:/a", "there is no socket at /a");
    assert_eq!(source(&docker, &node()).state, Condition::Absent);
    let hung = SourceStatus::down(SourceKind::Runtime, "docker:/a", "no answer within 2s");
    assert_eq!(source(&hung, &node()).state, Condition::Failed);
}

#[test]
fn netlink_that_is_down_prevents_work_and_a_sink_does_not() {
    let down = |kind, name: &str| source(&SourceStatus::down(kind, name, "gone"), &node());
    assert!(down(SourceKind::Netlink, "netlink").prevents_work());
    assert!(!down(SourceKind::Sink, "store").prevents_work());
    assert!(!down(SourceKind::Hook, "hook.umount").prevents_work());
}

#[test]
fn what_the_daemon_pins_and_which_processes_hang_is_told() {
    let clean = of_daemon(&report(Vec::new()), &node());
    assert_eq!(part(&clean, "self-pins").state, Condition::Ok);
    assert_eq!(part(&clean, "procfs").state, Condition::Ok);
    let hangs = SourceStatus {
        reason: Some("whoever reads these processes hangs, so they are left out: process 7".into()),
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
