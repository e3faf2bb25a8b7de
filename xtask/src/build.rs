//! `cargo xtask build`: the kernel programs, and the daemon that carries them.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::cross;
use crate::ebpf::ebpf;
use crate::static_link::is_static;
use crate::workspace;

/// The daemon's package and executable.
pub(crate) const DAEMON: &str = "kevtmon";

const LIBRARY_MISSING: &str = "if the linker missed a library: a static executable needs the static C library (libc6-dev has it on \
                               Debian, glibc-static is a package of its own on Fedora)";

#[derive(Args)]
pub(crate) struct Options {
    /// Optimised and static, at target/release/kevtmon
    #[arg(long)]
    release: bool,
    /// For another architecture, as cargo calls it, such as aarch64-unknown-linux-gnu: always static
    #[arg(long, value_name = "TARGET")]
    target: Option<String>,
}

/// Builds with these options and returns the daemon's path.
pub(crate) fn build(options: &Options) -> Result<PathBuf> {
    match &options.target {
        Some(target) => cross::build(target, options.release),
        None if options.release => release(),
        None => debug(),
    }
}

fn debug() -> Result<PathBuf> {
    ebpf()?;
    workspace::check(workspace::cargo("build").args(["--package", DAEMON, "--bin", DAEMON]))?;
    Ok(workspace::target().join("debug").join(DAEMON))
}

/// The daemon as it is shipped: one static executable.
pub(crate) fn release() -> Result<PathBuf> {
    ebpf()?;
    let host = host_triple()?;
    let mut cargo = workspace::cargo("build");
    cargo.args(["--release", "--package", DAEMON, "--bin", DAEMON]);
    link_statically(&mut cargo, &host);
    workspace::check(&mut cargo).context(LIBRARY_MISSING)?;
    let built = workspace::target().join(&host).join("release").join(DAEMON);
    if !is_static(&built)? {
        bail!("{} is not static", workspace::shown(&built));
    }
    let daemon = workspace::target().join("release").join(DAEMON);
    link(&built, &daemon)?;
    eprintln!("xtask: {} is static, {} KiB", workspace::shown(&daemon), fs::metadata(&daemon)?.len() / 1024);
    Ok(daemon)
}

/// The daemon as the tests run it: static, and less optimised than the one that is shipped, which takes longer to build.
pub(crate) fn for_tests() -> Result<PathBuf> {
    const PROFILE: &str = "tested";
    ebpf()?;
    let host = host_triple()?;
    let mut cargo = workspace::cargo("build");
    cargo.args(["--profile", PROFILE, "--package", DAEMON, "--bin", DAEMON]);
    link_statically(&mut cargo, &host);
    workspace::check(&mut cargo).context(LIBRARY_MISSING)?;
    Ok(workspace::target().join(&host).join(PROFILE).join(DAEMON))
}

/// Has `cargo` make static executables for the machine's own target.
pub(crate) fn link_statically(cargo: &mut Command, host: &str) {
    let mut flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    flags.push_str(" -C target-feature=+crt-static");
    // With a target named, the flags spare build scripts and macros, which cannot be static.
    cargo.args(["--target", host]).env_remove("CARGO_ENCODED_RUSTFLAGS").env("RUSTFLAGS", flags.trim_start());
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
