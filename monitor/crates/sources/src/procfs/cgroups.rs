//! The control group of a process, and which of the names in its path root has made.
//!
//! Whoever may write to a directory of the hierarchy makes groups with any names below it, such as those of a container
//! that is somebody else's. So the directories are looked at; where they cannot be, because the hierarchy is not mounted at
//! the usual place, no name counts as root's.
//!
//! In a control group namespace of its own, as most containers have, a process sees only a part of the paths of others, and
//! of the hierarchies. A reader enters the initial one, and looks at the hierarchies as the node's first processes see them.
//! So it does in another mount namespace than theirs: Docker gives a container only its own part of hierarchies of v1, in
//! whatever namespace it is.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use kevtmon_observation::cgroup::{self, is_roots, most_specific};
use nix::sched::{CloneFlags, setns};

use super::Proc;

/// Where hierarchies are mounted, each in a directory of its own beside v1.
const MOUNTED: &str = "sys/fs/cgroup";

/// The initial control group namespace (`PROC_CGROUP_INIT_INO`, include/linux/proc_ns.h).
const INITIAL: &str = "cgroup:[4026531835]";
/// Processes of the node that are in it, unless this one is in a process namespace of its own: kthreadd, which cannot hang
/// who reads it, and init.
const NODE: [u32; 2] = [2, 1];

/// v1 controllers, the likeliest to name a container first: of the first one that has a hierarchy the kernel programs capture
/// the control group.
pub const V1_CONTROLLERS: [&str; 4] = ["pids", "memory", "freezer", "cpu"];

/// Whether the node's first processes see more of the hierarchies than this one.
static FROM_NODE: OnceLock<bool> = OnceLock::new();

fn is_initial(process: &str) -> bool {
    // Before 4.6 there is only one.
    fs::read_link(format!("/proc/{process}/ns/cgroup")).map_or(true, |link| link.as_os_str() == INITIAL)
}

/// Enters the initial control group namespace, if this process is in another one. To be called by a reader, before it
/// begins.
pub(super) fn enter_initial() {
    let enter = |pid: u32| {
        let place = format!("/proc/{pid}/ns/cgroup");
        let namespace = fs::read_link(&place).is_ok_and(|link| link.as_os_str() == INITIAL);
        let opened = File::open(place).ok().filter(|_| namespace);
        opened.is_some_and(|namespace| setns(namespace, CloneFlags::CLONE_NEWCGROUP).is_ok())
    };
    FROM_NODE.get_or_init(|| (!is_initial("self") && NODE.into_iter().any(enter)) || has_other_mounts());
}

/// Whether this process is in another mount namespace than the node's first processes.
fn has_other_mounts() -> bool {
    let proc = Proc::default();
    let own = proc.ns(std::process::id(), "mnt");
    proc.first_mntns().is_some_and(|first| own.is_some_and(|own| own != first))
}

/// Whether readers see the control groups of the whole node.
pub fn are_all_visible() -> bool {
    let exists = |pid: u32| Path::new(&format!("/proc/{pid}/ns/cgroup")).exists();
    is_initial("self") || NODE.into_iter().any(|pid| exists(pid) && is_initial(&pid.to_string()))
}

/// The path that tells most of a process's control groups; names that root did not make are behind
/// [`cgroup::DELEGATED`]. `text` is its file in the /proc at `proc`.
pub(super) fn most_telling(proc: &Path, text: &str) -> Option<String> {
    let mounted = mounted(proc)?;
    let lines: Vec<(&str, String)> =
        lines(text).map(|(controllers, path)| (controllers, marked(&mounted, controllers, path))).collect();
    let of =
        |wanted: &'static str| lines.iter().find(|(names, _)| names.split(',').any(|name| name == wanted));
    let hierarchies = ["name=systemd", "", "pids", "memory", "freezer", "cpu"];
    let paths = hierarchies.into_iter().filter_map(of).chain(&lines).map(|(_, path)| path.as_str());
    most_specific(paths).map(str::to_owned)
}

/// The same of those groups alone that are the ones with these ids: the kernel has captured them of v1 and of v2, and the
/// process may be in others by now. `None` where there is none.
pub(super) fn most_telling_of(proc: &Path, text: &str, (v1, v2): (u32, u32)) -> Option<String> {
    let mounted = mounted(proc)?;
    let has = |controllers: &str, wanted: &str| controllers.split(',').any(|name| name == wanted);
    // Each hierarchy counts by itself.
    let is_there = |wanted: &&&str| lines(text).any(|(controllers, _)| has(controllers, wanted));
    let captured = V1_CONTROLLERS.iter().find(is_there);
    let is_it = |controllers: &str, path: &str| {
        let id = match captured {
            _ if controllers.is_empty() => v2,
            Some(captured) if has(controllers, captured) => v1,
            _ => return false,
        };
        let directory = mounted.iter().find_map(|mounted| root(mounted, controllers));
        let directory = directory.map(|root| root.join(path.trim_start_matches('/')));
        let found = directory.and_then(|directory| fs::symlink_metadata(directory).ok());
        // The lower half of the inode number is what the kernel programs capture.
        found.is_some_and(|found| id != 0 && found.ino() & u64::from(u32::MAX) == u64::from(id))
    };
    let is_whole = |path: &str| !path.split('/').any(|name| name == "..");
    let found = lines(text).filter(|(controllers, path)| is_whole(path) && is_it(controllers, path));
    let found: Vec<String> = found.map(|(controllers, path)| marked(&mounted, controllers, path)).collect();
    most_specific(found.iter().map(String::as_str)).map(str::to_owned)
}

/// The hierarchies that tell which processes are in a control group: v2, and of v1 the one whose groups are captured. To be
/// called by a reader.
pub fn hierarchies(proc: &Path) -> Vec<PathBuf> {
    let mounted = mounted(proc).unwrap_or_default();
    let of = |controllers: &str| mounted.iter().find_map(|mounted| root(mounted, controllers));
    of("").into_iter().chain(V1_CONTROLLERS.iter().find_map(|name| of(name))).collect()
}

/// Where hierarchies may be mounted, as this process sees it.
fn mounted(proc: &Path) -> Option<Vec<PathBuf>> {
    Some(match FROM_NODE.get() {
        Some(true) => NODE.into_iter().map(|pid| proc.join(format!("{pid}/root")).join(MOUNTED)).collect(),
        _ => vec![proc.parent()?.join(MOUNTED)],
    })
}

/// Controllers and paths of lines `ID:CONTROLLERS:PATH`.
fn lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'))
}

fn marked(mounted: &[PathBuf], controllers: &str, path: &str) -> String {
    if path == "/" {
        return path.to_owned();
    }
    let names = path.split('/').filter(|name| !name.is_empty());
    // In another namespace its path from here says nothing about where it is.
    let is_relative = path.split('/').any(|name| name == "..");
    let found = mounted.iter().find_map(|mounted| root(mounted, controllers));
    let Some(mut directory) = found.filter(|_| !is_relative) else {
        return cgroup::path(names.map(|name| (name, false)));
    };
    let names = names.map(|name| {
        // One that is gone held the process a moment ago, and nobody knows whose it was.
        let by_root =
            fs::symlink_metadata(&directory).is_ok_and(|it| it.is_dir() && is_roots(it.uid(), it.mode()));
        directory.push(name);
        (name, by_root)
    });
    cgroup::path(names)
}

/// Where the hierarchy of these controllers is mounted; that without any is v2.
fn root(mounted: &Path, controllers: &str) -> Option<PathBuf> {
    let (names, proof): (&[&str], _) = match controllers.strip_prefix("name=").unwrap_or(controllers) {
        "" => (&["unified", ""], "cgroup.controllers"),
        name => (&[name], "cgroup.procs"),
    };
    names.iter().map(|name| mounted.join(name)).find(|directory| directory.join(proof).exists())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn most_telling(text: &str) -> Option<String> {
        let path = super::most_telling(Path::new("/nowhere/proc"), text)?;
        assert!(path == "/" || path.starts_with(cgroup::DELEGATED), "{path}: nothing is known of it");
        Some(path.replacen(cgroup::DELEGATED, "/", 1))
    }

    #[test]
    fn a_controller_that_names_the_container_wins_over_one_at_the_root() {
        let text = "9:name=systemd:/\n8:pids:/docker/abc\n4:memory:/\n0::/\n";
        assert_eq!(most_telling(text).as_deref(), Some("/docker/abc"));
        assert_eq!(most_telling("0::/system.slice/x.service\n").as_deref(), Some("/system.slice/x.service"));
        assert_eq!(most_telling("0::/\n").as_deref(), Some("/"));
        let id = "b".repeat(64);
        let hybrid = format!("5:name=systemd:/system.slice/docker.service\n3:pids:/\n0::/docker/{id}\n");
        let tree = tree(&["systemd/system.slice/docker.service", "pids", &format!("unified/docker/{id}")]);
        fs::write(tree.path().join("sys/fs/cgroup/unified/cgroup.controllers"), "").unwrap();
        if fs::metadata(tree.path()).unwrap().uid() == 0 {
            let found = super::most_telling(&tree.path().join("proc"), &hybrid);
            assert_eq!(found, Some(format!("/docker/{id}")), "v2 below a v1 that names a service");
        }
    }

    /// Hierarchies of v1, or directories of them.
    fn tree(directories: &[&str]) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        for path in directories {
            let mounted = tree.path().join(MOUNTED);
            fs::create_dir_all(mounted.join(path)).unwrap();
            let hierarchy = path.split('/').next().unwrap();
            fs::write(mounted.join(hierarchy).join("cgroup.procs"), "").unwrap();
        }
        tree
    }

    #[test]
    fn a_group_that_is_another_one_by_now_is_not_told() {
        let tree = tree(&["pids/a/b", "pids/c"]);
        std::os::unix::fs::symlink("pids", tree.path().join(MOUNTED).join("memory")).unwrap();
        let ino = |path: &str| fs::metadata(tree.path().join(MOUNTED).join(path)).unwrap().ino();
        let [own, other] =
            [ino("pids/a/b"), ino("pids/c")].map(|ino| u32::try_from(ino & 0xffff_ffff).unwrap());
        let seen = |text: &str, ids| most_telling_of(&tree.path().join("proc"), text, ids).is_some();
        assert!(seen("8:pids:/a/b\n", (own, 0)));
        for (text, ids) in [
            ("8:pids:/a/b\n", (other, 0)),
            ("8:pids:/a/b\n", (0, own)),
            ("8:pids:/a/b\n", (0, 0)),
            ("8:memory:/a/b\n9:pids:/c\n", (own, 0)),
            ("8:pids:/gone\n", (own, 0)),
            ("8:pids:/c/../a/b\n", (own, 0)),
            ("0::/a/b\n", (own, own)),
        ] {
            assert!(!seen(text, ids), "{text} {ids:?}");
        }
    }

    #[test]
    fn names_in_a_directory_that_others_may_write_to_are_not_roots() {
        let tree = tree(&["pids/a/b/c"]);
        let pids = tree.path().join("sys/fs/cgroup/pids");
        // Its owner is not root where the tests are not run by root.
        if fs::metadata(&pids).unwrap().uid() != 0 {
            return;
        }
        let seen =
            |path: &str| super::most_telling(&tree.path().join("proc"), &format!("8:pids:{path}\n")).unwrap();
        assert_eq!(seen("/a/b/c"), "/a/b/c");
        fs::set_permissions(pids.join("a"), fs::Permissions::from_mode(0o775)).unwrap();
        assert_eq!(seen("/a/b/c"), "/a//b/c");
        assert_eq!(seen("/gone/b"), "/gone//b");
        assert_eq!(seen("/../a/b"), "//../a/b", "another namespace's");
        assert_eq!(seen("/"), "/");
    }
}
