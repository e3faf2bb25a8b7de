//! Tests that failed and passed when they were run again alone: noise, as long as they are few.
//!
//! Parts of the gate are processes of their own, so each adds its names to a file that the gate reads at its end.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::workspace;

/// More than these are no noise.
const MOST: usize = 3;

/// More failures than these are not run again: something is broken.
pub(super) const MOST_RUN_AGAIN: usize = 10;

/// Where the gate says that its parts are to write.
pub(super) const VARIABLE: &str = "KEVTMON_XTASK_FLAKY";

/// Where this process writes the names, if the gate has started it.
fn file() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).map(PathBuf::from)
}

/// Has the gate learn of these.
pub(super) fn add(names: &[String]) -> Result<()> {
    let Some(file) = file() else { return Ok(()) };
    let mut lines = names.join("\n");
    if !names.is_empty() {
        lines.push('\n');
    }
    let written = File::options().append(true).create(true).open(&file);
    let written = written.and_then(|mut opened| opened.write_all(lines.as_bytes()));
    written.with_context(|| format!("cannot write {}", file.display()))
}

pub(super) fn show(names: &[String]) {
    for name in names {
        eprintln!("flaky: {name}");
    }
}

/// An error if they are too many.
pub(super) fn bound(names: &[String]) -> Result<()> {
    if names.len() > MOST {
        bail!("{} flaky tests, more than {MOST}", names.len());
    }
    Ok(())
}

/// What all parts of a gate have found.
pub(super) struct Gathered(PathBuf);

impl Gathered {
    /// Of a gate that begins.
    pub(super) fn begin() -> Result<Self> {
        let path = workspace::target().join("flaky");
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(Self(path)),
        }
    }

    /// Where the parts write.
    pub(super) fn path(&self) -> &std::path::Path {
        &self.0
    }

    pub(super) fn names(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.0).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_are_noise_and_more_are_not() {
        let names: Vec<String> = (0..=MOST).map(|number| number.to_string()).collect();
        assert!(bound(&names[..MOST]).is_ok());
        assert!(bound(&names).is_err());
    }
}
