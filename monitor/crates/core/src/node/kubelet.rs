//! Which paths are pod volumes: those below a root directory of a kubelet, in a mount namespace in which only root of
//! the node mounts. A path alone proves nothing: anybody can make such directories, and mount on them in a mount
//! namespace of his own.

use kevtmon_event::volume;
use kevtmon_event::{StagedVolume, Volume};
use kevtmon_observation::{BootNs, KubeletFacts, KubeletNamespace, NsInum};
use serde::{Deserialize, Serialize};

/// The mount namespace of a kubelet that is not the host's is believed for this time after it was looked up: when the
/// kubelet ends, the kernel gives the number to the next namespace at once.
const NAMESPACE_RETENTION_NS: BootNs = 10_000_000_000;

/// The kubelets of the node, as last looked up.
///
/// Without any report, every path of the layout is believed: recordings of versions that did not look kubelets up
/// replay as they were observed. The daemon reports before any source does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Kubelets {
    reported: Option<(BootNs, KubeletFacts)>,
}

impl Kubelets {
    /// Replaces what was known; whether it was other.
    pub fn replace(&mut self, at: BootNs, facts: KubeletFacts) -> bool {
        let is_other = self.reported.as_ref().is_none_or(|(_, known)| *known != facts);
        self.reported = Some((at, facts));
        is_other
    }

    pub fn host_namespaces(&self) -> impl Iterator<Item = NsInum> {
        let known = self.reported.iter().flat_map(|(_, facts)| &facts.namespaces);
        known.filter(|namespace| !namespace.of_kubelet).map(|namespace| namespace.mntns)
    }

    /// Whether this is a mount namespace of the host; true of all as long as nothing was reported.
    pub fn is_host(&self, mntns: NsInum) -> bool {
        self.reported.is_none() || self.host_namespaces().any(|host| host == mntns)
    }

    /// Whether the host or a kubelet mounts in this namespace; true of all as long as nothing was reported.
    pub fn mounts_in(&self, mntns: NsInum) -> bool {
        let known = self.reported.as_ref().map(|(_, facts)| &facts.namespaces);
        known.is_none_or(|known| known.iter().any(|namespace| namespace.mntns == mntns))
    }

    /// Whether a path is below a root directory of a kubelet, in this mount namespace.
    pub fn has_below_root(&self, mntns: NsInum, path: &str) -> bool {
        let known = self.reported.iter().flat_map(|(_, facts)| &facts.namespaces);
        let mut roots = known.filter(|known| known.mntns == mntns).flat_map(|known| &known.roots);
        let is_below = |root: &String| {
            let below = path.strip_prefix(root.trim_end_matches('/'));
            below.is_some_and(|rest| rest.starts_with('/'))
        };
        roots.any(is_below)
    }

    /// The mount namespaces of the host and of kubelets.
    pub fn namespaces(&self) -> impl Iterator<Item = NsInum> {
        self.reported.iter().flat_map(|(_, facts)| &facts.namespaces).map(|known| known.mntns)
    }

    /// How a command gets into this mount namespace.
    pub fn way(&self, mntns: NsInum) -> Way {
        if self.is_host(mntns) {
            return Way::Host;
        }
        let known =
            self.reported.iter().flat_map(|(at, facts)| facts.namespaces.iter().map(|known| (*at, known)));
        let through =
            |(at, known): (BootNs, &KubeletNamespace)| Some(Way::Through { pid: known.pid?, seen: at });
        known.filter(|(_, known)| known.mntns == mntns).find_map(through).unwrap_or(Way::Unknown)
    }

    /// The pod volume that a path leads to, as a process of this mount namespace sees it at this time.
    pub fn volume(&self, at: BootNs, mntns: NsInum, path: &str) -> Option<Volume> {
        let Some((read, facts)) = &self.reported else { return volume::of_path(path) };
        roots(*read, facts, at, mntns).find_map(|root| volume::below(root, path))
    }

    /// The volume that is staged at a path, as a process of this mount namespace sees it at this time.
    pub fn staged(&self, at: BootNs, mntns: NsInum, path: &str) -> Option<StagedVolume> {
        let (read, facts) = self.reported.as_ref()?;
        roots(*read, facts, at, mntns).find_map(|root| volume::staged_below(root, path))
    }
}

/// The root directories of kubelets that were known in a mount namespace at a time.
fn roots(read: BootNs, facts: &KubeletFacts, at: BootNs, mntns: NsInum) -> impl Iterator<Item = &String> {
    let is_current = at <= read.saturating_add(NAMESPACE_RETENTION_NS);
    let namespaces = facts.namespaces.iter().filter(move |known| known.mntns == mntns);
    namespaces.filter(move |known| is_current || !known.of_kubelet).flat_map(|known| &known.roots)
}

/// How a command gets into a mount namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// It is the host's.
    Host,
    /// Through a process in it.
    Through { pid: u32, seen: BootNs },
    /// None is known.
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    const BELOW: &str = "pods/5c948341-c030-4996-b888-f032577d97b0/volumes/kubernetes.io~secret/token";

    fn kubelets() -> Kubelets {
        let namespace = |mntns, root: &str, of_kubelet| KubeletNamespace {
            mntns,
            roots: vec![root.to_owned()],
            of_kubelet,
            pid: of_kubelet.then_some(7),
        };
        let namespaces = vec![namespace(1, "/var/lib/kubelet", false), namespace(2, "/data/k", true)];
        let mut kubelets = Kubelets::default();
        kubelets.replace(5, KubeletFacts { namespaces });
        kubelets
    }

    #[test]
    fn a_path_is_below_a_root_of_its_own_mount_namespace_only() {
        let kubelets = kubelets();
        assert!(kubelets.has_below_root(1, "/var/lib/kubelet/plugins/x"));
        assert!(!kubelets.has_below_root(2, "/var/lib/kubelet/plugins/x"));
        assert!(
            !kubelets.has_below_root(1, "/var/lib/kubelet2/x")
                && !kubelets.has_below_root(1, "/var/lib/kubelet")
        );
        assert_eq!(kubelets.namespaces().collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn a_path_means_a_volume_only_below_a_root_and_in_its_namespace() {
        let kubelets = kubelets();
        let is_volume = |mntns, root: &str| kubelets.volume(5, mntns, &format!("{root}/{BELOW}")).is_some();
        assert!(is_volume(1, "/var/lib/kubelet") && is_volume(2, "/data/k"));
        assert!(!is_volume(2, "/var/lib/kubelet") && !is_volume(1, "/data/k"));
        assert!(!is_volume(3, "/var/lib/kubelet"), "the namespace of anybody");
        assert!(!is_volume(1, "/tmp/var/lib/kubelet") && !is_volume(1, "/var/lib/kubelet2"));
    }

    #[test]
    fn a_command_gets_into_the_namespace_of_a_kubelet_through_it() {
        let kubelets = kubelets();
        assert_eq!(kubelets.way(1), Way::Host);
        assert_eq!(kubelets.way(2), Way::Through { pid: 7, seen: 5 });
        assert_eq!(kubelets.way(3), Way::Unknown);
        assert_eq!(Kubelets::default().way(3), Way::Host, "a recording without a report");
    }

    #[test]
    fn the_namespace_of_a_kubelet_is_believed_for_a_short_time() {
        let kubelets = kubelets();
        let volume = |at, mntns, root: &str| kubelets.volume(at, mntns, &format!("{root}/{BELOW}"));
        assert!(volume(5 + NAMESPACE_RETENTION_NS, 2, "/data/k").is_some());
        assert!(volume(6 + NAMESPACE_RETENTION_NS, 2, "/data/k").is_none());
        assert!(volume(6 + NAMESPACE_RETENTION_NS, 1, "/var/lib/kubelet").is_some());
    }

    #[test]
    fn recordings_without_a_report_believe_every_root() {
        assert!(Kubelets::default().volume(5, 7, &format!("/tmp/k/{BELOW}")).is_some());
    }
}
