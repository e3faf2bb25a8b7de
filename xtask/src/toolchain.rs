//! The compiler and the linker for kernel programs: which of this machine's are usable, and how they are called.
//!
//! Two compilers are supported, in this order. Debian packages a stable rustc with a prebuilt `core` for
//! bpfel-unknown-none, at /usr/bin/rustc, where rustup's may stand before it in PATH. Elsewhere it is a rustup nightly
//! with rust-src, which builds `core` itself. The linker is bpf-linker, which must read the bitcode of the compiler's LLVM.

mod install;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Result;

use crate::setup;
use crate::workspace;

/// The target that kernel programs are compiled for.
pub(crate) const TARGET: &str = "bpfel-unknown-none";

/// The linker that is installed where there is none, and the oldest one taken.
const LINKER_VERSION: &str = "0.13.0";

/// The nightly that is installed where there is none. It writes bitcode of LLVM 22, which that linker reads.
const NIGHTLY: &str = "nightly-2026-05-20";

#[derive(Debug)]
pub(crate) struct Toolchain {
    pub(crate) compiler: Compiler,
    pub(crate) linker: PathBuf,
}

/// A compiler with a `core` for [`TARGET`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Compiler {
    /// The distribution's rustc, with a prebuilt `core`.
    System { rustc: PathBuf, cargo: PathBuf },
    /// A rustup toolchain with rust-src.
    Nightly { rustup: PathBuf, toolchain: String },
}

impl Compiler {
    /// The compiler's own cargo with `subcommand`, unaware of the cargo that runs this xtask.
    pub(crate) fn cargo(&self, subcommand: &str) -> Command {
        let mut cargo = match self {
            Self::System { cargo, .. } => Command::new(cargo),
            Self::Nightly { rustup, .. } => Command::new(rustup),
        };
        workspace::forget_outer_cargo(&mut cargo);
        // A wrapper from the user's configuration is not made for this compiler.
        cargo.env("RUSTC_WRAPPER", "");
        match self {
            // A stable compiler; the programs need unstable features.
            Self::System { rustc, .. } => {
                cargo.env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1").arg(subcommand);
            }
            Self::Nightly { toolchain, .. } => {
                cargo.args(["run", toolchain, "cargo", subcommand, "-Z", "build-std=core"]);
            }
        }
        cargo.current_dir(workspace::root());
        cargo
    }
}

/// The toolchain of this machine, installed if it was missing.
pub(crate) fn ensure() -> Result<Toolchain> {
    install::ensure()
}

/// Standard output of a program that exited with 0.
type Output<'a> = &'a dyn Fn(&Path, &[&str]) -> Option<String>;

/// Where to look, and how to query what is found there.
struct Probe<'a> {
    /// Directories searched for rustup and the linker, in order.
    search: Vec<PathBuf>,
    /// Where the distribution keeps its compiler.
    system: PathBuf,
    output: Output<'a>,
}

impl Probe<'static> {
    fn of_this_machine() -> Self {
        Self { search: setup::search_path(), system: PathBuf::from("/usr/bin"), output: &output }
    }
}

impl Probe<'_> {
    /// The compiler, or why each candidate is none.
    fn compiler(&self) -> Result<Compiler, String> {
        let system = match self.system_compiler() {
            Ok(compiler) => return Ok(compiler),
            Err(reason) => reason,
        };
        self.nightly().map_err(|nightly| format!("{system}; {nightly}"))
    }

    fn system_compiler(&self) -> Result<Compiler, String> {
        let (rustc, cargo) = (self.system.join("rustc"), self.system.join("cargo"));
        let shown = rustc.display();
        if !rustc.is_file() || !cargo.is_file() {
            return Err(format!("{shown} with its cargo is not installed"));
        }
        self.is_recent(&rustc, &["--version"]).map_err(|reason| format!("{shown} {reason}"))?;
        let libraries = (self.output)(&rustc, &["--print", "target-libdir", "--target", TARGET]);
        if libraries.is_none_or(|directory| !holds_core(Path::new(directory.trim()))) {
            return Err(format!("{shown} has no core for {TARGET}"));
        }
        Ok(Compiler::System { rustc, cargo })
    }

    fn nightly(&self) -> Result<Compiler, String> {
        let Some(rustup) = setup::find_program(&self.search, "rustup") else {
            return Err("rustup is not installed".to_owned());
        };
        let mut reasons = Vec::new();
        for toolchain in [NIGHTLY, "nightly"] {
            let Some(sysroot) = (self.output)(&rustup, &["run", toolchain, "rustc", "--print", "sysroot"])
            else {
                reasons.push(format!("rustup has no {toolchain}"));
                continue;
            };
            if !Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core/src/lib.rs").is_file() {
                reasons.push(format!("{toolchain} has no rust-src"));
                continue;
            }
            match self.is_recent(&rustup, &["run", toolchain, "rustc", "--version"]) {
                Ok(()) => return Ok(Compiler::Nightly { rustup, toolchain: toolchain.to_owned() }),
                Err(reason) => reasons.push(format!("{toolchain} {reason}")),
            }
        }
        Err(reasons.join("; "))
    }

    /// The linker, or why there is none.
    fn linker(&self) -> Result<PathBuf, String> {
        let mut reason = "bpf-linker is not installed".to_owned();
        for directory in &self.search {
            let linker = directory.join("bpf-linker");
            if !linker.is_file() {
                continue;
            }
            let answer = (self.output)(&linker, &["--version"]).unwrap_or_default();
            match version(&answer) {
                Some(found) if Some(found) >= number(LINKER_VERSION) => return Ok(linker),
                Some(_) => reason = format!("{} is older than {LINKER_VERSION}", linker.display()),
                None => reason = format!("{} does not start", linker.display()),
            }
        }
        Err(reason)
    }

    fn is_recent(&self, program: &Path, arguments: &[&str]) -> Result<(), String> {
        let oldest = env!("CARGO_PKG_RUST_VERSION");
        let answer = (self.output)(program, arguments).unwrap_or_default();
        match version(&answer) {
            Some(found) if Some(found) >= number(oldest) => Ok(()),
            Some(_) => Err(format!("is older than {oldest}")),
            None => Err("does not start".to_owned()),
        }
    }
}

fn output(program: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    workspace::forget_outer_cargo(&mut command);
    // A query must not make rustup download a toolchain.
    command.env("RUSTUP_AUTO_INSTALL", "0").args(arguments).stdin(Stdio::null());
    let output = command.output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn holds_core(directory: &Path) -> bool {
    fs::read_dir(directory).is_ok_and(|entries| {
        entries.flatten().any(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with("libcore-") && name.ends_with(".rlib")
        })
    })
}

/// The number in what `--version` prints: `rustc 1.96.0 (…)`, `bpf-linker 0.13.0`.
fn version(printed: &str) -> Option<[u32; 3]> {
    printed.split_whitespace().nth(1).and_then(number)
}

/// `1.96.0`, `1.92`, `1.97.0-nightly`.
fn number(text: &str) -> Option<[u32; 3]> {
    let mut parts = text.split('-').next()?.split('.').map(str::parse);
    let major = parts.next()?.ok()?;
    let minor = parts.next()?.ok()?;
    Some([major, minor, parts.next().and_then(Result::ok).unwrap_or(0)])
}

#[cfg(test)]
mod tests;
