//! What is delivered, packed of a static daemon: a tarball, a Debian package, an image for containers.
//!
//! In: the daemon for an architecture, the files of `deploy/`, and what the daemon prints of itself (manual pages, completions,
//! default configuration). Out: files that are the same, byte by byte, of the same input. The tools are those of any Debian:
//! `tar`, `gzip`, `sha256sum`, `dpkg-deb`. Nothing here compiles, installs or needs root.

pub mod checksums;
pub mod deb;
pub mod image;
pub mod reference;
pub mod tarball;

mod tool;
mod tree;

use std::path::PathBuf;

/// An architecture, by the names that others have for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Architecture {
    /// As the kernel calls it (`uname -m`), and Rust.
    pub kernel: &'static str,
    /// As Debian, Docker and Kubernetes call it.
    pub debian: &'static str,
}

/// Those for which there are packages.
pub static ARCHITECTURES: [Architecture; 2] =
    [Architecture { kernel: "x86_64", debian: "amd64" }, Architecture { kernel: "aarch64", debian: "arm64" }];

impl Architecture {
    /// That of a target of cargo's, such as `aarch64-unknown-linux-gnu`.
    pub fn of_target(target: &str) -> Option<Self> {
        ARCHITECTURES.into_iter().find(|known| target.split('-').next() == Some(known.kernel))
    }

    pub fn of_this_machine() -> Option<Self> {
        Self::of_target(std::env::consts::ARCH)
    }
}

#[derive(Clone, Debug)]
pub struct Release {
    pub root: PathBuf,
    /// Version, such as `0.1.0`.
    pub version: String,
    /// For which architecture the daemon is.
    pub architecture: Architecture,
    /// Seconds since 1970: the time of all files that are packed.
    pub time: u64,
    pub daemon: PathBuf,
    /// What [`reference::write`] wrote.
    pub reference: PathBuf,
}

impl Release {
    /// The beginning of the names of its files.
    fn name(&self) -> String {
        format!("kevtmon-{}-{}-linux", self.version, self.architecture.kernel)
    }
}

#[cfg(test)]
mod tests;
