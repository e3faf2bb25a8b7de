//! The control group of a process, and which of the names in its path root has made.
//!
//! Whoever may write to a directory of the hierarchy makes groups with any names below it, such as those of a container
//! that is somebody else's. So the directories are looked at; where they cannot be, because the hierarchy is not mounted at
//! the usual place or is that of a control group namespace, all names count as root's.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::node::cgroup::{self, is_roots, most_specific};

/// Where hierarchies are mounted, each in a directory of its own beside v1.
const MOUNTED: &str = "sys/fs/cgroup";

/// The path that tells most of a process's control groups; names that root did not make are behind
/// [`cgroup::DELEGATED`]. `text` is its file in the /proc at `proc`.
pub(super) fn most_telling(proc: &Path, text: &str) -> Option<String> {
    let mounted = proc.parent()?.join(MOUNTED);
    // Lines are `ID:CONTROLLERS:PATH`.
    let lines: Vec<(&str, String)> = text
        .lines()
        .filter_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            Some((controllers, marked(&mounted, controllers, path)))
        })
        .collect();
    let of =
        |wanted: &'static str| lines.iter().find(|(names, _)| names.split(',').any(|name| name == wanted));
    let hierarchies = ["name=systemd", "", "pids", "memory", "freezer", "cpu"];
    let paths = hierarchies.into_iter().filter_map(of).chain(&lines).map(|(_, path)| path.as_str());
    most_specific(paths).map(str::to_owned)
}

fn marked(mounted: &Path, controllers: &str, path: &str) -> String {
    let Some(mut directory) = root(mounted, controllers).filter(|_| path != "/") else {
        return path.to_owned();
    };
    // A group of another namespace: its path from here says nothing about where it is.
    if path.split('/').any(|name| name == "..") {
        return path.to_owned();
    }
    let names = path.split('/').filter(|name| !name.is_empty()).map(|name| {
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
        super::most_telling(Path::new("/nowhere/proc"), text)
    }

    #[test]
    fn a_controller_that_names_the_container_wins_over_one_at_the_root() {
        let text = "9:name=systemd:/\n8:pids:/docker/abc\n4:memory:/\n0::/\n";
        assert_eq!(most_telling(text).as_deref(), Some("/docker/abc"));
        assert_eq!(most_telling("0::/system.slice/x.service\n").as_deref(), Some("/system.slice/x.service"));
        assert_eq!(most_telling("0::/\n").as_deref(), Some("/"));
        let id = "b".repeat(64);
        let hybrid = format!("5:name=systemd:/system.slice/docker.service\n3:pids:/\n0::/docker/{id}\n");
        assert_eq!(
            most_telling(&hybrid),
            Some(format!("/docker/{id}")),
            "v2 below a v1 that names a service"
        );
    }

    #[test]
    fn names_in_a_directory_that_others_may_write_to_are_not_roots() {
        let tree = tempfile::tempdir().unwrap();
        let pids = tree.path().join("sys/fs/cgroup/pids");
        fs::create_dir_all(pids.join("a/b/c")).unwrap();
        fs::write(pids.join("cgroup.procs"), "").unwrap();
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
        assert_eq!(seen("/../a/b"), "/../a/b", "another namespace's");
        assert_eq!(seen("/"), "/");
    }
}
