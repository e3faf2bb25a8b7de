//! A journal that is a socket, and the sink as it is started.

use std::collections::BTreeMap;
use std::fs;
use std::io::{IoSliceMut, Read as _, Seek as _};
use std::os::fd::FromRawFd as _;
use std::path::Path;

use kevtmon_event::Event;
use kevtmon_metrics::Metrics;
use kevtmon_observation::{Fact, Observation};
use kevtmon_sources::procfs::own::Own;
use kevtmon_testing::patience::{PATIENCE, eventually};
use kevtmon_testing::sample;
use kevtmon_types::settings::Values;
use nix::cmsg_space;
use nix::sys::socket::{ControlMessageOwned, recvmsg};
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::entry::tests::fields;
use super::*;
use crate::sinks::Sinks;
use crate::sinks::api::Memory;

struct Rig {
    dir: TempDir,
    metrics: Arc<Metrics>,
    memory: Arc<Memory>,
    core: mpsc::Sender<Observation>,
    seen: mpsc::Receiver<Observation>,
}

impl Rig {
    fn new() -> Self {
        let metrics = Arc::new(Metrics::new("0", "0", Own::default()).unwrap());
        let memory = Arc::new(Memory::new("n", "b", Arc::clone(&metrics)));
        let (core, seen) = mpsc::channel(16);
        Self { dir: tempfile::tempdir().unwrap(), metrics, memory, core, seen }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn start(&self, enabled: Enabled, min_severity: Severity) -> Option<Started> {
        let mut settings = Values::default();
        settings.set(&ENABLED, enabled);
        settings.set(&MIN_SEVERITY, min_severity);
        settings.set(&SOCKET, self.path());
        start(&Context {
            settings: &settings,
            state_dir: self.dir.path().to_owned(),
            boot_id: "b",
            colour: false,
            metrics: &self.metrics,
            core: &self.core,
            memory: &self.memory,
        })
        .unwrap()
    }

    fn sinks(&self, min_severity: Severity) -> Sinks {
        let mut sinks = Sinks::default();
        sinks.add(self.start(Enabled::Yes, min_severity).unwrap().queue);
        sinks
    }

    fn discarded(&self) -> u64 {
        let text = self.metrics.gather().unwrap();
        let of_journald = |line: &&str| {
            line.starts_with("kevtmon_events_discarded_total{") && line.contains("sink=\"journald\"")
        };
        let counts =
            text.lines().filter(of_journald).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        counts.sum()
    }
}

fn journal(path: &Path) -> UnixDatagram {
    let journal = UnixDatagram::bind(path).unwrap();
    journal.set_read_timeout(Some(PATIENCE)).unwrap();
    journal
}

/// The next entry, out of a datagram or the file that came with it.
fn received(journal: &UnixDatagram) -> BTreeMap<String, String> {
    let mut buffer = vec![0; 1 << 20];
    let mut space = cmsg_space!(i32);
    let mut parts = [IoSliceMut::new(&mut buffer)];
    let message =
        recvmsg::<()>(journal.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty()).unwrap();
    let file = message.cmsgs().unwrap().find_map(|message| match message {
        // SAFETY: the kernel has just given this descriptor to this process.
        ControlMessageOwned::ScmRights(fds) => fds.first().map(|fd| unsafe { File::from_raw_fd(*fd) }),
        _ => None,
    });
    let length = message.bytes;
    match file {
        Some(mut file) => {
            assert_eq!(length, 0);
            let seals = SealFlag::from_bits_truncate(fcntl(&file, FcntlArg::F_GET_SEALS).unwrap());
            assert!(seals.contains(SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK), "{seals:?}");
            let mut entry = Vec::new();
            file.rewind().unwrap();
            file.read_to_end(&mut entry).unwrap();
            fields(&entry)
        }
        None => fields(&buffer[..length]),
    }
}

fn numbered(seq: u64, event: Event) -> Arc<SharedEvent> {
    Arc::new(Event { seq, ..event }.into())
}

#[test]
fn events_arrive_in_order_with_their_fields() {
    let rig = Rig::new();
    let journal = journal(&rig.path());
    let sinks = rig.sinks(Severity::Debug);
    for (seq, event) in (1..).zip(sample::all()) {
        sinks.offer(&numbered(seq, event.clone()));
        let entry = received(&journal);
        assert_eq!(
            (entry["KEVTMON_SEQ"].as_str(), entry["KEVTMON_KIND"].as_str()),
            (&*seq.to_string(), event.kind.name())
        );
    }
    sinks.finish(PATIENCE);
    assert_eq!(rig.discarded(), 0);
}

#[test]
fn what_is_less_than_a_notice_stays_out_but_for_incidents_and_the_daemon() {
    let rig = Rig::new();
    let journal = journal(&rig.path());
    let sinks = rig.sinks(Severity::Notice);
    sinks.offer(&numbered(1, sample::link(Severity::Info)));
    sinks.offer(&numbered(2, sample::daemon(Severity::Info)));
    sinks.offer(&numbered(3, sample::link(Severity::Notice)));
    assert_eq!(received(&journal)["KEVTMON_SEQ"], "2");
    assert_eq!(received(&journal)["KEVTMON_SEQ"], "3");
    sinks.finish(PATIENCE);
}

#[test]
fn an_entry_larger_than_a_datagram_comes_as_a_sealed_file() {
    let rig = Rig::new();
    let journal = journal(&rig.path());
    let sinks = rig.sinks(Severity::Debug);
    let mut event = sample::busy();
    event.message = "held ".repeat(400_000);
    sinks.offer(&numbered(7, event.clone()));
    sinks.offer(&numbered(8, sample::deletion()));
    let entry = received(&journal);
    assert_eq!((entry["KEVTMON_SEQ"].as_str(), entry["MESSAGE"].as_str()), ("7", event.message.as_str()));
    assert_eq!(received(&journal)["KEVTMON_SEQ"], "8");
    sinks.finish(PATIENCE);
    assert_eq!(rig.discarded(), 0);
}

#[test]
fn a_journal_that_is_restarted_loses_nothing() {
    let rig = Rig::new();
    let first = journal(&rig.path());
    let sinks = rig.sinks(Severity::Debug);
    sinks.offer(&numbered(1, sample::deletion()));
    assert_eq!(received(&first)["KEVTMON_SEQ"], "1");
    drop(first);
    fs::remove_file(rig.path()).unwrap();
    let second = journal(&rig.path());
    sinks.offer(&numbered(2, sample::deletion()));
    assert_eq!(received(&second)["KEVTMON_SEQ"], "2");
    sinks.finish(PATIENCE);
    assert_eq!(rig.discarded(), 0);
}

#[test]
fn what_came_while_there_was_no_journal_is_counted_and_told_to_the_next_one() {
    let mut rig = Rig::new();
    let first = journal(&rig.path());
    let sinks = rig.sinks(Severity::Debug);
    drop(first);
    fs::remove_file(rig.path()).unwrap();
    sinks.offer(&numbered(1, sample::deletion()));
    let status = |seen: Option<Observation>| match seen.unwrap().fact {
        Fact::Source(status) => status,
        other => panic!("{other:?}"),
    };
    let down = status(rig.seen.blocking_recv());
    assert!(!down.up && down.source == "journald", "{down:?}");
    assert!(down.reason.unwrap().contains("cannot connect"), "the reason is told");
    sinks.offer(&numbered(2, sample::deletion()));
    eventually("both are counted", || rig.discarded() == 2);
    let second = journal(&rig.path());
    assert!(status(rig.seen.blocking_recv()).up);
    let gap = received(&second);
    assert_eq!(gap["KEVTMON_KIND"], "events.lost");
    let lost: Event = serde_json::from_str(&gap["KEVTMON_EVENT"]).unwrap();
    assert_eq!(lost.lost.unwrap().count, "2");
    sinks.offer(&numbered(3, sample::deletion()));
    assert_eq!(received(&second)["KEVTMON_SEQ"], "3");
    sinks.finish(PATIENCE);
    assert_eq!(rig.discarded(), 2);
}

#[test]
fn a_journal_that_is_not_there_does_not_keep_the_daemon_from_starting() {
    let rig = Rig::new();
    let started = rig.start(Enabled::Yes, Severity::Notice).unwrap();
    let status = started.status.unwrap();
    assert!(!status.up && status.reason.is_some(), "{status:?}");
}

#[test]
fn it_is_chosen_where_standard_error_is_the_journal() {
    let stderr = fstat(io::stderr()).unwrap();
    assert!(is_stderr(&format!("{}:{}", stderr.st_dev, stderr.st_ino)));
    for other in ["", "1", "a:b", &format!("{}:{}", stderr.st_dev, stderr.st_ino + 1)] {
        assert!(!is_stderr(other), "{other}");
    }
    assert!(Rig::new().start(Enabled::No, Severity::Notice).is_none());
}
