//! The files of a daemon that does not run.

use std::path::Path;

use kevtmon_history::query::History;
use kevtmon_history::store::{Archive, StoreError};

/// Opens the event store in a state directory.
///
/// # Errors
/// When there is none, or it cannot be read.
pub fn offline(state_dir: &Path) -> Result<Box<dyn History>, StoreError> {
    Ok(Box::new(Archive::open(state_dir)?))
}
