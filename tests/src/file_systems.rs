//! File systems of several kinds, each of which is mounted more than once: whoever uses another mount of it holds none of these.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::loop_device::LoopDevice;
use crate::mount::Mount;
use crate::process::{attempt, run};

/// In MiB. Of btrfs there is none that is much smaller.
pub const SIZE: u64 = 256;

/// How something is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A tmpfs of its own.
    Tmpfs,
    /// The ext4, again.
    Ext4,
    /// A directory of the ext4.
    Bind,
    /// An overlay of directories of the ext4.
    Overlay,
    /// The btrfs, again.
    Btrfs,
    /// A subvolume of it, whose files have another device than the mount has.
    Subvolume,
}

/// The file systems, each mounted once where no test looks.
#[derive(Debug)]
pub struct FileSystems {
    base: PathBuf,
    kinds: Vec<Kind>,
    ext4: LoopDevice,
    btrfs: LoopDevice,
}

impl FileSystems {
    /// Makes them below a directory that is removed with all mounts in it. Without a btrfs where the machine has none.
    ///
    /// # Panics
    /// When a directory or the ext4 cannot be made.
    #[must_use]
    pub fn below(base: &Path) -> Self {
        let [ext4, btrfs] =
            ["ext4", "btrfs"].map(|name| LoopDevice::on(&base.join(format!("{name}.img")), SIZE));
        ext4.mount(&base.join("ext4"));
        let mut kinds = vec![Kind::Tmpfs, Kind::Ext4, Kind::Bind, Kind::Overlay];
        if has_btrfs() {
            Self::mount_btrfs(&btrfs, &base.join("btrfs"));
            kinds.extend([Kind::Btrfs, Kind::Subvolume]);
        }
        Self { base: base.to_owned(), kinds, ext4, btrfs }
    }

    fn mount_btrfs(device: &LoopDevice, at: &Path) {
        std::fs::create_dir(at).expect("a directory can be made");
        run(&format!("mkfs.btrfs -q -f {}", device.name()));
        run(&format!("mount {} {}", device.name(), at.display()));
        run(&format!("btrfs -q subvolume create {}/sub", at.display()));
    }

    /// Those that there are.
    #[must_use]
    pub fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    /// Mounts one. `name` is that of nothing else that was mounted.
    ///
    /// # Panics
    /// When it cannot be mounted.
    #[must_use]
    pub fn mount(&self, kind: Kind, name: &str, point: &Path) -> Mount {
        let directory = |of: &str| {
            let path = self.base.join("ext4").join(of).join(name);
            std::fs::create_dir_all(&path).expect("a directory can be made");
            path.into_os_string()
        };
        let words: Vec<&OsStr> = match kind {
            Kind::Tmpfs => return Mount::at(point),
            Kind::Ext4 => vec![self.ext4.name().as_ref()],
            Kind::Btrfs => vec![self.btrfs.name().as_ref()],
            Kind::Subvolume => vec!["-o".as_ref(), "subvol=sub".as_ref(), self.btrfs.name().as_ref()],
            Kind::Bind => return Mount::of(&["--bind".as_ref(), &directory("bound")], point),
            Kind::Overlay => {
                let mut options = std::ffi::OsString::new();
                for (option, of) in [("lowerdir=", "lower"), (",upperdir=", "upper"), (",workdir=", "work")] {
                    options.push(option);
                    options.push(directory(of));
                }
                let overlay = "overlay".as_ref();
                return Mount::of(&["-t".as_ref(), overlay, "-o".as_ref(), &options, overlay], point);
            }
        };
        Mount::of(&words, point)
    }
}

/// Whether there is a btrfs here, and what makes one.
#[must_use]
pub fn has_btrfs() -> bool {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    known.contains("\tbtrfs\n") && Path::new("/usr/sbin/mkfs.btrfs").exists()
}

/// Removes all that is in a directory, which may be a mount point, but for what is in use and the subvolume.
pub fn clear(directory: &Path) {
    let words: [&OsStr; 10] = [
        "find".as_ref(),
        directory.as_ref(),
        "-xdev".as_ref(),
        "-mindepth".as_ref(),
        "1".as_ref(),
        "-depth".as_ref(),
        "!".as_ref(),
        "-name".as_ref(),
        "sub".as_ref(),
        "-delete".as_ref(),
    ];
    drop(attempt(&words));
}
