//! An engine that names processes of containers that are not its own, and one with more events than can be inspected.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use kevtmon_core::node::containers::Containers;

use super::*;

/// The first process of container `a`.
const PID: u32 = 4711;
const NETNS: u32 = 4_026_532_700;

/// A node with that process.
fn node() -> tempfile::TempDir {
    let node = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = node.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let group = format!("docker/{}", id('a'));
    let fields = (4..=52).map(|field| if field == 22 { "700" } else { "0" }).collect::<Vec<_>>().join(" ");
    write(&format!("proc/{PID}/stat"), &format!("{PID} (sleep) S {fields}\n"));
    write(&format!("proc/{PID}/cgroup"), &format!("0::/{group}\n"));
    write("sys/fs/cgroup/cgroup.controllers", "");
    write(&format!("sys/fs/cgroup/{group}/cgroup.procs"), "");
    let namespaces = node.path().join(format!("proc/{PID}/ns"));
    fs::create_dir(&namespaces).unwrap();
    symlink(format!("net:[{NETNS}]"), namespaces.join("net")).unwrap();
    symlink("mnt:[4026532701]", namespaces.join("mnt")).unwrap();
    node
}

fn watch(source: &'static str, fake: &FakeDocker, node: &Path) -> Reports {
    let patient = Options { reconcile: LONG, timeout: PATIENCE, ..Options::default() };
    Reports::of::<Docker>(source, fake.socket(), patient, Proc::new(node.join("proc")))
}

#[tokio::test]
async fn the_process_of_a_container_is_not_that_of_another_whatever_an_engine_says() {
    let node = node();
    // Its id would win.
    let (honest, liar) = (FakeDocker::started(), FakeDocker::started());
    honest.put(&id('a'), "running", PID);
    liar.put(&id('f'), "running", PID);
    let mut containers = Containers::default();
    for (source, fake, is_own) in [("docker:own.sock", &honest, true), ("docker:other.sock", &liar, false)] {
        let mut reports = watch(source, fake, node.path());
        let list = reports.snapshot().await;
        assert_eq!(list[0].state, ContainerState::Running);
        let known = (list[0].tgid, list[0].netns, list[0].mntns.is_some());
        assert_eq!(known, if is_own { (Some(PID), Some(NETNS), true) } else { (None, None, false) });
        let refused = Fact::Malformed { source: source.to_owned(), count: 1 };
        assert_eq!(reports.seen.contains(&refused), !is_own, "{:?}", reports.seen);
        containers.replace(1, 1, source, list);
    }
    assert_eq!(containers.in_netns(NETNS).map(|facts| &facts.id), Some(&id('a')));
}

#[tokio::test]
async fn of_ten_thousand_events_in_a_burst_none_is_lost_and_few_are_inspected() {
    const CONTAINERS: usize = 100;
    const ROUNDS: usize = 50;
    let fake = FakeDocker::started();
    let ids: Vec<String> = (0..CONTAINERS).map(|number| format!("{number:064x}")).collect();
    ids.iter().for_each(|id| fake.put(id, "exited", 0));
    let mut reports = Reports::by(&fake);
    reports.up().await;
    fake.subscribed().await;
    fake.mood(Mood::InspectWaits);
    let before = fake.inspects();
    let burst = async {
        for _ in 0..ROUNDS {
            for action in ["start", "die"] {
                for id in &ids {
                    fake.event(action, id).await;
                }
            }
        }
    };
    let read = async {
        let mut lives: BTreeMap<String, Vec<ContainerState>> = BTreeMap::new();
        for _ in 0..2 * ROUNDS * CONTAINERS {
            let facts = reports.container().await;
            lives.entry(facts.id).or_default().push(facts.state);
        }
        lives
    };
    let ((), lives) = tokio::join!(burst, read);
    let whole = [ContainerState::Running, ContainerState::Exited].repeat(ROUNDS);
    assert!(ids.iter().all(|id| lives[id] == whole), "each event is reported, in order");

    // Half of them run by now, of which only an inspect can tell.
    let is_running = |id: &str| ids.iter().position(|known| known == id).is_some_and(|index| index % 2 == 0);
    ids.iter().filter(|id| is_running(id)).for_each(|id| fake.put(id, "running", me()));
    fake.mood(Mood::Well);
    fake.answer_inspects(2 * CONTAINERS);
    let mut last = BTreeMap::new();
    while last.values().filter(|known| **known == (ContainerState::Running, Some(me()))).count()
        < CONTAINERS / 2
    {
        let facts = reports.container().await;
        last.insert(facts.id, (facts.state, facts.tgid));
    }
    let ended = (ContainerState::Exited, None);
    assert!(last.iter().all(|(id, known)| is_running(id) || *known == ended), "{last:?}");
    let inspects = fake.inspects() - before;
    assert!((CONTAINERS / 2..=2 * CONTAINERS).contains(&inspects), "{inspects}");
}
