//! `cargo xtask build`: the kernel programs, and the daemon that carries them.
//!
//! Executables are static by `.cargo/config.toml`, for the machine's own target as for others.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::cross;
use crate::ebpf::ebpf;
use crate::static_link::is_static;
use crate::workspace;

/// The daemon's executable, and its package.
pub(crate) const DAEMON: &str = "kevtmon";
/// Its libraries that no other one of them needs.
const LIBRARIES: [&str; 3] = ["kevtmon-holders", "kevtmon-render", "kevtmon-server"];

const LIBRARY_MISSING: &str = "if the linker missed a library: a static executable needs the static C library (libc6-dev has it on \
                               Debian, glibc-static is a package of its own on Fedora)";

#[derive(Args)]
pub(crate) struct Options {
    /// As it is shipped, optimised as a whole, at target/release/kevtmon: this takes some minutes more
    #[arg(long)]
    release: bool,
    /// For another architecture, as cargo calls it, such as aarch64-unknown-linux-gnu
    #[arg(long, value_name = "TARGET")]
    target: Option<String>,
}

/// Builds with these options and returns the daemon's path.
pub(crate) fn build(options: &Options) -> Result<PathBuf> {
    match &options.target {
        Some(target) => cross::build(target, options.release),
        None if options.release => release(),
        None => daemon(),
    }
}

/// The daemon as it is run from a checkout and tested, at target/debug/kevtmon.
pub(crate) fn daemon() -> Result<PathBuf> {
    eprintln!("xtask: building the daemon; the first time this takes five to eight minutes");
    // Its libraries need no kernel programs: they are compiled while their compiler is installed.
    std::thread::scope(|scope| {
        let libraries = scope.spawn(|| {
            // With the daemon's package, so that they are compiled with the features that it asks of their dependencies.
            let packages = [DAEMON].iter().chain(&LIBRARIES).flat_map(|name| ["--package", name]);
            workspace::check(workspace::cargo("build").arg("--lib").args(packages))
        });
        ebpf()?;
        libraries.join().unwrap_or_else(|panic| resume_unwind(panic))
    })?;
    link_program(&[], "debug")
}

/// The daemon as it is shipped, at target/release/kevtmon.
pub(crate) fn release() -> Result<PathBuf> {
    ebpf()?;
    eprintln!("xtask: building the daemon as it is shipped, for ten to fifteen minutes");
    let daemon = link_program(&["--release"], "release")?;
    eprintln!("xtask: {} is static, {} KiB", workspace::shown(&daemon), fs::metadata(&daemon)?.len() / 1024);
    Ok(daemon)
}

/// Builds the daemon's program, and links it from where cargo puts it into the directory of its profile.
fn link_program(arguments: &[&str], directory: &str) -> Result<PathBuf> {
    let mut cargo = workspace::cargo("build");
    cargo.args(["--package", DAEMON]).args(arguments);
    workspace::check(&mut cargo).context(LIBRARY_MISSING)?;
    let built = workspace::target().join(host_triple()?).join(directory).join(DAEMON);
    if !is_static(&built)? {
        bail!(
            "{} is not static: RUSTFLAGS take the place of the flags in .cargo/config.toml",
            workspace::shown(&built)
        );
    }
    let daemon = workspace::target().join(directory).join(DAEMON);
    link(&built, &daemon)?;
    Ok(daemon)
}

/// The machine's own target, as cargo calls it.
pub(crate) fn host_triple() -> Result<String> {
    let output = workspace::cargo("-vV").output().context("cannot start cargo")?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().find_map(|line| line.strip_prefix("host: ")) {
        Some(host) => Ok(host.to_owned()),
        None => bail!("`cargo -vV` names no host"),
    }
}

/// Makes `link` the same file as `built`, in one step: a daemon that runs from there keeps its file.
fn link(built: &Path, link: &Path) -> Result<()> {
    let same = match (fs::metadata(built), fs::metadata(link)) {
        (Ok(built), Ok(link)) => (built.dev(), built.ino()) == (link.dev(), link.ino()),
        _ => false,
    };
    if same {
        return Ok(());
    }
    if let Some(directory) = link.parent() {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    }
    let new = link.with_extension(format!("new-{}", std::process::id()));
    fs::hard_link(built, &new)
        .and_then(|()| fs::rename(&new, link))
        .with_context(|| format!("cannot link {}", link.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_follows_the_newest_build() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let (built, linked) =
            (directory.path().join("triple/kevtmon"), directory.path().join("release/kevtmon"));
        fs::create_dir_all(directory.path().join("triple")).expect("create directory");
        for content in ["one", "two"] {
            let _ = fs::remove_file(&built);
            fs::write(&built, content).expect("write");
            link(&built, &linked).expect("link");
            link(&built, &linked).expect("link again");
            assert_eq!(fs::read_to_string(&linked).expect("read"), content);
        }
        assert_eq!(fs::read_dir(directory.path().join("release")).expect("list").count(), 1);
    }

    #[test]
    fn the_host_triple_is_of_this_machine() {
        assert!(host_triple().expect("cargo answers").starts_with(std::env::consts::ARCH));
    }
}
