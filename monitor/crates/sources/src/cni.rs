//! Where the CNI plugins of this node are, and the network namespaces that they are called for.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kevtmon_observation::{BootNs, CniNetns, Fact, NsInum};
use kevtmon_types::settings::settings;
use serde::{Deserialize, Deserializer, Serialize};

use super::Sender;
use super::kubelet::{below, plain_paths};
use super::procfs::Proc;
use super::procfs::readers::{Job, Readers, reading_none};

const PATIENCE: Duration = Duration::from_secs(2);

settings! { "cni":
    /// Directories of CNI plugins, besides those that the kubelets and runtimes that run are configured to use. What root
    /// executes there in the host's mount namespace is taken for a CNI call, so nobody but root may write there.
    BIN_DIRS: BinDirs = "bin_dirs", default BinDirs::default();
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BinDirs(pub Vec<PathBuf>);

impl Default for BinDirs {
    /// Those of the CNI project, of Debian, and of Fedora.
    fn default() -> Self {
        Self(["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"].map(PathBuf::from).to_vec())
    }
}

impl BinDirs {
    /// As text; one that is not Unicode was refused.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|path| path.to_str())
    }
}

impl<'de> Deserialize<'de> for BinDirs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        plain_paths(from, "/opt/cni/bin").map(Self)
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FindNetns {
    path: String,
    within: Option<(NsInum, Vec<u32>)>,
}

impl Job for FindNetns {
    const NAME: &'static str = "cni-netns";
    type Reply = (Option<NsInum>, Option<BootNs>);

    fn run(&self, proc: &Proc) -> Self::Reply {
        if let Some(tgid) = process_of(&self.path) {
            let started = |proc: &Proc| proc.stat(tgid).map(|stat| stat.start_ns);
            let (before, netns, after) = (started(proc), proc.ns(tgid, "net"), started(proc));
            return (netns.filter(|_| before.is_some() && before == after), before);
        }
        let found = match &self.within {
            Some((mntns, processes)) => netns_within(proc, *mntns, processes, &self.path),
            None => netns_at(&proc.on_host(Path::new(&self.path))),
        };
        (found, None)
    }
}

fn process_of(path: &str) -> Option<u32> {
    path.strip_prefix("/proc/")?.strip_suffix("/ns/net")?.parse().ok()
}

/// The namespace that is mounted at a path in a mount namespace, as the first of these processes that is in it sees it.
fn netns_within(proc: &Proc, mntns: NsInum, processes: &[u32], path: &str) -> Option<NsInum> {
    let is_in_it = |tgid| proc.ns(tgid, "mnt") == Some(mntns);
    let tgid = processes.iter().copied().find(|tgid| is_in_it(*tgid))?;
    // Links lead to where they do in that tree.
    let root = proc.path(tgid, "root");
    // What lies below is no file of that process.
    reading_none();
    let found = netns_at(&below(&root, path));
    found.filter(|_| is_in_it(tgid))
}

fn netns_at(path: &Path) -> Option<NsInum> {
    let (own, found) = (fs::metadata("/proc/self/ns/net").ok()?, fs::metadata(path).ok()?);
    (own.dev() == found.dev()).then_some(NsInum::try_from(found.ino()).ok()?)
}

/// Finds the network namespace of a call, and sends it.
pub fn find_netns_and_send(
    readers: &Readers,
    tx: &Sender,
    id: u64,
    path: String,
    within: Option<(NsInum, Vec<u32>)>,
) {
    let failure = "the network namespace of a CNI call is not found";
    readers.tell(tx, (FindNetns { path, within }, PATIENCE, failure), move |found| {
        let (netns, started_ns) = found.unwrap_or_default();
        Some(Fact::CniNetns(CniNetns { id, netns, started_ns }))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_a_process_leads_to_its_namespace_and_any_other_file_to_none() {
        let find = |path: &str| FindNetns { path: path.to_owned(), within: None }.run(&Proc::default());
        let own = Proc::default().ns(std::process::id(), "net");
        let (netns, started) = find(&format!("/proc/{}/ns/net", std::process::id()));
        assert!(own.is_some() && netns == own && started.is_some());
        assert_eq!(find("/proc/self/ns/net").0, own);
        assert_eq!((find("/etc/passwd"), find("/var/run/netns/none")), ((None, None), (None, None)));
        assert_eq!(find(&format!("/proc/{}/ns/net", u32::MAX)), (None, None));
    }
}
