//! `SHA256SUMS`: what `sha256sum --check` compares downloaded files with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::tool::run;
use crate::tree::files;

const NAME: &str = "SHA256SUMS";

/// Writes the sums of all other files in a directory; returns the file.
pub fn write(directory: &Path) -> Result<PathBuf> {
    let names = files(directory)?.into_iter().map(|(name, _)| name).filter(|name| name != NAME);
    let mut sum = Command::new("sha256sum");
    let printed = run(sum.arg("--").args(names).current_dir(directory))?;
    let sums = directory.join(NAME);
    fs::write(&sums, printed).with_context(|| format!("cannot write {}", sums.display()))?;
    Ok(sums)
}

/// The sum of one file, in hexadecimal digits.
pub(crate) fn of(file: &Path) -> Result<String> {
    let printed = run(Command::new("sha256sum").arg("--").arg(file))?;
    let printed = String::from_utf8_lossy(&printed);
    // It puts a backslash before the sum of a file whose name it had to escape.
    let sum = printed.split_whitespace().next().map(|word| word.trim_start_matches('\\'));
    sum.map(str::to_owned).context("sha256sum printed nothing")
}
