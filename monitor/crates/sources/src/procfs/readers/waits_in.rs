//! Kinds of file systems by the functions of the kernel in which a thread waits for their servers.
//!
//! `/proc/PID/task/TID/wchan` names the function. Those that file systems share (of the page cache, of locks) say nothing,
//! and are not here.

use std::fs;
use std::path::Path;

/// How many requests the server of a FUSE file system with this device has not answered; `None` where that cannot be read.
pub fn unanswered(device: &str) -> Option<u64> {
    // The connection has the minor number.
    let (_, minor) = device.split_once(':')?;
    let waiting = Path::new("/sys/fs/fuse/connections").join(minor).join("waiting");
    fs::read_to_string(waiting).ok()?.trim().parse().ok()
}

#[derive(Debug)]
pub struct Waits {
    pub name: &'static str,
    /// How functions of theirs begin, and of nobody else's.
    functions: &'static [&'static str],
    /// Their types in a list of mounts; each also with a dot and more after it.
    types: &'static [&'static str],
}

impl Waits {
    pub fn is_in(&self, function: &str) -> bool {
        self.functions.iter().any(|begin| function.trim_end().starts_with(begin))
    }

    pub fn is_of(&self, fstype: &str) -> bool {
        let (kind, _) = fstype.split_once('.').unwrap_or((fstype, ""));
        self.types.contains(&kind)
    }
}

pub const WAITS: [Waits; 8] = [
    // Linux's client of NFS waits in its own functions and in those of its RPC.
    Waits { name: "NFS", functions: &["nfs_", "nfs3_", "nfs4_", "rpc_wait_"], types: &["nfs", "nfs4"] },
    Waits {
        name: "FUSE",
        // Not all that begin with `fuse_`: in `fuse_dev_do_read`, a server waits for work.
        functions: &["request_wait_answer", "fuse_get_req", "fuse_wait_on_", "fuse_set_nowrite"],
        types: &["fuse", "fuseblk", "virtiofs"],
    },
    Waits { name: "SMB", functions: &["cifs_", "smb2_", "SMB2_"], types: &["cifs", "smb3"] },
    // Who maps an image of RBD waits in the same library of the kernel.
    Waits { name: "Ceph (a file system or an RBD image)", functions: &["ceph_"], types: &["ceph"] },
    Waits { name: "9P", functions: &["p9_", "v9fs_"], types: &["9p"] },
    Waits { name: "AFS", functions: &["afs_"], types: &["afs"] },
    Waits { name: "GFS2", functions: &["gfs2_"], types: &["gfs2"] },
    Waits { name: "autofs", functions: &["autofs_"], types: &["autofs"] },
];
