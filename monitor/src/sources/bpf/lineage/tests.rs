use std::os::unix::fs::MetadataExt;

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

/// The ids of the control groups that this process is in; zeros where their hierarchy is not in its usual place.
fn own_groups() -> (u32, u32) {
    let text = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let id = |begin: &str, mounted: &[&str]| {
        let path = text.lines().find_map(|line| line.split_once(begin))?.1;
        let found = mounted.iter().find_map(|mounted| std::fs::metadata(format!("{mounted}{path}")).ok())?;
        u32::try_from(found.ino() & u64::from(u32::MAX)).ok()
    };
    let v1 = id(":pids:", &["/sys/fs/cgroup/pids"]).unwrap_or(0);
    (v1, id("0::", &["/sys/fs/cgroup/unified", "/sys/fs/cgroup"]).unwrap_or(0))
}

#[test]
fn nothing_of_a_program_that_came_later_is_that_of_the_ancestor() {
    let me = this_process();
    for (comm, is_it) in [(me.comm.as_str(), true), ("sh", false)] {
        // Whoever it is now, it was somebody else then.
        let mut read = Ancestor { comm: comm.to_owned(), uid: Some(4321), ..me.clone() };
        complete(&Proc::default(), &mut read);
        assert_eq!((read.exe.is_some(), read.uid), (is_it, Some(4321)));
    }
}

#[test]
fn a_control_group_that_an_ancestor_has_entered_since_is_not_told() {
    let (v1, v2) = own_groups();
    let me = this_process();
    for (groups, is_it) in [((v1, v2), (v1, v2) != (0, 0)), ((v1 ^ 1 << 30, v2 ^ 1 << 30), false)] {
        let mut read = Ancestor { groups, ..me.clone() };
        complete(&Proc::default(), &mut read);
        assert_eq!(read.cgroup.is_some(), is_it, "{groups:?}");
    }
    let captured = Some("/docker/captured".to_owned());
    let mut read = Ancestor { cgroup: captured.clone(), ..me };
    complete(&Proc::default(), &mut read);
    assert_eq!(read.cgroup, captured, "the kernel has told the names");
}
