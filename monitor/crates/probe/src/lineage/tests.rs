use std::os::unix::fs::MetadataExt;

use kevtmon_observation::{
    MountSyscall, NsInum, PathOrigin, SecondPath, Source, TaskFacts, TaskRef, UmountAttempt,
};
use kevtmon_testing::patience;

use super::*;

/// What a process of this user did whose parent is this one, with its start.
fn act(parent: &Ancestor, uid: u32, mntns: NsInum, place: TaskPlace) -> Observation {
    let task = TaskFacts {
        key: TaskKey { tgid: u32::MAX, start_ns: parent.start_ns, exec_id: 1 },
        place: TaskPlace { mntns, ..place },
        uid,
        netns: 1,
        mntns,
        ancestors: vec![parent.clone()],
        ..TaskFacts::default()
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

/// A rename with two paths of so many bytes that was refused.
fn refused(bytes: usize) -> Observation {
    let path = "\u{FFFD}".repeat(bytes / 3);
    let key = TaskKey { tgid: u32::MAX, start_ns: 1, exec_id: 1 };
    let nowhere = PathOrigin { root: None, cwd: None, doubt: None, table: None, target: None, began: None };
    let attempt = UmountAttempt {
        syscall: MountSyscall::Rename,
        actor: TaskRef { key, tid: 1, comm: "x".to_owned(), context: None },
        mntns: 1,
        path: path.clone(),
        origin: None,
        flags: 0,
        second: Some(Box::new(SecondPath { path, origin: nowhere, fstype: None })),
        errno: Some(16),
    };
    Observation { at: 1, source: Source::Bpf, fact: Fact::Umount(Box::new(attempt)) }
}

/// One that has asked about a task, and gets no answer while the sender is kept.
fn asking(until: Instant) -> (Lineages, oneshot::Sender<Completed>) {
    let mut lineages = Lineages::new(Readers::from(Proc::default()));
    let task = act(&this_process(), 1000, 1, TaskPlace::default());
    let Fact::Task(facts) = &task.fact else { panic!("{task:?}") };
    let (captured, line) = (facts.ancestors.clone(), (facts.place, facts.ancestors.clone()));
    let (answered, answer) = oneshot::channel();
    lineages.asked = Some(Asked { account: Account::of(facts), line, captured, answer, until });
    lineages.add(task);
    (lineages, answered)
}

#[tokio::test]
async fn an_answer_is_taken_though_there_is_always_more_to_read() {
    let mut lineages = Lineages::new(Readers::from(Proc::default()));
    // The reader starts.
    lineages.readers.ask(Complete(Vec::new()), patience::PATIENCE).await.unwrap();
    lineages.add(act(&this_process(), 1000, 1, TaskPlace::default()));
    let first = loop {
        match lineages.next() {
            Some(observation) => break observation,
            None => lineages.add(refused(0)),
        }
        tokio::task::yield_now().await;
    };
    assert!(matches!(&first.fact, Fact::Task(_)), "{first:?}");
    assert!(!lineages.is_asking() && lineages.known.len() == 1, "the answer is known");
}

#[test]
fn an_answer_that_does_not_come_is_not_awaited_beyond_its_time() {
    let (mut lineages, _answered) = asking(Instant::now() + Duration::from_secs(3600));
    assert_eq!(lineages.next(), None);
    let (mut lineages, _answered) = asking(Instant::now());
    let account = lineages.asked.as_ref().unwrap().account;
    assert!(lineages.next().is_some_and(|first| matches!(first.fact, Fact::Task(_))));
    assert!(!lineages.questions.take(account, Instant::now()), "it was in vain");
}

#[test]
fn what_waits_is_bounded_by_its_texts_too() {
    const PATH: usize = 3 * 4095;
    let (mut lineages, _answered) = asking(Instant::now() + Duration::from_secs(3600));
    let mut added = 1;
    while lineages.is_asking() {
        lineages.add(refused(PATH));
        added += 1;
    }
    assert!(lineages.texts < WAITING_TEXTS + 2 * PATH && lineages.waiting.len() == added);
    let given = std::iter::from_fn(|| lineages.next()).count();
    assert_eq!((given, lineages.texts), (added, 0), "nothing is lost");
    assert!(lineages.questions.take(Account::User(1001), Instant::now()), "others may ask on");
}
