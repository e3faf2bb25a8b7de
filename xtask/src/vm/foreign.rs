//! Programs of another architecture than this machine's, for its guests: Debian's packages, unpacked in the cache.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::arch::Arch;
use super::suites;
use crate::kubernetes::SUITE;
use crate::setup::{self, Privilege};

/// What the tests start is in them. `usr-is-merged` is there for its name: what else gives that needs Perl.
const PACKAGES: [&str; 9] = [
    "busybox-static", "coreutils", "dash", "iproute2", "mawk", "mount", "procps", "usr-is-merged",
    "util-linux",
];

/// Of the package of the compiler's tools.
const READELF: &str = "aarch64-linux-gnu-readelf";

/// The directory of the unpacked packages; downloaded, unless they were before.
pub(super) fn root(arch: Arch, privilege: Privilege) -> Result<PathBuf> {
    let (parent, _lock) = super::cache()?;
    let root = parent.join(format!("programs-{}", arch.debian()));
    if !root.is_dir() {
        let apt = suites::apt(arch, SUITE, suites::DEBIAN, &parent)?;
        if !apt.has_lists() {
            apt.update(&format!("the guests' programs are in Debian's {SUITE}"), privilege)?;
        }
        apt.unpack(&PACKAGES, &root, privilege)?;
    }
    Ok(root)
}

/// These programs and the libraries that they load, by their places in the guest.
pub(super) fn programs(root: &Path, names: &[&str]) -> Result<BTreeMap<String, PathBuf>> {
    let below = |directories: &[&str]| directories.iter().map(|it| root.join(it)).collect::<Vec<_>>();
    let directories = below(&["bin", "sbin", "usr/bin", "usr/sbin"]);
    let libraries = below(&["lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu"]);
    let find = |directories: &[PathBuf], name: &str| {
        setup::find_program(directories, name)
            .with_context(|| format!("no package of {PACKAGES:?} has {name}"))
    };
    let mut files = BTreeMap::new();
    for &name in names {
        // An installed package would have linked it.
        let packed = if name == "awk" { "mawk" } else { name };
        files.insert(format!("/bin/{name}"), find(&directories, packed)?);
    }
    let mut unread: Vec<PathBuf> = files.values().cloned().collect();
    while let Some(file) = unread.pop() {
        for library in needed(&file)? {
            // The loader is found there, too.
            let place = format!("/lib/{library}");
            if files.contains_key(&place) {
                continue;
            }
            let found = find(&libraries, &library)?;
            unread.push(found.clone());
            files.insert(place, found);
        }
    }
    Ok(files)
}

/// The names of the libraries that a program or a library loads.
fn needed(file: &Path) -> Result<Vec<String>> {
    let mut readelf = Command::new(READELF);
    let output = readelf.arg("--dynamic").arg(file).env("LC_ALL", "C").output();
    let output = output.with_context(|| format!("cannot start {READELF}"))?;
    if !output.status.success() {
        bail!("{READELF} cannot read {} ({})", file.display(), output.status);
    }
    Ok(listed(&String::from_utf8_lossy(&output.stdout)))
}

/// In what `readelf` prints: ` 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]`.
fn listed(printed: &str) -> Vec<String> {
    let lines = printed.lines().filter(|line| line.contains("(NEEDED)"));
    lines.filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_readelf() {
        let printed = "Dynamic section at offset 0xa9a80 contains 30 entries:\n\
                       \x20 Tag        Type                         Name/Value\n\
                       \x200x0000000000000001 (NEEDED)             Shared library: [libmnl.so.0]\n\
                       \x200x0000000000000001 (NEEDED)             Shared library: [ld-linux-aarch64.so.1]\n\
                       \x200x000000000000000e (SONAME)             Library soname: [libx.so.1]\n";
        assert_eq!(listed(printed), ["libmnl.so.0", "ld-linux-aarch64.so.1"]);
        assert!(listed("\nThere is no dynamic section in this file.\n").is_empty());
    }
}
