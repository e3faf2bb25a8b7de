//! How fast the holders of a mount are named, beside fuser(1), lsof(8) and lsfd(1).

use std::path::Path;

use anyhow::Result;

use super::idle::in_harness;

pub(super) fn holders(binary: &Path) -> Result<()> {
    in_harness("holders", binary)
}
