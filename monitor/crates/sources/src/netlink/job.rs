//! What is done beside the loop: a discovery, or the reading of a namespace.

use std::collections::HashMap;
use std::future;
use std::io;
use std::time::Instant;

use kevtmon_observation::{BootNs, NsInum};
use tokio::sync::oneshot;

use super::discover::DiscoveredNetns;
use super::dump::{self, ReadError, Reading};
use super::nsid::Naming;
use crate::procfs::readers::Readers;

#[derive(Debug)]
pub(super) enum Job {
    Discover {
        all: bool,
        began: Instant,
        result: oneshot::Receiver<HashMap<NsInum, DiscoveredNetns>>,
    },
    Read {
        netns: NsInum,
        /// Messages sent before were delivered.
        heard: BootNs,
        result: oneshot::Receiver<Result<Reading, ReadError>>,
    },
}

pub(super) enum Outcome {
    Discover { all: bool, began: Instant, found: Option<HashMap<NsInum, DiscoveredNetns>> },
    Read { netns: NsInum, heard: BootNs, reading: Result<Box<Reading>, ReadError> },
}

/// Opens a namespace, then reads it on a thread of its own.
pub(super) fn read_foreign(
    found: DiscoveredNetns,
    readers: Readers,
    naming: Option<Naming>,
) -> oneshot::Receiver<Result<Reading, ReadError>> {
    let (done, result) = oneshot::channel();
    tokio::spawn(async move {
        let proc = readers.proc().clone();
        let reading = match dump::open(found.clone(), &readers).await {
            Ok(opened) => match dump::on_thread(move || dump::read_foreign(&found, opened, &proc, naming)) {
                Ok(reading) => reading.await.unwrap_or_else(|_| {
                    Err(ReadError::Thread(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended early")))
                }),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        // The requester may be gone: then the result is dropped.
        let _ = done.send(reading);
    });
    result
}

/// Waits for the job; a thread that ended without a result counts as a failure.
pub(super) async fn outcome(job: &mut Option<Job>) -> Outcome {
    match job {
        Some(Job::Discover { all, began, result }) => {
            let found = result.await.ok();
            Outcome::Discover { all: *all, began: *began, found }
        }
        Some(Job::Read { netns, heard, result }) => {
            let reading = result.await.unwrap_or_else(|_| {
                Err(ReadError::Thread(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended early")))
            });
            Outcome::Read { netns: *netns, heard: *heard, reading: reading.map(Box::new) }
        }
        None => future::pending().await,
    }
}
