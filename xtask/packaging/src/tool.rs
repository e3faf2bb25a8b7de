//! Programs that are run to their end.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// Runs a program; what it printed, if it succeeded.
pub(crate) fn run(command: &mut Command) -> Result<Vec<u8>> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        bail!("{program} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.stdout)
}
