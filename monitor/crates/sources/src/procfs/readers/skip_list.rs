//! Processes that no job reads, because readers hung at them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use kevtmon_observation::{SourceKind, SourceStatus};
use tokio::time::Instant;

use super::hanging::Description;
use super::prefilter::AT_A_TIME;
use super::{READERS, Readers};
use crate::procfs::pidfd::PidFd;
use crate::procfs::{DirectoryId, Proc};

const SOURCE: &str = "procfs";
/// Pause before it is tried again whether it can be read, and the longest; it doubles with each trial.
const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(600));
const NAMED: usize = 4;
/// Directories that one review looks at: any user can have more of these processes.
const DIRECTORIES: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct SkipList {
    entries: BTreeMap<u32, Entry>,
    reviews: usize,
}

#[derive(Debug)]
struct Entry {
    /// Tells this process from one that reuses its id. The kernel forgets a directory that nobody uses when it needs memory, so that
    /// the same process can have another one: it is tried again then, and not let go.
    directory: Option<DirectoryId>,
    description: Option<Description>,
    retry: Instant,
    pause: Duration,
}

impl Entry {
    /// Whether its process is there still, or perhaps another one, which need not hang anybody.
    fn is_there(&mut self, proc: &Proc, tgid: u32, now: Instant) -> bool {
        // A zombie has a directory, too.
        if PidFd::open(tgid).is_ok_and(|process| process.has_ended()) {
            return false;
        }
        match proc.directory(tgid) {
            Ok(found) if self.directory == Some(found) => true,
            Ok(found) => {
                (self.directory, self.retry, self.pause) = (Some(found), now, RETRY.0);
                true
            }
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }
}

impl SkipList {
    /// Adds a process, unless it has ended meanwhile.
    pub(super) fn add(&mut self, proc: &Proc, tgid: u32) {
        let directory = proc.directory(tgid);
        if directory.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return;
        }
        let (pause, _) = RETRY;
        let entry =
            Entry { directory: directory.ok(), description: None, retry: Instant::now() + pause, pause };
        self.entries.entry(tgid).or_insert(entry);
    }

    /// Those that a message names and that are not described.
    pub(super) fn undescribed(&self) -> Vec<u32> {
        let named = self.entries.iter().take(NAMED).filter(|(_, entry)| entry.description.is_none());
        named.map(|(tgid, _)| *tgid).collect()
    }

    pub(super) fn describe(&mut self, tgid: u32, description: Description) {
        if let Some(entry) = self.entries.get_mut(&tgid) {
            entry.description = Some(description);
        }
    }

    pub(super) fn remove(&mut self, tgids: &[u32]) {
        self.entries.retain(|tgid, _| !tgids.contains(tgid));
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.entries.keys().copied().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Lets go of those that have ended; whether there were any, and which others, at most as many as one prefilter takes, are to
    /// be tried again now. One that holds a reader which was killed is tried again once that is gone.
    pub(super) fn review(&mut self, proc: &Proc, now: Instant, holding: &BTreeSet<u32>) -> (bool, Vec<u32>) {
        let before = self.entries.len();
        self.look_at_directories(proc, now);
        let due =
            self.entries.iter_mut().filter(|(tgid, entry)| entry.retry <= now && !holding.contains(tgid));
        let due = due.take(AT_A_TIME).map(|(tgid, entry)| {
            entry.pause = (entry.pause * 2).min(RETRY.1);
            entry.retry = now + entry.pause;
            *tgid
        });
        let due = due.collect();
        (self.entries.len() != before, due)
    }

    /// Looks at all of them, or where there are many at some, the next ones each time.
    fn look_at_directories(&mut self, proc: &Proc, now: Instant) {
        let parts = self.entries.len().div_ceil(DIRECTORIES).max(1);
        self.reviews = self.reviews.wrapping_add(1);
        let (turn, mut number) = (self.reviews % parts, 0);
        self.entries.retain(|tgid, entry| {
            number = (number + 1) % parts;
            number != turn || entry.is_there(proc, *tgid, now)
        });
    }

    /// As the status of a source, which is degraded while anything is left out, or so many of all readers are missing, and
    /// down without any.
    pub(super) fn status(&self, missing: usize, readers: usize) -> SourceStatus {
        let lack = match missing {
            0 => None,
            _ if missing < readers => {
                Some(format!("{missing} of {readers} readers of /proc were killed and do not end"))
            }
            _ => Some(
                "no reader of /proc is left: they were killed and do not end, and nothing is read of processes until one does"
                    .to_owned(),
            ),
        };
        let reasons: Vec<String> = lack.into_iter().chain(self.left_out()).collect();
        let reason = (!reasons.is_empty()).then(|| reasons.join("; "));
        SourceStatus { up: missing < readers, reason, ..SourceStatus::up(SourceKind::Processes, SOURCE) }
    }

    fn left_out(&self) -> Option<String> {
        if self.entries.is_empty() {
            return None;
        }
        let named = self.entries.iter().take(NAMED).map(|(tgid, entry)| match &entry.description {
            Some(description) => description.phrase(*tgid),
            None => format!("process {tgid}"),
        });
        let mut reason =
            format!("reads of these processes hang; skipped: {}", named.collect::<Vec<_>>().join("; "));
        if self.entries.len() > NAMED {
            reason.push_str(&format!("; and {} more", self.entries.len() - NAMED));
        }
        Some(reason)
    }
}

impl Readers {
    /// Which processes hang their readers, as far as that is known by now.
    pub fn status(&self) -> SourceStatus {
        let state = self.0.state();
        state.skipped.status(state.missing, READERS)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Directories of processes with no number that the kernel gives.
    fn directories(tgids: impl Iterator<Item = u32>) -> (tempfile::TempDir, Proc) {
        let root = tempfile::tempdir().unwrap();
        tgids.for_each(|tgid| fs::create_dir(root.path().join(tgid.to_string())).unwrap());
        let proc = Proc::new(root.path());
        (root, proc)
    }

    #[test]
    fn what_holds_a_killed_reader_is_not_tried_again_until_that_is_gone() {
        let [held, free] = [std::process::id(), std::os::unix::process::parent_id()];
        let (mut skipped, proc) = (SkipList::default(), Proc::default());
        [held, free].iter().for_each(|tgid| skipped.add(&proc, *tgid));
        let later = Instant::now() + RETRY.0;
        assert_eq!(skipped.review(&proc, later, &BTreeSet::from([held])), (false, vec![free]));
        assert_eq!(
            skipped.review(&proc, later, &BTreeSet::new()),
            (false, vec![held]),
            "without another pause"
        );
    }

    #[test]
    fn whoever_may_have_the_id_of_one_that_hung_is_tried_at_once() {
        let [same, other, ended] = [1 << 29, 1 << 30, 1 << 31];
        let (root, proc) = directories([same, other, ended].into_iter());
        let (mut skipped, now) = (SkipList::default(), Instant::now());
        [same, other, ended].iter().for_each(|tgid| skipped.add(&proc, *tgid));
        skipped.add(&proc, 7);
        assert_eq!(skipped.len(), 3, "the last one has ended");
        assert_eq!(skipped.review(&proc, now, &BTreeSet::new()), (false, vec![]));
        fs::create_dir(root.path().join("new")).unwrap();
        fs::rename(root.path().join("new"), root.path().join(other.to_string())).unwrap();
        fs::remove_dir(root.path().join(ended.to_string())).unwrap();
        assert_eq!(skipped.review(&proc, now, &BTreeSet::new()), (true, vec![other]));
        assert_eq!(skipped.pids(), [same, other], "the same process can have another directory");
        assert_eq!(skipped.review(&proc, now, &BTreeSet::new()), (false, vec![]));
    }

    #[test]
    fn some_directories_are_looked_at_each_time_and_all_in_turn() {
        let tgids = (0..3 * u32::try_from(DIRECTORIES).unwrap() / 2).map(|number| (1 << 30) + number);
        let (root, proc) = directories(tgids.clone());
        let (mut skipped, now) = (SkipList::default(), Instant::now());
        tgids.clone().for_each(|tgid| skipped.add(&proc, tgid));
        tgids.for_each(|tgid| fs::remove_dir(root.path().join(tgid.to_string())).unwrap());
        let left = [(); 3].map(|()| {
            skipped.review(&proc, now, &BTreeSet::new());
            skipped.len()
        });
        assert_eq!(left, [DIRECTORIES * 3 / 4, 0, 0]);
    }
}
