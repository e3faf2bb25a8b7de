//! Observations in, incidents out, through the core.

use kevtmon_event::{Kind, Severity};
use kevtmon_observation::*;

use super::*;
use crate::Resume;
use crate::diagnose::tests::harness::*;

const UID: &str = "3f0f6a0e-2f6a-4d4e-9d1f-1f2f3f4f5f6f";
const APP: &str = "b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5";

/// The container of lijiaob/etcd1-0.
fn app(state: ContainerState, proof: PodProof) -> ContainerFacts {
    let sandbox = etcd_sandbox();
    let pod = sandbox.pod.clone().map(|pod| PodIdentity {
        container_name: Some("etcd".into()),
        proof,
        sandbox_id: Some(SANDBOX.into()),
        ..pod
    });
    ContainerFacts {
        id: APP.into(),
        name: format!("k8s_etcd_etcd1-0_lijiaob_{UID}_0"),
        image: "etcd:3".into(),
        state,
        tgid: (state == ContainerState::Running).then_some(16_800),
        pod,
        sandbox: false,
        joined_netns: true,
        incarnation: Incarnation { spec_hash: Some(0x1f0c_09ed), ..Incarnation::default() },
        ..sandbox
    }
}

fn exited() -> ContainerFacts {
    app(ContainerState::Exited, PodProof::Log)
}

fn started_with(containers: Vec<ContainerFacts>, checkpoint: Option<bool>) -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    node.checkpoint = checkpoint;
    node.start(containers);
    node
}

/// A node on which such a container was found at the start, and whether there is a checkpoint.
fn found(app: ContainerFacts, checkpoint: Option<bool>) -> TestNode {
    let mut node = started_with(vec![app], checkpoint);
    node.run_for(START_DELAY);
    node
}

fn removed(id: &str) -> Fact {
    Fact::ContainerGone { id: id.into(), source: "docker".into() }
}

fn asked(node: &TestNode) -> usize {
    node.requests.iter().filter(|request| matches!(request, Request::SandboxCheckpoints { .. })).count()
}

#[test]
fn one_that_is_there_at_the_start_is_found_and_told_with_its_cure() {
    let node = found(exited(), Some(false));
    let opened = node.last_incident();
    assert_eq!(
        opened.message,
        format!(
            "container k8s_etcd_etcd1-0_lijiaob_{UID}_0 of pod lijiaob/etcd1-0 is still there without its sandbox \
             291716a39be9: kubelets of about 1.18 to 1.23 cannot start while it is there, others can; the version of \
             the kubelet is unknown"
        )
    );
    assert_eq!((opened.kind, opened.severity), (Kind::IncidentOpened, Severity::Warning));
    let incident = opened.incident.as_ref().unwrap();
    assert!(incident.found_at_start);
    assert_eq!(incident.confidence, Confidence::Certain);
    assert_eq!(incident.advice[0].command, format!("docker rm {APP}"));
    let sandbox = opened.sandbox.as_ref().unwrap();
    assert_eq!((sandbox.id.as_str(), sandbox.checkpoint), (SANDBOX, Some(false)));
}

#[test]
fn one_whose_sandbox_is_removed_is_found_half_a_minute_later() {
    let running = app(ContainerState::Running, PodProof::Cgroup);
    let mut node = started_with(vec![etcd_sandbox(), running], Some(false));
    node.observe(removed(SANDBOX));
    node.run_for(29 * S);
    assert!(node.open().is_empty());
    node.run_for(S);
    let opened = node.last_incident().incident.as_ref().unwrap();
    assert!(!opened.found_at_start);
    assert_eq!(opened.evidence.len(), 1, "the removal of the sandbox");
    assert_eq!(opened.advice[0].command, format!("docker rm --force {APP}"));
}

#[test]
fn every_state_counts() {
    use ContainerState::*;
    for state in [Created, Running, Paused, Restarting, Removing, Exited, Dead, Unknown] {
        let node = found(app(state, PodProof::Log), Some(false));
        assert!(node.open().iter().any(|open| open.kind == KIND), "{state:?}: {:?}", node.kinds());
    }
}

#[test]
fn pods_that_come_and_go_in_good_order_are_no_trouble() {
    let running = || app(ContainerState::Running, PodProof::Cgroup);
    let mut node = started_with(vec![etcd_sandbox(), running()], Some(false));
    node.run_for(60 * S);
    for gone in [[APP, SANDBOX], [SANDBOX, APP]] {
        for id in gone {
            node.observe(removed(id));
            node.run_for(10 * S);
        }
        node.run_for(60 * S);
        // Its runtime tells of the sandbox last.
        node.observe(Fact::Container(Box::new(ContainerFacts { id: "c".repeat(64), ..running() })));
        node.observe(removed(&"c".repeat(64)));
    }
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn a_sandbox_that_is_told_of_later_than_its_container_is_no_trouble() {
    let mut node = started_with(Vec::new(), Some(false));
    node.observe(Fact::Container(Box::new(app(ContainerState::Running, PodProof::Cgroup))));
    node.run_for(20 * S);
    node.observe(Fact::Container(Box::new(etcd_sandbox())));
    node.run_for(60 * S);
    assert_eq!(node.kinds(), [""; 0]);
    assert_eq!(node.core.deadline(), None);
}

#[test]
fn a_checkpoint_is_good_news_as_long_as_it_is_there() {
    let mut node = found(exited(), Some(true));
    let opened = node.last_incident();
    assert_eq!(opened.severity, Severity::Info);
    let there = "; the sandbox has a checkpoint: a kubelet can start and clean up";
    assert!(opened.message.ends_with(there), "{}", opened.message);
    node.checkpoint = Some(false);
    node.run_for(LOOK_INTERVAL);
    let updated = node.last_incident();
    assert_eq!((updated.kind, updated.severity), (Kind::IncidentUpdated, Severity::Warning));
    assert_eq!(updated.sandbox.as_ref().unwrap().checkpoint, Some(false));
    node.run_for(600 * S);
    assert_eq!(node.kinds(), ["incident.opened", "incident.updated"], "nothing new is no event");
}

fn kubelet(tgid: u32, version: &str) -> ComponentFacts {
    ComponentFacts {
        name: "kubelet".into(),
        tgid,
        started_ns: BootNs::from(tgid),
        exe: Some("/usr/bin/kubelet".into()),
        version: (!version.is_empty()).then(|| version.to_owned()),
        remote_runtime: None,
        cni_dirs: Default::default(),
    }
}

#[test]
fn whether_a_kubelet_minds_depends_on_the_runtime_that_it_works_with() {
    let containerd = "/run/containerd/containerd.sock";
    let of = |runtime: &str, source: String| ContainerFacts { runtime: runtime.into(), source, ..exited() };
    let of_docker = || of("docker", "docker:/run/docker.sock".into());
    let of_containerd = || of("containerd", format!("cri:{containerd}"));
    let of_adapter = || of("docker", "cri:/run/cri-dockerd.sock".into());
    let told = ": kubelets of about 1.18 to 1.23 cannot start while it is there if they work with its runtime; by its \
                command line kubelet v1.20.2 works with ";
    let fatal = ": kubelet v1.20.2 cannot start while it is there, as kubelets of about 1.18 to 1.23";
    for (container, remote, checkpoint, severity, expected) in [
        (of_docker(), None, Some(false), Severity::Critical, fatal.to_owned()),
        (
            of_docker(),
            Some(containerd),
            Some(false),
            Severity::Warning,
            format!("{told}that at {containerd}"),
        ),
        (of_docker(), Some(containerd), None, Severity::Warning, format!("{told}that at {containerd}")),
        (of_docker(), Some(""), Some(false), Severity::Warning, format!("{told}another one")),
        (of_containerd(), None, None, Severity::Warning, format!("{told}Docker")),
        (of_containerd(), Some(containerd), None, Severity::Critical, fatal.to_owned()),
        (of_adapter(), Some("/var/run/cri-dockerd.sock"), Some(false), Severity::Critical, fatal.to_owned()),
    ] {
        let mut node = TestNode::booted(Resume::default());
        node.checkpoint = checkpoint;
        let started = ComponentFacts { remote_runtime: remote.map(str::to_owned), ..kubelet(7, "v1.20.2") };
        node.observe(Fact::Components { components: vec![started] });
        let source = container.source.clone();
        let kind = if source.starts_with("docker") { "docker" } else { "cri" };
        node.observe(Fact::RuntimeSnapshot {
            runtime: kind.into(),
            source: source.clone(),
            read: None,
            containers: vec![container],
        });
        node.observe(Fact::Source(SourceStatus::up(SourceKind::Runtime, source.as_str())));
        node.start(Vec::new());
        node.run_for(START_DELAY);
        let opened = node.last_incident();
        assert!(opened.message.ends_with(&expected), "{}\n{expected}", opened.message);
        assert_eq!(opened.severity, severity, "{expected}");
    }
}

#[test]
fn whether_a_kubelet_minds_depends_on_the_version_that_was_started_last() {
    for (versions, severity, told) in [
        (
            ["v1.27.1", "v1.20.2"],
            Severity::Critical,
            ": kubelet v1.20.2 cannot start while it is there, as kubelets",
        ),
        (["v1.20.2", "v1.24.0"], Severity::Info, "; kubelet v1.24.0 can start"),
        (["v1.20.2", "v1.17.9"], Severity::Info, "; kubelet v1.17.9 can start"),
        (["v1.20.2", ""], Severity::Warning, "; the version of the kubelet is unknown"),
    ] {
        let mut node = TestNode::booted(Resume::default());
        let components = vec![kubelet(7, versions[0]), kubelet(8, versions[1])];
        node.observe(Fact::Components { components });
        node.start(vec![exited()]);
        node.run_for(START_DELAY);
        let opened = node.last_incident();
        assert!(opened.message.contains(told), "{}", opened.message);
        assert_eq!(opened.severity, severity, "{versions:?}");
        node.observe(removed(APP));
        let claimed = ContainerFacts { id: "c".repeat(64), ..app(ContainerState::Exited, PodProof::Claimed) };
        node.observe(Fact::Container(Box::new(claimed)));
        node.run_for(30 * S);
        assert_eq!(node.last_incident().severity, severity.min(Severity::Warning));
    }
}

#[test]
fn what_could_not_be_read_is_told_as_that() {
    let node = found(exited(), None);
    let opened = node.last_incident();
    assert!(opened.message.ends_with("; whether there is one could not be read"), "{}", opened.message);
    assert_eq!((opened.severity, &opened.sandbox.as_ref().unwrap().checkpoint), (Severity::Warning, &None));
}

#[test]
fn it_closes_when_the_container_is_gone_and_asks_no_more() {
    let mut node = found(exited(), Some(false));
    node.observe(removed(APP));
    let closed = node.last_incident();
    assert_eq!(closed.incident.as_ref().unwrap().close_reason, Some(CloseReason::Resolved));
    let expected = closed.message.starts_with("resolved: ")
        && closed.message.contains(" is still there without its sandbox ");
    assert!(expected, "{}", closed.message);
    let before = asked(&node);
    node.run_for(600 * S);
    assert_eq!((asked(&node), node.core.deadline()), (before, None));
}

#[test]
fn while_its_runtime_does_not_answer_nothing_opens_and_nothing_closes() {
    let down = || Fact::Source(SourceStatus::down(SourceKind::Runtime, "docker", "no answer"));
    let mut node = started_with(vec![exited()], Some(false));
    node.observe(down());
    node.run_for(60 * S);
    assert!(node.open().is_empty());
    node.observe(up("docker"));
    node.run_for(LOOK_INTERVAL);
    assert_eq!(node.open().len(), 1);
    node.observe(down());
    node.run_for(60 * S);
    assert_eq!(node.open().len(), 1);
}

#[test]
fn a_claim_is_told_as_one_and_many_take_no_places_from_others() {
    let claimed = |number: usize| ContainerFacts {
        id: format!("{number:064x}"),
        name: format!("k8s_miner_etcd1-0_lijiaob_{UID}_0"),
        ..app(ContainerState::Exited, PodProof::Claimed)
    };
    let mut all: Vec<_> = (0..2 * CLAIMED_MAX).map(claimed).collect();
    all.push(exited());
    let mut node = TestNode::booted(Resume::default());
    node.start(all);
    node.run_for(START_DELAY);
    let open = node.open();
    assert_eq!(open.len(), CLAIMED_MAX + 1);
    assert!(open.iter().any(|incident| incident.summary.contains("_0 of pod lijiaob/etcd1-0 is still")));
    let claim = open.iter().find(|incident| incident.summary.starts_with("container k8s_miner")).unwrap();
    assert!(claim.summary.contains("_0 (claims to be pod lijiaob/etcd1-0) is still there"));
    assert_eq!((claim.severity, claim.confidence), (Severity::Warning, Confidence::Likely));
}

#[test]
fn what_no_kubelet_lists_and_what_needs_no_sandbox_is_no_trouble_for_one() {
    let old = ContainerFacts { incarnation: Incarnation::default(), ..exited() };
    let named = ContainerFacts { name: "etcd".into(), ..exited() };
    for unlisted in [old, named] {
        let node = found(unlisted, Some(false));
        assert_eq!(node.open()[0].severity, Severity::Info);
        assert!(node.open()[0].summary.ends_with("without its sandbox 291716a39be9"));
    }
    let of_podman = ContainerFacts { runtime: "podman".into(), source: "podman".into(), ..exited() };
    let no_pod = ContainerFacts { pod: None, ..exited() };
    let mut alone = exited();
    alone.pod.as_mut().unwrap().sandbox_id = None;
    for fine in [of_podman, no_pod, alone] {
        assert_eq!(found(fine, Some(false)).kinds(), [""; 0]);
    }
}

#[test]
fn a_container_behind_the_cri_has_no_checkpoint() {
    let of_cri = ContainerFacts { runtime: "containerd".into(), source: "containerd".into(), ..exited() };
    let node = found(of_cri, Some(true));
    assert_eq!((asked(&node), node.open()[0].severity), (0, Severity::Warning));
    assert_eq!(node.open()[0].advice[0].command, format!("crictl rm {APP}"));
}

#[test]
fn a_restart_of_the_daemon_goes_on_with_the_incident() {
    let before = found(exited(), Some(false));
    let resume = || Resume { last_seq: 90, ..before.resume_state() };
    let mut node = TestNode::booted(resume());
    node.start(vec![exited()]);
    node.run_for(60 * S);
    assert_eq!((node.open().len(), node.open()[0].id == before.open()[0].id), (1, true));
    assert!(!node.kinds().contains(&"incident.opened"), "{:?}", node.kinds());

    let mut node = TestNode::booted(resume());
    node.start(Vec::new());
    node.run_for(60 * S);
    assert_eq!(node.kinds(), ["incident.closed"], "it was removed meanwhile");
}
