//! In: the kernel programs that `cargo xtask ebpf` left, and the checkout. Out: a copy of the programs in
//! `OUT_DIR/kevtmon-ebpf.o` (empty when they were not built) and the revision in `KEVTMON_GIT_REVISION`.
//! No eBPF compiler is needed: a plain `cargo build` gives a daemon without programs, which reports that it has none.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// What the daemon is made of, seen from the workspace root. Only these make a revision dirty.
const INPUTS: [&str; 4] = ["monitor", "monitor-ebpf", "Cargo.toml", "Cargo.lock"];

fn main() -> io::Result<()> {
    let package = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let root = package.parent().unwrap_or(&package);
    embed_programs(root, Path::new(&variable("OUT_DIR")?))?;
    println!("cargo::rustc-env=KEVTMON_GIT_REVISION={}", revision(root));
    for input in INPUTS {
        watch(&root.join(input));
    }
    Ok(())
}

fn embed_programs(root: &Path, out: &Path) -> io::Result<()> {
    let built = root.join("target/bpf");
    // Cargo takes a watched path that does not exist for one that has changed, and would compile the daemon on
    // every call; a watched directory that exists changes when the object appears.
    if fs::create_dir_all(&built).is_ok() {
        watch(&built);
    }
    let object = match fs::read(built.join("kevtmon-ebpf.o")) {
        Ok(object) => object,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    fs::write(out.join("kevtmon-ebpf.o"), object)
}

/// The short commit hash, with `-dirty` when an input differs from that commit; `unknown` outside a git checkout.
fn revision(root: &Path) -> String {
    let Some(commit) = git(root, &["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    for name in ["HEAD", "logs/HEAD", "packed-refs"] {
        if let Some(path) = git(root, &["rev-parse", "--git-path", name]) {
            watch(&root.join(path));
        }
    }
    let mut status = vec!["status", "--porcelain", "--"];
    status.extend(INPUTS);
    match git(root, &status) {
        Some(changes) if changes.is_empty() => commit,
        _ => commit + "-dirty",
    }
}

fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    // Without the option `git status` refreshes the index, and a build would write to the checkout.
    let output =
        Command::new("git").arg("--no-optional-locks").args(arguments).current_dir(root).output().ok()?;
    if !output.status.success() {
        return None;
    }
    String::from_utf8(output.stdout).ok().map(|text| text.trim_end().to_owned())
}

fn watch(path: &Path) {
    if path.exists() {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

fn variable(name: &str) -> io::Result<String> {
    env::var(name).map_err(|error| io::Error::other(format!("{name}: {error}")))
}
