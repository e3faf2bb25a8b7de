//! Access control: root, the user of the daemon, and members of the group of the socket. The mode of the socket has the
//! same effect; this check holds even if the mode was changed, or a descriptor was passed on.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use tokio::net::UnixStream;

/// Most supplementary groups of a peer that are checked; the kernel allows 65,536.
const GROUPS: usize = 1024;
/// include/uapi/asm-generic/socket.h
const SO_PEERGROUPS: libc::c_int = 59;

/// Decides by the current group of the socket file.
#[derive(Debug)]
pub(super) struct AccessControl {
    path: PathBuf,
    own: u32,
}

impl AccessControl {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), own: geteuid().as_raw() }
    }

    /// Why a client has no access, if it has none.
    pub(super) fn check(&self, stream: &UnixStream) -> Result<(), String> {
        let unknown = |_| "cannot identify the client".to_owned();
        let peer = stream.peer_cred().map_err(unknown)?;
        // An administrator may have changed the group.
        let group = fs::metadata(&self.path).map_err(unknown)?.gid();
        // Before Linux 4.13 only the primary group is known.
        let groups = groups(stream.as_fd()).unwrap_or_default();
        match is_allowed(self.own, peer.uid(), peer.gid(), &groups, group) {
            true => Ok(()),
            false => Err(format!(
                "access denied for user {}: be root, or in group {group} of the socket",
                peer.uid()
            )),
        }
    }
}

fn is_allowed(own: u32, uid: u32, gid: u32, groups: &[u32], group: u32) -> bool {
    uid == 0 || uid == own || gid == group || groups.contains(&group)
}

/// Supplementary groups that the peer had when it connected (`SO_PEERGROUPS`).
fn groups(stream: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; GROUPS];
    let mut bytes = libc::socklen_t::try_from(GROUPS * size_of::<libc::gid_t>()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `bytes` bytes to the vector, which has that many, and stores how many
    // in `bytes`. gid_t is u32.
    let failed = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    } != 0;
    if failed {
        return Err(io::Error::last_os_error());
    }
    groups.truncate(usize::try_from(bytes).map_err(io::Error::other)? / size_of::<libc::gid_t>());
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_the_daemons_user_and_the_sockets_group_have_access() {
        assert!(is_allowed(0, 0, 5, &[], 7));
        assert!(is_allowed(33, 33, 5, &[], 7));
        assert!(is_allowed(0, 1000, 7, &[], 7));
        assert!(is_allowed(0, 1000, 1000, &[4, 7], 7));
        assert!(!is_allowed(0, 1000, 1000, &[4, 8], 7));
    }

    #[test]
    fn the_kernel_knows_the_groups_of_a_peer() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut own: Vec<u32> = nix::unistd::getgroups().unwrap().iter().map(|gid| gid.as_raw()).collect();
        let mut reported = groups(one.as_fd()).unwrap();
        own.sort_unstable();
        reported.sort_unstable();
        assert_eq!(reported, own);
    }
}
