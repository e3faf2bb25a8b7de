//! Container runtimes of newer releases of Debian's than this machine's, for the end-to-end tests: their programs and what these
//! need, kept in the user's cache. Downloaded and unpacked, not installed: tests see them laid over `/usr`.

use std::env::consts::ARCH;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::debian;
use crate::kubernetes::{cache, mirror};
use crate::prerequisites;
use crate::setup::{self, Privilege};
use crate::static_link::is_static;
use crate::workspace;

/// Debian's releases: with containerd 1.7, Docker 26 and Podman 5.4; with 2.1, 28 and 5.8.
pub(crate) const SUITES: [&str; 2] = ["trixie", "forky"];

/// Changed with what is taken, so that it is taken again.
const RECIPE: u32 = 1;

const PACKAGES: &str = "--include=containerd,runc,docker.io,docker-cli,podman";

/// A mirror may be a copy of some weeks ago. It is signed all the same.
const OF_ANY_AGE: &str = "--aptopt=Acquire::Check-Valid-Until \"false\"";

const PROGRAMS: [&str; 10] = [
    "conmon", "containerd", "containerd-shim-runc-v2", "ctr", "docker", "docker-init", "docker-proxy",
    "dockerd", "podman", "runc",
];
const PLACES: [&str; 2] = ["bin", "sbin"];

/// Taken as they are, where a release has them.
const DIRECTORIES: [&str; 3] = ["lib/podman", "libexec/podman", "share/containers"];

/// Of all libraries only what the programs need is taken: others of the host do not fit its own programs. Those of the C library
/// must be of one release, and older programs work with them.
const LIBC: [&str; 15] = [
    LOADER, "libBrokenLocale.so", "libanl.so", "libc.so", "libc_malloc_debug.so", "libdl.so", "libm.so",
    "libmvec.so", "libnsl.so", "libnss_", "libpthread.so", "libresolv.so", "librt.so", "libthread_db.so",
    "libutil.so",
];
const LOADER: &str = "ld-linux-";

/// The directory of what a release has for `/usr`; unpacked, unless it was before.
pub(crate) fn of(suite: &str, privilege: Privilege) -> Result<PathBuf> {
    let cache = cache()?;
    let directory = cache.join(format!("runtimes-{suite}-{ARCH}-{RECIPE}"));
    // Another checkout may make it now.
    let _lock = setup::lock(&cache, "runtimes.lock")?;
    if directory.is_dir() {
        return Ok(directory);
    }
    prerequisites::ensure("the tests with newer container runtimes", &debian::PREREQUISITES, privilege)?;
    eprintln!("xtask: unpacking the container runtimes of Debian {suite}, once");
    let work = tempfile::tempdir_in(&cache).context("cannot create a directory")?;
    let (archive, root, picked) =
        (work.path().join("root.tar"), work.path().join("root"), work.path().join("picked"));
    let shown = archive.to_string_lossy();
    let words =
        ["mmdebstrap", "--quiet", "--variant=extract", OF_ANY_AGE, PACKAGES, suite, &shown, &mirror()];
    let argv: Vec<String> = words.map(str::to_owned).into();
    let command = privilege.as_root(&argv, &[]).context("mmdebstrap needs root, and there is no sudo here");
    workspace::check(&mut command?)?;
    fs::create_dir(&root).context("cannot create a directory")?;
    let mut tar = Command::new("tar");
    tar.arg("--extract").arg("--file").arg(&archive).arg("--directory").arg(&root).arg("./usr");
    workspace::check(&mut tar)?;
    pick(&root.join("usr"), &picked).with_context(|| format!("cannot take what Debian {suite} has"))?;
    fs::rename(&picked, &directory).with_context(|| format!("cannot create {}", directory.display()))?;
    Ok(directory)
}

fn pick(from: &Path, into: &Path) -> Result<()> {
    let libraries = format!("lib/{ARCH}-linux-gnu");
    for directory in PLACES.into_iter().chain([libraries.as_str()]) {
        let directory = into.join(directory);
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    }
    for directory in DIRECTORIES.map(|directory| from.join(directory)) {
        if let Some(parent) = directory.strip_prefix(from)?.parent().filter(|_| directory.is_dir()) {
            let parent = into.join(parent);
            fs::create_dir_all(&parent).with_context(|| format!("cannot create {}", parent.display()))?;
            workspace::check(Command::new("cp").arg("--archive").args([&directory, &parent]))?;
        }
    }
    let (from_libraries, into_libraries) = (from.join(&libraries), into.join(&libraries));
    let entries =
        fs::read_dir(&from_libraries).with_context(|| format!("cannot list {}", from_libraries.display()))?;
    let mut wanted: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    wanted.retain(|library| LIBC.iter().any(|name| begins(library, name)));
    let loader = wanted.iter().find(|library| begins(library, LOADER)).cloned();
    let loader = loader.context("there is no C library")?;
    for name in PROGRAMS {
        let program = place(from, into, name)?;
        wanted.extend(needed(&program, &loader, &from_libraries)?);
    }
    for library in wanted {
        copy(&library, &into_libraries)?;
    }
    Ok(())
}

/// Puts a program where it was, and a link to it where the installed one may be.
fn place(from: &Path, into: &Path, name: &str) -> Result<PathBuf> {
    let Some(found) = PLACES.into_iter().find(|place| from.join(place).join(name).is_file()) else {
        bail!("there is no {name}");
    };
    let program = from.join(found).join(name);
    copy(&program, &into.join(found))?;
    for other in PLACES.into_iter().filter(|place| *place != found) {
        let link = into.join(other).join(name);
        symlink(format!("../{found}/{name}"), &link)
            .with_context(|| format!("cannot create {}", link.display()))?;
    }
    Ok(program)
}

/// The libraries of a program, as the loader of its release finds them.
fn needed(program: &Path, loader: &Path, libraries: &Path) -> Result<Vec<PathBuf>> {
    if is_static(program)? {
        return Ok(Vec::new());
    }
    let mut list = Command::new(loader);
    list.arg("--library-path").arg(libraries).arg("--list").arg(program);
    let output = list.output().with_context(|| format!("cannot start {}", workspace::written(&list)))?;
    if !output.status.success() {
        bail!("{} failed ({})", workspace::written(&list), output.status);
    }
    let listed = String::from_utf8_lossy(&output.stdout);
    let paths = listed.split_whitespace().map(Path::new);
    Ok(paths.filter(|path| path.starts_with(libraries)).map(Path::to_owned).collect())
}

fn begins(file: &Path, name: &str) -> bool {
    file.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name))
}

/// Copies a file, or what a link leads to.
fn copy(file: &Path, into: &Path) -> Result<()> {
    let name = file.file_name().with_context(|| format!("{} has no name", file.display()))?;
    fs::copy(file, into.join(name)).with_context(|| format!("cannot copy {}", file.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_in_either_place() {
        let work = tempfile::tempdir().expect("temporary directory");
        let (from, into) = (work.path().join("from"), work.path().join("into"));
        for directory in [&from, &into] {
            for place in PLACES {
                fs::create_dir_all(directory.join(place)).expect("a directory");
            }
        }
        fs::write(from.join("sbin/tini"), "tini").expect("a file");
        symlink("../sbin/tini", from.join("bin/docker-init")).expect("a link");
        fs::write(from.join("sbin/dockerd"), "dockerd").expect("a file");
        for name in ["docker-init", "dockerd"] {
            place(&from, &into, name).expect("it is there");
        }
        for place in PLACES {
            let read = |name: &str| fs::read_to_string(into.join(place).join(name)).expect("it is placed");
            assert_eq!((read("docker-init"), read("dockerd")), ("tini".to_owned(), "dockerd".to_owned()));
        }
        let error = place(&from, &into, "podman").expect_err("it is not there");
        assert_eq!(error.to_string(), "there is no podman");
    }
}
