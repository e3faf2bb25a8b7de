//! What is done beside the loop: a discovery, or the reading of a namespace.

use std::collections::HashMap;
use std::future::Future;
use std::time::Instant;

use kevtmon_observation::{BootNs, NsInum};
use tokio::task::JoinHandle;

use super::discover::{Discover, DiscoveredNetns};
use super::dump::{self, ReadError, Reading};
use super::nsid::Naming;
use crate::procfs::readers::Readers;

pub(super) struct Job {
    /// The namespace that is read, if one is.
    pub(super) reads: Option<NsInum>,
    outcome: JoinHandle<Outcome>,
}

pub(super) enum Outcome {
    Discover { all: bool, began: Instant, found: Option<HashMap<NsInum, DiscoveredNetns>> },
    Read { netns: NsInum, heard: BootNs, reading: Result<Box<Reading>, ReadError> },
}

impl Job {
    pub(super) fn discovery(readers: Readers, look: Discover, all: bool, began: Instant) -> Self {
        let outcome = async move {
            let found = readers.ask(look, dump::PATIENCE).await;
            let found = found.inspect_err(|error| tracing::warn!(%error, "cannot look for namespaces")).ok();
            let found = found.map(|found| found.into_iter().map(|found| (found.netns, found)).collect());
            Outcome::Discover { all, began, found }
        };
        Self { reads: None, outcome: tokio::spawn(outcome) }
    }

    /// `heard`: messages sent before were delivered.
    pub(super) fn reading(
        netns: NsInum,
        heard: BootNs,
        reading: impl Future<Output = Result<Reading, ReadError>> + Send + 'static,
    ) -> Self {
        let outcome = async move { Outcome::Read { netns, heard, reading: reading.await.map(Box::new) } };
        Self { reads: Some(netns), outcome: tokio::spawn(outcome) }
    }

    /// Waits for it; a task that ends without an outcome has failed.
    pub(super) async fn outcome(&mut self) -> Outcome {
        let reads = self.reads;
        (&mut self.outcome).await.unwrap_or_else(|error| match reads {
            Some(netns) => Outcome::Read { netns, heard: 0, reading: Err(ReadError::Thread(error.into())) },
            None => Outcome::Discover { all: true, began: Instant::now(), found: None },
        })
    }
}

/// Opens a namespace, then reads it on a thread of its own.
pub(super) async fn read_foreign(
    found: DiscoveredNetns,
    readers: Readers,
    naming: Option<Naming>,
) -> Result<Reading, ReadError> {
    let proc = readers.proc().clone();
    let opened = dump::open(found.clone(), &readers).await?;
    dump::on_thread(move || dump::read_foreign(&found, opened, &proc, naming)).await?
}
