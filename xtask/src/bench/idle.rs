//! What the daemon costs a node on which nothing happens.

use std::path::Path;

use anyhow::Result;

use crate::setup::Privilege;
use crate::test::{E2E, install_end_to_end_prerequisites};
use crate::workspace;

pub(super) fn idle(binary: &Path) -> Result<()> {
    in_harness("idle", binary)
}

/// Runs a benchmark that is made of what the end-to-end tests are made of.
pub(super) fn in_harness(name: &str, binary: &Path) -> Result<()> {
    install_end_to_end_prerequisites(Privilege::Root)?;
    let mut bench = workspace::cargo("bench");
    bench.args(["--package", E2E, "--bench", name]).env("KEVTMON_BIN", binary);
    workspace::check(&mut bench)
}
