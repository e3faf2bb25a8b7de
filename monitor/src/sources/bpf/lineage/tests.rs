use super::*;
use crate::observation::{NsInum, Source, TaskFacts};
use crate::tests::patience;

/// What a process of this user did whose parent is this one, with its start.
fn act(parent: &Ancestor, uid: u32, mntns: NsInum, place: TaskPlace) -> Observation {
    let task = TaskFacts {
        key: TaskKey { tgid: u32::MAX, start_ns: parent.start_ns, exec_id: 1 },
        place: TaskPlace { mntns, ..place },
        uid,
        exe: None,
        cmdline: None,
        netns: 1,
        mntns,
        cgroup: None,
        ancestors: vec![parent.clone()],
    };
    Observation { at: 1, source: Source::Bpf, fact: Fact::Task(Box::new(task)) }
}

fn this_process() -> Ancestor {
    let tgid = std::process::id();
    let stat = Proc::default().stat(tgid).unwrap();
    Ancestor { tgid, start_ns: stat.start_ns, comm: stat.comm, ..Ancestor::default() }
}

/// Of each task that comes out the user, and whether it was completed.
async fn drained(lineages: &mut Lineages) -> Vec<(u32, bool)> {
    let mut out = Vec::new();
    while !lineages.waiting.is_empty() {
        match lineages.next() {
            Some(Observation { fact: Fact::Task(task), .. }) => {
                out.push((task.uid, task.ancestors.iter().any(|above| above.exe.is_some())));
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
    let parent = this_process();
    let mut lineages = Lineages::new(Readers::from(Proc::default()));
    // The reader starts.
    let group = TaskPlace { cgroup_v2: 7, ..TaskPlace::default() };
    lineages.readers.ask(Complete(Vec::new()), patience::PATIENCE).await.unwrap();
    for (uid, place) in [(1000, TaskPlace::default()), (0, TaskPlace { cgroup_v2: 8, ..group })] {
        let began = Instant::now();
        (1..).take(ACTS).for_each(|mntns| lineages.add(act(&parent, uid, mntns, place)));
        let out = drained(&mut lineages).await;
        let (completed, elapsed) = (out.iter().filter(|(_, is)| *is).count(), began.elapsed());
        assert_eq!(out.len(), ACTS);
        // What came back meanwhile, too.
        let most = 32 + elapsed.as_millis() / 25 + 1;
        assert!(completed as u128 <= most, "{completed} completed in {elapsed:?}");
        lineages.add(act(&parent, 0, 1, group));
        assert_eq!(drained(&mut lineages).await, [(0, true)]);
        lineages.known.clear();
    }
}

#[test]
fn nothing_of_a_program_that_came_later_is_that_of_the_ancestor() {
    let me = this_process();
    for (comm, is_it) in [(me.comm.as_str(), true), ("sh", false)] {
        // Whoever it is now, it was somebody else then.
        let mut read = Ancestor { comm: comm.to_owned(), uid: Some(4321), ..me.clone() };
        complete(&Proc::default(), &mut read);
        assert_eq!((read.exe.is_some(), read.cgroup.is_some()), (is_it, is_it));
        assert_eq!(read.uid, Some(4321));
    }
}
