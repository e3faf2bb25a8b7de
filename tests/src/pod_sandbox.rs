//! The process of a pod, in a control group as a kubelet makes it: a container without a runtime.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::eventually;
use crate::netns::NetnsPath;
use crate::pod::Pod;
use crate::process::{Running, comm};
use crate::reaper::Cleanup;

/// A process that does nothing, in the network of a pod and in a control group that names pod and container.
#[derive(Debug)]
pub struct PodSandbox {
    process: Running,
    uid: String,
    id: String,
    group: PathBuf,
    /// Dropped last: the group goes once nothing is in it.
    _cleanup: Cleanup,
}

impl PodSandbox {
    /// Starts one in a pod's network.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        Self::within(pod.netns())
    }

    /// Starts one in any network namespace.
    #[must_use]
    pub fn within(netns: &NetnsPath) -> Self {
        Self::start(uuid(), netns)
    }

    /// Starts another container of the same pod.
    #[must_use]
    pub fn another(&self, pod: &Pod) -> Self {
        Self::start(self.uid.clone(), pod.netns())
    }

    fn start(uid: String, netns: &NetnsPath) -> Self {
        let id = format!("{}{}", uuid(), uuid()).replace('-', "");
        let slice = groups().join(format!("kubepods-besteffort-pod{}.slice", uid.replace('-', "_")));
        let group = slice.join(format!("cri-containerd-{id}.scope"));
        let cleanup =
            Cleanup::script(&format!("rmdir '{}' '{}' 2>/dev/null\n", group.display(), slice.display()));
        std::fs::create_dir_all(&group).expect("a control group can be made");
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ >\"$1/cgroup.procs\" && exec nsenter --net=\"$2\" sleep 1000000", "sh"]);
        command.arg(&group).arg(netns.path()).stdin(Stdio::null()).stdout(Stdio::null());
        let process = Running::spawn(&mut command);
        let sandbox = Self { process, uid, id, group, _cleanup: cleanup };
        eventually!(comm(sandbox.pid()).as_deref() == Some("sleep"), "the sandbox is in the network");
        sandbox
    }

    /// Moves another process into its container.
    pub fn take(&self, pid: u32) {
        std::fs::write(self.group.join("cgroup.procs"), pid.to_string()).expect("it can be moved");
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Identity of its pod.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Identity of its container: 64 hex digits.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }
}

/// A random identity.
#[must_use]
pub fn uuid() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid").expect("the kernel makes identities");
    text.trim_end().to_owned()
}

/// Where the second version of control groups is mounted.
fn groups() -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let mut lines = mounts.lines().filter(|line| line.contains(" - cgroup2 "));
    let point = lines.next().and_then(|line| line.split(' ').nth(4)).expect("control groups are mounted");
    Path::new(point).to_owned()
}
