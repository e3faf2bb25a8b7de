//! What the daemon is made of, for scanners of known weaknesses: CycloneDX in JSON, made by `cargo cyclonedx`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::build::{DAEMON, host_triple};
use crate::setup;
use crate::workspace;

/// The tool, and the version that is installed where there is none.
const TOOL: (&str, &str) = ("cargo-cyclonedx", "0.5.9");
/// The version of the format: the newest that the tool writes.
const FORMAT: &str = "1.5";
/// Directories with a manifest, next to each of which the tool writes; and one with directories of that kind.
const MEMBERS: [&str; 5] = ["monitor", "monitor-ebpf", "tests", "xtask", "xtask/packaging"];
const LIBRARIES: &str = "monitor/crates";

/// Writes that of the daemon into a directory; returns the file.
pub(super) fn write(into: &Path, time: u64) -> Result<PathBuf> {
    setup::ensure_cargo_tool(TOOL, "the SBOM is made by cargo-cyclonedx")?;
    // No file of somebody else is called like that.
    let name = format!("{DAEMON}-sbom-{}", std::process::id());
    let mut cargo = workspace::cargo("cyclonedx");
    cargo.args(["--format", "json", "--spec-version", FORMAT, "--no-build-deps", "--quiet"]);
    cargo.args(["--target", &host_triple()?, "--override-filename", &name]);
    let made = workspace::check(cargo.env("SOURCE_DATE_EPOCH", time.to_string()));
    let target = into.join(format!("{DAEMON}-{}.cdx.json", env!("CARGO_PKG_VERSION")));
    let taken = take(&workspace::root(), &format!("{name}.json"), &target);
    made.and(taken).map(|()| target)
}

/// Moves the file of the daemon, and deletes those of the other packages.
fn take(root: &Path, name: &str, target: &Path) -> Result<()> {
    let mut found = false;
    let daemon = root.join("monitor");
    let libraries =
        fs::read_dir(root.join(LIBRARIES)).into_iter().flatten().flatten().map(|entry| entry.path());
    for member in MEMBERS.iter().map(|member| root.join(member)).chain(libraries) {
        let file = member.join(name);
        if !file.exists() {
            continue;
        }
        if member == daemon {
            let text =
                fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            // Our own packages are named by their paths; where this checkout lies is nobody's concern.
            let text = text.replace(&format!("file://{}/", root.display()), "file:///");
            fs::write(target, text).with_context(|| format!("cannot write {}", target.display()))?;
            found = true;
        }
        fs::remove_file(&file).with_context(|| format!("cannot delete {}", file.display()))?;
    }
    if !found {
        bail!("{} made no SBOM of the daemon", TOOL.0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_of_the_workspace_is_cleaned_up_after() {
        let manifest = fs::read_to_string(workspace::root().join("Cargo.toml")).expect("a manifest");
        let members = manifest.lines().find_map(|line| line.strip_prefix("members = ")).expect("members");
        let members: Vec<String> = serde_json::from_str(members).expect("a list");
        let libraries = format!("{LIBRARIES}/*");
        let mut expected = MEMBERS.to_vec();
        expected.insert(1, &libraries);
        assert_eq!(members, expected);
    }

    #[test]
    fn the_file_of_the_daemon_is_taken_and_those_of_others_go() {
        let scratch = tempfile::tempdir().expect("temporary directory");
        for member in ["monitor", "monitor/crates/core", "xtask"] {
            fs::create_dir_all(scratch.path().join(member)).expect("create directory");
            let text = format!("path+file://{}/{member}#kevtmon@0.1.0", scratch.path().display());
            fs::write(scratch.path().join(member).join("a.json"), text).expect("write");
        }
        let target = scratch.path().join("sbom");
        take(scratch.path(), "a.json", &target).expect("it is taken");
        assert_eq!(fs::read_to_string(&target).expect("read"), "path+file:///monitor#kevtmon@0.1.0");
        for member in ["monitor/crates/core", "xtask"] {
            assert!(!scratch.path().join(member).join("a.json").exists());
        }
        assert!(take(scratch.path(), "a.json", &target).is_err());
    }
}
