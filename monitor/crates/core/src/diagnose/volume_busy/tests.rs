//! Observations in, incidents out, through the core.

use kevtmon_event::Severity;
use kevtmon_observation::*;

use super::*;
use crate::Resume;
use crate::diagnose::tests::harness::*;

mod calls;
mod known;
mod left;
mod seen;

/// The pod is Terminating: its containers are gone.
fn terminating() -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    let cam = sandbox(&"c".repeat(64), 71, "cam", "cam1-78b6fc6bc8-cjsw5", CAM_UID);
    let web = sandbox(&"d".repeat(64), 72, "cam", "web-fddf96444-stxpf", WEB_UID);
    node.start(vec![cam, web]);
    node.observe(Fact::ContainerGone { id: "c".repeat(64), source: "docker".into() });
    node.run_for(700 * S);
    node.observe(task(30_001, "/bin/umount"));
    node.events.clear();
    node
}

fn busy() -> TestNode {
    let mut node = terminating();
    node.observe(umount(Some(16)));
    node
}

#[test]
fn the_first_refused_unmount_opens_with_pod_volume_and_who_holds_it() {
    let node = busy();
    let opened = node.last_incident();
    assert_eq!(
        opened.message,
        "volume cam-pv-50g (kubernetes.io/glusterfs) of pod cam/cam1-78b6fc6bc8-cjsw5 cannot be unmounted by \
         umount of kubelet.service: at 20:11:41 UTC held by glusterfs (pid 94549) with an open file, which serves a volume of pod \
         cam/web-fddf96444-stxpf"
    );
    assert_eq!((opened.kind, opened.severity), (Kind::IncidentOpened, Severity::Info));
    let volume = opened.mount.as_ref().unwrap().volume.as_ref().unwrap();
    assert_eq!((volume.pod_uid.as_str(), volume.name.as_str()), (CAM_UID, "cam-pv-50g"));
    let pod = opened.target.as_ref().unwrap().pod.as_ref().unwrap();
    assert_eq!(pod.name.as_deref(), Some("cam1-78b6fc6bc8-cjsw5"), "though its containers are forgotten");
    let holder = &opened.holders.as_ref().unwrap()[0];
    assert_eq!(holder.serves.as_ref().unwrap().pod.uid, WEB_UID);
    let commands: Vec<&str> =
        opened.incident.as_ref().unwrap().advice.iter().map(|step| step.command.as_str()).collect();
    let path = volume_path();
    assert_eq!(
        commands,
        [format!("kevtmon holders {path}"), "kill 94549".into(), format!("umount --lazy {path}")]
    );
}

#[test]
fn retries_count_up_and_never_open_another() {
    let mut node = busy();
    for _ in 0..50 {
        node.observe(umount(Some(16)));
    }
    let incident = &node.open()[0];
    assert_eq!((node.open().len(), incident.count), (1, 51));
    let updates = node.kinds().iter().filter(|kind| **kind == "incident.updated").count();
    assert!((5..10).contains(&updates), "{updates}");
}

#[test]
fn it_is_a_warning_at_the_third_attempt() {
    let mut node = busy();
    node.observe(umount(Some(16)));
    assert_eq!(node.open()[0].severity, Severity::Info);
    node.observe(umount(Some(16)));
    assert_eq!((node.open()[0].severity, node.open()[0].count), (Severity::Warning, 3));
    assert_eq!(node.last_incident().severity, Severity::Warning);
}

#[test]
fn it_escalates_with_time_alone() {
    let mut node = busy();
    node.run_for(29 * S);
    assert_eq!(node.open()[0].severity, Severity::Info);
    node.run_for(S);
    assert_eq!(node.open()[0].severity, Severity::Warning);
    node.run_for(870 * S);
    assert_eq!(node.open()[0].severity, Severity::Critical);
    assert_eq!(node.kinds(), ["incident.opened", "incident.updated", "incident.updated"]);
}

#[test]
fn it_closes_when_the_mount_is_gone() {
    let mut node = busy();
    node.observe(umount(None));
    node.run_for(S);
    let closed = node.last_incident().incident.as_ref().unwrap();
    assert_eq!((closed.close_reason, closed.evidence.len()), (Some(CloseReason::Resolved), 2));
    assert_eq!(node.core.deadline(), None);
}

fn lazily() -> Fact {
    let Fact::Umount(mut attempt) = umount(None) else { unreachable!() };
    attempt.flags = 2;
    Fact::Umount(attempt)
}

#[test]
fn a_mount_that_is_detached_is_not_resolved_and_names_who_holds_it_still() {
    let mut node = busy();
    node.observe(lazily());
    node.run_for(S);
    let event = node.last_incident();
    let closed = event.incident.as_ref().unwrap();
    assert_eq!((closed.close_reason, closed.evidence.len()), (Some(CloseReason::Detached), 2));
    assert_eq!(
        event.message,
        "detached, not resolved: volume cam-pv-50g of pod cam/cam1-78b6fc6bc8-cjsw5 detached by umount (pid \
         30001), after one refused attempt, and is still held by glusterfs (pid 94549) with an open file"
    );
    assert_eq!(event.holders.as_ref().unwrap()[0].pid, 94_549);
    let asked = |request: &&Request| matches!(request, Request::StillHeld { .. });
    assert_eq!(node.requests.iter().filter(asked).count(), 1);
    assert_eq!(node.core.deadline(), None);
}

#[test]
fn a_mount_that_is_gone_is_resolved_and_who_has_a_copy_of_it_is_named() {
    let mut node = terminating();
    node.scan = |id, path| {
        let mut report = holders(id, path);
        let user = report.holders[0].clone();
        let mount = Holder { access: Access::Mount, fd: None, path: Some("/data".into()), ..user.clone() };
        report.holders.push(Holder { tgid: 977, comm: "tail".into(), serves: None, ..mount });
        report
    };
    node.observe(umount(Some(16)));
    node.mounted = false;
    node.observe(umount(None));
    node.run_for(S);
    let event = node.last_incident();
    assert_eq!(event.incident.as_ref().unwrap().close_reason, Some(CloseReason::Resolved));
    assert!(
        event.message.ends_with(
            "at 20:11:41 UTC held by glusterfs (pid 94549) with an open file, which serves a volume of pod \
             cam/web-fddf96444-stxpf; its file system stayed mounted in the mount namespace of tail (pid 977)"
        ),
        "{}",
        event.message
    );
    let released = node.events.iter().find(|event| event.kind == Kind::MountReleased).unwrap();
    assert_eq!(released.severity, Severity::Notice);
    let copy = "after one refused attempt, and its file system is still mounted in the mount namespace of tail (pid 977)";
    assert!(released.message.ends_with(copy), "{}", released.message);
    let pids = |event: &Event| event.holders.iter().flatten().map(|holder| holder.pid).collect::<Vec<_>>();
    assert_eq!((pids(released), pids(event)), (vec![977], vec![977]), "who held it let go");
}

#[test]
fn a_file_server_that_is_gone_is_told_of_the_volume() {
    let mut node = terminating();
    node.scan = |id, path| HolderReport { unserved: true, ..holders(id, path) };
    node.observe(umount(Some(16)));
    let gone = "; no process found that serves it; its file server is likely gone (ENOTCONN)";
    let opened = node.last_incident().clone();
    assert!(opened.message.ends_with(gone) && opened.mount.unwrap().unserved, "{}", opened.message);
    let busy = node.events.iter().find(|event| event.kind == Kind::MountBusy).unwrap();
    assert!(busy.message.ends_with(gone), "{}", busy.message);
}

#[test]
fn a_file_server_that_is_stopped_is_let_go_on_where_the_kernel_shows_whose_it_is() {
    fn served(id: u64, path: &str, state: ServerState, is_certain: bool) -> HolderReport {
        let server = FileServer {
            tgid: 17,
            comm: "glusterfs".into(),
            state,
            waits_for: None,
            is_certain,
            uid: Some(0),
            cgroup: None,
        };
        HolderReport { servers: vec![server], ..holders(id, path) }
    }
    let told = |scan: fn(u64, &str) -> HolderReport| {
        let mut node = terminating();
        node.scan = scan;
        node.observe(umount(Some(16)));
        let opened = node.last_incident().clone();
        let incident = opened.incident.unwrap();
        let step = incident.advice.iter().find(|step| step.form == "continue-server").cloned();
        (opened.message, step, incident.ruled_out)
    };
    let (summary, step, _) = told(|id, path| served(id, path, ServerState::Stopped, true));
    assert!(
        summary.ends_with("; the file server of that mount, glusterfs (pid 17), is stopped"),
        "{summary}"
    );
    let step = step.unwrap();
    assert_eq!((step.command.as_str(), step.process.unwrap().pid), ("kill -CONT 17", 17));
    let (summary, step, _) = told(|id, path| served(id, path, ServerState::Stopped, false));
    assert!(
        summary.ends_with("; what is likely the file server of that mount, glusterfs (pid 17), is stopped"),
        "{summary}"
    );
    assert_eq!(step, None);
    let (summary, step, healthy) = told(|id, path| served(id, path, ServerState::Running, true));
    assert!(!summary.contains("file server"), "{summary}");
    assert_eq!(step, None);
    assert!(
        healthy.contains(&"the file server of that mount, glusterfs (pid 17), was not stopped".to_owned()),
        "{healthy:?}"
    );
}

#[test]
fn a_cover_that_is_unmounted_closes_nothing() {
    for cover in [umount(None), lazily()] {
        let mut node = busy();
        node.covers = 1;
        node.observe(cover);
        assert_eq!(node.kinds(), ["incident.opened"]);
        assert!(
            node.events.iter().all(|event| !matches!(event.kind, Kind::MountReleased | Kind::MountDetached))
        );
        node.observe(umount(Some(16)));
        assert_eq!(node.open()[0].count, 2, "it is the same mount as before");
        node.observe(umount(None));
        node.run_for(S);
        assert_eq!(node.last_incident().incident.as_ref().unwrap().close_reason, Some(CloseReason::Resolved));
    }
}

#[test]
fn where_nobody_can_see_whether_it_is_gone_it_stays_open_and_says_so() {
    let mut node = busy();
    node.presence_known = false;
    node.observe(umount(None));
    assert_eq!(node.kinds(), ["incident.opened", "incident.updated"]);
    assert!(node.events.iter().all(|event| event.kind != Kind::MountReleased));
    let message = &node.last_incident().message;
    assert!(message.ends_with("it is unknown whether this mount is gone: no process is left"), "{message}");
    node.run_for(1_801 * S);
    assert_eq!(node.last_incident().incident.as_ref().unwrap().close_reason, Some(CloseReason::Expired));
}

#[test]
fn a_mount_that_goes_unseen_is_gone_and_not_resolved() {
    let mut node = busy();
    node.mounted = false;
    node.run_for(61 * S);
    assert_eq!(node.last_incident().incident.as_ref().unwrap().close_reason, Some(CloseReason::SubjectGone));
    assert_eq!(node.core.deadline(), None);
}

#[test]
fn a_mount_that_is_only_likely_the_busy_one_resolves_nothing_when_it_goes() {
    for is_unmounted in [true, false] {
        let mut node = terminating();
        node.scan = |id, path| HolderReport { mount_is_likely: true, ..holders(id, path) };
        node.observe(umount(Some(16)));
        if is_unmounted {
            node.observe(umount(None));
        } else {
            node.mounted = false;
        }
        node.run_for(61 * S);
        let event = node.last_incident();
        assert_eq!(event.incident.as_ref().unwrap().close_reason, Some(CloseReason::LikelyGone));
        assert!(event.message.starts_with("closed (target probably removed): "), "{}", event.message);
        assert_eq!(node.core.deadline(), None);
    }
}

#[test]
fn a_volume_with_more_busy_mounts_than_are_kept_is_only_likely_over_when_those_have_gone() {
    let within = |mntns, errno| {
        let Fact::Umount(mut attempt) = umount(errno) else { unreachable!() };
        attempt.mntns = mntns;
        Fact::Umount(attempt)
    };
    let last_kept = 1000 + u32::try_from(MOUNTS_MAX).unwrap();
    for (last, reason) in [(last_kept, CloseReason::Resolved), (last_kept + 1, CloseReason::LikelyGone)] {
        let mut node = terminating();
        for mntns in 1001..=last {
            node.observe(within(mntns, Some(16)));
            node.run_for(S);
        }
        for mntns in 1001..=last_kept {
            assert_eq!(node.open().len(), 1, "{mntns} is there");
            node.mounted = false;
            node.observe(within(mntns, None));
            node.mounted = true;
            node.run_for(S);
        }
        assert_eq!(node.last_incident().incident.as_ref().unwrap().close_reason, Some(reason));
    }
}

#[test]
fn a_volume_that_was_moved_away_is_told_where_it_is_and_closes_with_its_mount() {
    let at = |path: &str, errno| {
        let Fact::Umount(mut attempt) = umount(errno) else { unreachable!() };
        attempt.path = path.to_owned();
        Fact::Umount(attempt)
    };
    let mut node = terminating();
    node.scan = |id, path| {
        let mut report = holders(id, path);
        report.mount.as_mut().unwrap().unique = Some(77);
        report
    };
    node.observe(umount(Some(16)));
    for _ in 0..3 {
        node.observe(at("/moved", Some(16)));
    }
    let busy = node.events.iter().rfind(|event| event.kind == Kind::MountBusy).unwrap();
    let mount = busy.mount.as_ref().unwrap();
    assert_eq!((mount.path.as_str(), mount.volume.is_some()), ("/moved", false), "{}", busy.message);
    let updated = node.last_incident();
    let incident = updated.incident.as_ref().unwrap();
    assert!(incident.summary.ends_with("; it was moved to /moved since"), "{}", incident.summary);
    let lazily = incident.advice.last().unwrap();
    assert_eq!(lazily.command, "umount --lazy /moved");
    assert_eq!(node.open()[0].count, 4);
    node.observe(at("/moved", None));
    node.run_for(S);
    assert_eq!(node.last_incident().incident.as_ref().unwrap().close_reason, Some(CloseReason::Resolved));
}

#[test]
fn of_a_volume_that_is_moved_again_and_again_only_its_first_and_last_place_are_kept() {
    let at = |path: &str, errno| {
        let Fact::Umount(mut attempt) = umount(errno) else { unreachable!() };
        attempt.path = path.to_owned();
        Fact::Umount(attempt)
    };
    let mut node = terminating();
    node.scan = |id, path| {
        let mut report = holders(id, path);
        report.mount.as_mut().unwrap().unique = Some(77);
        report
    };
    node.observe(umount(Some(16)));
    for place in 0..20 {
        node.observe(at(&format!("/moved/{place}"), Some(16)));
    }
    // It has an event at attempts 2, 4, 8 and 16.
    let last = node.last_incident();
    let summary = &last.incident.as_ref().unwrap().summary;
    let (_, place) = summary.split_once("; it was moved to ").unwrap_or_else(|| panic!("{summary}"));
    let place = place.strip_suffix(" since").unwrap().to_owned();
    let saved = serde_json::to_value(node.core.save().unwrap()).unwrap();
    let kept = &saved["diagnoses"]["diagnoses"][KIND]["by_mount"];
    assert_eq!(kept.as_array().map(Vec::len), Some(2), "{kept}");
    node.observe(at(&place, None));
    node.run_for(S);
    assert_eq!(node.last_incident().incident.as_ref().unwrap().close_reason, Some(CloseReason::Resolved));
}

#[test]
fn a_path_through_a_symbolic_link_is_the_same_mount() {
    let through_link = |errno| {
        let Fact::Umount(mut attempt) = umount(errno) else { unreachable!() };
        attempt.path = attempt.path.replace(KUBELET, LINK);
        Fact::Umount(attempt)
    };
    let mut node = terminating();
    for _ in 0..3 {
        node.observe(through_link(Some(16)));
    }
    assert_eq!((node.open()[0].count, node.open()[0].severity), (3, Severity::Warning));
    assert_eq!(node.last_incident().mount.as_ref().unwrap().path, volume_path());
    // The scan that resolved the path is forgotten by then.
    node.run_for(1_200 * S);
    node.observe(umount(None));
    assert_eq!(node.open().len(), 0, "by another path than the refused attempts");
}

#[test]
fn an_unmount_in_another_mount_namespace_resolves_nothing() {
    let mut node = busy();
    let Fact::Umount(mut attempt) = umount(None) else { unreachable!() };
    attempt.mntns = 5;
    node.observe(Fact::Umount(attempt));
    assert_eq!(node.open().len(), 1);
}

#[test]
fn a_volume_that_is_busy_again_reopens_under_the_same_id() {
    let mut node = busy();
    node.observe(umount(None));
    node.run_for(60 * S);
    node.observe(umount(Some(16)));
    let ids: Vec<&String> = node.incidents().iter().map(|(_, incident)| &incident.id).collect();
    assert!(ids.iter().all(|id| *id == ids[0]));
    assert_eq!(node.kinds(), ["incident.opened", "incident.closed", "incident.opened"]);
    assert_eq!(node.open()[0].count, 1);
}

#[test]
fn a_volume_that_nobody_tries_to_unmount_any_more_expires() {
    let mut node = busy();
    node.run_for(1_801 * S);
    assert_eq!(node.last_incident().incident.as_ref().unwrap().close_reason, Some(CloseReason::Expired));
    assert_eq!(node.core.deadline(), None);
}

#[test]
fn an_unmount_that_succeeds_before_the_scan_is_done_leaves_nothing_open() {
    let mut node = terminating();
    let silent = |node: &mut TestNode, at, fact| {
        node.core.observe(Observation { at, source: Source::Daemon, fact });
        node.core
            .take_output()
            .filter_map(|output| match output {
                crate::Output::Event(event) => Some(event.kind),
                crate::Output::Request(_) => None,
            })
            .collect::<Vec<_>>()
    };
    let now = node.now;
    assert_eq!(silent(&mut node, now, umount(Some(16))), []);
    assert_eq!(silent(&mut node, now + 1, umount(None)), [], "events of one mount leave in order");
    node.core.observe(Observation { at: now + 6 * S, source: Source::Daemon, fact: Fact::Tick });
    let (mut emitted, mut asked) = (Vec::new(), Vec::new());
    for output in node.core.take_output() {
        match output {
            crate::Output::Event(event) => emitted.push(event.kind),
            crate::Output::Request(Request::Holders { id, .. }) => asked.push(id),
            crate::Output::Request(_) => {}
        }
    }
    assert_eq!(emitted, [Kind::MountBusy, Kind::IncidentOpened]);
    let gone = not_a_mount(asked[0], &volume_path());
    let emitted = silent(&mut node, now + 7 * S, Fact::Holders(Box::new(gone)));
    assert_eq!(emitted, [Kind::MountReleased, Kind::IncidentClosed]);
}

#[test]
fn a_busy_mount_that_is_no_volume_is_no_incident() {
    let mut node = terminating();
    let Fact::Umount(mut attempt) = umount(Some(16)) else { unreachable!() };
    attempt.path = "/mnt/backup".into();
    for _ in 0..10 {
        node.observe(Fact::Umount(attempt.clone()));
    }
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn after_a_long_downtime_no_incident_escalates_before_the_node_was_read() {
    let before = busy();
    for (mounted, expected) in [(true, "incident.updated"), (false, "incident.closed")] {
        let mut node = TestNode::booted(before.resume_state());
        node.now = before.now + 1_000 * S;
        node.mounted = mounted;
        node.observe(Fact::Tick);
        assert_eq!(node.kinds(), [""; 0]);
        node.start(Vec::new());
        node.run_for(10 * S);
        assert_eq!(node.kinds(), [expected]);
    }
}

#[test]
fn a_restart_keeps_id_count_and_age_and_closes_what_was_unmounted_meanwhile() {
    let mut before = busy();
    before.run_for(10 * S);
    before.observe(umount(Some(16)));
    let id = before.open()[0].id.clone();
    for mounted in [true, false] {
        let mut node = TestNode::booted(before.resume_state());
        node.now = before.now;
        node.mounted = mounted;
        node.start(Vec::new());
        if !mounted {
            assert_eq!(node.kinds(), ["incident.closed"]);
            let reason = node.last_incident().incident.as_ref().unwrap().close_reason;
            assert_eq!(reason, Some(CloseReason::SubjectGone), "nobody saw how");
            assert_eq!(node.last_incident().incident.as_ref().unwrap().id, id);
            continue;
        }
        assert_eq!(node.kinds(), [""; 0]);
        node.observe(umount(Some(16)));
        let incident = &node.open()[0];
        assert_eq!((&incident.id, incident.count, incident.severity), (&id, 3, Severity::Warning));
        assert_eq!(incident.opened, before.open()[0].opened);
    }
}
