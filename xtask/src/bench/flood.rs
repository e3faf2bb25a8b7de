//! What an unprivileged user can do to the daemon, and to others through it.

use std::path::Path;

use anyhow::Result;

use super::idle::in_harness;

pub(super) fn flood(binary: &Path) -> Result<()> {
    in_harness("flood", binary)
}
