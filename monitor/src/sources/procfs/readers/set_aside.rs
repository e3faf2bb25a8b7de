//! Processes that no job reads, because readers hung at them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::hanging::Description;
use super::{READERS, Readers};
use crate::observation::{SourceKind, SourceStatus};
use crate::sources::procfs::pidfd::PidFd;

/// Name of the source.
const SOURCE: &str = "procfs";
/// Pause before it is tried again whether it can be read, and the longest; it doubles with each trial.
const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(600));
/// Processes that one message names.
const NAMED: usize = 4;
/// Descriptors of processes at a time: any user can have more of these processes than the daemon may have descriptors.
/// Of others it shows at the next trial that they have ended.
const DESCRIPTORS: usize = 512;

/// What was set aside, by process id.
#[derive(Debug, Default)]
pub(super) struct SetAside(BTreeMap<u32, Entry>);

#[derive(Debug)]
struct Entry {
    /// Tells this process from one that reuses its id.
    pidfd: Option<PidFd>,
    description: Option<Description>,
    retry: Instant,
    pause: Duration,
}

impl Entry {
    fn has_ended(&self) -> bool {
        self.pidfd.as_ref().is_some_and(PidFd::has_ended)
    }
}

impl SetAside {
    /// Sets a process aside; false if it was already, or has ended meanwhile.
    pub(super) fn add(&mut self, tgid: u32) -> bool {
        let pidfd = (self.0.len() < DESCRIPTORS).then(|| PidFd::open(tgid).ok()).flatten();
        let (pause, _) = RETRY;
        let entry = Entry { pidfd, description: None, retry: Instant::now() + pause, pause };
        if entry.has_ended() || self.0.contains_key(&tgid) {
            return false;
        }
        self.0.insert(tgid, entry);
        true
    }

    /// Those that a message names and that are not described.
    pub(super) fn undescribed(&self) -> Vec<u32> {
        let named = self.0.iter().take(NAMED).filter(|(_, entry)| entry.description.is_none());
        named.map(|(tgid, _)| *tgid).collect()
    }

    pub(super) fn describe(&mut self, tgid: u32, description: Description) {
        if let Some(entry) = self.0.get_mut(&tgid) {
            entry.description = Some(description);
        }
    }

    pub(super) fn remove(&mut self, tgid: u32) {
        self.0.remove(&tgid);
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.0.keys().copied().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Lets go of those that have ended; whether there were any, and which others, at most so many, are to be tried again
    /// now. One that holds a reader which was killed is tried again once that is gone.
    pub(super) fn review(&mut self, now: Instant, most: usize, holding: &BTreeSet<u32>) -> (bool, Vec<u32>) {
        let before = self.0.len();
        self.0.retain(|_, entry| !entry.has_ended());
        let due = self.0.iter_mut().filter(|(tgid, entry)| entry.retry <= now && !holding.contains(tgid));
        let due = due.take(most).map(|(tgid, entry)| {
            entry.pause = (entry.pause * 2).min(RETRY.1);
            entry.retry = now + entry.pause;
            *tgid
        });
        let due = due.collect();
        (self.0.len() != before, due)
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
        if self.0.is_empty() {
            return None;
        }
        let named = self.0.iter().take(NAMED).map(|(tgid, entry)| match &entry.description {
            Some(description) => description.phrase(*tgid),
            None => format!("process {tgid}"),
        });
        let mut reason = format!(
            "whoever reads these processes hangs, so they are left out: {}",
            named.collect::<Vec<_>>().join("; ")
        );
        if self.0.len() > NAMED {
            reason.push_str(&format!("; and {} more", self.0.len() - NAMED));
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
    use super::*;

    #[test]
    fn what_holds_a_killed_reader_is_not_tried_again_until_that_is_gone() {
        let [held, free] = [std::process::id(), std::os::unix::process::parent_id()];
        let mut aside = SetAside::default();
        assert!(aside.add(held) && aside.add(free));
        let later = Instant::now() + RETRY.0;
        assert_eq!(aside.review(later, 8, &BTreeSet::from([held])), (false, vec![free]));
        assert_eq!(aside.review(later, 8, &BTreeSet::new()), (false, vec![held]), "without another pause");
    }
}
