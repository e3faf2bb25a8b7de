//! What the daemon prints of itself: manual pages, completions, the default configuration.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::tool::run;

pub(crate) const PAGES: &str = "man";
pub(crate) const COMPLETIONS: &str = "completions";
pub(crate) const CONFIGURATION: &str = "kevtmon.toml";

/// Shells, and what their completions are called.
const SHELLS: [(&str, &str); 3] = [("bash", BASH), ("zsh", ZSH), ("fish", FISH)];
pub(crate) const BASH: &str = "kevtmon.bash";
pub(crate) const ZSH: &str = "_kevtmon";
pub(crate) const FISH: &str = "kevtmon.fish";

/// Has a daemon that runs on this machine write it into a directory, which is made; the pages have the day of `time`.
pub fn write(daemon: &Path, into: &Path, time: u64) -> Result<()> {
    let make = |directory: PathBuf| {
        fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))
    };
    make(into.join(COMPLETIONS))?;
    let write = |file: PathBuf, text: Vec<u8>| {
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    };
    let mut manual = Command::new(daemon);
    manual.arg("manual").arg(into.join(PAGES)).env("SOURCE_DATE_EPOCH", time.to_string());
    run(&mut manual)?;
    for (shell, file) in SHELLS {
        let text = run(Command::new(daemon).args(["completions", shell]))?;
        write(into.join(COMPLETIONS).join(file), text)?;
    }
    write(into.join(CONFIGURATION), run(Command::new(daemon).args(["config", "default"]))?)
}
