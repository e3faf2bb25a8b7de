//! What the kernel says of a server, and what the host has mounted of it.

use kevtmon_event::Kind;
use kevtmon_observation::*;

use super::*;
use crate::Resume;
use crate::diagnose::tests::harness::*;

fn node(resume: Resume) -> TestNode {
    let mut node = TestNode::booted(resume);
    node.start(vec![cam_sandbox(ContainerState::Running)]);
    let roots = vec![KUBELET.to_owned()];
    let host = KubeletNamespace { mntns: MNTNS, roots, of_kubelet: false, pid: None };
    node.observe(Fact::Kubelet(KubeletFacts { namespaces: vec![host] }));
    node.events.clear();
    node
}

/// The volume of the pod.
const VOLUME: &str =
    "/var/lib/kubelet/pods/5c948341-c030-4996-b888-f032577d97b0/volumes/kubernetes.io~nfs/pv-1";

impl TestNode {
    fn says(&mut self, server: &str, says: NfsSays) {
        self.kernel(NfsServerLine { server: server.into(), says, lockd: false });
    }

    fn kernel(&mut self, line: NfsServerLine) {
        let said = match line.says {
            NfsSays::Waiting => "not responding, still trying",
            NfsSays::TimedOut => "not responding, timed out",
            NfsSays::Answers => "OK",
        };
        let program = if line.lockd { "lockd" } else { "nfs" };
        let text = format!("{program}: server {} {said}", line.server);
        let says = LogSays::NfsServer(line);
        self.observe(Fact::Log(Box::new(LogLine { log: "/dev/kmsg".into(), text, says })));
    }

    /// The mounts of `nas1` are looked at.
    fn mounted(&mut self, mounts: &[(&str, u64)]) {
        let mount = |(path, replies): &(&str, u64)| NfsMount {
            source: "nas1:/export".into(),
            path: (*path).to_owned(),
            replies: *replies,
        };
        let mounts = mounts.iter().map(mount).collect();
        let found = NfsMounts { server: "nas1".into(), mntns: MNTNS, mounts, omitted: 0 };
        self.observe(Fact::NfsMounts(vec![found]));
    }

    fn nfs_closed_for(&self) -> Option<CloseReason> {
        let (kind, incident) = *self.incidents().last().unwrap();
        assert_eq!(kind, Kind::IncidentClosed);
        incident.close_reason
    }

    fn looks(&self) -> usize {
        self.requests.iter().filter(|request| matches!(request, Request::NfsMounts { .. })).count()
    }
}

/// A node on which the server has not responded for some time.
fn silent() -> TestNode {
    let mut node = node(Resume::default());
    node.says("nas1", NfsSays::Waiting);
    node.mounted(&[("/srv/nas", 7), (VOLUME, 7)]);
    node.run_for(31 * S);
    node
}

#[test]
fn a_server_that_does_not_respond_is_an_incident_until_it_does() {
    let mut node = node(Resume::default());
    node.says("nas1", NfsSays::Waiting);
    let asked = Request::NfsMounts { servers: vec!["nas1".into()] };
    assert!(node.requests.contains(&asked));
    node.mounted(&[("/srv/nas", 7), (VOLUME, 7), ("/srv/more", 3)]);
    node.run_for(29 * S);
    assert_eq!(node.kinds(), [""; 0]);
    let suspected = node.core.state(node.now).suspected;
    assert_eq!((suspected.len(), suspected[0].kind.as_str()), (1, KIND));
    assert!(suspected[0].target.is_some() && suspected[0].evidence.len() == 1, "{suspected:?}");
    node.run_for(2 * S);
    let incident = node.open().remove(0);
    assert_eq!((incident.severity, incident.confidence), (Severity::Warning, Confidence::Likely));
    let since = incident.first_seen.get(11..19).unwrap();
    let summary = format!(
        "NFS server nas1 has not responded since {since} UTC: volume pv-1 of pod cam/cam1-78b6fc6bc8-cjsw5 and 2 more mounts hang"
    );
    assert_eq!(incident.summary, summary);
    let quote = node.events.iter().find(|event| event.kind == Kind::LogQuoted).unwrap();
    assert_eq!(quote.message, "/dev/kmsg says \"nfs: server nas1 not responding, still trying\"");
    assert_eq!((incident.evidence, incident.count), (vec![quote.seq], 1));
    assert_eq!(incident.advice[0].command, "findmnt --types nfs,nfs4");
    let object = node.last_incident().nfs_server.clone().unwrap();
    assert_eq!((object.mounts.len(), object.mounts[0].path.as_str()), (3, VOLUME));
    node.says("nas1", NfsSays::Waiting);
    node.says("nas1", NfsSays::TimedOut);
    node.says("nas2", NfsSays::Answers);
    let lockd = NfsServerLine { server: "nas1".into(), says: NfsSays::Answers, lockd: true };
    node.kernel(lockd);
    assert_eq!((node.open().len(), node.open()[0].count), (1, 3));
    node.says("nas1", NfsSays::Answers);
    assert_eq!(node.nfs_closed_for(), Some(CloseReason::Resolved));
    assert_eq!(node.last_incident().message, format!("resolved: {summary}"));
    let looks = node.looks();
    node.run_for(60 * S);
    assert_eq!(node.looks(), looks, "nobody waits any more");
}

#[test]
fn a_server_that_responds_in_time_and_one_of_locks_are_none() {
    let mut node = node(Resume::default());
    node.says("nas1", NfsSays::Waiting);
    node.run_for(20 * S);
    node.says("nas1", NfsSays::Waiting);
    node.says("nas1", NfsSays::Answers);
    node.kernel(NfsServerLine { server: "nas2".into(), says: NfsSays::Waiting, lockd: true });
    node.run_for(120 * S);
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn a_server_that_responds_now_and_then_is_one_incident_until_it_does_for_some_time() {
    let mut node = silent();
    node.says("nas1", NfsSays::Answers);
    for _ in 0..20 {
        node.says("nas1", NfsSays::Waiting);
        node.run_for(60 * S);
        node.says("nas1", NfsSays::Answers);
        node.run_for(60 * S);
    }
    let count = |kind: Kind| node.incidents().iter().filter(|(of, _)| *of == kind).count();
    assert_eq!((count(Kind::IncidentOpened), count(Kind::IncidentClosed)), (2, 1));
    // For 16 other summaries, and for a line that is quoted in each ten minutes.
    assert!(count(Kind::IncidentUpdated) <= 16 + 4, "{:?}", node.kinds());
    let state = |node: &TestNode| (node.open().len(), node.core.state(node.now).quiet_periods.len());
    node.run_for(239 * S);
    assert_eq!(state(&node), (1, 1));
    node.says("nas1", NfsSays::Waiting);
    node.run_for(20 * S);
    assert_eq!(state(&node), (1, 0), "it does not respond");
    node.says("nas1", NfsSays::Answers);
    node.run_for(299 * S);
    assert_eq!(state(&node), (1, 1));
    node.run_for(2 * S);
    assert_eq!(node.nfs_closed_for(), Some(CloseReason::Resolved));
}

#[test]
fn a_reply_after_the_silence_shows_that_it_responds_though_the_kernel_does_not_say_so() {
    let mut node = silent();
    // It came before the kernel said it again.
    node.says("nas1", NfsSays::Waiting);
    node.mounted(&[("/srv/nas", 8), (VOLUME, 7)]);
    node.mounted(&[("/srv/nas", 8), (VOLUME, 7), ("/srv/new", 99)]);
    assert_eq!(node.open().len(), 1);
    node.mounted(&[("/srv/nas", 9), (VOLUME, 7)]);
    assert_eq!(node.nfs_closed_for(), Some(CloseReason::Resolved));
    // As well before it is an incident.
    let mut early = self::node(Resume::default());
    early.says("nas1", NfsSays::Waiting);
    early.mounted(&[("/srv/nas", 7)]);
    early.run_for(10 * S);
    early.mounted(&[("/srv/nas", 8)]);
    early.run_for(60 * S);
    assert_eq!(early.kinds(), [""; 0]);
}

#[test]
fn what_waits_stays_open_without_another_line_and_what_failed_does_not() {
    let mut node = silent();
    node.run_for(7200 * S);
    assert_eq!(node.open().len(), 1);
    node.mounted(&[]);
    assert_eq!(node.nfs_closed_for(), Some(CloseReason::LikelyGone));

    let mut soft = self::node(Resume::default());
    soft.says("nas1", NfsSays::TimedOut);
    soft.mounted(&[(VOLUME, 7)]);
    soft.run_for(500 * S);
    assert!(soft.open()[0].summary.ends_with(" returns errors"), "{}", soft.open()[0].summary);
    let loss = Loss { source: "logs".into(), reason: "overrun".into(), count: Some(3) };
    soft.observe(Fact::Lost(loss));
    soft.run_for(590 * S);
    assert_eq!(soft.open().len(), 1, "what was lost may have said it again");
    soft.run_for(20 * S);
    assert_eq!(soft.nfs_closed_for(), Some(CloseReason::Expired));
}

#[test]
fn where_no_mount_is_seen_what_waits_is_likely_gone_an_hour_after_the_last_line() {
    let mut node = node(Resume::default());
    node.says("nas1", NfsSays::Waiting);
    node.mounted(&[]);
    node.run_for(3000 * S);
    node.says("nas1", NfsSays::Waiting);
    node.mounted(&[]);
    node.run_for(3590 * S);
    assert_eq!(node.open().len(), 1, "the kernel has said it again");
    node.run_for(20 * S);
    assert_eq!(node.nfs_closed_for(), Some(CloseReason::LikelyGone));
}

#[test]
fn where_the_mounts_are_not_known_the_server_alone_is_named() {
    let mut node = node(Resume::default());
    node.says("fd00::9", NfsSays::Waiting);
    node.run_for(31 * S);
    let incident = node.open().remove(0);
    let since = incident.first_seen.get(11..19).unwrap();
    assert_eq!(incident.summary, format!("NFS server fd00::9 has not responded since {since} UTC"));
    assert!(node.looks() > 2, "it is looked again");
}

#[test]
fn an_incident_of_the_run_before_goes_on_until_a_reply_comes() {
    let resume = silent().resume_state();
    let mut after = node(resume);
    after.run_for(60 * S);
    assert_eq!((after.open().len(), after.looks() > 2), (1, true));
    after.mounted(&[(VOLUME, 7)]);
    assert!(after.open()[0].summary.ends_with("pod cam/cam1-78b6fc6bc8-cjsw5 hangs"), "{:?}", after.open());
    after.mounted(&[(VOLUME, 8)]);
    assert_eq!(after.nfs_closed_for(), Some(CloseReason::Resolved));
}

#[test]
fn unmounts_and_busy_volumes_of_its_mounts_have_it_as_cause() {
    let mut node = node(Resume::default());
    let of_nas1 = |id, path: &str| {
        let report = holders(id, path);
        let mount = report.mount.map(|mount| MountFacts {
            fstype: "nfs4".into(),
            source: "nas1:/export".into(),
            ..mount
        });
        HolderReport { mount, ..report }
    };
    node.scan = of_nas1;
    node.observe(umount(Some(16)));
    node.run_for(S);
    let task = TaskFacts {
        key: TaskKey { tgid: 50, start_ns: 7, exec_id: 0 },
        place: TaskPlace::default(),
        uid: 0,
        exe: Some("/usr/bin/umount".into()),
        cmdline: Some("umount /v".into()),
        netns: HOST,
        mntns: 2,
        cgroup: None,
        ancestors: Vec::new(),
    };
    let mount = UnmountedMount {
        mountpoint: "/v".into(),
        fstype: "nfs".into(),
        source: "nas1:/v".into(),
        server: None,
    };
    let hung = Unmounter {
        task,
        comm: "umount".into(),
        waits_for: Some("NFS".into()),
        mount: Some(mount),
        call: None,
    };
    node.observe(Fact::Unmounters { unmounters: vec![hung] });
    node.run_for(60 * S);
    node.says("nas1", NfsSays::Waiting);
    node.run_for(31 * S);
    node.mounted(&[("/v", 7)]);
    node.run_for(2 * S);
    let open = node.open();
    let of = |kind: &str| open.iter().find(|incident| incident.kind == kind).unwrap();
    for kind in ["umount-hung", "volume-busy"] {
        assert_eq!(of(kind).caused_by, [of(KIND).id.as_str()], "{kind}");
    }
}
