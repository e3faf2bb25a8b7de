//! The store of a state directory as a history.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Mutex;

use kevtmon_types::lock::lock;

use super::{Reader, StoreError};
use crate::query::filter::{EventFilter, IncidentFilter};
use crate::query::history::{Extent, History, HistoryError, IncidentView, LiveHistory, Page};

/// The store in a state directory.
pub struct Archive {
    directory: PathBuf,
    reader: Option<Mutex<Reader>>,
    is_optional: bool,
}

impl Archive {
    /// A history for one command: the file stays open.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let directory = directory.into();
        let reader = Some(Mutex::new(Reader::open_beside_daemon(&directory)?));
        Ok(Self { directory, reader, is_optional: false })
    }

    /// A history behind that of the memory: where the file cannot be read, there are just no older events. The daemon
    /// reports by other means that its store is down.
    ///
    /// It is opened for each query, which takes a fraction of a millisecond: another file may replace it while the
    /// daemon runs, and an idle daemon needs no memory for it.
    pub fn behind(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), reader: None, is_optional: true }
    }

    fn ask<T: Default>(
        &self,
        question: impl FnOnce(&Reader) -> Result<T, StoreError>,
    ) -> Result<T, HistoryError> {
        let answer = match &self.reader {
            Some(reader) => {
                let mut reader = lock(reader);
                // A snapshot is held by itself.
                let held = (!self.is_optional).then(|| reader.hold(&self.directory)).transpose();
                held.and_then(|_held| question(&reader))
            }
            None => Reader::open_read_only(&self.directory).and_then(|reader| question(&reader)),
        };
        match answer {
            Err(error) if self.is_optional => {
                tracing::debug!(%error, "cannot read the event store");
                Ok(T::default())
            }
            answer => answer.map_err(|error| HistoryError::Unreadable {
                what: format!("the event store in {}", self.directory.display()),
                source: Box::new(error),
            }),
        }
    }
}

impl LiveHistory for Archive {
    fn snapshot(&self) -> Option<Box<dyn History>> {
        let opened = Reader::open_read_only(&self.directory)
            .and_then(|reader| reader.begin_snapshot().map(|()| reader))
            .inspect_err(|error| tracing::debug!(%error, "cannot read the event store"));
        let reader = Some(Mutex::new(opened.ok()?));
        Some(Box::new(Self { directory: self.directory.clone(), reader, is_optional: self.is_optional }))
    }
}

impl History for Archive {
    fn events(&self, filter: &EventFilter) -> Result<Page, HistoryError> {
        self.ask(|reader| reader.events(filter))
    }

    fn incidents(&self, filter: &IncidentFilter) -> Result<Vec<IncidentView>, HistoryError> {
        self.ask(|reader| reader.incidents(filter))
    }

    fn numbers(&self, boot_id: &str, after: u64, before: u64) -> Result<BTreeSet<u64>, HistoryError> {
        self.ask(|reader| reader.numbers(boot_id, after, before))
    }

    fn extent(&self) -> Result<Extent, HistoryError> {
        self.ask(Reader::extent)
    }
}
