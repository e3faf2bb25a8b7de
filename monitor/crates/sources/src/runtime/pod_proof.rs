//! What confirms that a container is of the pod that its labels tell: things that only root of the node makes.
//!
//! In: the facts of a container, its process in /proc, files of the kubelet and of dockershim. Out: the proof, or that
//! there is none. All of it is read by a reader. Labels come with the image, so who makes an image could name any pod.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use kevtmon_observation::cgroup;
use kevtmon_observation::{ContainerFacts, PodIdentity, PodProof};
use kevtmon_types::regular_file;
use serde::Deserialize;

use super::checkpoint::CHECKPOINTS;
use crate::kubelet::below;
use crate::procfs::Proc;
use crate::procfs::readers::reading_none;

/// The kubelet's links to the logs of containers, in a directory for each pod.
const LOGS: &str = "var/log/pods";
/// Its links to those, by pod, container and id.
const LOGS_BY_ID: &str = "var/log/containers";
/// A checkpoint has a few hundred bytes.
const CHECKPOINT_MAX: u64 = 64 << 10;
/// Logs of one container that are looked at: the kubelet keeps two by default.
const LOGS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Proofs {
    proc: Proc,
    root: PathBuf,
}

/// The part of a checkpoint (pkg/kubelet/dockershim/docker_checkpoint.go) that tells the pod; it has no uid.
#[derive(Deserialize)]
struct Checkpoint {
    name: String,
    namespace: String,
}

impl Proofs {
    /// Of the node whose processes are read.
    pub(super) fn new(proc: Proc) -> Self {
        Self { root: proc.host_root(), proc }
    }

    #[cfg(test)]
    fn below(proc: Proc, root: &Path) -> Self {
        Self { proc, root: root.to_owned() }
    }

    /// Why the container is believed to be of the pod that it claims.
    pub(super) fn of(&self, facts: &ContainerFacts) -> PodProof {
        let Some(pod) = &facts.pod else { return PodProof::Claimed };
        if self.has_cgroup_of(facts, pod) {
            return PodProof::Cgroup;
        }
        // What follows is on disk.
        reading_none();
        if self.has_checkpoint_of(facts, pod) {
            PodProof::Checkpoint
        } else if self.has_log_of(facts, pod) {
            PodProof::Log
        } else {
            PodProof::Claimed
        }
    }

    fn has_cgroup_of(&self, facts: &ContainerFacts, pod: &PodIdentity) -> bool {
        let path = facts.tgid.and_then(|tgid| self.proc.cgroup(tgid));
        let identity = path.map(|path| cgroup::identify(&path)).unwrap_or_default();
        // With the container's own id in it, it is not that of a process that has the number now.
        identity.container_id.as_ref() == Some(&facts.id) && identity.pod_uid.as_ref() == Some(&pod.uid)
    }

    /// A container that is no sandbox has to share the network of one: its label could name any.
    fn has_checkpoint_of(&self, facts: &ContainerFacts, pod: &PodIdentity) -> bool {
        let sandbox = if facts.joined_netns { pod.sandbox_id.as_deref() } else { Some(facts.id.as_str()) };
        let Some(sandbox) = sandbox.filter(|id| super::is_container_id(id)) else { return false };
        let read = |directory| checkpoint(&self.at(directory).join(sandbox));
        CHECKPOINTS
            .into_iter()
            .filter_map(read)
            .any(|found| (found.namespace, found.name) == (pod.namespace.clone(), pod.name.clone()))
    }

    /// A directory of the node.
    fn at(&self, path: &str) -> PathBuf {
        below(&self.root, &format!("/{path}"))
    }

    fn has_log_of(&self, facts: &ContainerFacts, pod: &PodIdentity) -> bool {
        let Some(container) = pod.container_name.as_deref() else { return false };
        if ![container, &pod.namespace, &pod.name, &pod.uid].into_iter().all(is_file_name) {
            return false;
        }
        let of_pod = format!("{}_{}_{}", pod.namespace, pod.name, pod.uid);
        let by_id = format!("{}_{}_{container}-{}.log", pod.name, pod.namespace, facts.id);
        if let Some(target) = link_of_root(&self.at(LOGS_BY_ID).join(by_id)) {
            // Before 1.14 the directory had the uid alone.
            return target.iter().any(|part| part == of_pod.as_str() || part == pod.uid.as_str());
        }
        let logs = self.at(LOGS);
        let directories = [logs.join(of_pod).join(container), logs.join(&pod.uid)];
        let entries = directories.iter().filter_map(|path| fs::read_dir(path).ok());
        entries
            .flat_map(|entries| entries.take(LOGS_MAX).flatten())
            .filter_map(|entry| link_of_root(&entry.path()))
            .any(|target| target.iter().any(|part| part == facts.id.as_str()))
    }
}

fn checkpoint(path: &Path) -> Option<Checkpoint> {
    let file =
        regular_file::open(path).ok().filter(|file| file.metadata().is_ok_and(|file| file.uid() == 0))?;
    let mut text = String::new();
    file.take(CHECKPOINT_MAX).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// Where a link leads to that root made.
fn link_of_root(path: &Path) -> Option<PathBuf> {
    let is_of_root = fs::symlink_metadata(path).is_ok_and(|link| link.uid() == 0);
    is_of_root.then(|| fs::read_link(path).ok())?
}

/// Whether it can be part of a path without leading elsewhere.
fn is_file_name(text: &str) -> bool {
    !text.contains('/') && !matches!(text, "" | "." | "..")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use kevtmon_testing::facts::container;

    use super::*;

    const ID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const SANDBOX: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
    const UID: &str = "5c948341-c030-4996-b888-f032577d97b0";

    /// A node whose files are written by the test, which runs as root or not at all.
    struct Node(tempfile::TempDir);

    impl Node {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn link(&self, path: &str, target: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(target, path).unwrap();
        }

        fn proof(&self, facts: &ContainerFacts) -> PodProof {
            let proofs = Proofs::below(Proc::new(self.0.path().join("proc")), self.0.path());
            proofs.of(facts)
        }
    }

    fn member(joined_netns: bool) -> ContainerFacts {
        ContainerFacts {
            pod: Some(PodIdentity {
                namespace: "lijiaob".into(),
                name: "etcd1-0".into(),
                uid: UID.into(),
                sandbox_id: Some(SANDBOX.into()),
                container_name: Some("etcd".into()),
                proof: PodProof::Claimed,
                labels: None,
            }),
            joined_netns,
            ..container(ID)
        }
    }

    #[test]
    fn labels_alone_are_a_claim() {
        assert_eq!(Node::new().proof(&member(true)), PodProof::Claimed);
    }

    #[test]
    fn the_cgroup_has_to_be_of_this_container_and_of_this_pod() {
        for (path, expected) in [
            (format!("/kubepods/besteffort/pod{UID}/{ID}"), PodProof::Cgroup),
            (format!("/docker/{ID}"), PodProof::Claimed),
            (format!("/kubepods/besteffort/pod{UID}/{SANDBOX}"), PodProof::Claimed),
            (format!("/kubepods/pod{}/{ID}", UID.replace('5', "6")), PodProof::Claimed),
            (format!("/docker/{ID}/kubepods/pod{UID}/{ID}"), PodProof::Claimed),
            (format!("/user.slice/user@1000.service/kubepods/pod{UID}/{ID}"), PodProof::Claimed),
        ] {
            let node = Node::new();
            node.write("proc/7/cgroup", &format!("0::{path}\n"));
            node.write(&format!("sys/fs/cgroup{path}/cgroup.procs"), "");
            node.write("sys/fs/cgroup/cgroup.controllers", "");
            assert_eq!(node.proof(&member(false)), expected, "{path}");
        }
    }

    #[test]
    fn a_checkpoint_confirms_a_sandbox_and_what_shares_its_network() {
        let text = r#"{"version":"v1","name":"etcd1-0","namespace":"lijiaob","data":{},"checksum":1}"#;
        for directory in CHECKPOINTS {
            let node = Node::new();
            node.write(&format!("{directory}/{SANDBOX}"), text);
            assert_eq!(node.proof(&member(true)), PodProof::Checkpoint);
            assert_eq!(node.proof(&member(false)), PodProof::Claimed, "only its label names the sandbox");
            node.write(&format!("{directory}/{ID}"), text);
            assert_eq!(node.proof(&member(false)), PodProof::Checkpoint, "its own");
            node.write(&format!("{directory}/{ID}"), &text.replace("etcd1-0", "other"));
            assert_eq!(node.proof(&member(false)), PodProof::Claimed, "of another pod");
            node.write(&format!("{directory}/{ID}"), "{");
            assert_eq!(node.proof(&member(false)), PodProof::Claimed);
        }
    }

    #[test]
    fn links_of_the_node_lead_within_it() {
        let node = Node::new();
        for directory in CHECKPOINTS {
            let (parent, _) = directory.rsplit_once('/').unwrap();
            node.link(parent, &format!("/data/{parent}"));
        }
        let text = r#"{"name":"etcd1-0","namespace":"lijiaob"}"#;
        node.write(&format!("data/{}/{ID}", CHECKPOINTS[1]), text);
        assert_eq!(node.proof(&member(false)), PodProof::Checkpoint);
        let node = Node::new();
        node.link("var/log", "/data/log");
        node.link(&format!("data/log/pods/lijiaob_etcd1-0_{UID}/etcd/0.log"), &format!("/{ID}/0.log"));
        assert_eq!(node.proof(&member(false)), PodProof::Log);
    }

    #[test]
    fn a_pipe_in_the_place_of_a_checkpoint_keeps_nobody_waiting() {
        let node = Node::new();
        let directory = node.0.path().join(CHECKPOINTS[0]);
        fs::create_dir_all(&directory).unwrap();
        nix::unistd::mkfifo(&directory.join(ID), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(node.proof(&member(false)), PodProof::Claimed);
    }

    #[test]
    fn a_link_to_its_log_confirms_a_container() {
        let of_pod = format!("var/log/pods/lijiaob_etcd1-0_{UID}/etcd/0.log");
        let log = |id: &str| format!("/var/lib/docker/containers/{id}/{id}-json.log");
        let by_id = format!("var/log/containers/etcd1-0_lijiaob_etcd-{ID}.log");
        for (path, target, expected) in [
            (of_pod.clone(), log(ID), PodProof::Log),
            (of_pod.clone(), log(SANDBOX), PodProof::Claimed),
            (format!("var/log/pods/{UID}/etcd_0.log"), log(ID), PodProof::Log),
            (by_id.clone(), format!("/{of_pod}"), PodProof::Log),
            (by_id, "/var/log/pods/other_etcd1-0_1/etcd/0.log".into(), PodProof::Claimed),
        ] {
            let node = Node::new();
            node.link(&path, &target);
            assert_eq!(node.proof(&member(false)), expected, "{path} to {target}");
        }
    }

    #[test]
    fn a_name_does_not_lead_out_of_the_directory() {
        let node = Node::new();
        node.link("etcd/0.log", &format!("/{ID}"));
        let mut facts = member(false);
        facts.pod.as_mut().unwrap().container_name = Some("../../../../etcd".into());
        assert_eq!(node.proof(&facts), PodProof::Claimed);
    }
}
