//! Volumes of pods on a node with a kubelet.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{KubeletNode, NodePod, enter};
use crate::eventually;
use crate::process::{Running, comm};

impl KubeletNode {
    /// Has the kubelet run a static pod with a volume in memory, which is called `data`; also returns where that is mounted.
    #[must_use]
    pub fn run_pod_with_memory(&self, name: &str) -> (NodePod, PathBuf) {
        let mounts = serde_json::json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
        let volumes = serde_json::json!([{"name": "data", "emptyDir": {"medium": "Memory"}}]);
        self.write_pod(name, None, &mounts, Some(volumes));
        let pod = self.wait_for_static_pod(name, &[]);
        let volume = self.memory_of(&pod);
        (pod, volume)
    }

    /// Where the volume in memory of a pod is mounted, which is called `data`.
    #[must_use]
    pub fn memory_of(&self, pod: &NodePod) -> PathBuf {
        self.path(&format!("kubelet/pods/{}/volumes/kubernetes.io~empty-dir/data", pod.uid))
    }

    /// Holds a directory of the node by being in it, as a process beside the kubelet.
    #[must_use]
    pub fn hold_by_cwd(&self, directory: &Path) -> Running {
        let words = enter(&self.mounts);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["sh", "-c", "cd \"$1\" && exec sleep 1000000", "sh"]).arg(directory);
        let holder = Running::spawn(command.stdin(Stdio::null()));
        let link = format!("/proc/{}/cwd", holder.pid());
        eventually!(
            comm(holder.pid()).as_deref() == Some("sleep")
                && fs::read_link(&link).is_ok_and(|cwd| cwd == directory),
            "{} is held",
            directory.display()
        );
        holder
    }
}
