//! Loop devices, and an ext4 on one.

use std::fs::File;
use std::path::Path;

use crate::process::attempt;
use crate::reaper::Cleanup;

/// A loop device on a file, which is detached when this is dropped.
#[derive(Debug)]
pub struct LoopDevice {
    name: String,
    // A test that is killed is to leave none behind.
    cleanup: Option<Cleanup>,
}

impl LoopDevice {
    /// On a new file of this many MiB.
    #[must_use]
    pub fn on(file: &Path, size: u64) -> Self {
        File::create(file).and_then(|file| file.set_len(size << 20)).expect("a file");
        let words = ["losetup".as_ref(), "--find".as_ref(), "--show".as_ref(), file.as_os_str()];
        let name = attempt(&words).succeeded("losetup").stdout.trim().to_owned();
        let cleanup = Some(Cleanup::script(&format!("losetup --detach {name} 2>/dev/null\n")));
        Self { name, cleanup }
    }

    /// `/dev/loop3`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes an ext4 on it, and mounts that.
    pub fn mount(&self, at: &Path) {
        let _ = attempt(&["mkfs.ext4", "-q", "-F", &self.name]).succeeded("mkfs.ext4");
        std::fs::create_dir_all(at).expect("a mount point can be made");
        let words: [&std::ffi::OsStr; 3] = ["mount".as_ref(), self.name.as_ref(), at.as_ref()];
        let _ = attempt(&words).succeeded("mount");
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = attempt(&["losetup", "--detach", &self.name]);
        if let Some(cleanup) = self.cleanup.take() {
            cleanup.revoke();
        }
    }
}
