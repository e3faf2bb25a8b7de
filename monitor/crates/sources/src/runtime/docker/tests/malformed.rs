//! Answers that are none, in each place: whatever comes, it is refused or read, and what is right afterwards is taken.
//!
//! They are made from what a real engine answered (API 1.51). `KEVTMON_TEST_SEED` repeats a run, `KEVTMON_TEST_ROUNDS` makes
//! it longer.

use bollard::models::EventMessage;
use kevtmon_observation::ContainerFacts;
use kevtmon_testing::random::{Random, rounds};
use serde_json::Value;

use super::super::api::ContainerInspectResponse;
use super::super::{events, facts, list};
use super::fake::{Answer, entry};
use super::*;
use crate::kubelet::PodLabels;
use crate::runtime::is_container_id;
use crate::runtime::tests::mutate;
use crate::runtime::tests::reports::Refused;

const LIST: &str = include_str!("recorded/list.json");
const INSPECT: &str = include_str!("recorded/inspect.json");
const EVENTS: &str = include_str!("recorded/events.ndjson");

/// A spoiled text, of which nothing or some may still be a document.
fn spoiled(random: &mut Random, text: &str) -> Vec<u8> {
    if random.one_in(2) {
        return mutate::bytes(random, text.as_bytes());
    }
    mutate::json(random, &serde_json::from_str(text).unwrap()).to_string().into_bytes()
}

#[test]
fn whatever_is_read_has_a_proper_id() {
    let mut random = Random::new();
    let lines: Vec<&str> = EVENTS.lines().collect();
    let mut read = 0;
    for _ in 0..rounds(4000) {
        let ids: Vec<String> = match random.below(3) {
            0 => {
                let list = list::read(&spoiled(&mut random, LIST), &PodLabels::default());
                list.unwrap_or_default().containers.into_iter().map(|facts| facts.id).collect()
            }
            1 => {
                let answer =
                    serde_json::from_slice::<ContainerInspectResponse>(&spoiled(&mut random, INSPECT));
                answer
                    .ok()
                    .and_then(|answer| facts::from_inspect(answer, &PodLabels::default(), None))
                    .map(|found| found.facts.id)
                    .into_iter()
                    .collect()
            }
            _ => {
                let line = *random.pick(&lines);
                let message = serde_json::from_slice::<EventMessage>(&spoiled(&mut random, line));
                let change = message.ok().and_then(|message| events::read(events::ACTIONS, message).ok()?);
                change.map(|change| change.id).into_iter().collect()
            }
        };
        read += ids.len();
        assert!(ids.iter().all(|id| is_container_id(id)), "{ids:?}");
    }
    assert!(read > 0, "all of them were refused");
}

/// What a good list tells of each container.
fn listed(containers: &[ContainerFacts]) -> Vec<(String, String, ContainerState)> {
    containers.iter().map(|facts| (facts.id.clone(), facts.name.clone(), facts.state)).collect()
}

#[tokio::test]
async fn after_any_answer_a_good_one_is_taken() {
    let mut random = Random::new();
    let fake = FakeDocker::started();
    let mut inspect: Value = serde_json::from_str(INSPECT).unwrap();
    inspect["State"]["Pid"] = me().into();
    fake.put_inspected(inspect.clone());
    let pause = Duration::from_millis(1);
    let timing = Options {
        reconcile: pause,
        poll: pause,
        backoff_min: pause,
        backoff_max: pause,
        ..Options::default()
    };
    let mut reports = Reports::with(&fake, timing);
    let good = listed(&reports.snapshot().await);
    reports.up().await;
    assert_eq!(good.len(), 1);
    let list = serde_json::to_string(&[entry(inspect.clone())]).unwrap();
    let lines: Vec<&str> = EVENTS.lines().collect();
    let mut answers = Refused::default();
    for _ in 0..rounds(60) {
        match random.below(3) {
            0 => fake.spoil(Answer::List, spoiled(&mut random, &list)),
            1 => fake.spoil(Answer::Inspect, spoiled(&mut random, &inspect.to_string())),
            _ => {
                fake.subscribed().await;
                let line = *random.pick(&lines);
                let mut line = spoiled(&mut random, line);
                line.push(b'\n');
                fake.raw_event(Ok(Frame::data(line.into()))).await;
            }
        }
        // A start has it inspected.
        fake.subscribed().await;
        fake.event("start", &good[0].0).await;
        reports.read_or_refused().await;
        fake.well();
        reports.until_listed(|containers| listed(containers) == good).await;
        answers.take(&mut reports, SOURCE);
    }
    answers.assert_counted();
}

#[tokio::test]
async fn a_container_whose_entry_cannot_be_read_is_not_removed_and_one_that_is_gone_is() {
    let fake = FakeDocker::started();
    fake.put(&id('a'), "exited", 0);
    fake.put(&id('b'), "exited", 0);
    let reconcile = Duration::from_millis(20);
    let mut reports = Reports::with(&fake, Options { reconcile, timeout: PATIENCE, ..Options::default() });
    assert_eq!(reports.snapshot().await.len(), 2);
    reports.up().await;
    fake.remove(&id('b'));
    fake.spoil(Answer::List, br#"[{"Id": "aaa", "State": "exited"}]"#.to_vec());
    let gone = reports
        .until(|fact| match fact {
            Fact::ContainerGone { id, .. } => Some(id.clone()),
            _ => None,
        })
        .await;
    assert_eq!(gone, id('b'), "the engine itself says so");
    let left = reports.snapshot().await;
    assert_eq!(left.iter().map(|facts| facts.id.clone()).collect::<Vec<_>>(), [id('a')]);
    assert!(reports.seen.contains(&Fact::Malformed { source: SOURCE.into(), count: 1 }));
}

/// Bytes that a huge answer may cost: what is allowed, and what is on its way.
const TAKEN_MAX: usize = 32 << 20;

fn is_malformed(fact: &Fact) -> bool {
    *fact == Fact::Malformed { source: SOURCE.into(), count: 1 }
}

#[tokio::test]
async fn a_huge_list_is_refused_unread_and_the_next_good_one_is_taken() {
    let fake = FakeDocker::started();
    fake.put(&id('a'), "exited", 0);
    fake.answer_hugely(Answer::List);
    let mut reports = Reports::by(&fake);
    reports.until(|fact| is_malformed(fact).then_some(())).await;
    let reason = reports.down().await;
    assert_eq!(reason, "GET /containers/json returned an invalid response: it has more than 16384 KiB");
    let (taken, lists) = (fake.taken(), fake.lists());
    assert!(taken <= TAKEN_MAX * lists, "{taken} of {lists}");
    fake.well();
    assert_eq!(reports.snapshot().await.len(), 1);
    reports.up().await;
}

#[tokio::test]
async fn a_huge_answer_about_the_engine_is_counted_and_it_is_done_without() {
    for (asked, runtime) in [(Answer::Version, "docker"), (Answer::Info, "podman")] {
        let fake = FakeDocker::started();
        fake.engine("Podman Engine");
        fake.put(&id('a'), "exited", 0);
        fake.answer_hugely(asked);
        let mut reports = Reports::by(&fake);
        reports.until(|fact| is_malformed(fact).then_some(())).await;
        let containers = reports.snapshot().await;
        assert_eq!((containers.len(), containers[0].runtime.as_str()), (1, runtime), "{asked:?}");
        reports.up().await;
    }
}

#[test]
fn entries_of_a_list_that_are_none_cost_nothing_and_more_containers_than_a_node_can_have_are_none() {
    let read = |list: &str| list::read(list.as_bytes(), &PodLabels::default());
    let listed = read(&format!("[{}{{\"Id\":\"{}\"}}]", "{},".repeat(100_000), id('a'))).unwrap();
    assert_eq!((listed.containers.len(), listed.malformed), (1, 100_000));
    assert!(listed.containers.capacity() <= 8);
    let entry = format!("{{\"Id\":\"{}\"}}", id('a'));
    let refused = read(&format!("[{}{entry}]", format!("{entry},").repeat(32 << 10))).unwrap_err();
    assert!(refused.to_string().starts_with("it has more than 32768 containers"), "{refused}");
    assert!(read("[] []").is_err() && read("{}").is_err() && read("null").is_err());
}

#[tokio::test]
async fn a_huge_inspect_is_refused_unread_and_costs_nothing_else() {
    let fake = FakeDocker::started();
    fake.put(&id('a'), "running", me());
    fake.answer_hugely(Answer::Inspect);
    let mut reports = Reports::by(&fake);
    reports.until(|fact| is_malformed(fact).then_some(())).await;
    let containers = reports.snapshot().await;
    assert_eq!((containers.len(), containers[0].tgid), (1, None), "it is known by its entry of the list");
    reports.up().await;
    let (taken, inspects) = (fake.taken(), fake.inspects());
    assert!(taken <= TAKEN_MAX * inspects, "{taken} of {inspects}");
    fake.well();
    fake.event("start", &id('a')).await;
    assert_eq!(reports.container().await.tgid, Some(me()));
}

#[tokio::test]
async fn an_event_without_end_is_refused_and_the_stream_is_read_anew() {
    let fake = FakeDocker::started();
    fake.put(&id('a'), "exited", 0);
    let mut reports = Reports::by(&fake);
    reports.snapshot().await;
    reports.up().await;
    let piece = Bytes::from(vec![b'a'; 64 << 10]);
    fake.raw_event(Ok(Frame::data(Bytes::from_static(b"{\"Type\": \"")))).await;
    for _ in 0..(8 << 20) / piece.len() {
        fake.raw_event(Ok(Frame::data(piece.clone()))).await;
    }
    reports.until(|fact| is_malformed(fact).then_some(())).await;
    let reason = reports.down().await;
    assert_eq!(reason, "GET /events returned an invalid response: it has more than 2048 KiB");
    fake.put(&id('b'), "exited", 0);
    assert_eq!(reports.snapshot().await.len(), 2);
    reports.up().await;
}

#[tokio::test]
async fn a_stream_may_be_longer_than_one_event() {
    let fake = FakeDocker::started();
    fake.put(&id('a'), "exited", 0);
    let mut reports = Reports::by(&fake);
    reports.snapshot().await;
    reports.up().await;
    let label = "a".repeat(256 << 10);
    for _ in 0..32 {
        let attributes = serde_json::json!({"name": "c", "image": "busybox:1", "label": label});
        let event = serde_json::json!({
            "Type": "container", "Action": "exec_start", "timeNano": 1,
            "Actor": {"ID": id('a'), "Attributes": attributes},
        });
        fake.raw_event(Ok(Frame::data(Bytes::from(format!("{event}\n"))))).await;
    }
    fake.put(&id('a'), "running", me());
    fake.event("start", &id('a')).await;
    assert_eq!(reports.container().await.tgid, Some(me()));
    assert!(!reports.seen.iter().any(is_malformed), "{:#?}", reports.seen);
}

#[tokio::test]
async fn an_event_of_an_id_that_is_none_is_counted_and_those_after_it_are_read() {
    let fake = FakeDocker::started();
    fake.put(&id('a'), "running", me());
    let mut reports = Reports::by(&fake);
    reports.up().await;
    fake.subscribed().await;
    fake.event("die", "../../version").await;
    let counted = Fact::Malformed { source: SOURCE.into(), count: 1 };
    assert_eq!(reports.next().await, counted);
    fake.put(&id('a'), "exited", 0);
    fake.event("die", &id('a')).await;
    let exited = reports.next().await;
    let is_it = |facts: &ContainerFacts| facts.id == id('a') && facts.state == ContainerState::Exited;
    assert!(matches!(&exited, Fact::Container(facts) if is_it(facts)), "the stream goes on: {exited:?}");
}
