//! What a daemon left on disk, for when none runs.

use std::path::Path;

use crate::query::History;
use crate::store::{Archive, StoreError};

/// Opens what the daemon of this state directory left.
///
/// # Errors
/// When there is nothing, or it cannot be read.
pub fn offline(state_dir: &Path) -> Result<Box<dyn History>, StoreError> {
    Ok(Box::new(Archive::open(state_dir)?))
}
