//! What many containers cost, and whether any is missed when they come and go.

use std::path::Path;

use anyhow::Result;

use super::idle::in_harness;

pub(super) fn churn(binary: &Path) -> Result<()> {
    in_harness("churn", binary)
}
