//! Readers are real processes here: this program of tests, executed again for its test `proc_reader`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use kevtmon_observation::{Observation, SourceStatus};
use kevtmon_testing::patience::{PATIENCE, until};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use serde::Deserialize;

use super::*;
use crate::procfs::own::Own;

#[test]
fn proc_reader() {
    let jobs: Vec<Entry> = crate::jobs()
        .chain([entry::<Names>(), entry::<Open>(), entry::<Steps>(), entry::<OnDisk>(), entry::<Keep>()])
        .collect();
    if let Some(served) = serve_if_asked(std::env::args_os(), &jobs) {
        served.unwrap();
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Names(Vec<u32>);

impl Job for Names {
    const NAME: &'static str = "test-names";
    type Reply = Vec<Option<String>>;

    fn run(&self, proc: &Proc) -> Self::Reply {
        self.0.iter().map(|tgid| Some(proc.stat(*tgid)?.comm)).collect()
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Keep(usize);

impl Job for Keep {
    const NAME: &'static str = "test-keep";
    type Reply = usize;

    fn run(&self, _: &Proc) -> Self::Reply {
        let kept = vec![1_u8; self.0];
        std::hint::black_box(&kept).len()
    }
}

#[tokio::test]
async fn a_reader_that_would_take_the_memory_of_the_node_fails_and_the_next_one_works() {
    let readers = Readers::from(Proc::default());
    assert_eq!(readers.ask(Keep(64 << 20), PATIENCE).await.unwrap(), 64 << 20);
    let failed = Readers::from(Proc::default()).ask(Keep(1 << 30), PATIENCE).await;
    assert!(matches!(failed, Err(Unread::Failed(_))), "{failed:?}");
    let own = std::process::id();
    assert!(readers.ask(Names(vec![own]), PATIENCE).await.unwrap()[0].is_some());
}

/// Opens a file of a process, and counts the descriptors of the reader.
#[derive(Debug, Serialize, Deserialize)]
struct Open(u32);

impl Job for Open {
    const NAME: &'static str = "test-open";
    type Reply = Vec<String>;

    fn run(&self, proc: &Proc) -> Self::Reply {
        self.run_and_open(proc).0
    }

    fn run_and_open(&self, proc: &Proc) -> Opened<Self::Reply> {
        let fds = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let reply = fds.filter_map(|fd| Some(fs::read_link(fd.path()).ok()?.display().to_string())).collect();
        (reply, fs::File::open(proc.path(self.0, "stat")).ok().map(OwnedFd::from))
    }
}

/// Reads processes one after the other, from this one on; answers with where it began.
#[derive(Debug, Serialize, Deserialize)]
struct Steps(usize, Vec<u32>);

impl Job for Steps {
    const NAME: &'static str = "test-steps";
    type Reply = usize;

    fn run(&self, proc: &Proc) -> usize {
        for (done, tgid) in self.1.iter().enumerate().skip(self.0) {
            note(&done);
            let _ = proc.stat(*tgid);
        }
        self.0
    }

    fn go_on(&mut self, note: &[u8]) {
        self.0 = serde_json::from_slice(note).unwrap();
    }
}

/// Reads a file that is none of a process; answers with its length.
#[derive(Debug, Serialize, Deserialize)]
struct OnDisk(PathBuf);

impl Job for OnDisk {
    const NAME: &'static str = "test-on-disk";
    type Reply = usize;
    const WAITS_FOR_DISK: bool = true;

    fn run(&self, _: &Proc) -> usize {
        reading_none();
        fs::read(&self.0).unwrap().len()
    }
}

/// A process whose file hangs whoever opens it, as a pipe does that nobody writes to.
fn hanging(root: &Path, tgid: u32) {
    fs::create_dir_all(root.join(tgid.to_string())).unwrap();
    mkfifo(&root.join(format!("{tgid}/stat")), Mode::S_IRWXU).unwrap();
}

fn readable(root: &Path, tgid: u32) {
    fs::create_dir_all(root.join(tgid.to_string())).unwrap();
    let stat = format!("{tgid} (p{tgid}) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 7 0 0");
    fs::write(root.join(format!("{tgid}/stat")), stat).unwrap();
}

/// The process ids of readers that have nothing to do.
fn idle(readers: &Readers) -> Vec<u32> {
    readers.0.state().idle.iter().map(Child::id).collect()
}

/// Two living processes, which a literal /proc can show.
fn living() -> [u32; 2] {
    [std::process::id(), std::os::unix::process::parent_id()]
}

#[tokio::test]
async fn a_job_is_done_by_another_process_which_is_used_again() {
    let readers = Readers::from(Proc::default());
    let me = std::process::id();
    let name = Proc::default().stat(me).unwrap().comm;
    for _ in 0..3 {
        let answer = readers.ask(Names(vec![me, u32::MAX]), PATIENCE).await.unwrap();
        assert_eq!(answer, [Some(name.clone()), None]);
    }
    assert_eq!(idle(&readers).len(), 1);
}

#[tokio::test]
async fn a_reader_ends_when_there_is_nothing_to_read() {
    let readers = Readers::from(Proc::default());
    readers.ask(Names(vec![std::process::id()]), PATIENCE).await.unwrap();
    let id = idle(&readers)[0];
    until("it has ended", || readers.0.state().idle.is_empty() && Proc::default().stat(id).is_none()).await;
}

#[tokio::test]
async fn a_reader_has_nothing_of_ours_and_hands_over_what_it_opened() {
    let ours = tempfile::NamedTempFile::new().unwrap();
    let readers = Readers::from(Proc::default());
    let (links, opened) = readers.ask_to_open(Open(std::process::id()), PATIENCE).await.unwrap();
    let inherited = |path: &str| links.iter().any(|link| link == path);
    assert!(!inherited(&ours.path().display().to_string()), "{links:?}");
    let sockets = links.iter().filter(|link| link.starts_with("socket:")).count();
    // The descriptor of standard input, and its copy that is served.
    assert!((1..=2).contains(&sockets), "{links:?}");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut fs::File::from(opened.unwrap()), &mut text).unwrap();
    assert!(text.starts_with(&format!("{} (", std::process::id())), "{text}");
}

#[tokio::test]
async fn a_process_that_hangs_its_reader_is_set_aside_and_the_rest_is_read() {
    let root = tempfile::tempdir().unwrap();
    let [stuck, fine] = living();
    hanging(root.path(), stuck);
    readable(root.path(), fine);
    let readers = Readers::from(Proc::new(root.path()));
    for _ in 0..2 {
        let answer = readers.ask(Names(vec![stuck, fine]), PATIENCE).await.unwrap();
        assert_eq!(answer, [None, Some(format!("p{fine}"))]);
        assert_eq!(readers.0.state().skipped.pids(), [stuck]);
    }
}

#[tokio::test]
async fn a_job_that_met_a_process_that_hangs_goes_on_where_it_was() {
    let root = tempfile::tempdir().unwrap();
    let [stuck, fine] = living();
    hanging(root.path(), stuck);
    readable(root.path(), fine);
    let readers = Readers::from(Proc::new(root.path()));
    let steps = vec![fine, fine, fine, stuck, fine];
    assert_eq!(readers.ask(Steps(0, steps.clone()), PATIENCE).await.unwrap(), 3);
    assert_eq!(readers.ask(Steps(0, steps), PATIENCE).await.unwrap(), 0, "it is set aside by now");
}

#[tokio::test]
async fn one_process_that_hangs_shows_all_others_that_do() {
    const NUMBER: usize = 40;
    let root = tempfile::tempdir().unwrap();
    let mut sleeping: Vec<_> =
        (0..NUMBER).map(|_| Command::new("sleep").arg("1000").spawn().unwrap()).collect();
    let stuck: Vec<u32> = sleeping.iter().map(std::process::Child::id).collect();
    stuck.iter().for_each(|tgid| hanging(root.path(), *tgid));
    let [fine, _] = living();
    readable(root.path(), fine);
    let readers = Readers::from(Proc::new(root.path()));
    let steps: Vec<u32> = [fine].into_iter().chain(stuck.iter().copied()).collect();
    // Begun again at the first of them only.
    assert_eq!(readers.ask(Steps(0, steps), PATIENCE).await.unwrap(), 1);
    assert_eq!(readers.0.state().skipped.len(), NUMBER);

    // They are tried again together, too.
    for tgid in &stuck[..NUMBER - 1] {
        fs::remove_file(root.path().join(format!("{tgid}/stat"))).unwrap();
        readable(root.path(), *tgid);
    }
    until("the others are read again", || readers.0.state().skipped.pids() == stuck[NUMBER - 1..]).await;
    for process in &mut sleeping {
        process.kill().and_then(|()| process.wait()).unwrap();
    }
}

#[tokio::test]
async fn what_hangs_is_reported_until_it_can_be_read_again() {
    let root = tempfile::tempdir().unwrap();
    let [stuck, _] = living();
    hanging(root.path(), stuck);
    fs::write(root.path().join(format!("{stuck}/comm")), "evil\n").unwrap();
    let (tx, mut rx) = tokio::sync::mpsc::channel(8);
    let metrics = Arc::new(Metrics::new("1", "r", Own::default()).unwrap());
    let readers = Readers::reporting(Proc::new(root.path()), tx, Arc::clone(&metrics));
    let gauge = |value: u8| {
        let text = metrics.gather().unwrap();
        assert!(text.contains(&format!("kevtmon_proc_readers_stuck {value}")), "{text}");
    };
    gauge(0);
    readers.ask(Names(vec![stuck]), PATIENCE).await.unwrap();
    let reason = reason(rx.recv().await.unwrap()).unwrap();
    assert!(reason.contains(&format!("process {stuck} (evil)")), "{reason}");
    gauge(1);

    fs::remove_file(root.path().join(format!("{stuck}/stat"))).unwrap();
    readable(root.path(), stuck);
    assert_eq!(self::reason(rx.recv().await.unwrap()), None);
    gauge(0);
    let answer = readers.ask(Names(vec![stuck]), PATIENCE).await.unwrap();
    assert_eq!(answer, [Some(format!("p{stuck}"))]);
}

fn reason(observation: Observation) -> Option<String> {
    match observation.fact {
        Fact::Source(status) => {
            assert!(status.up && status.source == "procfs", "{status:?}");
            status.reason
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_caller_waits_no_longer_than_it_wants_and_the_reader_is_judged_without_it() {
    let root = tempfile::tempdir().unwrap();
    let [stuck, _] = living();
    hanging(root.path(), stuck);
    let (tx, mut rx) = tokio::sync::mpsc::channel(8);
    let metrics = Arc::new(Metrics::new("1", "r", Own::default()).unwrap());
    let readers = Readers::reporting(Proc::new(root.path()), tx, metrics);
    let late = readers.ask(Names(vec![stuck]), Duration::ZERO).await;
    assert!(matches!(late, Err(Unread::Late | Unread::Busy)), "{late:?}");
    let late = readers.ask(Names(vec![stuck]), Duration::from_millis(50)).await;
    assert!(matches!(late, Err(Unread::Late)), "{late:?}");
    assert!(reason(rx.recv().await.unwrap()).is_some());
}

#[tokio::test]
async fn while_a_reader_is_stopped_by_a_signal_no_process_is_blamed() {
    let root = tempfile::tempdir().unwrap();
    let [stuck, _] = living();
    hanging(root.path(), stuck);
    let mut child = Child::start(false).unwrap();
    let id = child.id();
    let signal = |signal| kill(Pid::from_raw(i32::try_from(id).unwrap()), signal).unwrap();
    let (job, proc) = (Names(vec![stuck]), Proc::new(root.path()));
    let sample = || child::sample(&format!("/proc/{id}"));
    let meanwhile = async {
        until("it waits", || sample().is_some()).await;
        signal(Signal::SIGSTOP);
        until("it is stopped", || Proc::default().stat(id).unwrap().state == 'T').await;
        assert_eq!(sample(), None);
        signal(Signal::SIGCONT);
        until("it waits", || sample().is_some()).await;
    };
    let (ended, ()) = tokio::join!(child.converse(&job, &proc), meanwhile);
    assert!(matches!(ended, Err(Ended::Hangs { tgid }) if tgid == stuck), "{ended:?}");
    timeout(PATIENCE, child.end(())).await.unwrap();
}

#[tokio::test]
async fn a_reader_that_was_killed_is_replaced() {
    let readers = Readers::from(Proc::default());
    let me = std::process::id();
    readers.ask(Names(vec![me]), PATIENCE).await.unwrap();
    let pid = idle(&readers)[0];
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL).unwrap();
    let answer = readers.ask(Names(vec![me]), PATIENCE).await.unwrap();
    assert!(answer[0].is_some());
}

#[tokio::test]
async fn readers_are_no_more_than_their_number_and_the_next_waits_its_turn() {
    let root = tempfile::tempdir().unwrap();
    let [stuck, fine] = living();
    hanging(root.path(), stuck);
    readable(root.path(), fine);
    let readers = Readers::from(Proc::new(root.path()));
    let all = (0..READERS * 2).map(|_| readers.ask(Names(vec![stuck, fine]), PATIENCE));
    for answer in futures_util::future::join_all(all).await {
        assert_eq!(answer.unwrap(), [None, Some(format!("p{fine}"))]);
    }
    assert!(idle(&readers).len() <= READERS);
    assert!(readers.0.slots.available_permits() <= READERS);
}

#[tokio::test]
async fn a_disk_that_hangs_keeps_one_reader_of_each_kind_until_it_answers() {
    let root = tempfile::tempdir().unwrap();
    let hanging = root.path().join("hanging");
    mkfifo(&hanging, Mode::S_IRWXU).unwrap();
    let readers = Readers::from(Proc::default());
    for _ in 0..READERS {
        let job = OnDisk(hanging.clone());
        let answer = readers.ask(job, Duration::from_millis(20)).await;
        assert!(matches!(answer, Err(Unread::Late | Unread::Stuck)), "{answer:?}");
    }
    assert!(readers.0.slots.available_permits() >= READERS - 1);
    let other = readers.ask(Names(vec![std::process::id()]), PATIENCE).await.unwrap();
    assert!(other[0].is_some());
    let refused = readers.ask(OnDisk(hanging.clone()), Duration::ZERO).await;
    assert!(matches!(refused, Err(Unread::Late | Unread::Stuck)), "{refused:?}");

    // Open for both, a pipe waits for nobody; what is in it ends when it is closed.
    drop(fs::File::options().read(true).write(true).open(&hanging).unwrap());
    let file = root.path().join("file");
    fs::write(&file, "text").unwrap();
    assert_eq!(readers.ask(OnDisk(file), PATIENCE).await.unwrap(), 4);
}

#[tokio::test]
async fn readers_that_not_even_sigkill_ends_leave_their_places_to_others_up_to_a_number() {
    let (tx, mut rx) = tokio::sync::mpsc::channel(64);
    let metrics = Arc::new(Metrics::new("1", "r", Own::default()).unwrap());
    let readers = Readers::reporting(Proc::default(), tx, metrics);
    let Inner { slots, lost, .. } = &*readers.0;
    let (release, released) = tokio::sync::watch::channel(());
    let kill_all = || {
        while let Ok(slot) = Arc::clone(slots).try_acquire_owned() {
            let (mut released, inner) = (released.clone(), Arc::downgrade(&readers.0));
            let gone = async move { drop(released.changed().await) };
            tokio::spawn(async move { Inner::keep(slot, &inner, gone).await });
        }
    };
    for killed in (READERS..=LOST).step_by(READERS) {
        kill_all();
        until("they are lost", || lost.available_permits() == LOST - killed).await;
        until("their places are free", || slots.available_permits() == READERS).await;
    }
    kill_all();
    for missing in 1..=READERS {
        let status = status(rx.recv().await.unwrap());
        assert_eq!(status.up, missing < READERS, "{status:?}");
        assert!(status.reason.unwrap().contains(if missing < READERS { "do not end" } else { "no reader" }));
    }
    let none = readers.ask(Names(vec![std::process::id()]), Duration::from_millis(20)).await;
    assert!(matches!(none, Err(Unread::Late | Unread::Busy)), "{none:?}");

    release.send(()).unwrap();
    until("all are gone", || lost.available_permits() == LOST).await;
    until("all places are free", || slots.available_permits() == READERS).await;
    let mut last = None;
    for _ in 0..READERS {
        last = Some(status(rx.recv().await.unwrap()));
    }
    assert_eq!(last.map(|last| (last.up, last.reason)), Some((true, None)));
}

fn status(observation: Observation) -> SourceStatus {
    match observation.fact {
        Fact::Source(status) => status,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn where_memory_is_short_the_kernel_ends_a_reader_before_the_daemon() {
    let readers = Readers::from(Proc::default());
    readers.ask(Names(vec![std::process::id()]), PATIENCE).await.unwrap();
    let reader = idle(&readers)[0];
    let score = |process: &str| -> i32 {
        fs::read_to_string(format!("/proc/{process}/oom_score_adj")).unwrap().trim().parse().unwrap()
    };
    assert_eq!(score(&reader.to_string()), (score("self") + 300).min(1000));
}
