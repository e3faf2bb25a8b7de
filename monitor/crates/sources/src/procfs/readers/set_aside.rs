//! Processes that no job reads, because readers hung at them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Bound;
use std::time::Duration;

use kevtmon_observation::{SourceKind, SourceStatus};
use tokio::time::Instant;

use super::hanging::Description;
use super::{READERS, Readers};
use crate::procfs::pidfd::PidFd;
use crate::procfs::{DirectoryId, Proc};

/// Name of the source.
const SOURCE: &str = "procfs";
/// Pause before it is tried again whether it can be read, and the longest; it doubles with each trial.
const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(600));
/// Processes that one message names.
const NAMED: usize = 4;
/// Descriptors of processes at a time: any user can have more of these processes than the daemon may have descriptors.
/// Others are told from those that reuse their ids by their directories.
const DESCRIPTORS: usize = 512;
/// Directories that one review looks at.
const DIRECTORIES: usize = 1024;

/// What was set aside, by process id.
#[derive(Debug, Default)]
pub(super) struct SetAside {
    entries: BTreeMap<u32, Entry>,
    /// The last one at whose directory was looked.
    looked: Option<u32>,
}

#[derive(Debug)]
struct Entry {
    /// Tells this process from one that reuses its id.
    pidfd: Option<PidFd>,
    /// The same, where there is no descriptor. The kernel forgets a directory that nobody uses when it needs memory, so that the
    /// same process can have another one: it is tried again then, and not let go.
    directory: Option<DirectoryId>,
    description: Option<Description>,
    retry: Instant,
    pause: Duration,
}

impl Entry {
    fn has_ended(&self) -> bool {
        self.pidfd.as_ref().is_some_and(PidFd::has_ended)
    }

    /// Looks at the directory of one without a descriptor, which it is given if `may_open`; whether it has ended.
    fn look(&mut self, proc: &Proc, tgid: u32, now: Instant, may_open: bool) -> bool {
        // Before the directory: if that is the same still, the descriptor is of the same process.
        let pidfd = may_open.then(|| PidFd::open(tgid).ok()).flatten();
        match proc.directory(tgid) {
            Ok(found) if self.directory == Some(found) => self.pidfd = pidfd,
            // Perhaps of another process, which need not hang anybody.
            Ok(found) => (self.directory, self.retry, self.pause) = (Some(found), now, RETRY.0),
            Err(error) => return error.kind() == io::ErrorKind::NotFound,
        }
        false
    }
}

impl SetAside {
    /// Sets a process aside; false if it was already, or has ended meanwhile.
    pub(super) fn add(&mut self, proc: &Proc, tgid: u32) -> bool {
        let pidfd = (self.descriptors() < DESCRIPTORS).then(|| PidFd::open(tgid).ok()).flatten();
        let directory = proc.directory(tgid);
        let is_gone = directory.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        let (pause, _) = RETRY;
        let (directory, retry) = (directory.ok(), Instant::now() + pause);
        let entry = Entry { pidfd, directory, description: None, retry, pause };
        if is_gone || entry.has_ended() || self.entries.contains_key(&tgid) {
            return false;
        }
        self.entries.insert(tgid, entry);
        true
    }

    fn descriptors(&self) -> usize {
        self.entries.values().filter(|entry| entry.pidfd.is_some()).count()
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

    pub(super) fn remove(&mut self, tgid: u32) {
        self.entries.remove(&tgid);
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.entries.keys().copied().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Lets go of those that have ended; whether there were any, and which others, at most so many, are to be tried again
    /// now. One that holds a reader which was killed is tried again once that is gone.
    pub(super) fn review(
        &mut self,
        proc: &Proc,
        now: Instant,
        most: usize,
        holding: &BTreeSet<u32>,
    ) -> (bool, Vec<u32>) {
        let before = self.entries.len();
        self.entries.retain(|_, entry| !entry.has_ended());
        self.look_at_directories(proc, now);
        let due =
            self.entries.iter_mut().filter(|(tgid, entry)| entry.retry <= now && !holding.contains(tgid));
        let due = due.take(most).map(|(tgid, entry)| {
            entry.pause = (entry.pause * 2).min(RETRY.1);
            entry.retry = now + entry.pause;
            *tgid
        });
        let due = due.collect();
        (self.entries.len() != before, due)
    }

    /// Looks at some of those without a descriptor, the next ones each time, and lets go of those that have ended. What becomes
    /// free of the descriptors is theirs.
    fn look_at_directories(&mut self, proc: &Proc, now: Instant) {
        let mut free = DESCRIPTORS.saturating_sub(self.descriptors());
        let begin = self.looked.take().map_or(Bound::Unbounded, Bound::Excluded);
        let following = self.entries.range_mut((begin, Bound::Unbounded));
        let mut ended = Vec::new();
        for (number, (tgid, entry)) in (1..).zip(following.filter(|(_, entry)| entry.pidfd.is_none())) {
            if entry.look(proc, *tgid, now, free > 0) {
                ended.push(*tgid);
            }
            free -= usize::from(entry.pidfd.is_some());
            if number == DIRECTORIES {
                self.looked = Some(*tgid);
                break;
            }
        }
        ended.iter().for_each(|tgid| self.remove(*tgid));
    }

    /// As the status of a source, which is degraded while anything is set aside, or so many of all readers are missing, and
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

    /// What is left out, in words.
    fn left_out(&self) -> Option<String> {
        if self.entries.is_empty() {
            return None;
        }
        let named = self.entries.iter().take(NAMED).map(|(tgid, entry)| match &entry.description {
            Some(description) => description.phrase(*tgid),
            None => format!("process {tgid}"),
        });
        let mut reason = format!(
            "whoever reads these processes hangs, so they are left out: {}",
            named.collect::<Vec<_>>().join("; ")
        );
        if self.entries.len() > NAMED {
            reason.push_str(&format!("; and {} more", self.entries.len() - NAMED));
        }
        Some(reason)
    }
}

impl Readers {
    /// Which processes hang their readers, as far as that is known by now.
    #[must_use]
    pub fn status(&self) -> SourceStatus {
        let state = self.0.state();
        state.aside.status(state.missing, READERS)
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
        let (mut aside, proc) = (SetAside::default(), Proc::default());
        assert!(aside.add(&proc, held) && aside.add(&proc, free));
        let later = Instant::now() + RETRY.0;
        assert_eq!(aside.review(&proc, later, 8, &BTreeSet::from([held])), (false, vec![free]));
        assert_eq!(
            aside.review(&proc, later, 8, &BTreeSet::new()),
            (false, vec![held]),
            "without another pause"
        );
    }

    #[test]
    fn whoever_may_have_the_id_of_one_without_a_descriptor_is_tried_at_once() {
        let [same, other, ended] = [1 << 29, 1 << 30, 1 << 31];
        let (root, proc) = directories([same, other, ended].into_iter());
        let (mut aside, now) = (SetAside::default(), Instant::now());
        assert!([same, other, ended].iter().all(|tgid| aside.add(&proc, *tgid)));
        assert!(!aside.add(&proc, 7), "it has ended");
        assert_eq!(aside.review(&proc, now, 8, &BTreeSet::new()), (false, vec![]));
        fs::create_dir(root.path().join("new")).unwrap();
        fs::rename(root.path().join("new"), root.path().join(other.to_string())).unwrap();
        fs::remove_dir(root.path().join(ended.to_string())).unwrap();
        assert_eq!(aside.review(&proc, now, 8, &BTreeSet::new()), (true, vec![other]));
        assert_eq!(aside.pids(), [same, other], "the same process can have another directory");
        assert_eq!(aside.review(&proc, now, 8, &BTreeSet::new()), (false, vec![]));
    }

    #[test]
    fn a_descriptor_that_is_free_is_that_of_one_without() {
        let own = std::process::id();
        let (mut aside, proc) = (SetAside::default(), Proc::default());
        assert!(aside.add(&proc, own));
        let entry = aside.entries.get_mut(&own).unwrap();
        (entry.pidfd, entry.directory) = (None, None);
        let now = Instant::now();
        assert_eq!(aside.review(&proc, now, 8, &BTreeSet::new()), (false, vec![own]));
        assert_eq!(aside.descriptors(), 0, "it may be another process");
        aside.review(&proc, now, 8, &BTreeSet::new());
        assert_eq!(aside.descriptors(), 1);
    }

    #[test]
    fn some_directories_are_looked_at_each_time_and_all_in_turn() {
        let tgids = (0..3 * u32::try_from(DIRECTORIES).unwrap() / 2).map(|number| (1 << 30) + number);
        let (root, proc) = directories(tgids.clone());
        let (mut aside, now) = (SetAside::default(), Instant::now());
        assert!(tgids.clone().all(|tgid| aside.add(&proc, tgid)));
        tgids.for_each(|tgid| fs::remove_dir(root.path().join(tgid.to_string())).unwrap());
        let left = [(); 3].map(|()| {
            aside.review(&proc, now, 8, &BTreeSet::new());
            aside.len()
        });
        assert_eq!(left, [DIRECTORIES / 2, 0, 0]);
    }
}
