use super::*;
use crate::observation::{NsInum, Source, TaskFacts};
use crate::tests::patience;

/// What a process of this user did whose parent is this one, with its start.
fn act(start_ns: BootNs, uid: u32, mntns: NsInum, place: TaskPlace) -> Observation {
    let parent =
        Ancestor { tgid: std::process::id(), start_ns, comm: "parent".to_owned(), ..Ancestor::default() };
    let task = TaskFacts {
        key: TaskKey { tgid: u32::MAX, start_ns, exec_id: 1 },
        place: TaskPlace { mntns, ..place },
        uid,
        exe: None,
        cmdline: None,
        netns: 1,
        mntns,
        cgroup: None,
        ancestors: vec![parent],
    };
    Observation { at: 1, source: Source::Bpf, fact: Fact::Task(Box::new(task)) }
}

/// Of each task that comes out the user, and whether it was completed.
async fn drained(lineages: &mut Lineages) -> Vec<(u32, bool)> {
    let mut out = Vec::new();
    while !lineages.waiting.is_empty() {
        match lineages.next() {
            Some(Observation { fact: Fact::Task(task), .. }) => {
                out.push((task.uid, task.ancestors.iter().any(|above| above.uid.is_some())));
            }
            Some(other) => panic!("{other:?}"),
            None => lineages.completed().await,
        }
    }
    out
}

#[tokio::test]
async fn whoever_is_another_each_time_makes_others_wait_only_within_his_budget() {
    const ACTS: usize = 10_000;
    let start_ns = Proc::default().stat(std::process::id()).unwrap().start_ns;
    let mut lineages = Lineages::new(Readers::from(Proc::default()));
    // The reader starts.
    let group = TaskPlace { cgroup_v2: 7, ..TaskPlace::default() };
    lineages.readers.ask(Complete(Vec::new()), patience::PATIENCE).await.unwrap();
    for (uid, place) in [(1000, TaskPlace::default()), (0, TaskPlace { cgroup_v2: 8, ..group })] {
        let began = Instant::now();
        (1..).take(ACTS).for_each(|mntns| lineages.add(act(start_ns, uid, mntns, place)));
        let out = drained(&mut lineages).await;
        let (completed, elapsed) = (out.iter().filter(|(_, is)| *is).count(), began.elapsed());
        assert_eq!(out.len(), ACTS);
        // What came back meanwhile, too.
        let most = 32 + elapsed.as_millis() / 25 + 1;
        assert!(completed as u128 <= most, "{completed} completed in {elapsed:?}");
        lineages.add(act(start_ns, 0, 1, group));
        assert_eq!(drained(&mut lineages).await, [(0, true)]);
        lineages.known.clear();
    }
}

#[test]
fn the_executable_of_a_program_that_came_later_is_not_that_of_the_ancestor() {
    let (proc, me) = (Proc::default(), std::process::id());
    let stat = proc.stat(me).unwrap();
    for (comm, is_it) in [(stat.comm.as_str(), true), ("sh", false)] {
        let comm = comm.to_owned();
        let mut read = Ancestor { tgid: me, start_ns: stat.start_ns, comm, ..Ancestor::default() };
        complete(&proc, &mut read);
        assert_eq!((read.exe.is_some(), read.uid.is_some()), (is_it, true));
    }
}
