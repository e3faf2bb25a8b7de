//! A fresh Debian in a directory: its essential packages and systemd, of which `systemctl` is replaced by a script that writes
//! down what it is called with. The archive that it is unpacked from is made by `cargo xtask test e2e`.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::mount::Scratch;
use crate::process::{Finished, attempt, write_script};

/// Names the archive.
const VARIABLE: &str = "KEVTMON_DEBIAN_ROOT";

/// No service runs there; which are enabled is what the real program knows from files.
const SYSTEMCTL: &str = r#"#!/bin/sh
case " $* " in
*" is-enabled "* | *" preset "*) SYSTEMD_OFFLINE=1 exec /usr/bin/systemctl.real "$@" ;;
*" is-active "*) exit 3 ;;
*) echo "$*" >>/systemctl.log ;;
esac
"#;

/// What is of no use here, and half of the files.
const LEFT_OUT: [&str; 6] = [
    "./dev/*", "./usr/share/doc/*", "./usr/share/locale/*", "./usr/share/man/*", "./var/cache/*",
    "./var/lib/apt/*",
];

/// The directory.
#[derive(Debug)]
pub struct Debian {
    scratch: Scratch,
}

impl Debian {
    /// Unpacks one; None where there is no archive.
    #[must_use]
    pub fn unpack() -> Option<Self> {
        let archive = std::env::var_os(VARIABLE)?;
        let debian = Self { scratch: Scratch::without_mounts() };
        let root = debian.root();
        let mut tar: Vec<&OsStr> = vec!["tar".as_ref()];
        let excluded = LEFT_OUT.map(|place| format!("--exclude={place}"));
        tar.extend(excluded.iter().map(OsStr::new));
        tar.extend(["-xf".as_ref(), archive.as_os_str(), "-C".as_ref(), root.as_os_str()]);
        let _ = attempt(&tar).succeeded("tar");
        // A file: where this directory is, no device may be opened.
        std::fs::write(root.join("dev/null"), "").expect("a file can be written");
        std::fs::create_dir_all(root.join("run/systemd/system")).expect("a directory can be made");
        let systemctl = root.join("usr/bin/systemctl");
        std::fs::rename(&systemctl, root.join("usr/bin/systemctl.real")).expect("systemd is in it");
        write_script(&systemctl, SYSTEMCTL);
        Some(debian)
    }

    /// Where it is.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.scratch.path()
    }

    /// What a path in it is on the host.
    #[must_use]
    pub fn path(&self, inside: &str) -> PathBuf {
        self.root().join(inside.trim_start_matches('/'))
    }

    /// Runs a command in it to its end.
    #[must_use]
    pub fn run(&self, command: &[&str]) -> Finished {
        let root = self.root().to_string_lossy().into_owned();
        let mut words = vec!["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "chroot", &root];
        words.extend(command);
        attempt(&words)
    }

    /// What systemd was called with since the last time.
    #[must_use]
    pub fn systemctl_calls(&self) -> Vec<String> {
        let log = self.path("systemctl.log");
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        drop(std::fs::remove_file(log));
        text.lines().map(str::to_owned).collect()
    }

    /// All files and directories in it, but for the books of dpkg and the log files.
    #[must_use]
    pub fn files(&self) -> BTreeSet<String> {
        let root = self.root().to_string_lossy().into_owned();
        let found = attempt(&["find", &root, "-xdev", "-printf", "%P\\n"]).succeeded("find").stdout;
        let is_kept =
            |place: &&str| !["var/lib/dpkg/", "var/log/"].iter().any(|book| place.starts_with(book));
        found.lines().filter(is_kept).map(str::to_owned).collect()
    }
}
