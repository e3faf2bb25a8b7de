//! How long the daemon takes until it is ready, and to read everything again.

use std::path::Path;

use anyhow::Result;

use super::idle::in_harness;

pub(super) fn start(binary: &Path) -> Result<()> {
    in_harness("start", binary)
}
