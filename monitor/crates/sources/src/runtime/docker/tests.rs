//! The source against a daemon that starts, changes, hangs, lies and dies.

mod fake;
mod malformed;
mod removal;
mod rivals;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use fake::{FakeDocker, Mood};
use hyper::body::Frame;
use kevtmon_observation::{ContainerState, Fact, SourceKind, SourceStatus};
use kevtmon_testing::patience::until;
use kevtmon_types::clock::boot_now;
use tokio::sync::mpsc;

use super::Docker;
use crate::procfs::Proc;
use crate::runtime::change::wall_now;
use crate::runtime::tests::reports::{PATIENCE, Reports};
use crate::runtime::{Options, run};

const LONG: Duration = Duration::from_secs(600);

const SOURCE: &str = "docker:d.sock";

impl Reports {
    /// Patient, and without a periodic list.
    fn by(fake: &FakeDocker) -> Self {
        Self::with(fake, Options { reconcile: LONG, timeout: PATIENCE, ..Options::default() })
    }

    fn impatient(fake: &FakeDocker) -> Self {
        let timeout = Duration::from_millis(200);
        Self::with(fake, Options { reconcile: LONG, timeout, ..Options::default() })
    }

    fn with(fake: &FakeDocker, timing: Options) -> Self {
        Self::at(fake.socket(), timing, Proc::default())
    }

    fn at(socket: PathBuf, timing: Options, proc: Proc) -> Self {
        Self::of::<Docker>(SOURCE, socket, timing, proc)
    }
}

fn id(digit: char) -> String {
    digit.to_string().repeat(64)
}

fn me() -> u32 {
    std::process::id()
}

#[tokio::test]
async fn a_snapshot_with_pids_and_namespaces_comes_before_the_source_is_up() {
    let fake = FakeDocker::started();
    fake.put(&id('a'), "running", me());
    fake.put(&id('b'), "exited", 0);
    let mut reports = Reports::by(&fake);
    let Fact::RuntimeSnapshot { runtime, source, read, containers } = reports.next().await else {
        panic!("{:?}", reports.seen)
    };
    assert_eq!((runtime.as_str(), source.as_str(), containers.len()), ("docker", SOURCE, 2));
    assert!(read.is_some_and(|read| read <= boot_now()));
    let (a, b) = (&containers[0], &containers[1]);
    assert_eq!((a.id.as_str(), a.name.as_str(), a.image.as_str()), (id('a').as_str(), "c-aa", "busybox:1"));
    assert_eq!((a.state, a.tgid), (ContainerState::Running, Some(me())));
    assert_eq!((a.netns, a.mntns), (Proc::default().ns(me(), "net"), Proc::default().ns(me(), "mnt")));
    assert!(a.netns.is_some());
    assert_eq!((a.runtime.as_str(), a.source.as_str()), ("docker", SOURCE));
    assert_eq!((b.state, b.tgid, b.netns), (ContainerState::Exited, None, None));
    let up = SourceStatus::up(SourceKind::Runtime, SOURCE);
    assert_eq!(reports.next().await, Fact::Source(up), "no resync the first time");
    assert_eq!(fake.inspects(), 1, "an exited container needs no inspect");
}

#[tokio::test]
async fn a_container_carries_the_runtime_that_answers_whatever_the_socket_is_called() {
    let fake = FakeDocker::started();
    fake.engine("Podman Engine");
    fake.put(&id('a'), "running", me());
    let mut reports = Reports::by(&fake);
    let snapshot = reports.snapshot().await;
    assert_eq!((snapshot[0].runtime.as_str(), snapshot[0].source.as_str()), ("podman", SOURCE));
    fake.engine("Something else");
    assert_eq!(Reports::by(&fake).snapshot().await[0].runtime, "docker");
}

#[tokio::test]
async fn only_gets_are_sent() {
    let fake = FakeDocker::started();
    fake.put(&id('a'), "running", me());
    let mut reports = Reports::by(&fake);
    reports.up().await;
    fake.subscribed().await;
    fake.event("pause", &id('a')).await;
    fake.put(&id('a'), "paused", me());
    reports.container().await;
    assert!(fake.requests().iter().all(|request| request.starts_with("GET /")), "{:?}", fake.requests());
}

#[tokio::test]
async fn the_life_of_a_container_is_reported_in_order() {
    let fake = FakeDocker::started();
    let mut reports = Reports::by(&fake);
    reports.up().await;
    fake.subscribed().await;
    fake.put(&id('a'), "created", 0);
    fake.event("create", &id('a')).await;
    let created = reports.container().await;
    assert_eq!((created.state, created.name.as_str()), (ContainerState::Created, "c-aa"));
    fake.put(&id('a'), "running", me());
    fake.event("start", &id('a')).await;
    let started = reports
        .until(|fact| match fact {
            Fact::Container(facts) if facts.state == ContainerState::Running => Some(facts.clone()),
            _ => None,
        })
        .await;
    assert_eq!((started.tgid, started.netns), (Some(me()), Proc::default().ns(me(), "net")));
    fake.put(&id('a'), "exited", 0);
    fake.event("die", &id('a')).await;
    let exited = reports.container().await;
    assert_eq!((exited.state, exited.tgid, exited.netns), (ContainerState::Exited, None, started.netns));
    fake.remove(&id('a'));
    fake.event("destroy", &id('a')).await;
    let gone = reports.until(|fact| matches!(fact, Fact::ContainerGone { .. }).then(|| fact.clone())).await;
    assert_eq!(gone, Fact::ContainerGone { id: id('a'), source: SOURCE.into() });
}

#[tokio::test]
async fn a_start_that_an_older_event_shows_first_has_its_own_time() {
    const SECOND: i64 = 1_000_000_000;
    let fake = FakeDocker::started();
    let mut reports = Reports::by(&fake);
    reports.up().await;
    fake.subscribed().await;
    let now = wall_now();
    fake.put_started(&id('a'), me(), now - SECOND);
    fake.event_at(now - 2 * SECOND, "create", &id('a')).await;
    assert_eq!(reports.container().await.state, ContainerState::Created);
    let created = reports.at;
    assert_eq!(reports.container().await.state, ContainerState::Running);
    let later = reports.at.abs_diff(created + SECOND.unsigned_abs());
    assert!(later < 50_000_000, "the two clocks differ by {later} ns");
}

#[tokio::test]
async fn a_death_is_reported_even_if_the_daemon_never_answers_an_inspect() {
    let fake = FakeDocker::started();
    fake.put(&id('a'), "running", me());
    let mut reports = Reports::by(&fake);
    reports.up().await;
    fake.subscribed().await;
    fake.mood(Mood::InspectHangs);
    fake.event("die", &id('a')).await;
    let exited = reports.container().await;
    assert_eq!((exited.state, exited.tgid), (ContainerState::Exited, None));
    assert_eq!(exited.image, "busybox:1");
}

#[tokio::test]
async fn a_list_that_is_behind_does_not_revive_the_dead() {
    let fake = FakeDocker::started();
    fake.put(&id('a'), "running", me());
    let reconcile = Duration::from_millis(50);
    let mut reports = Reports::with(&fake, Options { reconcile, timeout: PATIENCE, ..Options::default() });
    reports.up().await;
    fake.subscribed().await;
    fake.mood(Mood::InspectHangs);
    fake.event("die", &id('a')).await;
    assert_eq!(reports.container().await.state, ContainerState::Exited);
    for _ in 0..3 {
        assert_eq!(reports.snapshot().await[0].state, ContainerState::Exited);
    }
}

#[tokio::test]
async fn a_start_is_reported_without_a_pid_when_no_inspect_is_answered() {
    let fake = FakeDocker::started();
    fake.put(&id('a'), "exited", 0);
    let mut reports = Reports::impatient(&fake);
    reports.up().await;
    fake.subscribed().await;
    fake.mood(Mood::InspectHangs);
    fake.event("start", &id('a')).await;
    let started = reports.container().await;
    assert_eq!((started.state, started.tgid), (ContainerState::Running, None));
}

#[tokio::test]
async fn an_answer_that_is_older_than_the_death_does_not_revive_the_container() {
    let fake = FakeDocker::started();
    fake.put(&id('a'), "running", me());
    let mut reports = Reports::by(&fake);
    reports.up().await;
    fake.subscribed().await;
    fake.mood(Mood::InspectWaits);
    fake.event("rename", &id('a')).await;
    until("a is asked for", || fake.inspects() == 2).await;
    fake.put(&id('a'), "paused", me());
    fake.event("die", &id('a')).await;
    assert_eq!(reports.container().await.state, ContainerState::Exited);
    fake.answer_inspects(1);
    until("a is asked for again", || fake.inspects() == 3).await;
    fake.put(&id('a'), "dead", 0);
    fake.answer_inspects(1);
    assert_eq!(
        reports.container().await.state,
        ContainerState::Dead,
        "the next report is from after the death"
    );
}

#[tokio::test]
async fn a_container_that_lives_shorter_than_an_inspect_is_reported_from_its_events() {
    let fake = FakeDocker::started();
    let mut reports = Reports::by(&fake);
    reports.up().await;
    fake.subscribed().await;
    fake.mood(Mood::InspectHangs);
    for action in ["start", "die", "destroy"] {
        fake.event(action, &id('a')).await;
    }
    for state in [ContainerState::Running, ContainerState::Exited] {
        let facts = reports.container().await;
        assert_eq!((facts.id, facts.name.as_str(), facts.state, facts.tgid), (id('a'), "c-aa", state, None));
    }
    assert_eq!(reports.next().await, Fact::ContainerGone { id: id('a'), source: SOURCE.into() });
}

#[tokio::test]
async fn a_burst_of_events_needs_no_burst_of_inspects() {
    let fake = FakeDocker::started();
    fake.put(&id('a'), "running", me());
    let mut reports = Reports::by(&fake);
    reports.up().await;
    fake.subscribed().await;
    fake.mood(Mood::InspectWaits);
    let before = fake.inspects();
    for _ in 0..20 {
        fake.event("rename", &id('a')).await;
    }
    fake.event("die", &id('a')).await;
    assert_eq!(reports.container().await.state, ContainerState::Exited, "all events before it were read");
    fake.answer_inspects(100);
    fake.put(&id('c'), "running", me());
    fake.event("start", &id('c')).await;
    reports.until(|fact| matches!(fact, Fact::Container(facts) if facts.id == id('c')).then_some(())).await;
    assert!(fake.inspects() - before <= 4, "{}", fake.inspects() - before);
}

#[tokio::test]
async fn a_container_that_vanishes_between_list_and_inspect_is_left_out() {
    let fake = FakeDocker::started();
    fake.put(&id('a'), "running", me());
    fake.mood(Mood::InspectGone);
    let mut reports = Reports::by(&fake);
    assert_eq!(reports.snapshot().await, []);
    reports.up().await;
}

#[tokio::test]
async fn an_inspect_without_a_container_is_no_removal() {
    let fake = FakeDocker::started();
    fake.put(&id('a'), "running", me());
    fake.mood(Mood::InspectEmpty);
    let mut reports = Reports::by(&fake);
    let snapshot = reports.snapshot().await;
    assert_eq!((snapshot[0].state, snapshot[0].tgid), (ContainerState::Running, None));
    reports.up().await;
}

#[tokio::test]
async fn one_container_that_cannot_be_inspected_does_not_hold_up_the_others() {
    let fake = FakeDocker::started();
    fake.put(&id('a'), "running", me());
    fake.mood(Mood::InspectHangs);
    let mut reports = Reports::impatient(&fake);
    let snapshot = reports.snapshot().await;
    assert_eq!((snapshot[0].state, snapshot[0].tgid), (ContainerState::Running, None));
    reports.up().await;
    fake.mood(Mood::Well);
    assert_eq!(reports.container().await.tgid, Some(me()), "it is tried again");
}

#[tokio::test]
async fn without_a_socket_it_is_down_until_one_appears() {
    let mut fake = FakeDocker::stopped();
    fake.put(&id('a'), "running", me());
    let mut reports = Reports::by(&fake);
    assert!(reports.down().await.starts_with("there is no socket at "));
    fake.start();
    assert_eq!(reports.snapshot().await.len(), 1);
    reports.up().await;
}

#[tokio::test]
async fn a_socket_that_refuses_makes_it_down_with_the_reason() {
    let mut fake = FakeDocker::started();
    fake.stop(false).await;
    let mut reports = Reports::by(&fake);
    let reason = reports.down().await;
    assert!(reason.starts_with("cannot connect to the socket: Connection refused"), "{reason}");
    std::fs::remove_file(fake.socket()).unwrap();
    fake.start();
    reports.up().await;
}

#[tokio::test]
async fn nonsense_makes_it_down_until_it_stops() {
    for mood in [Mood::Garbage, Mood::NoJson, Mood::Broken] {
        let fake = FakeDocker::started();
        fake.mood(mood);
        let mut reports = Reports::by(&fake);
        let reason = reports.down().await;
        assert!(!reason.is_empty() && !reason.contains(char::is_control), "{reason}");
        fake.mood(Mood::Well);
        reports.up().await;
    }
}

#[tokio::test]
async fn a_daemon_that_never_answers_makes_it_down_until_it_does() {
    let fake = FakeDocker::started();
    fake.mood(Mood::Silent);
    let mut reports = Reports::impatient(&fake);
    assert!(reports.down().await.starts_with("no answer within "));
    fake.mood(Mood::Well);
    reports.up().await;
}

#[tokio::test]
async fn a_daemon_that_hangs_later_is_noticed_by_the_periodic_list() {
    let fake = FakeDocker::started();
    let timeout = Duration::from_millis(200);
    let reconcile = Duration::from_millis(50);
    let mut reports = Reports::with(&fake, Options { reconcile, timeout, ..Options::default() });
    reports.up().await;
    fake.mood(Mood::Silent);
    assert!(reports.down().await.starts_with("no answer within "));
    fake.mood(Mood::Well);
    reports
        .until(|fact| matches!(fact, Fact::Resync { reason, .. } if reason == "timeout").then_some(()))
        .await;
    reports.up().await;
}

#[tokio::test]
async fn a_restart_of_the_daemon_gives_a_new_snapshot_and_a_resync() {
    let mut fake = FakeDocker::started();
    fake.put(&id('a'), "running", me());
    let mut reports = Reports::by(&fake);
    reports.up().await;
    fake.subscribed().await;
    fake.stop(true).await;
    reports.down().await;
    fake.remove(&id('a'));
    fake.put(&id('b'), "exited", 0);
    fake.start();
    let snapshot = reports.snapshot().await;
    assert_eq!(snapshot.iter().map(|facts| facts.id.clone()).collect::<Vec<_>>(), [id('b')]);
    let Fact::Resync { source, .. } = reports.next().await else { panic!("{:?}", reports.seen) };
    assert_eq!(source, SOURCE);
    reports.up().await;
}

#[tokio::test]
async fn a_restart_in_the_middle_of_a_snapshot_leaves_no_half_of_it() {
    let mut fake = FakeDocker::started();
    ['a', 'b', 'c'].into_iter().for_each(|digit| fake.put(&id(digit), "running", me()));
    fake.mood(Mood::InspectWaits);
    let mut reports = Reports::by(&fake);
    until("one is inspected", || fake.inspects() > 0).await;
    fake.answer_inspects(1);
    until("another one is", || fake.inspects() > 1).await;
    fake.stop(true).await;
    let whole = reports.until(|fact| match fact {
        Fact::Source(status) if !status.up => Some(true),
        Fact::RuntimeSnapshot { containers, .. } => Some(containers.len() == 3),
        _ => None,
    });
    assert!(whole.await, "{:?}", reports.seen);
    fake.mood(Mood::Well);
    fake.remove(&id('b'));
    fake.start();
    reports.until_listed(|listed| listed.iter().map(|facts| &facts.id).eq([&id('a'), &id('c')])).await;
    reports.up().await;
    assert!(
        !reports.seen.iter().any(|fact| matches!(fact, Fact::ContainerGone { .. })),
        "{:?}",
        reports.seen
    );
}

#[tokio::test]
async fn however_the_event_stream_ends_it_is_read_anew() {
    let fake = FakeDocker::started();
    let mut reports = Reports::by(&fake);
    reports.up().await;
    let partial = || Ok(Frame::data(Bytes::from_static(b"{\"Type\":\"contai")));
    let nonsense = || Ok(Frame::data(Bytes::from_static(b"{\"Type\":[]}\n")));
    for expected in ["stream-ended", "stream-failed", "decode"] {
        fake.subscribed().await;
        match expected {
            "stream-ended" => fake.end_events(),
            "stream-failed" => {
                fake.raw_event(partial()).await;
                fake.raw_event(Err(io::ErrorKind::BrokenPipe.into())).await;
            }
            _ => fake.raw_event(nonsense()).await,
        }
        fake.end_events();
        let reason = reports
            .until(|fact| match fact {
                Fact::Resync { reason, .. } => Some(reason.clone()),
                _ => None,
            })
            .await;
        assert_eq!(reason, expected);
        reports.up().await;
    }
}

#[tokio::test]
async fn the_periodic_list_finds_what_no_event_reported() {
    let fake = FakeDocker::started();
    fake.put(&id('a'), "running", me());
    fake.put(&id('c'), "running", me());
    let reconcile = Duration::from_millis(50);
    let mut reports = Reports::with(&fake, Options { reconcile, timeout: PATIENCE, ..Options::default() });
    reports.up().await;
    let inspects = fake.inspects();
    for _ in 0..3 {
        assert_eq!(reports.snapshot().await[0].tgid, Some(me()));
    }
    assert_eq!(fake.inspects(), inspects, "nothing changed, nothing is inspected");
    fake.remove(&id('a'));
    fake.put(&id('b'), "running", me());
    fake.put(&id('c'), "dead", 0);
    let late = reports.container().await;
    assert_eq!((late.id, late.tgid), (id('b'), Some(me())));
    let snapshot = reports.snapshot().await;
    let states: Vec<_> = snapshot.iter().map(|facts| (facts.id.clone(), facts.state)).collect();
    assert_eq!(states, [(id('b'), ContainerState::Running), (id('c'), ContainerState::Dead)]);
}

#[tokio::test]
async fn the_socket_of_pid_1_is_preferred() {
    let fake = FakeDocker::started();
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("1/root/run")).unwrap();
    std::os::unix::fs::symlink(fake.socket(), root.path().join("1/root/run/d.sock")).unwrap();
    Reports::at("/run/d.sock".into(), Options::default(), Proc::new(root.path())).up().await;
}

#[tokio::test]
async fn it_ends_when_nobody_listens_any_more() {
    for mood in [Mood::Well, Mood::Silent, Mood::Broken] {
        let fake = FakeDocker::started();
        fake.mood(mood);
        let (tx, rx) = mpsc::channel(8);
        drop(rx);
        let socket = fake.socket();
        let source = run::<Docker>(SOURCE.into(), &socket, Options::default(), Proc::default().into(), tx);
        tokio::time::timeout(PATIENCE, source).await.unwrap();
    }
}
