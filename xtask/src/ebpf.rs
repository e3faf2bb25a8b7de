//! `cargo xtask ebpf`: the kernel programs, compiled, linked, and put where the daemon's build looks for them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::toolchain::{self, TARGET};
use crate::workspace;

const PACKAGE: &str = "kevtmon-ebpf";
/// Their profile in `Cargo.toml`, and the directory that cargo names after it.
pub(crate) const PROFILE: &str = "kernel";

/// Builds the programs and returns the path of the object.
pub(crate) fn ebpf() -> Result<PathBuf> {
    let toolchain = toolchain::ensure()?;
    let build = workspace::target().join("bpf-build");
    let mut cargo = toolchain.compiler.cargo("build");
    cargo
        .args([
            "--profile", PROFILE, "--package", PACKAGE, "--bin", PACKAGE, "--features", "programs",
            "--target", TARGET,
        ])
        .arg("--target-dir")
        .arg(&build)
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &toolchain.linker)
        .env("CARGO_ENCODED_RUSTFLAGS", compiler_flags().join("\x1f"));
    workspace::check(&mut cargo)?;

    let built = build.join(TARGET).join(PROFILE).join(PACKAGE);
    let object = workspace::target().join("bpf").join(format!("{PACKAGE}.o"));
    let written = publish(&built, &object)?;
    let state = if written { "written" } else { "unchanged" };
    eprintln!("xtask: {} {state}", workspace::shown(&object));
    Ok(object)
}

fn compiler_flags() -> Vec<String> {
    // The linker turns the profile's debug information into BTF.
    let mut flags = ["-C", "link-arg=--btf"].map(str::to_owned).to_vec();
    // The same object from every checkout: its line information would name the builder's directories.
    let cargo_home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let mapped = [(Some(workspace::root()), "/kevtmon"), (cargo_home, "/cargo")];
    for (directory, name) in mapped {
        if let Some(directory) = directory {
            flags.push(format!("--remap-path-prefix={}={name}", directory.display()));
        }
    }
    flags
}

/// Puts `built` at `object` if it differs, in one step. The daemon is compiled again whenever the object is touched.
fn publish(built: &Path, object: &Path) -> Result<bool> {
    let content = fs::read(built).with_context(|| format!("the linker left no {}", built.display()))?;
    if fs::read(object).is_ok_and(|present| present == content) {
        return Ok(false);
    }
    let place = |path: &Path| format!("cannot write {}", path.display());
    if let Some(directory) = object.parent() {
        fs::create_dir_all(directory).with_context(|| place(directory))?;
    }
    let new = built.with_extension("new");
    fs::write(&new, content).with_context(|| place(&new))?;
    fs::rename(&new, object).with_context(|| place(object))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_written_only_when_it_changed() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let (built, object) = (directory.path().join("built"), directory.path().join("bpf/object.o"));
        fs::write(&built, "one").expect("write");
        assert!(publish(&built, &object).expect("publish"));
        assert!(!publish(&built, &object).expect("publish"));
        fs::write(&built, "two").expect("write");
        assert!(publish(&built, &object).expect("publish"));
        assert_eq!(fs::read_to_string(&object).expect("read"), "two");
    }

    #[test]
    fn a_missing_object_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let error = publish(&directory.path().join("built"), &directory.path().join("object.o")).unwrap_err();
        assert!(error.to_string().contains("left no"), "{error}");
    }
}
