//! What the programs know of CNI plugins: the directories in which they are, and the mount namespaces in which these are the
//! node's.

use std::collections::BTreeSet;

use aya::maps::lpm_trie::Key;
use aya::maps::{HashMap, LpmTrie, MapData, MapError};
use kevtmon_ebpf::exec::DIRECTORY_CAPACITY;

use crate::namespace::NsInum;

type Path = [u8; DIRECTORY_CAPACITY];

/// The maps, kept by the daemon.
pub struct Plugins {
    directories: LpmTrie<MapData, Path, u32>,
    namespaces: HashMap<MapData, u32, u32>,
    /// What is in them.
    known: (BTreeSet<String>, BTreeSet<NsInum>),
}

impl Plugins {
    pub(super) fn new(
        directories: LpmTrie<MapData, Path, u32>,
        namespaces: HashMap<MapData, u32, u32>,
    ) -> Self {
        Self { directories, namespaces, known: Default::default() }
    }

    /// Replaces what is known. What there is no room for is left out, with a warning.
    pub fn set(&mut self, directories: BTreeSet<String>, namespaces: BTreeSet<NsInum>) {
        let (old_directories, old_namespaces) = &self.known;
        let mut results: Vec<Result<(), MapError>> = Vec::new();
        for gone in old_directories.difference(&directories).filter_map(|directory| key(directory)) {
            results.push(self.directories.remove(&gone));
        }
        for gone in old_namespaces.difference(&namespaces) {
            results.push(self.namespaces.remove(gone));
        }
        for directory in directories.difference(old_directories) {
            match key(directory) {
                Some(key) => results.push(self.directories.insert(&key, 0, 0)),
                None => tracing::warn!(directory, "the path is too long for a directory of CNI plugins"),
            }
        }
        for new in namespaces.difference(old_namespaces) {
            results.push(self.namespaces.insert(new, 0, 0));
        }
        for error in results.into_iter().filter_map(Result::err) {
            tracing::warn!(%error, "the kernel programs do not know all CNI plugins");
        }
        self.known = (directories, namespaces);
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
    fn a_directory_matches_what_lies_in_it_and_no_longer_name() {
        let bits = |directory: &str| key(directory).map(|key| key.prefix_len());
        assert_eq!(bits("/opt/cni/bin"), Some(13 * 8));
        assert_eq!(bits("/opt/cni/bin/"), Some(13 * 8));
        assert_eq!(key("/opt/cni/bin").unwrap().data()[..14], *b"/opt/cni/bin/\0");
        assert_eq!(bits(&"/x".repeat(63)), Some(127 * 8));
        assert_eq!(bits(&"/x".repeat(64)), None);
    }
}
