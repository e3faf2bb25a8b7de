//! Answers that are none, in each place: whatever comes, it is refused or read, and what is right afterwards is taken.
//!
//! `KEVTMON_TEST_SEED` repeats a run, `KEVTMON_TEST_ROUNDS` makes it longer.

use kevtmon_testing::random::{Random, rounds};

use super::super::{events, facts, known};
use super::*;
use crate::kubelet::PodLabels;
use crate::runtime::is_container_id;
use crate::runtime::tests::mutate;
use crate::runtime::tests::reports::Refused;

/// The messages that a runtime sends, by the method that they answer.
fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let running = container('a', 'b', api::ContainerState::Running);
    let ready = sandbox('b', api::SandboxState::Ready);
    let status = api::ContainerStatus {
        id: id('a'),
        metadata: running.metadata.clone(),
        state: running.state,
        started_at: 9_600_000_000,
        finished_at: 0,
        exit_code: 137,
        reason: "OOMKilled".into(),
        image: running.image.clone(),
    };
    let network = api::PodSandboxNetworkStatus {
        ip: "10.1.2.3".into(),
        additional_ips: vec![api::PodIp { ip: "fd00::3".into() }],
    };
    let of_sandbox = api::PodSandboxStatus {
        id: id('b'),
        metadata: ready.metadata.clone(),
        state: ready.state,
        network: Some(network),
    };
    let info = [("info".to_owned(), format!(r#"{{"pid":{}}}"#, me()))];
    let exit = api::TaskExit { container_id: id('a'), id: id('a'), exit_status: 137 };
    let start = api::TaskStart { container_id: id('a'), pid: me() };
    let deleted = api::ContainerEventType::Deleted.into();
    let event = api::ContainerEvent { container_id: id('a'), kind: deleted, created_at: wall_now() };
    let version =
        api::VersionResponse { runtime_name: "containerd".into(), runtime_version: "1.6.20".into() };
    vec![
        ("Version", version.encode_to_vec()),
        ("ListContainers", api::ListContainersResponse { containers: vec![running] }.encode_to_vec()),
        ("ListPodSandbox", api::ListPodSandboxResponse { items: vec![ready] }.encode_to_vec()),
        (
            "ContainerStatus",
            api::ContainerStatusResponse { status: Some(status), info: info.clone().into() }.encode_to_vec(),
        ),
        (
            "PodSandboxStatus",
            api::PodSandboxStatusResponse { status: Some(of_sandbox), info: info.into() }.encode_to_vec(),
        ),
        ("Subscribe", envelope("/tasks/exit", &exit).encode_to_vec()),
        ("Subscribe", envelope("/tasks/start", &start).encode_to_vec()),
        ("Subscribe", envelope("/containers/delete", &api::OfContainer { id: id('a') }).encode_to_vec()),
        ("GetContainerEvents", event.encode_to_vec()),
    ]
}

/// The ids of what can be read.
fn read(method: &str, answer: &[u8]) -> Vec<String> {
    let change = |change: Option<crate::runtime::change::Change>| change.map(|change| change.id);
    let unnamed = || kevtmon_testing::facts::container(&id('a'));
    match method {
        "ListContainers" => {
            let all = api::ListContainersResponse::decode(answer).unwrap_or_default().containers;
            all.into_iter().filter_map(|one| facts::container(one, None)).map(|facts| facts.id).collect()
        }
        "ListPodSandbox" => {
            let all = api::ListPodSandboxResponse::decode(answer).unwrap_or_default().items;
            let read = |one| facts::sandbox(one, PodProof::Cri, &PodLabels::default());
            all.into_iter().filter_map(read).map(|facts| facts.id).collect()
        }
        "ContainerStatus" => {
            let answer = api::ContainerStatusResponse::decode(answer).ok();
            answer.map(|answer| facts::with_status(unnamed(), answer).facts.id).into_iter().collect()
        }
        "PodSandboxStatus" => {
            let answer = api::PodSandboxStatusResponse::decode(answer).ok();
            answer.map(|answer| facts::with_sandbox_status(unnamed(), answer).facts.id).into_iter().collect()
        }
        "Subscribe" => {
            let read = events::of_containerd(answer, &mut known::Known::default());
            read.ok().and_then(change).into_iter().collect()
        }
        "GetContainerEvents" => {
            let read = events::of_cri(answer, &mut known::Known::default());
            read.ok().and_then(change).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn whatever_is_read_has_a_proper_id() {
    let mut random = Random::new();
    let messages = messages();
    let mut number = 0;
    for _ in 0..rounds(4000) {
        let (method, message) = random.pick(&messages);
        let ids = read(method, &mutate::bytes(&mut random, message));
        number += ids.len();
        assert!(ids.iter().all(|id| is_container_id(id)), "{method}: {ids:?}");
    }
    assert!(number > 0, "all of them were refused");
}

#[test]
fn a_time_beyond_the_clock_is_no_fault() {
    let far = api::Timestamp { seconds: i64::MAX, nanos: i32::MAX };
    let removed = envelope("/containers/delete", &api::OfContainer { id: id('a') });
    let event = api::Envelope { timestamp: Some(far), ..removed };
    let read = events::of_containerd(&event.encode_to_vec(), &mut known::Known::default());
    assert_eq!(read.unwrap().unwrap().wall, i64::MAX);
}

/// What a good list tells of each container.
fn listed(containers: &[ContainerFacts]) -> Vec<(String, String)> {
    containers.iter().map(|facts| (facts.id.clone(), facts.name.clone())).collect()
}

#[tokio::test]
async fn after_any_answer_a_good_one_is_taken() {
    let mut random = Random::new();
    let fake = with_pod();
    // Whose process is not known is asked for again each time.
    fake.set(|state| state.info.clear());
    let pause = Duration::from_millis(1);
    let timing = Options {
        reconcile: pause,
        poll: pause,
        backoff_min: pause,
        backoff_max: pause,
        ..Options::default()
    };
    let mut reports = Reports::of::<Cri>(SOURCE, fake.socket(), timing, Proc::default());
    let good = listed(&reports.snapshot().await);
    assert_eq!(good.len(), 2);
    let messages = messages();
    let mut answers = Refused::default();
    for _ in 0..rounds(60) {
        let (method, message) = random.pick(&messages);
        let answer = mutate::bytes(&mut random, message);
        if *method == "Subscribe" {
            fake.subscribed().await;
            fake.raw_event(&answer).await;
        } else {
            fake.set(|state| state.spoiled = Some((method, answer)));
        }
        reports.read_or_refused().await;
        fake.set(|state| state.spoiled = None);
        reports.until_listed(|containers| listed(containers) == good).await;
        answers.take(&mut reports, SOURCE);
    }
    answers.assert_counted();
}

fn huge() -> Vec<u8> {
    let name = "a".repeat(17 << 20);
    let metadata = api::PodSandboxMetadata { name, ..Default::default() };
    let sandbox = api::PodSandbox { metadata: Some(metadata), ..sandbox('c', api::SandboxState::Ready) };
    api::ListPodSandboxResponse { items: vec![sandbox] }.encode_to_vec()
}

#[tokio::test]
async fn a_huge_answer_is_refused_and_the_next_good_one_is_taken() {
    let fake = with_pod();
    fake.set(|state| state.spoiled = Some(("ListPodSandbox", huge())));
    let mut reports = watch(&fake);
    reports.until(|fact| (*fact == Fact::Malformed { source: SOURCE.into(), count: 1 }).then_some(())).await;
    let reason = reports.down().await;
    assert!(reason.starts_with("ListPodSandbox returned an invalid response: "), "{reason}");
    fake.set(|state| state.spoiled = None);
    assert_eq!(reports.snapshot().await.len(), 2);
    reports.up().await;
}

#[tokio::test]
async fn a_list_of_more_entries_than_a_node_can_have_is_refused_before_it_is_decoded() {
    let fake = with_pod();
    // The field of the containers, and its length.
    fake.set(|state| state.spoiled = Some(("ListContainers", [10, 0].repeat(1 << 20))));
    let mut reports = watch(&fake);
    reports.until(|fact| (*fact == Fact::Malformed { source: SOURCE.into(), count: 1 }).then_some(())).await;
    let reason = reports.down().await;
    assert_eq!(reason, "ListContainers returned an invalid response: it has more than 32768 entries");
    fake.set(|state| state.spoiled = None);
    assert_eq!(reports.snapshot().await.len(), 2);
    reports.up().await;
}

#[tokio::test]
async fn a_huge_version_is_counted_and_asked_for_again() {
    let fake = with_pod();
    fake.set(|state| state.spoiled = Some(("Version", huge())));
    let mut reports = watch(&fake);
    reports.until(|fact| (*fact == Fact::Malformed { source: SOURCE.into(), count: 1 }).then_some(())).await;
    let reason = reports.down().await;
    assert!(reason.starts_with("Version returned an invalid response: "), "{reason}");
    fake.set(|state| state.spoiled = None);
    assert_eq!(reports.snapshot().await.len(), 2);
    reports.up().await;
}

#[tokio::test]
async fn a_huge_event_is_counted_and_the_stream_is_read_anew() {
    let fake = with_pod();
    let mut reports = watch(&fake);
    reports.snapshot().await;
    reports.up().await;
    fake.subscribed().await;
    fake.raw_event(&huge()).await;
    reports.until(|fact| (*fact == Fact::Malformed { source: SOURCE.into(), count: 1 }).then_some(())).await;
    assert_eq!(reports.snapshot().await.len(), 2);
    reports.up().await;
}

#[tokio::test]
async fn an_event_of_an_id_that_is_none_is_counted_and_those_after_it_are_read() {
    let fake = with_pod();
    let mut reports = watch(&fake);
    reports.snapshot().await;
    reports.up().await;
    fake.subscribed().await;
    let exit = |id: String| api::TaskExit { container_id: id.clone(), id, exit_status: 1 };
    fake.event(&envelope("/tasks/exit", &exit("../x".into()))).await;
    assert_eq!(reports.next().await, Fact::Malformed { source: SOURCE.into(), count: 1 });
    fake.event(&envelope("/tasks/exit", &exit(id('a')))).await;
    let exited = reports.next().await;
    let is_it = |facts: &ContainerFacts| facts.id == id('a') && facts.state == ContainerState::Exited;
    assert!(matches!(&exited, Fact::Container(facts) if is_it(facts)), "the stream goes on: {exited:?}");
}
