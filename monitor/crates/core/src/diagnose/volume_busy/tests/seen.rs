//! Holders that are gone while further refusals are only counted.

use kevtmon_event::Confidence;

use super::*;

const GLUSTERFS: &str = "held by glusterfs (pid 94549) with an open file, which serves a volume of pod \
                         cam/web-fddf96444-stxpf";

/// Another process is in the volume.
fn shell(id: u64, path: &str) -> HolderReport {
    let mut report = holders(id, path);
    let holder = &mut report.holders[0];
    (holder.tgid, holder.comm, holder.access) = (7, "bash".into(), Access::Cwd);
    (holder.serves, holder.fd, holder.path) = (None, None, Some(path.to_owned()));
    report
}

fn nobody(id: u64, path: &str) -> HolderReport {
    HolderReport { holders: Vec::new(), verdict: Verdict::Kernel, ..holders(id, path) }
}

fn skipped(id: u64, path: &str) -> HolderReport {
    HolderReport::skipped(id, path)
}

/// A volume that was refused twice, some time ago.
fn refused_twice() -> TestNode {
    let mut node = busy();
    node.observe(umount(Some(16)));
    node.run_for(20 * S);
    node.requests.clear();
    node.events.clear();
    node
}

/// How often it was looked again, at those who were known or at all.
fn looks(node: &TestNode) -> (usize, usize) {
    let still = node.requests.iter().filter(|request| matches!(request, Request::StillHeld { .. }));
    let all = node.requests.iter().filter(|request| matches!(request, Request::Holders { .. }));
    (still.count(), all.count())
}

fn told(node: &TestNode) -> (String, Confidence) {
    let [open] = &node.open()[..] else { panic!("{:?}", node.kinds()) };
    (open.summary.clone(), open.confidence)
}

#[test]
fn who_holds_a_volume_is_told_of_the_time_at_which_that_was_seen() {
    let (summary, confidence) = told(&busy());
    assert!(summary.ends_with(&format!(": at 20:11:41 UTC {GLUSTERFS}")), "{summary}");
    assert_eq!(confidence, Confidence::Certain);
}

#[test]
fn a_refusal_that_is_only_counted_has_it_looked_who_holds_it_by_now() {
    let mut node = refused_twice();
    (node.still_held, node.scan) = (false, shell);
    node.observe(umount(Some(16)));
    assert_eq!(looks(&node), (1, 1));
    let (summary, confidence) = told(&node);
    assert!(summary.contains(" UTC held by bash (pid 7) as its current directory"), "{summary}");
    assert!(!summary.contains("94549"), "{summary}");
    assert_eq!(confidence, Confidence::Certain);
    let open = &node.open()[0];
    assert_eq!(open.count, 3);
    assert!(!open.advice.iter().any(|step| step.command == "kill 94549"), "{:?}", open.advice);
    let busy = node.events.iter().find(|event| event.kind == Kind::MountBusy).unwrap();
    assert_eq!(busy.mount.as_ref().unwrap().attempts, Some(3));
}

#[test]
fn that_whoever_held_it_has_let_go_is_told_though_the_refusal_is_only_counted() {
    let mut node = refused_twice();
    (node.still_held, node.scan) = (false, nobody);
    node.observe(umount(Some(16)));
    let (summary, _) = told(&node);
    assert!(summary.ends_with(": its holder has released it"), "{summary}");
    // Refused all the same, and by now the kernel may hold it.
    for _ in 0..5 {
        node.run_for(11 * S);
        node.observe(umount(Some(16)));
    }
    let (summary, confidence) = told(&node);
    assert_eq!(confidence, Confidence::Likely, "{summary}");
}

#[test]
fn that_nobody_holds_it_is_never_certain() {
    let mut node = terminating();
    node.scan = nobody;
    for _ in 0..5 {
        node.observe(umount(Some(16)));
        node.run_for(11 * S);
        assert_eq!(told(&node).1, Confidence::Likely, "{}", told(&node).0);
    }
}

#[test]
fn those_who_hold_it_still_are_looked_at_at_most_every_ten_seconds_and_told_of_the_new_time() {
    let mut node = refused_twice();
    node.observe(umount(Some(16)));
    let renewed = |node: &TestNode, time: &str| {
        let (summary, confidence) = told(node);
        assert!(summary.ends_with(&format!(": at {time} UTC {GLUSTERFS}")), "{time}: {summary}");
        assert_eq!(confidence, Confidence::Certain);
    };
    renewed(&node, "20:12:01");
    assert_eq!(looks(&node), (1, 0));
    // The fourth has an event, and a look of its own.
    node.observe(umount(Some(16)));
    node.run_for(11 * S);
    node.events.clear();
    for _ in 0..3 {
        node.observe(umount(Some(16)));
        renewed(&node, "20:12:12");
        assert_eq!(looks(&node), (2, 1));
    }
    assert_eq!(node.open()[0].count, 7);
    assert_eq!(node.events, [], "nothing is new");
}

#[test]
fn where_it_is_not_known_who_holds_it_by_now_the_incident_is_only_likely() {
    let mut node = refused_twice();
    (node.still_held, node.scan) = (false, skipped);
    node.observe(umount(Some(16)));
    let (summary, confidence) = told(&node);
    assert!(summary.ends_with(&format!(": at 20:11:41 UTC {GLUSTERFS}")), "it was so: {summary}");
    assert_eq!(confidence, Confidence::Likely);
    let updated = node.last_incident();
    assert_eq!(updated.incident.as_ref().unwrap().confidence, Confidence::Likely, "readers are told");
}
