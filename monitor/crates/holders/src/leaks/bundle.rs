//! Which directories of the host a container has mounted: read from the bundle that its runtime gave to runc, since what is
//! mounted in the container names neither pod nor directory. Docker, containerd, CRI-O and Podman all make such bundles.
//!
//! The bundle is found through the process that watches the container, which is root of the node and has it, or one beside
//! it, as its current directory, or is given it as an argument (conmon). Of the file nothing but the mounts is kept.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use kevtmon_observation::BindMount;
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::dir::Buffer;
use kevtmon_sources::procfs::root::is_root_of_node;
use kevtmon_sources::programs::starts_containers;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fstat};
use serde::Deserialize;

/// Processes between one of a container and the one that watches it.
const DEPTH: usize = 32;
/// What is read of a specification, in bytes.
const MOST: u64 = 4 << 20;
const BINDS_MAX: usize = 128;
const ID_DIGITS: usize = 64;

#[derive(Deserialize)]
struct Spec {
    #[serde(default)]
    mounts: Vec<SpecMount>,
}

#[derive(Deserialize)]
struct SpecMount {
    destination: String,
    #[serde(default)]
    source: String,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    options: Vec<String>,
}

/// The mounts of directories of the host in the container that a process is in.
pub(super) fn binds(proc: &Proc, tgid: u32, cgroup: &str) -> Option<Vec<BindMount>> {
    let id = container_id(cgroup)?;
    let watcher = watcher(proc, tgid)?;
    let name = |cwd: &String| Path::new(cwd).file_name().is_some_and(|name| name == id);
    let own = proc.link(watcher, "cwd").as_ref().is_some_and(name);
    let cwd = proc.path(watcher, "cwd");
    let places = [own.then(|| cwd.clone()), Some(cwd.join("..").join(id)), given(proc, watcher, id)];
    let text = places.into_iter().flatten().find_map(|bundle| file_of_root(&bundle))?;
    Some(parse(&text))
}

/// The bundle of this container that the watcher was given as an argument, as it sees it (conmon(8)).
fn given(proc: &Proc, watcher: u32, id: &str) -> Option<PathBuf> {
    let arguments = proc.arguments(watcher)?;
    let after = |names: [&str; 2]| {
        let place = arguments.iter().position(|argument| names.contains(&argument.as_str()))?;
        arguments.get(place + 1)
    };
    let is_its = after(["-c", "--cid"]).is_some_and(|of| of == id);
    let bundle = Path::new(after(["-b", "--bundle"]).filter(|_| is_its)?).strip_prefix("/").ok()?;
    Some(proc.path(watcher, "root").join(bundle))
}

/// The id of the innermost container that a control group is of. In a part that is delegated, which begins with a doubled slash,
/// somebody else chooses the names.
fn container_id(cgroup: &str) -> Option<&str> {
    let cgroup = cgroup.split_once("//").map_or(cgroup, |(of_root, _delegated)| of_root);
    let is_id = |word: &&str| word.len() == ID_DIGITS && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    cgroup.rsplit(|c: char| !c.is_ascii_alphanumeric()).find(is_id)
}

fn watcher(proc: &Proc, tgid: u32) -> Option<u32> {
    let (mut links, mut text) = (Buffer::default(), Vec::new());
    let mut pid = tgid;
    for _ in 0..DEPTH {
        pid = proc.stat(pid)?.ppid;
        let dir = proc.dir(pid).ok()?;
        let exe = dir.link(c"exe", &mut links).ok()?.into_owned();
        if starts_containers(&exe) && is_root_of_node(&dir, &mut links, &mut text) {
            return Some(pid);
        }
    }
    None
}

/// The specification in a bundle, if only root can have written it. Its path is followed from a directory of a process that
/// is root of the node, and the file is no link.
fn file_of_root(bundle: &Path) -> Option<Vec<u8>> {
    let directory = File::open(bundle).ok()?;
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = File::from(openat(&directory, c"config.json", flags, Mode::empty()).ok()?);
    let stat = fstat(&file).ok()?;
    if stat.st_uid != 0 || stat.st_mode & 0o022 != 0 || stat.st_mode & libc::S_IFMT != libc::S_IFREG {
        return None;
    }
    let mut text = Vec::new();
    file.take(MOST).read_to_end(&mut text).ok()?;
    Some(text)
}

fn parse(text: &[u8]) -> Vec<BindMount> {
    let spec: Option<Spec> = serde_json::from_slice(text).ok();
    let is_bind = |mount: &SpecMount| {
        let is_so = |option: &String| matches!(option.as_str(), "bind" | "rbind");
        mount.source.starts_with('/') && (mount.kind == "bind" || mount.options.iter().any(is_so))
    };
    let mounts = spec.into_iter().flat_map(|spec| spec.mounts).filter(is_bind).take(BINDS_MAX);
    mounts.map(bind).collect()
}

fn bind(mount: SpecMount) -> BindMount {
    let is_propagation = |option: &String| {
        let plain = option.strip_prefix('r').unwrap_or(option);
        matches!(plain, "private" | "slave" | "shared")
    };
    let propagation = mount.options.into_iter().rev().find(is_propagation);
    BindMount { source: mount.source, destination: mount.destination, propagation }
}

/// The one of these by which a container has what is mounted there: the innermost.
pub(super) fn of_mount<'b>(binds: &'b [BindMount], mountpoint: &str) -> Option<&'b BindMount> {
    let above = binds.iter().filter(|bind| bind.on_host(mountpoint).is_some());
    above.max_by_key(|bind| bind.destination.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounts_of_directories_of_the_host_are_kept() {
        let text = br#"{"process":{"env":["TOKEN=hunter2"]},"mounts":[
            {"destination":"/proc","type":"proc","source":"proc"},
            {"destination":"/mem","type":"bind","source":"/k/pods/u","options":["rbind","ro","rprivate"]},
            {"destination":"/host","source":"/","options":["rbind","rslave"]},
            {"destination":"/plain","type":"bind","source":"/x"}]}"#;
        let binds = parse(text);
        let shown: Vec<_> = binds
            .iter()
            .map(|bind| (bind.source.as_str(), bind.destination.as_str(), bind.propagation.as_deref()))
            .collect();
        let expected =
            [("/k/pods/u", "/mem", Some("rprivate")), ("/", "/host", Some("rslave")), ("/x", "/plain", None)];
        assert_eq!(shown, expected);
        assert_eq!(of_mount(&binds, "/host/mem").unwrap().source, "/");
        assert_eq!(of_mount(&binds, "/mem").unwrap().source, "/k/pods/u");
        assert_eq!(of_mount(&binds, "/other"), None);
        assert_eq!(parse(b"{"), []);
    }

    #[test]
    fn a_bundle_that_is_given_as_an_argument_is_found_for_its_own_container_only() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("7")).unwrap();
        let of = |arguments: &str| {
            std::fs::write(directory.path().join("7/cmdline"), arguments.replace(' ', "\0")).unwrap();
            given(&Proc::new(directory.path()), 7, "ab")
        };
        let found = Some(directory.path().join("7/root/run/ab/userdata"));
        assert_eq!(of("conmon --api-version 1 -c ab -b /run/ab/userdata -p /run/pid "), found);
        assert_eq!(of("conmon --cid ab --bundle /run/ab/userdata "), found);
        assert_eq!(of("conmon -c cd -b /run/ab/userdata "), None, "of another one");
        assert_eq!(of("conmon -c ab -b run/ab "), None);
        assert_eq!(of("conmon -c ab -b "), None);
    }

    #[test]
    fn the_innermost_container_of_a_control_group_counts() {
        let (outer, inner) = ("a".repeat(64), "b".repeat(64));
        assert_eq!(container_id(&format!("/docker/{outer}/docker-{inner}.scope")), Some(inner.as_str()));
        let delegated = format!("/docker/{outer}//docker-{inner}.scope");
        assert_eq!(container_id(&delegated), Some(outer.as_str()), "a name that the container chose");
        assert_eq!(container_id("/system.slice/ssh.service"), None);
    }
}
