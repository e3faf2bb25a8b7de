//! `cargo xtask run`: builds everything and becomes the daemon.

use std::os::unix::process::CommandExt as _;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::build;
use crate::setup::Privilege;
use crate::workspace;

#[derive(Args)]
pub(crate) struct Options {
    /// Arguments for `kevtmon run`
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Returns only when the daemon could not be started.
pub(crate) fn run(options: &Options) -> Result<()> {
    let daemon = build::daemon()?;
    let mut argv = vec![daemon.display().to_string()];
    argv.extend(daemon_arguments(&options.arguments));
    let privilege = Privilege::of_this_user();
    if privilege == Privilege::Sudo {
        eprintln!("xtask: the daemon needs root to watch the kernel; starting it through sudo");
    }
    let Some(mut command) = privilege.as_root(&argv, &environment()) else {
        bail!("the daemon needs root, and there is no sudo here. As root, run: {}", argv.join(" "));
    };
    Err(command.exec()).with_context(|| format!("cannot start {}", workspace::written(&command)))
}

fn daemon_arguments(given: &[String]) -> Vec<String> {
    let mut arguments = vec!["run".to_owned()];
    let chosen = given.iter().any(|argument| argument == "--output" || argument.starts_with("--output="));
    if !chosen {
        arguments.extend(["--output", "pretty"].map(str::to_owned));
    }
    arguments.extend(given.iter().cloned());
    arguments
}

/// sudo drops the environment; these are documented ways to steer the daemon.
fn environment() -> Vec<(String, String)> {
    ["RUST_LOG", "KEVTMON_NODE_NAME"]
        .iter()
        .filter_map(|&name| std::env::var(name).ok().map(|value| (name.to_owned(), value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(given: &[&str]) -> Vec<String> {
        daemon_arguments(&given.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn events_are_readable_unless_the_user_chose_otherwise() {
        assert_eq!(arguments(&[]), ["run", "--output", "pretty"]);
        assert_eq!(arguments(&["--runtime", "none"]), ["run", "--output", "pretty", "--runtime", "none"]);
        assert_eq!(arguments(&["--output", "json"]), ["run", "--output", "json"]);
        assert_eq!(arguments(&["--output=none"]), ["run", "--output=none"]);
    }
}
