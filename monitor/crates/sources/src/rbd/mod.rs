//! Ceph RBD images that are mapped, by state: what sysfs shows of them, read at the start, from time to time, and whenever the
//! kernel tells that one came or went. Of those that a program has mapped by `rbd-nbd`, the kernel tells nothing but the process.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::OptionFuture;
use kevtmon_observation::{Fact, RbdImages, RbdNumber};
use kevtmon_types::settings::settings;
use serde::{Deserialize, Deserializer, Serialize};
use tokio::time::{Instant, sleep_until};

use super::procfs::readers::Readers;
use super::{Sender, spawn_until_closed, tell};
use crate::beat::at_look;

pub mod command_line;
mod nbd;
mod sysfs;
mod uevents;

pub(super) use nbd::Look;
pub(super) use sysfs::is_uuid;
use sysfs::{Found, Problem};
pub use sysfs::{devices, users};
use uevents::{Heard, Uevents};

settings! { "rbd":
    /// Where sysfs is: the images that are mapped are read from bus/rbd/devices there, and from block, where rbd-nbd has network
    /// block devices. Only tests need another directory.
    SYSFS: Sysfs = "sysfs", default Sysfs::default();
}

const INTERVAL: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(60);
/// When is looked after the kernel has told: at once, and once more, since an image goes after it was told to go.
const AFTER_EVENT: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];
/// The source, as in [`Fact::Malformed`] and [`Fact::Resync`].
const NAME: &str = "rbd";

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sysfs(pub PathBuf);

impl Default for Sysfs {
    fn default() -> Self {
        Self("/sys".into())
    }
}

impl<'de> Deserialize<'de> for Sysfs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let path = PathBuf::deserialize(from)?;
        if path.is_absolute() {
            return Ok(Self(path));
        }
        let path = path.display();
        Err(serde::de::Error::custom(format!(
            "\"{path}\" is not valid: expected an absolute path such as /sys"
        )))
    }
}

/// Follows the mapped images until the receiver of observations is gone. `sysfs`: where that is.
pub fn start(readers: Readers, sysfs: PathBuf, tx: Sender) {
    // Before the first look: what comes after it is told.
    let uevents = Uevents::open().inspect_err(|error| {
        tracing::warn!(%error, "the kernel's device events cannot be read: mapped images are read every 30 s");
    });
    let follower = Follower { readers, sysfs, tx, told: None, problems: BTreeSet::new(), is_full: false };
    spawn_until_closed(follower.tx.clone(), follower.run(uevents.ok()));
}

struct Follower {
    readers: Readers,
    sysfs: PathBuf,
    tx: Sender,
    told: Option<RbdImages>,
    /// What was wrong at the last look; each is said once.
    problems: BTreeSet<Problem>,
    is_full: bool,
}

impl Follower {
    async fn run(mut self, mut uevents: Option<Uevents>) {
        let mut after = Vec::new();
        loop {
            self.look().await;
            let next = after.pop().unwrap_or_else(|| at_look(INTERVAL));
            let mut rest = std::pin::pin!(sleep_until(next));
            loop {
                tokio::select! {
                    () = &mut rest => break,
                    Some(heard) = OptionFuture::from(uevents.as_mut().map(Uevents::next)) => match heard {
                        Heard::Rbd => {
                            let now = Instant::now();
                            after = AFTER_EVENT.map(|pause| now + pause).into_iter().rev().collect();
                        }
                        // What was lost may have been of an image.
                        Heard::Lost => {
                            let lost = Fact::Resync { source: NAME.to_owned(), reason: "overrun".to_owned() };
                            tell(&self.tx, lost).await;
                            after = vec![Instant::now()];
                        }
                        Heard::Refused | Heard::Other => continue,
                        Heard::Closed => {
                            uevents = None;
                            continue;
                        }
                    },
                }
                // The first of many does not wait for the last.
                if let Some(first) = after.pop() {
                    let deadline = rest.deadline().min(first);
                    rest.as_mut().reset(deadline);
                }
            }
        }
    }

    async fn look(&mut self) {
        let found = match self.find().await {
            Ok(found) => found,
            Err(error) => {
                if self.problems.insert((None, "the list of images cannot be read")) {
                    tracing::warn!(%error, "cannot read which RBD images are mapped");
                }
                return;
            }
        };
        let new = found.problems.difference(&self.problems).count();
        for (number, problem) in found.problems.difference(&self.problems) {
            let device = number.map_or_else(|| "?".to_owned(), |number| number.to_string());
            tracing::warn!(
                device,
                problem,
                "sysfs does not show an RBD device as expected; that is left out"
            );
        }
        self.problems = found.problems;
        if found.images.omitted > 0 && !std::mem::replace(&mut self.is_full, true) {
            tracing::warn!(
                omitted = found.images.omitted,
                "too many RBD images are mapped: not all are followed"
            );
        }
        if new > 0 {
            let count = new.try_into().unwrap_or(u64::MAX);
            tell(&self.tx, Fact::Malformed { source: NAME.to_owned(), count }).await;
        }
        if self.told.as_ref() != Some(&found.images) {
            self.told = Some(found.images.clone());
            tell(&self.tx, Fact::RbdImages(found.images)).await;
        }
    }

    async fn find(&self) -> io::Result<Found> {
        let mut found = sysfs::look(&self.sysfs)?;
        let connected = nbd::connected(&self.sysfs, &mut found)?;
        if connected.is_empty() {
            return Ok(found);
        }
        let failure = "cannot read which processes connected network block devices";
        let mappers = self.readers.reply(Look::at(&connected), PATIENCE, failure).await.unwrap_or_default();
        let told = self.told.as_ref();
        let was_image = |number: RbdNumber| {
            told.is_some_and(|told| {
                told.images.iter().any(|image| image.number == number) || told.unread.contains(&number)
            })
        };
        nbd::add(connected, &mappers, was_image, &mut found);
        Ok(found)
    }
}

#[cfg(test)]
mod tests;
