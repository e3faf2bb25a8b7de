//! What the programs know of CNI plugins: the directories in which they are, the mount namespaces in which these are the
//! node's, and the kubelets and runtimes that call them in mount namespaces of their own; and which processes they follow.

use std::collections::{BTreeMap, BTreeSet};

use aya::maps::lpm_trie::Key;
use aya::maps::{HashMap, LpmTrie, MapData, MapError};
use kevtmon_ebpf::exec::{
    CALLERS_MAX, DIRECTORIES_MAX, DIRECTORY_CAPACITY, FOLLOWED_MAX, MOUNT_NAMESPACES_MAX, TICK_NS,
};
use kevtmon_observation::BootNs;
use kevtmon_types::namespace::NsInum;

type Path = [u8; DIRECTORY_CAPACITY];

/// The maps, kept by the daemon.
pub struct Plugins {
    directories: LpmTrie<MapData, Path, u32>,
    namespaces: HashMap<MapData, u32, u32>,
    callers: HashMap<MapData, u32, u64>,
    followed: HashMap<MapData, u32, u64>,
    known: Known,
    known_followed: BTreeMap<u32, u64>,
}

/// What is in the maps.
#[derive(Debug, Default, PartialEq, Eq)]
struct Known {
    directories: BTreeSet<String>,
    namespaces: BTreeSet<NsInum>,
    /// By process id, with its start in ticks.
    callers: BTreeMap<u32, u64>,
}

impl Plugins {
    pub(super) fn new(
        directories: LpmTrie<MapData, Path, u32>,
        namespaces: HashMap<MapData, u32, u32>,
        callers: HashMap<MapData, u32, u64>,
        followed: HashMap<MapData, u32, u64>,
    ) -> Self {
        let (known, known_followed) = (Known::default(), BTreeMap::new());
        Self { directories, namespaces, callers, followed, known, known_followed }
    }

    /// Replaces what is known: directories, the most important first; mount namespaces of the host; kubelets and runtimes,
    /// by process and start. What there is no room for is left out.
    pub fn set<'a>(
        &mut self,
        directories: impl Iterator<Item = &'a str>,
        namespaces: impl Iterator<Item = NsInum>,
        callers: impl Iterator<Item = (u32, BootNs)>,
    ) {
        let new = Known::new(directories, namespaces, callers);
        let old = std::mem::take(&mut self.known);
        let mut results: Vec<Result<(), MapError>> = Vec::new();
        for gone in old.directories.difference(&new.directories).filter_map(|directory| key(directory)) {
            results.push(self.directories.remove(&gone));
        }
        for gone in old.namespaces.difference(&new.namespaces) {
            results.push(self.namespaces.remove(gone));
        }
        for key in new.directories.difference(&old.directories).filter_map(|directory| key(directory)) {
            results.push(self.directories.insert(&key, 0, 0));
        }
        for namespace in new.namespaces.difference(&old.namespaces) {
            results.push(self.namespaces.insert(namespace, 0, 0));
        }
        results.extend(put(&mut self.callers, &old.callers, &new.callers));
        for error in results.into_iter().filter_map(Result::err) {
            tracing::warn!(%error, "the kernel programs do not know all CNI plugins");
        }
        self.known = new;
    }

    /// Replaces the processes that are followed: what signals end them, and how they end.
    pub fn follow(&mut self, processes: impl Iterator<Item = (u32, BootNs)>) {
        let new = in_ticks(processes, FOLLOWED_MAX);
        for error in put(&mut self.followed, &self.known_followed, &new).into_iter().filter_map(Result::err) {
            tracing::warn!(%error, "the kernel programs do not follow all processes");
        }
        self.known_followed = new;
    }
}

/// By process id, with the start in ticks.
fn in_ticks(processes: impl Iterator<Item = (u32, BootNs)>, most: u32) -> BTreeMap<u32, u64> {
    let all: BTreeMap<u32, u64> = processes.map(|(tgid, started)| (tgid, started / TICK_NS)).collect();
    all.into_iter().take(most as usize).collect()
}

/// Makes a map what it is to be.
fn put(
    map: &mut HashMap<MapData, u32, u64>,
    old: &BTreeMap<u32, u64>,
    new: &BTreeMap<u32, u64>,
) -> Vec<Result<(), MapError>> {
    let gone = old.keys().filter(|tgid| !new.contains_key(tgid));
    let mut results: Vec<_> = gone.map(|tgid| map.remove(tgid)).collect();
    let added = new.iter().filter(|(tgid, start)| old.get(tgid) != Some(start));
    results.extend(added.map(|(tgid, start)| map.insert(tgid, start, 0)));
    results
}

impl Known {
    fn new<'a>(
        directories: impl Iterator<Item = &'a str>,
        namespaces: impl Iterator<Item = NsInum>,
        callers: impl Iterator<Item = (u32, BootNs)>,
    ) -> Self {
        let mut known = Self::default();
        for directory in directories.filter(|directory| key(directory).is_some()) {
            if known.directories.len() < DIRECTORIES_MAX as usize {
                known.directories.insert(directory.to_owned());
            }
        }
        known.namespaces = namespaces.take(MOUNT_NAMESPACES_MAX as usize).collect();
        known.callers = in_ticks(callers, CALLERS_MAX);
        known
    }
}

/// A directory, so that the paths of all files in it match.
fn key(directory: &str) -> Option<Key<Path>> {
    let directory = format!("{}/", directory.trim_end_matches('/'));
    let mut path = [0; DIRECTORY_CAPACITY];
    path.get_mut(..directory.len())?.copy_from_slice(directory.as_bytes());
    let bits = u32::try_from(directory.len() * 8).ok()?;
    // The last byte of a path is the NUL.
    (directory.len() < DIRECTORY_CAPACITY).then(|| Key::new(bits, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_is_no_room_for_is_left_out() {
        let many: Vec<String> = (0..100).rev().map(|number| format!("/{number:02}")).collect();
        let too_long = "/x".repeat(64);
        let all = std::iter::once(too_long.as_str()).chain(many.iter().map(String::as_str));
        let known = Known::new(all, 0..100, (1..=100).map(|tgid| (tgid, 79_999_999)));
        assert_eq!((known.directories.len(), known.namespaces.len(), known.callers.len()), (64, 64, 64));
        assert!(
            known.directories.contains("/99") && !known.directories.contains("/00"),
            "the first ones stay"
        );
        assert_eq!(known.callers[&1], 7);
    }

    #[test]
    fn a_directory_matches_what_lies_in_it_and_no_longer_name() {
        let bits = |directory: &str| key(directory).map(|key| key.prefix_len());
        assert_eq!(bits("/opt/cni/bin"), Some(13 * 8));
        assert_eq!(bits("/opt/cni/bin/"), Some(13 * 8));
        assert_eq!(key("/opt/cni/bin").unwrap().data()[..14], *b"/opt/cni/bin/\0");
        assert_eq!(bits(&"/x".repeat(63)), Some(127 * 8));
        assert_eq!(bits(&"/x".repeat(64)), None);
    }
}
