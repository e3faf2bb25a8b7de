//! What is in the guest: process 1, the daemon, the tests, and the programs that the tests start.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::archive::Archive;
use super::kernels::Kernel;
use super::{GUEST, Guest, foreign};
use crate::setup;

/// What the tests and their harness start.
const PROGRAMS: [&str; 26] = [
    "awk", "busybox", "cat", "chmod", "chroot", "cp", "dirname", "env", "findmnt", "ip", "ls", "mount",
    "nsenter", "readlink", "rm", "rmdir", "setpriv", "sh", "sleep", "sort", "sysctl", "taskset", "timeout",
    "true", "umount", "unshare",
];

/// Where process 1 mounts something, or the tests expect a directory.
const DIRECTORIES: [&str; 5] = ["/dev", "/proc", "/run", "/sys", "/tmp"];

/// The initramfs.
pub(super) fn collect(guest: &Guest, kernel: &Kernel) -> Result<Vec<u8>> {
    let mut files = match &guest.programs {
        Some(root) => foreign::programs(root, &PROGRAMS)?,
        None => own_programs()?,
    };
    files.insert("/bin/kevtmon".to_owned(), guest.daemon.clone());
    for (name, path) in &guest.executables {
        let place = if name == GUEST { "/init".to_owned() } else { format!("/tests/{name}") };
        files.insert(place, path.clone());
    }
    for (index, module) in kernel.modules.iter().enumerate() {
        files.insert(format!("/modules/{index:02}.ko"), module.clone());
    }

    let mut archive = Archive::default();
    for directory in DIRECTORIES {
        archive.directory(directory)?;
    }
    for (place, path) in files {
        let content = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        archive.file(&place, &content)?;
    }
    archive.finish()
}

/// This machine's, with the libraries that they load.
fn own_programs() -> Result<BTreeMap<String, PathBuf>> {
    let mut files = BTreeMap::new();
    let directories = setup::search_path();
    for program in PROGRAMS {
        let found = setup::find_program(&directories, program)
            .with_context(|| format!("{program} is not installed"))?;
        for library in libraries(&found)? {
            files.insert(library.clone(), library.into());
        }
        files.insert(format!("/bin/{program}"), found);
    }
    Ok(files)
}

/// The libraries that the program loads, and what loads them.
fn libraries(program: &Path) -> Result<Vec<String>> {
    let output = Command::new("ldd").arg(program).output().context("cannot start ldd")?;
    // It fails for a static program, which loads none.
    Ok(paths(&String::from_utf8_lossy(&output.stdout)))
}

/// The absolute paths in what `ldd` prints: `libc.so.6 => /lib/libc.so.6 (0x…)`, `/lib64/ld-linux.so.2 (0x…)`.
fn paths(printed: &str) -> Vec<String> {
    let words = printed.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    words.filter(|word| !word.ends_with(':')).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_their_loader_are_read_from_ldd() {
        let printed = "\tlinux-vdso.so.1 (0x00007fff)\n\tlibc.so.6 => /lib/libc.so.6 (0x00007f00)\n\
                       \t/lib64/ld-linux-x86-64.so.2 (0x00007f01)\n";
        assert_eq!(paths(printed), ["/lib/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
        assert!(paths("\tnot a dynamic executable\n").is_empty());
    }
}
