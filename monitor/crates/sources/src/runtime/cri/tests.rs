//! The source against a runtime that starts, changes, hangs and lies.

mod fake;
mod malformed;

use std::time::Duration;

use fake::{FakeCri, Mood};
use kevtmon_observation::{ContainerExit, ContainerFacts, ContainerState, Fact, PodProof, SourceStatus};
use prost::Message;

use super::{Cri, api};
use crate::kubelet::PodLabels;
use crate::procfs::Proc;
use crate::runtime::Options;
use crate::runtime::change::wall_now;
use crate::runtime::tests::reports::{PATIENCE, Reports};

const SOURCE: &str = "cri:c.sock";
const LONG: Duration = Duration::from_secs(600);

/// Patient, and without a periodic list.
fn watch(fake: &FakeCri) -> Reports {
    let timing = Options { reconcile: LONG, poll: LONG, timeout: PATIENCE, ..Options::default() };
    Reports::of::<Cri>(SOURCE, fake.socket(), timing, Proc::default())
}

fn watch_impatiently(fake: &FakeCri) -> Reports {
    let timing =
        Options { reconcile: LONG, poll: LONG, timeout: Duration::from_millis(200), ..Options::default() };
    Reports::of::<Cri>(SOURCE, fake.socket(), timing, Proc::default())
}

fn id(digit: char) -> String {
    digit.to_string().repeat(64)
}

fn me() -> u32 {
    std::process::id()
}

fn sandbox(digit: char, state: api::SandboxState) -> api::PodSandbox {
    let metadata = api::PodSandboxMetadata {
        name: "etcd1-0".into(),
        uid: "u-1".into(),
        namespace: "lijiaob".into(),
        attempt: 1,
    };
    api::PodSandbox {
        id: id(digit),
        metadata: Some(metadata),
        state: state.into(),
        created_at: 7_500_000_000,
        labels: [("app", "etcd"), ("token", "hunter2")].map(|(key, value)| (key.into(), value.into())).into(),
    }
}

fn container(digit: char, sandbox: char, state: api::ContainerState) -> api::Container {
    api::Container {
        id: id(digit),
        pod_sandbox_id: id(sandbox),
        metadata: Some(api::ContainerMetadata { name: "etcd".into(), attempt: 2 }),
        image: Some(api::ImageSpec { image: "sha256:0".into() }),
        image_ref: "sha256:0".into(),
        state: state.into(),
        created_at: 9_500_000_000,
        annotations: [("io.kubernetes.container.hash".into(), "5cf0cfcf".into())].into(),
        // Of another pod: whoever sends them, the sandbox tells whose the container is.
        labels: [("name", "other"), ("namespace", "other"), ("uid", "u-2")]
            .map(|(key, value)| (format!("io.kubernetes.pod.{key}"), value.to_owned()))
            .into(),
    }
}

/// A pod with one container that runs.
fn with_pod() -> FakeCri {
    let fake = FakeCri::started();
    fake.set(|state| {
        state.sandboxes = vec![sandbox('b', api::SandboxState::Ready)];
        state.containers = vec![container('a', 'b', api::ContainerState::Running)];
        let info = format!(r#"{{"pid":{},"runtimeSpec":{{"process":{{"env":["TOKEN=hunter2"]}}}}}}"#, me());
        state.info = [(id('a'), info.clone()), (id('b'), info)].into();
    });
    fake
}

fn envelope(topic: &str, event: &impl Message) -> api::Envelope {
    let (seconds, nanos) = (wall_now() / 1_000_000_000, wall_now() % 1_000_000_000);
    api::Envelope {
        timestamp: Some(api::Timestamp { seconds, nanos: i32::try_from(nanos).unwrap() }),
        namespace: "k8s.io".into(),
        topic: topic.into(),
        event: Some(api::Any { value: event.encode_to_vec() }),
    }
}

async fn state_of(reports: &mut Reports, digit: char, state: ContainerState) -> ContainerFacts {
    let is_it = |facts: &ContainerFacts| facts.id == id(digit) && facts.state == state;
    reports
        .until(|fact| match fact {
            Fact::Container(facts) if is_it(facts) => Some((**facts).clone()),
            _ => None,
        })
        .await
}

#[tokio::test]
async fn of_the_labels_of_a_sandbox_those_that_are_allowed_are_kept() {
    let fake = with_pod();
    let pod_labels = std::sync::Arc::new(PodLabels(vec!["app".into()]));
    let options = Options { pod_labels, timeout: PATIENCE, ..Options::default() };
    let mut reports = Reports::of::<Cri>(SOURCE, fake.socket(), options, Proc::default());
    let labels = |facts: &ContainerFacts| facts.pod.clone().unwrap().labels.map(|labels| *labels);
    let all: Vec<_> = reports.snapshot().await.iter().map(labels).collect();
    assert_eq!(all, [None, Some([("app".to_owned(), "etcd".to_owned())].into())], "of container and sandbox");
    assert!(!format!("{:?}", reports.seen).contains("hunter2"));
}

#[tokio::test]
async fn a_container_is_of_the_pod_that_its_sandbox_was_requested_for() {
    for service in ["runtime.v1.RuntimeService", "runtime.v1alpha2.RuntimeService"] {
        let fake = with_pod();
        fake.set(|state| state.service = service);
        let mut reports = watch(&fake);
        let all = reports.snapshot().await;
        reports.up().await;
        let (etcd, pause) = (&all[0], &all[1]);
        for facts in [etcd, pause] {
            let pod = facts.pod.as_ref().unwrap();
            assert_eq!((&*pod.namespace, &*pod.name, &*pod.uid), ("lijiaob", "etcd1-0", "u-1"));
            assert_eq!((pod.proof, pod.sandbox_id.clone()), (PodProof::Cri, Some(id('b'))));
            assert_eq!((&*facts.runtime, &*facts.source), ("containerd", SOURCE));
            assert_eq!((facts.state, facts.tgid), (ContainerState::Running, Some(me())));
            assert_eq!(facts.netns, Proc::default().ns(me(), "net"));
        }
        assert_eq!((&*etcd.name, &*etcd.image), ("etcd", "registry/etcd:3"));
        assert_eq!((&*pause.name, pause.sandbox, etcd.sandbox), ("POD", true, false));
        assert!(etcd.joined_netns && !pause.joined_netns);
        let made = &etcd.incarnation;
        assert_eq!((made.attempt, made.spec_hash, made.created_s), (Some(2), Some(1_559_285_711), Some(9)));
        assert_eq!(made.image_id.as_deref(), Some("sha256:0"));
        assert_eq!((pause.incarnation.attempt, pause.incarnation.created_s), (Some(1), Some(7)));
        assert_eq!(pause.addresses.len(), 2);
        let recorded = format!("{:?}", reports.seen);
        assert!(!recorded.contains("hunter2") && !recorded.contains("u-2"), "{recorded}");
        let allowed = "Version Subscribe ListContainers ListPodSandbox ContainerStatus PodSandboxStatus";
        let requests = fake.set(|state| state.requests.clone());
        let is_allowed = |request: &String| allowed.split(' ').any(|allowed| allowed == request);
        assert!(requests.iter().all(is_allowed), "{requests:?}");
    }
}

#[tokio::test]
async fn a_sandbox_without_a_container_of_its_own_runs_and_its_pod_is_known() {
    // As CRI-O has it by default: the namespaces of a pod are held by files, and no process pauses.
    for info in [r#"{"pid":0,"runtimeSpec":{}}"#, r#"{"runtimeSpec":{}}"#, ""] {
        let fake = with_pod();
        fake.set(|state| {
            (state.name, state.version, state.events) = ("cri-o", "1.30.4", false);
            state.info.insert(id('b'), info.to_owned());
        });
        let mut reports = watch(&fake);
        let all = reports.snapshot().await;
        reports.up().await;
        let (etcd, sandbox) = (&all[0], &all[1]);
        assert_eq!((sandbox.state, sandbox.tgid, sandbox.netns), (ContainerState::Running, None, None));
        assert_eq!((etcd.state, etcd.tgid), (ContainerState::Running, Some(me())));
        assert_eq!(etcd.netns, Proc::default().ns(me(), "net"), "the network of the pod is known by it");
        let proof = |facts: &ContainerFacts| facts.pod.as_ref().unwrap().proof;
        assert_eq!((proof(etcd), proof(sandbox)), (PodProof::Cri, PodProof::Cri));
        assert!(
            !reports.seen.iter().any(|fact| matches!(fact, Fact::Malformed { .. })),
            "{:?}",
            reports.seen
        );
    }
}

#[tokio::test]
async fn what_an_adapter_reads_from_docker_is_a_claim() {
    let fake = with_pod();
    fake.set(|state| state.name = "docker");
    let all = watch(&fake).snapshot().await;
    assert!(all.iter().all(|facts| facts.pod.as_ref().unwrap().proof == PodProof::Claimed), "{all:?}");
    assert_eq!(all[0].runtime, "docker");
}

#[tokio::test]
async fn the_labels_of_a_container_without_a_sandbox_are_a_claim() {
    let fake = with_pod();
    fake.set(|state| state.sandboxes.clear());
    let all = watch(&fake).snapshot().await;
    let pod = all[0].pod.as_ref().unwrap();
    assert_eq!((&*pod.name, pod.proof), ("other", PodProof::Claimed));
}

#[tokio::test]
async fn a_socket_without_the_cri_has_nothing_to_report() {
    let fake = FakeCri::started();
    fake.set(|state| state.service = "containerd.services.content.v1.Content");
    let mut reports = watch(&fake);
    let status = reports
        .until(|fact| match fact {
            Fact::Source(status) => Some(status.clone()),
            _ => None,
        })
        .await;
    assert!(!status.up && status.absent, "{status:?}");
    assert_eq!(status.reason.as_deref(), Some("the CRI is not served there: no such thing"));
}

#[tokio::test]
async fn an_answer_that_is_none_makes_it_down_until_it_is_one() {
    for mood in [Mood::Nonsense, Mood::Cut, Mood::Huge] {
        let fake = with_pod();
        fake.set(|state| state.mood = mood);
        let mut reports = watch(&fake);
        let reason = reports.down().await;
        assert!(reason.starts_with("Version returned an invalid response: "), "{mood:?}: {reason}");
        assert_eq!(reports.seen[0], Fact::Malformed { source: SOURCE.into(), count: 1 });
        fake.set(|state| state.mood = Mood::Well);
        assert_eq!(reports.snapshot().await.len(), 2);
        reports.up().await;
        fake.set(|state| state.mood = mood);
        fake.subscribed().await;
        fake.event(&api::Any { value: vec![0xff; 8] }).await;
        assert_eq!(
            reports
                .until(|fact| match fact {
                    Fact::Source(SourceStatus { up: false, reason, .. }) => reason.clone(),
                    _ => None,
                })
                .await
                .split(':')
                .next(),
            Some("Subscribe returned an invalid response")
        );
        fake.set(|state| state.mood = Mood::Well);
        reports.up().await;
    }
}

#[tokio::test]
async fn an_entry_that_is_none_is_counted_and_hides_no_other() {
    let fake = with_pod();
    fake.set(|state| {
        let nameless = api::PodSandbox { metadata: None, ..sandbox('c', api::SandboxState::NotReady) };
        let strange = api::Container { state: 99, ..container('d', 'b', api::ContainerState::Exited) };
        state.sandboxes.extend([nameless, api::PodSandbox { id: "../x".into(), ..Default::default() }]);
        state.containers.extend([strange, api::Container::default()]);
    });
    let mut reports = watch(&fake);
    assert_eq!(reports.next().await, Fact::Malformed { source: SOURCE.into(), count: 2 });
    let listed = reports.snapshot().await;
    assert_eq!(listed.iter().map(|facts| &facts.id[..1]).collect::<String>(), "abcd");
    assert_eq!((listed[2].pod.clone(), listed[3].state), (None, ContainerState::Unknown));
}

#[tokio::test]
async fn a_runtime_that_never_answers_makes_it_down_until_it_does() {
    let fake = with_pod();
    fake.set(|state| state.mood = Mood::Silent);
    let mut reports = watch_impatiently(&fake);
    assert!(reports.down().await.starts_with("no answer within "));
    fake.set(|state| state.mood = Mood::Well);
    reports.up().await;
}

#[tokio::test]
async fn one_that_ends_before_its_first_event_is_down_and_not_one_without_events() {
    let fake = with_pod();
    // As servers of gRPC do it.
    fake.set(|state| state.quiet = true);
    let mut reports = watch(&fake);
    reports.up().await;
    kevtmon_testing::patience::until("events are asked for", || {
        fake.set(|state| state.requests.iter().any(|request| request == "Subscribe"))
    })
    .await;
    fake.stop();
    let reason = reports.down().await;
    assert!(!reason.contains("has no event stream"), "{reason}");
    assert!(reports.seen.iter().all(|fact| match fact {
        Fact::Source(status) => status.attach_mode.is_none(),
        _ => true,
    }));
}

#[tokio::test]
async fn what_containerd_announces_before_its_cri_knows_it_is_reported_with_its_process() {
    let fake = FakeCri::started();
    let mut reports = watch(&fake);
    reports.up().await;
    fake.subscribed().await;
    let started = api::TaskStart { container_id: id('a'), pid: me() };
    fake.event(&envelope("/tasks/start", &started)).await;
    kevtmon_testing::patience::until("the container is looked for", || {
        fake.set(|state| state.requests.iter().any(|request| request == "ListContainers"))
    })
    .await;
    fake.set(|state| {
        state.sandboxes = vec![sandbox('b', api::SandboxState::Ready)];
        state.containers = vec![container('a', 'b', api::ContainerState::Created)];
    });
    let facts = state_of(&mut reports, 'a', ContainerState::Running).await;
    assert_eq!((facts.tgid, facts.pod.unwrap().proof), (Some(me()), PodProof::Cri));
}

#[tokio::test]
async fn what_containerd_says_has_ended_has_ended_even_if_its_cri_is_behind() {
    let fake = with_pod();
    let mut reports = watch(&fake);
    reports.up().await;
    fake.subscribed().await;
    let exit = |of: &str| api::TaskExit { container_id: id('a'), id: of.to_owned(), exit_status: 137 };
    fake.event(&envelope("/tasks/oom", &api::OfContainer { id: id('a') })).await;
    // That of a probe that was executed in it.
    fake.event(&envelope("/tasks/exit", &exit("probe"))).await;
    fake.event(&envelope("/tasks/exit", &exit(&id('a')))).await;
    let ended = reports.container().await;
    assert_eq!((ended.id, ended.state, ended.tgid), (id('a'), ContainerState::Exited, None));
    assert_eq!(ended.exit, Some(ContainerExit { code: Some(137), oom_killed: Some(true) }));
    let statuses =
        || fake.set(|state| state.requests.iter().filter(|name| *name == "ContainerStatus").count());
    kevtmon_testing::patience::until("its status is asked for", || statuses() > 1).await;
    // Another change that comes after it: the status, which is behind, has changed nothing.
    fake.set(|state| state.containers.clear());
    fake.event(&envelope("/containers/delete", &api::OfContainer { id: id('a') })).await;
    loop {
        match reports.next().await {
            Fact::Container(facts) => assert_eq!(facts.state, ContainerState::Exited),
            Fact::ContainerGone { id: gone, .. } => break assert_eq!(gone, id('a')),
            fact => panic!("{fact:?}"),
        }
    }
}

#[tokio::test]
async fn events_that_the_kubelet_would_miss_are_left_to_it() {
    for (version, events, attach_mode) in
        [("1.27.1", true, Some("list")), ("1.28.0", false, Some("list")), ("1.29.5", true, None)]
    {
        let fake = with_pod();
        fake.set(|state| (state.name, state.version, state.events) = ("cri-o", version, events));
        let mut reports = watch(&fake);
        let status = reports
            .until(|fact| match fact {
                Fact::Source(status) if status.up && status.attach_mode.as_deref() == attach_mode => {
                    Some(status.clone())
                }
                _ => None,
            })
            .await;
        assert_eq!(status.attach_mode.as_deref(), attach_mode, "{version}: {status:?}");
        let asked = fake.set(|state| state.requests.contains(&"GetContainerEvents".to_owned()));
        assert_eq!(asked, version != "1.27.1");
        if attach_mode.is_none() {
            fake.subscribed().await;
            fake.set(|state| state.containers.clear());
            let event = api::ContainerEvent {
                container_id: id('a'),
                kind: api::ContainerEventType::Deleted.into(),
                created_at: wall_now(),
            };
            fake.event(&event).await;
            let gone = reports
                .until(|fact| match fact {
                    Fact::ContainerGone { id, .. } => Some(id.clone()),
                    _ => None,
                })
                .await;
            assert_eq!(gone, id('a'));
        }
    }
}
