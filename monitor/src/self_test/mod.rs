//! What `doctor --self-test` does, as a process of its own: in a network namespace with a veth it deletes a permanent neighbor
//! entry, and in a mount namespace it is refused an unmount. Both namespaces, the veth and the mounts end with the process,
//! however it ends. It does not look at what comes of it.
//!
//! In: lines on standard input, each of which allows the next step; its end ends the process. Out: a line of JSON after each.

mod network;

use std::fs::{self, File};
use std::io::{self, BufRead, Write};
use std::net::Ipv4Addr;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::process;

use network::{Network, refused};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use serde::{Deserialize, Serialize};

/// First argument of such a process.
pub const ARGUMENT: &str = "self-test-worker";
/// The neighbor whose entry is deleted, of a network for documentation (RFC 5737).
pub const NEIGHBOR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Interface in the namespace of its own.
const LINK: &str = "kvtest";
/// Directories that may be there: what is in them is covered, for this process alone.
const PLACES: [&str; 3] = ["/tmp", "/run", "/dev"];

/// What the process has done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Done {
    /// The namespaces are there, with all that is in them.
    Prepared {
        /// The other end of the veth, in the network namespace of the parent process.
        link: String,
        /// What is mounted and in use, in the mount namespace of this process.
        mount: PathBuf,
    },
    /// The entry was deleted, and the unmount refused.
    Acted {
        /// What umount2(2) returned: the name of an errno, or `ok`.
        umount: String,
    },
    Failed {
        reason: String,
    },
}

/// Name of the end of the veth that is in the namespace of the parent of the process with this id.
fn link_of(pid: u32) -> String {
    format!("kvt{pid}")
}

/// Does it, in this process.
pub fn work() {
    serve(&mut io::stdin().lock(), &mut io::stdout().lock());
}

fn serve(steps: &mut impl BufRead, out: &mut impl Write) {
    let mut tell = |done: &Done| {
        // Whoever started this reads it, or is gone.
        let line = serde_json::to_string(done).unwrap_or_default();
        writeln!(out, "{line}").and_then(|()| out.flush()).is_ok()
    };
    let mut prepared = match Prepared::new() {
        Ok(prepared) => prepared,
        Err(reason) => {
            tell(&Done::Failed { reason });
            return;
        }
    };
    let there = Done::Prepared { link: link_of(process::id()), mount: prepared.mount.clone() };
    if !tell(&there) || !is_allowed(steps) {
        return;
    }
    tell(&prepared.act().unwrap_or_else(|reason| Done::Failed { reason }));
    // Whoever acted stays until it was looked at.
    is_allowed(steps);
}

fn is_allowed(steps: &mut impl BufRead) -> bool {
    steps.read_line(&mut String::new()).is_ok_and(|length| length > 0)
}

/// Namespaces with what is to be changed.
struct Prepared {
    network: Network,
    ifindex: u32,
    mount: PathBuf,
    /// Keeps the mount in use.
    _file: File,
}

impl Prepared {
    fn new() -> Result<Self, String> {
        let namespace = |what: &str, flags| {
            unshare(flags).map_err(|errno| format!("cannot make a {what} namespace: {errno}"))
        };
        namespace("network", CloneFlags::CLONE_NEWNET)?;
        let mut network = Network::open()?;
        network.add_veth(LINK, &link_of(process::id()), parent_id())?;
        let ifindex =
            nix::net::if_::if_nametoindex(LINK).map_err(|errno| refused("look up the veth", errno.into()))?;
        network.set_up(ifindex)?;
        network.add_permanent_neighbor(ifindex, NEIGHBOR)?;
        namespace("mount", CloneFlags::CLONE_NEWNS)?;
        let (mount, file) = mount_in_use()?;
        Ok(Self { network, ifindex, mount, _file: file })
    }

    fn act(&mut self) -> Result<Done, String> {
        self.network.delete_neighbor(self.ifindex, NEIGHBOR)?;
        let umount = match umount2(&self.mount, MntFlags::empty()) {
            Ok(()) => "ok".to_owned(),
            Err(errno) => format!("{errno:?}"),
        };
        Ok(Done::Acted { umount })
    }
}

/// A tmpfs that nobody else sees, with an open file in it.
fn mount_in_use() -> Result<(PathBuf, File), String> {
    let none = None::<&str>;
    let failed = |path: &Path, errno: Errno| format!("cannot mount a tmpfs at {}: {errno}", path.display());
    let root = Path::new("/");
    mount(none, root, none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .map_err(|errno| failed(root, errno))?;
    let no_place = || format!("none of {} is there to mount something at", PLACES.join(", "));
    let place = PLACES.iter().map(Path::new).find(|place| place.is_dir()).ok_or_else(no_place)?;
    let tmpfs = |path: &Path| {
        mount(Some("kevtmon-self-test"), path, Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, none)
            .map_err(|errno| failed(path, errno))
    };
    tmpfs(place)?;
    let point = place.join(format!("kevtmon-self-test-{}", process::id()));
    let unusable = |path: &Path, error: io::Error| format!("cannot use {}: {error}", path.display());
    fs::create_dir(&point).map_err(|error| unusable(&point, error))?;
    tmpfs(&point)?;
    let inside = point.join("file");
    let file = File::create(&inside).map_err(|error| unusable(&inside, error))?;
    Ok((point, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_link_fits_whatever_the_process_id() {
        // IFNAMSIZ, with its end.
        assert!(link_of(4_194_304).len() < 16);
    }

    #[test]
    fn what_was_done_reads_back() {
        for done in [
            Done::Prepared { link: "kvt7".into(), mount: "/tmp/a".into() },
            Done::Acted { umount: "EBUSY".into() },
            Done::Failed { reason: "no".into() },
        ] {
            assert_eq!(serde_json::from_str::<Done>(&serde_json::to_string(&done).unwrap()).unwrap(), done);
        }
    }
}
