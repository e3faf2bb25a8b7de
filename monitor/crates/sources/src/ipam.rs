//! The addresses that host-local has reserved, by the files that it keeps on this node, and the devices that plugins made for pods,
//! by the results that libcni keeps: read at the start and whenever the kernel tells that one of their directories has changed.
//!
//! A reader reads them, as a disk may hang; it makes the watch as well, which is handed over with the answer. Their locks are
//! never taken: a plugin would wait.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use files::{Found, Problem};
use kevtmon_observation::{BootNs, Fact, IpamFiles};
use kevtmon_types::clock::boot_now;
use kevtmon_types::settings::settings;
use serde::{Deserialize, Deserializer, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until};

use super::kubelet::plain_path;
use super::procfs::readers::Readers;
use super::{Sender, spawn_until_closed, tell};
use crate::beat::at_look;

mod files;

pub(super) use files::Look;

settings! { "ipam":
    /// The directory below which host-local has its reservations (networks) and libcni the results of its calls (results,
    /// cache/results).
    DIRECTORY: Directory = "directory", default Directory::default();
}

const INTERVAL: Duration = Duration::from_secs(300);
/// The same where it cannot tell, or there is no such directory yet.
const UNWATCHED: Duration = Duration::from_secs(60);
/// A call of a plugin changes several files one after the other.
const SETTLE: Duration = Duration::from_millis(200);
/// From one look to the next at least: many pods may come and go.
const REST: Duration = Duration::from_secs(2);
/// After so many failures in a row what was told last counts no more.
const FAILURES_MAX: u32 = 2;
const PATIENCE: Duration = Duration::from_secs(30);
/// The source, as in [`Fact::Malformed`].
const NAME: &str = "ipam";

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Directory(pub PathBuf);

impl Default for Directory {
    /// That of CNI, unless it is told to use another one.
    fn default() -> Self {
        Self("/var/lib/cni".into())
    }
}

impl<'de> Deserialize<'de> for Directory {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        plain_path(from, "/var/lib/cni").map(Self)
    }
}

pub fn start(directory: PathBuf, readers: Readers, tx: Sender) {
    let told = LastLook::default();
    spawn_until_closed(tx.clone(), Follower { directory, readers, tx, told, failures: 0 }.run());
}

struct Follower {
    directory: PathBuf,
    readers: Readers,
    tx: Sender,
    told: LastLook,
    failures: u32,
}

impl Follower {
    async fn run(mut self) {
        // When the kernel told of a change; before that, when was looked.
        let mut since = boot_now();
        loop {
            let looked = (boot_now(), Instant::now());
            let watch = self.look(since).await;
            since = looked.0;
            let pause = if watch.is_some() { INTERVAL } else { UNWATCHED };
            tokio::select! {
                () = sleep_until(at_look(pause)) => {}
                () = changed(watch.as_ref()) => {
                    since = boot_now();
                    sleep_until((Instant::now() + SETTLE).max(looked.1 + REST)).await;
                }
            }
        }
    }

    /// Looks once, and tells what has changed; what tells of the next change, if anything does.
    async fn look(&mut self, since: BootNs) -> Option<AsyncFd<OwnedFd>> {
        let look = Look::at(self.directory.clone());
        let (found, opened) = match self.readers.ask_to_open(look, PATIENCE).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "cannot read what host-local has reserved");
                self.failures += 1;
                if self.failures == FAILURES_MAX && self.told.forget() {
                    tell(&self.tx, Fact::IpamUnread).await;
                }
                return None;
            }
        };
        self.failures = 0;
        let (files, problems) = self.told.differences(found, since);
        for problem in &problems {
            let Problem { path, text } = problem;
            tracing::warn!(path, "{text}");
        }
        if !problems.is_empty() {
            let count = problems.len().try_into().unwrap_or(u64::MAX);
            tell(&self.tx, Fact::Malformed { source: NAME.to_owned(), count }).await;
        }
        if let Some(files) = files {
            tell(&self.tx, Fact::Ipam(files)).await;
        }
        // SAFETY: an `OwnedFd` owns its descriptor, which nobody replaces or closes while it is registered.
        opened.and_then(|watch| unsafe { AsyncFd::register_with_interest(watch, Interest::READABLE) }.ok())
    }
}

/// Waits until something has changed; for ever where nobody tells. What has changed is not read: all is looked at.
async fn changed(watch: Option<&AsyncFd<OwnedFd>>) {
    match watch {
        Some(watch) if watch.readable().await.is_ok() => {}
        _ => std::future::pending().await,
    }
}

#[derive(Debug, Default)]
struct LastLook {
    found: Option<Found>,
    problems: BTreeSet<Problem>,
}

impl LastLook {
    /// What differs, if anything does, and what is wrong that was not before.
    fn differences(&mut self, mut found: Found, since: BootNs) -> (Option<IpamFiles>, Vec<Problem>) {
        let problems = std::mem::take(&mut found.problems);
        let new = problems.difference(&self.problems).cloned().collect();
        self.problems = problems;
        if self.found.as_ref() == Some(&found) {
            return (None, new);
        }
        let since = self.found.as_ref().map(|_| since);
        let before = self.found.take().unwrap_or_default();
        let files = IpamFiles {
            since,
            added: found.records.difference(&before.records).cloned().collect(),
            removed: before.records.difference(&found.records).cloned().collect(),
            complete: found.complete,
            devices_added: found.devices.difference(&before.devices).cloned().collect(),
            devices_removed: before.devices.difference(&found.devices).cloned().collect(),
        };
        self.found = Some(found);
        (Some(files), new)
    }

    /// It counts no more; whether there was anything.
    fn forget(&mut self) -> bool {
        self.found.take().is_some()
    }
}

#[cfg(test)]
mod tests;
