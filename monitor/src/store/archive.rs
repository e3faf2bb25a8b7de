//! The store of a state directory as a memory that questions are put to.
//!
//! It is opened for each question, which takes a fraction of a millisecond: another file may take its place
//! while the daemon runs, and an idle daemon holds no memory for it.

use std::path::PathBuf;

use super::{Reader, StoreError};
use crate::query::filter::{EventFilter, IncidentFilter};
use crate::query::history::{Extent, History, HistoryError, IncidentView, Page};

/// What was kept in a state directory.
#[derive(Debug, Clone)]
pub struct Archive {
    directory: PathBuf,
    /// Whether something else answers, too.
    is_second: bool,
}

impl Archive {
    /// All there is to ask.
    ///
    /// # Errors
    /// When there is no store, or it cannot be opened.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let directory = directory.into();
        Reader::open_read_only(&directory)?;
        Ok(Self { directory, is_second: false })
    }

    /// Asked for what another memory no longer has: where it cannot be read, there is just nothing more. The
    /// daemon says by other means that its store is down.
    #[must_use]
    pub fn behind(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), is_second: true }
    }

    fn ask<T: Default>(
        &self,
        question: impl FnOnce(&Reader) -> Result<T, StoreError>,
    ) -> Result<T, HistoryError> {
        match Reader::open_read_only(&self.directory).and_then(|reader| question(&reader)) {
            Err(error) if self.is_second => {
                tracing::debug!(%error, "the event store cannot be asked");
                Ok(T::default())
            }
            answer => answer.map_err(|error| HistoryError::Unreadable {
                what: format!("the event store in {}", self.directory.display()),
                source: Box::new(error),
            }),
        }
    }
}

impl History for Archive {
    fn events(&self, filter: &EventFilter) -> Result<Page, HistoryError> {
        self.ask(|reader| reader.events(filter))
    }

    fn incidents(&self, filter: &IncidentFilter) -> Result<Vec<IncidentView>, HistoryError> {
        self.ask(|reader| reader.incidents(filter))
    }

    fn extent(&self) -> Result<Extent, HistoryError> {
        self.ask(Reader::extent)
    }
}
