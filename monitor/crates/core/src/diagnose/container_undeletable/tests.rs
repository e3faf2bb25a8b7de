//! Observations in, incidents out, through the core.

use kevtmon_event::Kind;
use kevtmon_observation::*;

use super::*;
use crate::Resume;
use crate::diagnose::tests::harness::*;

mod left;
mod obstacle;

const WEB: &str = "593d8a89ee37593d8a89ee37593d8a89ee37593d8a89ee37593d8a89ee37aaaa";
const LAYER: &str = "/var/lib/docker/overlay2/353abb";
const EBUSY: u16 = 16;
const SAID: &str = "unable to remove filesystem: unlinkat /x: device or resource busy";

fn web(state: ContainerState) -> ContainerFacts {
    ContainerFacts {
        id: WEB.into(),
        name: "web".into(),
        source: "docker".into(),
        state,
        tgid: (state == ContainerState::Running).then_some(77),
        pod: None,
        sandbox: false,
        own_mounts: OwnMounts { rootfs: Some(format!("{LAYER}/merged").into()), netns: None },
        removal_error: (state == ContainerState::Dead).then(|| SAID.into()),
        ..etcd_sandbox()
    }
}

fn of_runtime(runtime: &str, state: ContainerState) -> ContainerFacts {
    ContainerFacts { runtime: runtime.into(), ..web(state) }
}

fn shm() -> String {
    format!("/var/lib/docker/containers/{WEB}/mounts/shm")
}

/// A node on which a container is in this state.
fn started(web: ContainerFacts) -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    let directories = vec!["/var/lib/docker".to_owned()];
    node.observe(Fact::RuntimeDirectories { source: "docker".into(), directories });
    node.start(vec![web]);
    node.observe(task(1_200, "/usr/bin/dockerd"));
    node.observe(task(1_300, "/usr/bin/find"));
    node
}

fn refused_to(tgid: u32, syscall: MountSyscall, path: &str) -> Fact {
    Fact::Umount(Box::new(UmountAttempt {
        syscall,
        actor: TaskRef { key: task_key(tgid), tid: tgid, comm: "dockerd".into(), context: None },
        mntns: 2,
        path: path.into(),
        origin: None,
        flags: 0,
        errno: Some(EBUSY),
        second: None,
    }))
}

fn refused(path: &str) -> Fact {
    refused_to(1_200, MountSyscall::Unlinkat, path)
}

fn tell(node: &mut TestNode, facts: ContainerFacts) {
    node.observe(Fact::Container(Box::new(facts)));
}

fn gone(node: &mut TestNode) {
    node.observe(Fact::ContainerGone { id: WEB.into(), source: "docker".into() });
}

#[test]
fn one_that_docker_leaves_dead_is_told_with_what_holds_it_and_ends_with_its_removal() {
    let mut node = started(web(ContainerState::Exited));
    for _ in 0..50 {
        node.observe(refused(&shm()));
        node.run_for(S / 10);
    }
    assert!(node.open().is_empty(), "a runtime tries again by itself");
    tell(&mut node, web(ContainerState::Dead));
    node.run_for(10 * S);
    let opened = node.last_incident();
    assert_eq!((opened.kind, opened.severity), (Kind::IncidentOpened, Severity::Warning));
    let expected = format!(
        "container web could not be removed, and is dead: unlinkat of {} by dockerd of kubelet.service was refused: a \
         file system is mounted there, held by glusterfs (pid 94549) with an open file; the runtime says \"{SAID}\"",
        shm()
    );
    assert!(opened.message.starts_with(&expected), "{}", opened.message);
    let incident = opened.incident.as_ref().unwrap();
    assert_eq!((incident.count, incident.found_at_start), (50, false));
    let commands: Vec<&str> = incident.advice.iter().map(|step| step.command.as_str()).collect();
    assert_eq!(
        commands,
        [format!("kevtmon holders {}", shm()), format!("umount {}", shm()), format!("docker rm {WEB}")]
    );
    gone(&mut node);
    let closed = node.last_incident();
    assert_eq!(
        (closed.kind, closed.incident.as_ref().unwrap().close_reason),
        (Kind::IncidentClosed, Some(CloseReason::Resolved))
    );
    assert!(node.open().is_empty());
}

#[test]
fn a_dead_one_is_found_at_the_start_by_its_state_alone() {
    let mut node = started(web(ContainerState::Dead));
    node.run_for(START_DELAY);
    let opened = node.last_incident();
    let incident = opened.incident.as_ref().unwrap();
    assert!(incident.found_at_start);
    assert_eq!(incident.confidence, Confidence::Certain);
    let expected = format!(
        "container web could not be removed, and is dead: the refused call was not seen; the runtime says \"{SAID}\""
    );
    assert_eq!(opened.message, expected);
    assert_eq!(
        incident.advice.iter().map(|step| &*step.command).collect::<Vec<_>>(),
        ["kevtmon holders --leaks".to_owned(), format!("docker rm {WEB}")]
    );
}

#[test]
fn removals_that_succeed_in_the_end_are_no_trouble() {
    // Without any refusal.
    let mut node = started(web(ContainerState::Exited));
    tell(&mut node, web(ContainerState::Removing));
    node.run_for(9 * S);
    gone(&mut node);
    node.run_for(200 * S);
    assert_eq!(node.kinds(), [""; 0]);
    // With refusals for a second.
    let mut node = started(web(ContainerState::Exited));
    for _ in 0..10 {
        node.observe(refused(&shm()));
        node.run_for(S / 10);
    }
    gone(&mut node);
    node.run_for(200 * S);
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn what_docker_does_not_call_a_removal_is_none() {
    let mut node = started(web(ContainerState::Exited));
    node.observe(refused(&format!("{LAYER}/merged")));
    node.run_for(700 * S);
    assert_eq!(node.kinds(), [""; 0]);
    let asked = node.requests.iter().filter(|request| matches!(request, Request::Container { .. })).count();
    assert!(asked > 1, "it is asked what has become of it");
    assert!(node.core.deadline().is_none_or(|at| at > node.now + LOOK_INTERVAL), "and not for ever");
}

#[test]
fn a_removal_that_lasts_is_told() {
    let mut node = started(web(ContainerState::Exited));
    tell(&mut node, web(ContainerState::Removing));
    node.run_for(119 * S);
    assert!(node.open().is_empty());
    node.run_for(10 * S);
    assert!(node.last_incident().message.starts_with("container web is being removed, and is still there: "));
    // It goes on.
    gone(&mut node);
    assert!(node.open().is_empty());
}

#[test]
fn of_other_runtimes_what_they_remove_shows_it() {
    let mut node = started(of_runtime("containerd", ContainerState::Exited));
    node.observe(refused(&format!("{LAYER}/merged")));
    node.run_for(30 * S);
    assert!(node.open().is_empty(), "what is refused once succeeds a moment later");
    node.observe(refused(&format!("{LAYER}/merged")));
    node.run_for(12 * S);
    assert!(
        node.last_incident()
            .message
            .starts_with("container web has ended and cannot be removed: unlinkat of ")
    );
    // What is unmounted when a container ends shows none, unless it is tried again and again.
    let mut node = started(of_runtime("containerd", ContainerState::Exited));
    let umount = || refused_to(1_200, MountSyscall::Umount2, &format!("{LAYER}/merged"));
    node.observe(umount());
    node.run_for(5 * S);
    node.observe(umount());
    node.run_for(30 * S);
    assert!(node.open().is_empty());
    for _ in 0..6 {
        node.observe(umount());
        node.run_for(5 * S);
    }
    assert_eq!(node.open().len(), 1);
}

#[test]
fn who_is_no_runtime_and_what_is_no_containers_shows_nothing() {
    let mut node = started(of_runtime("containerd", ContainerState::Exited));
    node.observe(refused_to(1_300, MountSyscall::Unlinkat, &shm()));
    node.observe(refused(&format!("/tmp/containers/{WEB}/mounts/shm")));
    let busy: Vec<bool> = node
        .events
        .iter()
        .filter(|event| event.kind == Kind::MountBusy)
        .map(|event| event.target.is_some())
        .collect();
    assert_eq!(busy, [true, false], "the text of a path tells no container");
    node.run_for(60 * S);
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn one_that_runs_is_not_being_removed() {
    let mut node = started(of_runtime("containerd", ContainerState::Running));
    node.observe(refused(&shm()));
    node.run_for(60 * S);
    assert_eq!(node.kinds(), [""; 0]);
    // Nor one that is started again.
    tell(&mut node, of_runtime("containerd", ContainerState::Exited));
    for _ in 0..2 {
        node.observe(refused(&shm()));
        node.run_for(12 * S);
    }
    assert_eq!(node.open().len(), 1);
    tell(&mut node, of_runtime("containerd", ContainerState::Running));
    assert!(node.open().is_empty());
}

#[test]
fn it_stays_open_over_a_restart_and_while_its_runtime_is_down() {
    let mut node = started(web(ContainerState::Dead));
    node.run_for(START_DELAY);
    let id = node.open()[0].id.clone();
    let down = SourceStatus { up: false, ..SourceStatus::up(SourceKind::Runtime, "docker") };
    node.observe(Fact::Source(down));
    node.run_for(60 * S);
    assert_eq!(node.open().len(), 1);

    let resume = node.resume_state();
    let mut next = TestNode::booted(resume);
    next.start(vec![web(ContainerState::Dead)]);
    next.run_for(60 * S);
    assert_eq!(next.open().iter().map(|open| &open.id).collect::<Vec<_>>(), [&id]);
    assert!(!next.kinds().contains(&"incident.opened"));
    gone(&mut next);
    assert_eq!(next.last_incident().kind, Kind::IncidentClosed);

    let resume = node.resume_state();
    let mut next = TestNode::booted(resume);
    next.start(Vec::new());
    next.run_for(S);
    assert!(next.open().is_empty(), "it went while nobody looked");
}

#[test]
fn a_mount_by_another_path_to_the_directory_is_what_is_in_the_way() {
    let mut node = started(web(ContainerState::Exited));
    node.scan = |id, path| {
        let mut report = holders(id, "/mnt/alias/shm");
        report.path = path.into();
        report
    };
    node.observe(refused(&shm()));
    tell(&mut node, web(ContainerState::Dead));
    node.run_for(10 * S);
    let opened = node.last_incident();
    assert!(
        opened.message.contains("mounted on the same directory, at /mnt/alias/shm, held by"),
        "{}",
        opened.message
    );
    let commands: Vec<&str> =
        opened.incident.as_ref().unwrap().advice.iter().map(|step| step.command.as_str()).collect();
    assert_eq!(commands[..2], ["kevtmon holders /mnt/alias/shm", "umount /mnt/alias/shm"]);
}

#[test]
fn what_was_in_the_way_is_no_reason_once_it_is_gone() {
    let mut node = started(web(ContainerState::Exited));
    node.observe(refused(&shm()));
    tell(&mut node, web(ContainerState::Dead));
    node.run_for(10 * S);
    assert!(node.open()[0].summary.contains(", held by glusterfs (pid 94549)"), "{}", node.open()[0].summary);
    let Fact::Umount(mut attempt) = refused_to(1_300, MountSyscall::Umount2, &shm()) else { unreachable!() };
    attempt.errno = None;
    node.mounted = false;
    node.observe(Fact::Umount(attempt));
    node.run_for(S);
    let open = &node.open()[0];
    assert!(
        open.summary.contains(", and is dead: what blocked it is gone; the runtime says "),
        "{}",
        open.summary
    );
    assert_eq!(open.confidence, Confidence::Certain);
    assert_eq!(
        open.advice.iter().map(|step| &*step.command).collect::<Vec<_>>(),
        [format!("docker rm {WEB}")]
    );
}

#[test]
fn what_is_likely_gone_is_not_said_to_be() {
    let mut node = started(web(ContainerState::Exited));
    node.scan = |id, path| HolderReport { mount_is_likely: true, ..holders(id, path) };
    node.observe(refused(&shm()));
    tell(&mut node, web(ContainerState::Dead));
    node.run_for(10 * S);
    let Fact::Umount(mut attempt) = refused_to(1_300, MountSyscall::Umount2, &shm()) else { unreachable!() };
    attempt.errno = None;
    node.mounted = false;
    node.observe(Fact::Umount(attempt));
    node.run_for(S);
    let open = &node.open()[0];
    assert!(open.summary.contains(": what blocked it is likely gone; "), "{}", open.summary);
    assert_eq!(open.confidence, Confidence::Likely);
}

#[test]
fn what_holds_it_is_no_surer_than_the_search_for_it() {
    let mut node = started(web(ContainerState::Exited));
    node.scan = |id, path| HolderReport::skipped(id, path);
    node.observe(refused(&shm()));
    tell(&mut node, web(ContainerState::Dead));
    node.run_for(10 * S);
    assert_eq!(node.open()[0].confidence, Confidence::Likely, "{}", node.open()[0].summary);
}

#[test]
fn nobody_is_told_to_end_what_is_no_process() {
    let mut node = started(web(ContainerState::Exited));
    node.scan = |id, path| {
        let mut report = holders(id, path);
        for holder in &mut report.holders {
            holder.tgid = 0;
        }
        report
    };
    node.observe(refused(&shm()));
    tell(&mut node, web(ContainerState::Dead));
    node.run_for(10 * S);
    assert!(
        node.open()[0].advice.iter().all(|step| !step.command.starts_with("kill")),
        "{:?}",
        node.open()[0].advice
    );
}

#[test]
fn those_that_only_claim_to_be_of_a_pod_are_few() {
    let claimant = |index: usize| {
        let mut facts = web(ContainerState::Dead);
        facts.id = format!("{index:064x}");
        facts.pod = etcd_sandbox().pod.map(|pod| PodIdentity { proof: PodProof::Claimed, ..pod });
        facts
    };
    let mut node = started(web(ContainerState::Dead));
    (0..CLAIMED_MAX + 9).for_each(|index| tell(&mut node, claimant(index)));
    node.run_for(20 * S);
    assert_eq!(node.open().len(), CLAIMED_MAX + 1);
}
