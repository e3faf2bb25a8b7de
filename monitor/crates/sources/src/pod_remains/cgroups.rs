//! The control groups of pods: found by their names in the hierarchies, in every form that `node/cgroup.rs` understands, as
//! far as root made the directories.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use kevtmon_observation::PodCgroup;
use kevtmon_observation::cgroup::{container_id, identify, is_roots};

use crate::procfs::Proc;
use crate::procfs::cgroups::hierarchies;
use crate::procfs::readers::reading_none;

/// Directories that are looked into, besides those of pods.
const DIRECTORIES_MAX: usize = 2048;
/// Levels of directories above a pod's, with those of kubelets that are in a container.
const DEPTH_MAX: usize = 8;
/// Control groups below that of one pod, and processes in them.
const BELOW_MAX: usize = 256;
const PROCESSES_MAX: usize = 512;
/// Digits of a container's id that are told.
const SHORT_ID: usize = 12;

#[derive(Debug, Default)]
pub(super) struct PodCgroups {
    /// The directories of each, with the number of their hierarchy: v2 first.
    by_uid: BTreeMap<String, Vec<(usize, PathBuf)>>,
    /// Whether a pod that is not found has none.
    is_complete: bool,
}

#[derive(Debug)]
pub(super) struct Found {
    pub(super) state: PodCgroup,
    /// Ids of the processes that this process namespace shows.
    pub(super) processes: Vec<u32>,
    /// The containers that they are in, by the first digits of their ids.
    pub(super) containers: BTreeSet<String>,
    /// Whether some are in none of these.
    is_elsewhere: bool,
    /// Whether a group could not be read: there may be more.
    is_unread: bool,
}

impl Found {
    fn of(state: PodCgroup) -> Self {
        Self {
            state,
            processes: Vec::new(),
            containers: BTreeSet::new(),
            is_elsewhere: false,
            is_unread: false,
        }
    }
}

impl PodCgroups {
    pub(super) fn find(proc: &Proc) -> Self {
        reading_none();
        let hierarchies = hierarchies(proc.root());
        let mut found = Self { by_uid: BTreeMap::new(), is_complete: !hierarchies.is_empty() };
        for (number, hierarchy) in hierarchies.into_iter().enumerate() {
            found.add(number, hierarchy);
        }
        found
    }

    fn add(&mut self, number: usize, hierarchy: PathBuf) {
        let mut left = vec![(hierarchy, 0)];
        let mut visited = 0;
        while let Some((directory, depth)) = left.pop() {
            visited += 1;
            if visited > DIRECTORIES_MAX || depth > DEPTH_MAX {
                self.is_complete = false;
                continue;
            }
            let Some(children) = children(&directory) else {
                self.is_complete = false;
                continue;
            };
            for (name, path) in children {
                let identity = identify(&format!("/{name}"));
                if let Some(uid) = identity.pod_uid {
                    self.by_uid.entry(uid).or_default().push((number, path));
                } else if identity.container_id.is_none() && !is_of_users(&name) {
                    left.push((path, depth + 1));
                }
            }
        }
    }

    pub(super) fn of(&self, uid: &str) -> Found {
        let Some(directories) = self.by_uid.get(uid) else {
            let state = if self.is_complete { PodCgroup::Absent } else { PodCgroup::Unknown };
            return Found::of(state);
        };
        let mut found = Found::of(PodCgroup::Empty);
        let mut hierarchy = None;
        for (in_hierarchy, directory) in directories {
            // What one hierarchy shows, the others only repeat.
            if hierarchy.is_some_and(|first| first != in_hierarchy) {
                break;
            }
            if add_processes(directory, &mut found) {
                found.state = PodCgroup::Populated;
                hierarchy = Some(in_hierarchy);
            }
        }
        if found.is_elsewhere {
            found.containers.clear();
        }
        if found.is_unread && found.state == PodCgroup::Empty {
            found.state = PodCgroup::Unknown;
        }
        found
    }
}

/// The part of the tree that is delegated to users, in which they choose the names.
fn is_of_users(name: &str) -> bool {
    name == "user.slice" || name.starts_with("user-") || name.starts_with("user@")
}

/// Directories that root made in one of root's; none of one that is gone. `None` where it cannot be read.
fn children(directory: &Path) -> Option<Vec<(String, PathBuf)>> {
    let found = match fs::symlink_metadata(directory) {
        Ok(found) => found,
        Err(error) => return is_gone(&error).then(Vec::new),
    };
    // The kernel counts two and one for each directory (`kernfs_refresh_inode`, fs/kernfs/inode.c).
    if !is_roots(found.uid(), found.mode()) || found.nlink() == 2 {
        return Some(Vec::new());
    }
    below(directory)
}

/// Control groups are removed at any time (kernfs answers ENODEV then, too).
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV))
}

fn below(directory: &Path) -> Option<Vec<(String, PathBuf)>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => return is_gone(&error).then(Vec::new),
    };
    let directories = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let named = directories.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())));
    Some(named.collect())
}

/// Adds the processes of a control group and of those below; whether there are any.
fn add_processes(group: &Path, found: &mut Found) -> bool {
    // That of v2 tells by itself whether there is one below it.
    let events = fs::read_to_string(group.join("cgroup.events")).ok();
    let says = |state: &str| events.as_ref().is_some_and(|events| events.lines().any(|line| line == state));
    if says("populated 0") {
        return false;
    }
    let mut is_populated = says("populated 1");
    let top = group.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut left = vec![(top, group.to_owned())];
    for _ in 0..BELOW_MAX {
        let Some((names, directory)) = left.pop() else { break };
        let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_else(|error| {
            found.is_unread |= !is_gone(&error);
            String::new()
        });
        if !text.is_empty() {
            is_populated = true;
            match container_id(&names).and_then(|id| id.get(..SHORT_ID)) {
                Some(id) => _ = found.containers.insert(id.to_owned()),
                None => found.is_elsewhere = true,
            }
        }
        // One of another process namespace is shown as 0.
        let pids = text.lines().filter_map(|line| line.parse::<u32>().ok()).filter(|pid| *pid != 0);
        found.processes.extend(pids.take(PROCESSES_MAX.saturating_sub(found.processes.len())));
        let Some(groups) = below(&directory) else {
            found.is_unread = true;
            continue;
        };
        left.extend(groups.into_iter().map(|(name, path)| (format!("{names}/{name}"), path)));
    }
    // What there was no time for may have one.
    found.is_elsewhere |= !left.is_empty();
    is_populated || !left.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "eebb8e08-a296-49c3-8679-03a110f0de3f";
    const SLICE: &str = "kubepods-burstable-podeebb8e08_a296_49c3_8679_03a110f0de3f.slice";

    fn id(digit: char) -> String {
        digit.to_string().repeat(64)
    }

    /// A tree of v1 (`pids`) with these groups, each with its processes.
    fn tree(groups: &[(&str, &str)]) -> (tempfile::TempDir, Proc) {
        let tree = tempfile::tempdir().unwrap();
        let pids = tree.path().join("sys/fs/cgroup/pids");
        fs::create_dir_all(tree.path().join("proc")).unwrap();
        fs::create_dir_all(&pids).unwrap();
        fs::write(pids.join("cgroup.procs"), "1\n").unwrap();
        for (group, processes) in groups {
            fs::create_dir_all(pids.join(group)).unwrap();
            fs::write(pids.join(group).join("cgroup.procs"), processes).unwrap();
        }
        let proc = Proc::new(tree.path().join("proc"));
        (tree, proc)
    }

    /// Whether the tests are run by root, to whom what they make belongs then.
    fn is_root(tree: &tempfile::TempDir) -> bool {
        fs::metadata(tree.path()).unwrap().uid() == 0
    }

    #[test]
    fn the_group_of_a_pod_is_found_in_every_form_and_is_populated_by_any_below_it() {
        let container = id('a');
        for (group, containers) in [
            (format!("kubepods/pod{UID}/{container}"), vec!["aaaaaaaaaaaa"]),
            (format!("kubepods/besteffort/pod{UID}/crio-{container}"), vec!["aaaaaaaaaaaa"]),
            (
                format!("kubepods.slice/kubepods-burstable.slice/{SLICE}/docker-{container}.scope"),
                vec!["aaaaaaaaaaaa"],
            ),
            (format!("kubelet/kubepods/burstable/pod{UID}/{container}/init"), vec!["aaaaaaaaaaaa"]),
            (
                format!("system.slice/containerd.service/{SLICE}:cri-containerd:{container}"),
                vec!["aaaaaaaaaaaa"],
            ),
            (format!("kubepods/burstable/pod{UID}"), vec![]),
        ] {
            let (tree, proc) = tree(&[(&group, "41\n42\n")]);
            if !is_root(&tree) {
                continue;
            }
            let found = PodCgroups::find(&proc).of(UID);
            assert_eq!(found.state, PodCgroup::Populated, "{group}");
            assert_eq!(found.processes, [41, 42], "{group}");
            assert_eq!(
                found.containers.iter().map(String::as_str).collect::<Vec<_>>(),
                containers,
                "{group}"
            );
        }
    }

    #[test]
    fn a_group_without_processes_is_empty_and_none_is_absent() {
        let (tree, proc) = tree(&[(&format!("kubepods/pod{UID}/{}", id('a')), "")]);
        if is_root(&tree) {
            assert_eq!(PodCgroups::find(&proc).of(UID).state, PodCgroup::Empty);
        }
        assert_eq!(PodCgroups::find(&proc).of("0123456789abcdef0123456789abcdef").state, PodCgroup::Absent);
        let nothing = tempfile::tempdir().unwrap();
        let nowhere = Proc::new(nothing.path().join("proc"));
        assert_eq!(PodCgroups::find(&nowhere).of(UID).state, PodCgroup::Unknown, "no hierarchy in sight");
    }

    #[test]
    fn names_that_others_than_root_may_have_made_are_of_no_pod() {
        use std::os::unix::fs::PermissionsExt;

        let groups = [
            (format!("delegated/kubepods/pod{UID}"), "41\n"),
            (format!("docker/{}/kubepods/pod{UID}", id('b')), "42\n"),
            (format!("user.slice/kubepods/pod{UID}"), "43\n"),
        ];
        let groups: Vec<(&str, &str)> = groups.iter().map(|(group, pids)| (group.as_str(), *pids)).collect();
        let (tree, proc) = tree(&groups);
        let delegated = tree.path().join("sys/fs/cgroup/pids/delegated");
        fs::set_permissions(delegated, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(PodCgroups::find(&proc).of(UID).state, PodCgroup::Absent);
    }
}
