//! Ceph RBD images that the kernel has mapped, by state: what sysfs shows of them, read at the start, from time to time, and
//! whenever the kernel tells that one came or went. Those that programs map by `rbd-nbd` are not among them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use tokio::time::{Instant, sleep_until};

use super::{Sender, observed_now};
use crate::observation::{Fact, RbdImages};
use crate::settings::settings;

mod sysfs;
mod uevents;

use sysfs::Problem;
pub use sysfs::{devices, users};
use uevents::{Heard, Uevents};

settings! { "rbd":
    /// Where sysfs is: the images that are mapped are read from bus/rbd/devices there. Only tests need another directory.
    SYSFS: Sysfs = "sysfs", default Sysfs::default();
}

/// How often is looked where the kernel tells nothing.
const INTERVAL: Duration = Duration::from_secs(30);
/// When is looked after the kernel has told: at once, and once more, since an image goes after it was told to go.
const AFTER_EVENT: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];
/// The source, as in [`Fact::Malformed`] and [`Fact::Resync`].
const NAME: &str = "rbd";

/// An absolute path of a directory.
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
pub fn start(sysfs: PathBuf, tx: Sender) {
    // Before the first look: what comes after it is told.
    let uevents = Uevents::open().inspect_err(|error| {
        tracing::warn!(%error, "the kernel's events of devices cannot be read: images that are mapped are looked for every 30 s");
    });
    tokio::spawn(
        Follower { sysfs, tx, told: None, problems: BTreeSet::new(), is_full: false }.run(uevents.ok()),
    );
}

struct Follower {
    sysfs: PathBuf,
    tx: Sender,
    told: Option<RbdImages>,
    /// What was wrong at the last look; each is said once.
    problems: BTreeSet<Problem>,
    /// Whether there were too many.
    is_full: bool,
}

/// The receiver of observations is gone.
struct Closed;

impl Follower {
    async fn run(mut self, mut uevents: Option<Uevents>) {
        let mut after = Vec::new();
        loop {
            if self.look().await.is_err() {
                return;
            }
            let next = after.pop().unwrap_or_else(|| Instant::now() + INTERVAL);
            let mut rest = std::pin::pin!(sleep_until(next));
            loop {
                tokio::select! {
                    () = &mut rest => break,
                    () = self.tx.closed() => return,
                    heard = heard(uevents.as_mut()) => match heard {
                        Heard::Rbd => {
                            let now = Instant::now();
                            after = AFTER_EVENT.map(|pause| now + pause).into_iter().rev().collect();
                        }
                        // What was lost may have been of an image.
                        Heard::Lost => {
                            let lost = Fact::Resync { source: NAME.to_owned(), reason: "overrun".to_owned() };
                            if self.tx.send(observed_now(lost)).await.is_err() {
                                return;
                            }
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

    /// Looks once, and tells what has changed.
    async fn look(&mut self) -> Result<(), Closed> {
        let found = match sysfs::look(&self.sysfs) {
            Ok(found) => found,
            Err(error) => {
                if self.problems.insert((None, "the list of images cannot be read")) {
                    tracing::warn!(%error, "cannot read which RBD images are mapped");
                }
                return Ok(());
            }
        };
        let new = found.problems.difference(&self.problems).count();
        for (number, problem) in found.problems.difference(&self.problems) {
            let device = number.map_or_else(|| "?".to_owned(), |number| format!("rbd{number}"));
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
            self.send(Fact::Malformed { source: NAME.to_owned(), count }).await?;
        }
        if self.told.as_ref() != Some(&found.images) {
            self.told = Some(found.images.clone());
            self.send(Fact::RbdImages(found.images)).await?;
        }
        Ok(())
    }

    async fn send(&self, fact: Fact) -> Result<(), Closed> {
        self.tx.send(observed_now(fact)).await.map_err(|_| Closed)
    }
}

/// What the kernel tells next; for ever nothing where it is not listened to.
async fn heard(uevents: Option<&mut Uevents>) -> Heard {
    match uevents {
        Some(uevents) => uevents.next().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
