//! `cargo xtask dist`: all that is delivered, in `target/dist`: tarball, Debian package and image of each architecture, the list
//! of what the daemon is made of (SBOM), and the sums of all.
//!
//! What cannot be made on this machine is left out, and named with the reason.

mod sbom;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use kevtmon_packaging::{ARCHITECTURES, Architecture, Release, checksums, deb, image, reference, tarball};

use crate::build;
use crate::cross;
use crate::setup;
use crate::static_link::is_static;
use crate::workspace;

#[derive(Args)]
pub(crate) struct Options {
    /// Pack this static executable, which is for this machine's architecture, instead of building any
    #[arg(long, value_name = "FILE")]
    daemon: Option<PathBuf>,
}

pub(crate) fn dist(options: &Options) -> Result<()> {
    let directory = workspace::target().join("dist");
    empty(&directory)?;
    let time = time()?;
    let (own, mut left_out) = (own(options)?, Vec::new());
    let mut daemons = vec![own.clone()];
    daemons.extend(others(options, &mut left_out)?);
    let pages = tempfile::tempdir().context("cannot create a directory")?;
    // The same for every architecture.
    reference::write(&own.1, pages.path(), time)?;
    let has_dpkg = setup::find_program(&setup::search_path(), "dpkg-deb").is_some();
    for (architecture, daemon) in daemons {
        let release = Release {
            root: workspace::root(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            architecture,
            time,
            daemon,
            reference: pages.path().to_owned(),
        };
        tarball::pack(&release, &directory)?;
        image::pack(&release, &directory)?;
        if has_dpkg {
            deb::pack(&release, &directory)?;
        } else {
            let debian = architecture.debian;
            left_out
                .push(format!("the Debian package for {debian}: dpkg-deb is not installed (package dpkg)"));
        }
    }
    sbom::write(&directory, time)?;
    checksums::write(&directory)?;
    show(&directory)?;
    for what in left_out {
        eprintln!("xtask: left out: {what}");
    }
    Ok(())
}

/// The daemon for this machine.
fn own(options: &Options) -> Result<(Architecture, PathBuf)> {
    let architecture = Architecture::of_this_machine();
    let architecture = architecture.with_context(|| format!("{} is not packed for", env::consts::ARCH))?;
    let daemon = match &options.daemon {
        Some(daemon) => daemon.clone(),
        None => build::release()?,
    };
    if !is_static(&daemon)? {
        bail!("{} is not static", daemon.display());
    }
    Ok((architecture, daemon))
}

/// The daemons for other architectures, as far as they can be built here.
fn others(options: &Options, left_out: &mut Vec<String>) -> Result<Vec<(Architecture, PathBuf)>> {
    let mut built = Vec::new();
    for architecture in ARCHITECTURES.into_iter().filter(|other| other.kernel != env::consts::ARCH) {
        let target = format!("{}-unknown-linux-gnu", architecture.kernel);
        let reason = match &options.daemon {
            Some(_) => Some("--daemon is for this machine's architecture".to_owned()),
            None => cross::obstacle(&target),
        };
        match reason {
            Some(reason) => left_out.push(format!("{target}: {reason}")),
            None => built.push((architecture, cross::build(&target, true)?)),
        }
    }
    Ok(built)
}

/// The time of all that is packed: that of the commit, so that whoever packs it again gets the same.
fn time() -> Result<u64> {
    const VARIABLE: &str = "SOURCE_DATE_EPOCH";
    let given = env::var(VARIABLE).ok();
    let time = match given {
        Some(time) => time,
        None => {
            let mut git = Command::new("git");
            let asked = git.args(["log", "-1", "--format=%ct"]).current_dir(workspace::root()).output();
            let printed = asked.context("cannot start git")?.stdout;
            String::from_utf8_lossy(&printed).trim().to_owned()
        }
    };
    time.parse().with_context(|| format!("no time of the commit: set {VARIABLE} to seconds since 1970"))
}

/// Makes a directory without what was in it.
fn empty(directory: &Path) -> Result<()> {
    let context = || format!("cannot empty {}", directory.display());
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(context)?;
    }
    fs::create_dir_all(directory).with_context(context)
}

fn show(directory: &Path) -> Result<()> {
    let listed = fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    let mut files: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).collect();
    files.sort();
    for file in files {
        let size = fs::metadata(&file).with_context(|| format!("cannot see {}", file.display()))?.len();
        eprintln!("xtask: {} ({} KiB)", workspace::shown(&file), size.div_ceil(1024));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_architecture_that_is_built_for_can_be_packed() {
        for target in [cross::CHECKED.to_owned(), build::host_triple().expect("cargo answers")] {
            assert!(Architecture::of_target(&target).is_some(), "{target}");
        }
    }

    #[test]
    fn a_dynamic_daemon_is_refused() {
        let daemon = env::current_exe().expect("a test has a path");
        if is_static(&daemon).expect("an executable") {
            return;
        }
        let refused = own(&Options { daemon: Some(daemon) }).unwrap_err().to_string();
        assert!(refused.ends_with("is not static"), "{refused}");
    }

    #[test]
    fn what_a_given_daemon_is_not_for_is_left_out_by_name() {
        let mut left_out = Vec::new();
        let built = others(&Options { daemon: Some("/x".into()) }, &mut left_out).expect("nothing is built");
        assert!(built.is_empty());
        assert_eq!(left_out.len(), ARCHITECTURES.len() - 1, "{left_out:?}");
        assert!(left_out[0].contains("-unknown-linux-gnu: --daemon is for"), "{left_out:?}");
    }

    #[test]
    fn a_directory_is_emptied_and_made() {
        let scratch = tempfile::tempdir().expect("temporary directory");
        let directory = scratch.path().join("dist");
        for _ in 0..2 {
            empty(&directory).expect("it is made");
            assert_eq!(fs::read_dir(&directory).expect("it is there").count(), 0);
            fs::write(directory.join("old"), "").expect("a file can be written");
        }
    }
}
