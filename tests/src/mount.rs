//! Mounts of a test, on tmpfs in a directory of their own.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use crate::daemon::Daemon;
use crate::event::Event;
use crate::eventually;
use crate::lock::Turn;
use crate::pod_sandbox::uuid;
use crate::process::{Finished, attempt, finish};
use crate::reaper::Cleanup;
use crate::unique;

/// The second by which the daemon takes the clock of file systems to be late, and what a clock may be set meanwhile.
const SETTLED: Duration = Duration::from_millis(1_200);

/// A directory that is removed with all mounts in it.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    // Before the turn ends.
    _cleanup: Cleanup,
    _turn: Option<Arc<Turn>>,
}

impl Scratch {
    /// Makes one that every user may enter. While it lives, no other test of this mount namespace has mounts.
    #[must_use]
    pub fn new() -> Self {
        let turn = Turn::take();
        Self { _turn: Some(turn), ..Self::without_mounts() }
    }

    /// Makes one whose mounts, if it gets any, are nobody's concern.
    #[must_use]
    pub fn without_mounts() -> Self {
        let path = std::env::temp_dir().join(unique::name("kvm"));
        // Mounts are detached from the deepest up; only then may files be deleted.
        let cleanup = Cleanup::script(&format!(
            "for pass in 1 2 3 4 5 6 7 8; do grep -qF ' {0}' /proc/self/mountinfo || break\n\
             awk -v d='{0}' '$5 == d || index($5, d \"/\") == 1 {{ print $5 }}' /proc/self/mountinfo | sort -r |\n\
             while read -r m; do umount -l \"$(printf '%b' \"$m\")\"; done; done 2>/dev/null\n\
             rm -rf --one-file-system '{0}'\n",
            path.display()
        ));
        std::fs::create_dir(&path).expect("a directory can be made");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, mode).expect("a mode can be set");
        Self { path, _cleanup: cleanup, _turn: None }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

/// A tmpfs with a file in it.
#[derive(Debug)]
pub struct Mount {
    point: PathBuf,
    _scratch: Option<Scratch>,
}

impl Mount {
    /// Mounts one in a directory of its own, on a path that contains a space.
    #[must_use]
    pub fn new() -> Self {
        let scratch = Scratch::new();
        let mut mount = Self::at(&scratch.path().join("pod volume"));
        mount._scratch = Some(scratch);
        mount
    }

    /// Mounts one where a kubelet mounts a volume of a pod; see [`Launch::kubelet`].
    ///
    /// [`Launch::kubelet`]: crate::daemon::Launch::kubelet
    #[must_use]
    pub fn volume() -> Self {
        let scratch = Scratch::new();
        let below = format!("kubelet/pods/{}/volumes/kubernetes.io~rbd/data", uuid());
        let mut mount = Self::at(&scratch.path().join(below));
        mount._scratch = Some(scratch);
        mount
    }

    /// Mounts one at a path whose directory the caller keeps.
    #[must_use]
    pub fn at(point: &Path) -> Self {
        Self::of(&["-t".as_ref(), "tmpfs".as_ref(), "kevtmon".as_ref()], point)
    }

    /// Mounts something else: these are the arguments of mount(8) before the path.
    #[must_use]
    pub fn of(what: &[&OsStr], point: &Path) -> Self {
        std::fs::create_dir_all(point).expect("a mount point can be made");
        let _ = attempt(&[&["mount".as_ref()], what, &[point.as_ref()]].concat()).succeeded("mount");
        std::fs::write(point.join("file"), "held\n").expect("a file can be written");
        Self { point: point.to_owned(), _scratch: None }
    }

    /// The root directory of the kubelet that a volume is of.
    #[must_use]
    pub fn kubelet_root(&self) -> &Path {
        self.point.ancestors().nth(5).expect("ROOT/pods/UID/volumes/PLUGIN/NAME")
    }

    /// Where it is mounted.
    #[must_use]
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// The file in it.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.point.join("file")
    }

    /// Tries to unmount it, by a process that ends at once.
    pub fn umount(&self) -> Finished {
        attempt::<&OsStr>(&["umount".as_ref(), self.point.as_ref()])
    }

    /// Tries to unmount it and is refused, when it cannot seem to be another one by the times of the directories above.
    pub fn umount_refused(&self) -> Finished {
        settle(self.point.parent().expect("a directory above"));
        let ran = self.umount();
        assert!(!ran.status.success(), "{} was not busy", self.point.display());
        ran
    }
}

/// Waits until nothing in a directory was changed for longer than the clock of a file system may be late: what was changed
/// before a call cannot seem to be changed after it then.
pub fn settle(directory: &Path) {
    let is_settled = || {
        let changed = std::fs::metadata(directory).ok()?;
        let changed = Duration::new(changed.ctime().try_into().ok()?, changed.ctime_nsec().try_into().ok()?);
        Some(UNIX_EPOCH.elapsed().ok()?.checked_sub(changed)? > SETTLED)
    };
    eventually!(is_settled() == Some(true), "{} is settled", directory.display());
}

impl Default for Mount {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether an event is of this kind, and about the mount at this path.
#[must_use]
pub fn is_about(event: &Event, kind: &str, path: &Path) -> bool {
    event.kind() == kind && event.text("/mount/path") == path.to_string_lossy()
}

/// Waits for an event about the mount at this path; for a refused unmount with its holders.
pub fn wait_for(daemon: &mut Daemon, kind: &str, path: &Path) -> Event {
    let what = format!("{kind} of {}", path.display());
    match kind {
        "mount.busy" => daemon.wait_for_holders(&what, |event| is_about(event, kind, path)),
        _ => daemon.wait_for(&what, |event| is_about(event, kind, path)),
    }
}

/// Runs a shell with the path of a mount as `$1`.
pub fn shell(script: &str, mount: &Mount) -> Finished {
    let mut command = Command::new("sh");
    finish(command.args(["-c", script, "sh"]).arg(mount.point()).stdin(Stdio::null()), "sh".as_ref())
}
