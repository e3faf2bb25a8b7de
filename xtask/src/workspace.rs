//! Where things lie in this checkout, and how cargo is called in it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

pub(crate) fn root() -> PathBuf {
    // Set again by each `cargo xtask`; the path of the compilation is stale when the checkout was moved.
    let package =
        env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    package.parent().map_or_else(|| package.clone(), Path::to_path_buf)
}

/// The target directory: always the workspace's own, since the daemon and its users look for files in it.
pub(crate) fn target() -> PathBuf {
    root().join("target")
}

/// `path` as it reads from the workspace root.
pub(crate) fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// The cargo that runs this xtask, for host code, as if it had been called by hand in the workspace root.
pub(crate) fn cargo(subcommand: &str) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.arg(subcommand).current_dir(root()).env("CARGO_TARGET_DIR", target());
    for (name, _value) in env::vars_os() {
        if name.to_str().is_some_and(describes_this_package) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Removes from `command` what the cargo that started this xtask, and the toolchain it belongs to, left in the
/// environment: another compiler must not see any of it.
pub(crate) fn forget_outer_cargo(command: &mut Command) {
    for (name, _value) in env::vars_os() {
        if name.to_str().is_some_and(belongs_to_outer_toolchain) {
            command.env_remove(name);
        }
    }
}

/// Runs `command` to its end; a status other than success is an error that shows it.
pub(crate) fn check(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", written(command)))?;
    if !status.success() {
        bail!("{} failed ({status})", written(command));
    }
    Ok(())
}

/// The command as a user would write it.
pub(crate) fn written(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut words = vec![program.file_name().unwrap_or(program.as_os_str()).to_string_lossy()];
    words.extend(command.get_args().map(|argument| argument.to_string_lossy()));
    words.join(" ")
}

fn describes_this_package(name: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

fn belongs_to_outer_toolchain(name: &str) -> bool {
    /// How to reach registries and toolchains, and how many jobs to run: the user's, whatever the compiler.
    const KEPT: [&str; 11] = [
        "CARGO_HOME", "CARGO_BUILD_JOBS", "CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTRIES_",
        "CARGO_REGISTRY_", "CARGO_SOURCE_", "CARGO_TERM_", "RUSTUP_DIST_", "RUSTUP_HOME",
        "RUSTUP_UPDATE_ROOT",
    ];
    let of_a_toolchain = name.starts_with("CARGO") || name.starts_with("RUST") || name == "LD_LIBRARY_PATH";
    of_a_toolchain && !KEPT.iter().any(|kept| name.starts_with(kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_compiler_sees_nothing_of_the_outer_toolchain() {
        for name in [
            "CARGO", "CARGO_TARGET_DIR", "CARGO_ENCODED_RUSTFLAGS", "CARGO_MANIFEST_DIR",
            "CARGO_BUILD_TARGET", "RUSTC", "RUSTFLAGS", "RUSTC_WRAPPER", "RUSTUP_TOOLCHAIN",
            "LD_LIBRARY_PATH",
        ] {
            assert!(belongs_to_outer_toolchain(name), "{name} must go");
        }
    }

    #[test]
    fn another_compiler_keeps_the_way_to_registries_and_toolchains() {
        for name in
            ["CARGO_HOME", "CARGO_HTTP_PROXY", "CARGO_NET_OFFLINE", "RUSTUP_HOME", "PATH", "https_proxy"]
        {
            assert!(!belongs_to_outer_toolchain(name), "{name} must stay");
        }
    }

    #[test]
    fn the_root_holds_the_workspace_manifest() {
        assert!(root().join("Cargo.lock").is_file());
    }
}
