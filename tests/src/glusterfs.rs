//! Volumes served by the real FUSE client of GlusterFS.
//!
//! Its translators run in one process: that of the bricks serves a local directory, so no daemon of GlusterFS and no network is
//! needed. All that concerns the mount and its server is as with a remote volume.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

use crate::eventually;
use crate::pod_sandbox::uuid;
use crate::process::{Finished, Running, attempt};

/// Where a kubelet has a volume of GlusterFS.
const PLUGIN: &str = "kubernetes.io~glusterfs";

/// A volume of a pod, and the process that serves it.
#[derive(Debug)]
pub struct GlusterVolume {
    client: Running,
    point: PathBuf,
    uid: String,
}

impl GlusterVolume {
    /// Mounts one of a new pod below a kubelet's root directory. `log`: where its client logs to, which it keeps open.
    #[must_use]
    pub fn mount(kubelet_root: &Path, name: &str, bricks: &Path, log: &Path) -> Self {
        let uid = uuid();
        let point = kubelet_root.join(format!("pods/{uid}/volumes/{PLUGIN}/{name}"));
        Self::serve(point, uid, name, bricks, log)
    }

    /// Mounts it again where it was, by another client.
    #[must_use]
    pub fn mount_again(&self, bricks: &Path, log: &Path) -> Self {
        Self::serve(self.point.clone(), self.uid.clone(), "again", bricks, log)
    }

    fn serve(point: PathBuf, uid: String, name: &str, bricks: &Path, log: &Path) -> Self {
        let brick = bricks.join(name);
        for directory in [&point, &brick] {
            fs::create_dir_all(directory).expect("a directory can be made");
        }
        let volume = bricks.join(format!("{name}.vol"));
        let text =
            format!("volume brick\ntype storage/posix\noption directory {}\nend-volume\n", brick.display());
        fs::write(&volume, text).expect("a file can be written");
        let mut command = Command::new("glusterfs");
        command
            .args(["--no-daemon", "--log-level=ERROR", "--volfile"])
            .arg(&volume)
            .arg("--log-file")
            .arg(log);
        command.arg(&point).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut client = Running::spawn(&mut command);
        eventually!(
            {
                assert!(client.ended().is_none(), "{}", fs::read_to_string(log).unwrap_or_default());
                is_mounted(&point)
            },
            "{} is mounted",
            point.display()
        );
        Self { client, point, uid }
    }

    /// The client, which is the server of the file system.
    #[must_use]
    pub fn client(&self) -> &Running {
        &self.client
    }

    /// Whether the client has ended, as it does with its last mount.
    pub fn has_ended(&mut self) -> bool {
        self.client.ended().is_some()
    }

    /// Whether the kernel shows whose a connection is.
    #[must_use]
    pub fn is_shown(&self) -> bool {
        let infos = fs::read_dir(format!("/proc/{}/fdinfo", self.client.pid())).expect("it runs");
        let mut texts = infos.flatten().filter_map(|entry| fs::read_to_string(entry.path()).ok());
        texts.any(|text| text.contains("fuse_connection"))
    }

    /// Where it is mounted.
    #[must_use]
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Uid of the pod.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Tries to unmount it by a call of this process: the program umount(8) asks the server first, and waits for one that is
    /// stopped.
    ///
    /// # Panics
    /// If it is not busy.
    pub fn refuse(&self) {
        let refused = umount2(&self.point, MntFlags::UMOUNT_NOFOLLOW);
        assert_eq!(refused, Err(Errno::EBUSY), "{}", self.point.display());
    }

    /// Tries to unmount it.
    pub fn umount(&self) -> Finished {
        attempt(&["umount".as_ref(), self.point.as_os_str()])
    }
}

fn is_mounted(point: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let at = format!(" {} ", point.display());
    mounts.lines().any(|line| line.contains(&at) && line.contains(" fuse.glusterfs "))
}
