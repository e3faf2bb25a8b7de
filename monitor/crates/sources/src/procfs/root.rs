//! Which processes are root of the node, by what the kernel says: names and arguments are anybody's to choose.

use kevtmon_observation::NsInum;

use super::dir::{Buffer, Dir};
use super::parse_ns;

/// Inode number of the initial user namespace (`PROC_USER_INIT_INO`, include/linux/proc_ns.h).
const INITIAL_USERNS: NsInum = 0xEFFF_FFFD;
/// `CAP_SYS_ADMIN` of include/uapi/linux/capability.h: nobody mounts without it.
const CAP_SYS_ADMIN: u64 = 1 << 21;

/// Whether all user ids of a process are 0, and it may mount, in the initial user namespace. Blocks like every read of a
/// process's files.
pub fn is_root_of_node(process: &Dir, links: &mut Buffer, text: &mut Vec<u8>) -> bool {
    process.text(c"status", text).is_ok_and(|status| is_root(&status)) && is_initial_userns(process, links)
}

/// Whether a process is in the initial user namespace; not where that cannot be read.
pub fn is_initial_userns(process: &Dir, links: &mut Buffer) -> bool {
    process.link(c"ns/user", links).is_ok_and(|link| parse_ns(&link) == Some(INITIAL_USERNS))
}

/// Whether /proc/PID/status shows all user ids as 0, and the capability to mount; both in the reader's user namespace.
fn is_root(status: &str) -> bool {
    let is_root = uids(status).is_some_and(|mut uids| uids.all(|uid| uid == 0));
    is_root && effective_capabilities(status).is_some_and(|bits| bits & CAP_SYS_ADMIN != 0)
}

pub(super) fn uids(status: &str) -> Option<impl Iterator<Item = u32>> {
    let ids: Option<Vec<u32>> =
        field(status, "Uid:")?.split_ascii_whitespace().map(|uid| uid.parse().ok()).collect();
    ids.filter(|ids| !ids.is_empty()).map(Vec::into_iter)
}

/// Whether /proc/PID/status shows the first process of a pid namespace below that of whoever reads: it ignores every signal
/// that it does not handle, but for SIGKILL and SIGSTOP from above.
pub fn is_init(status: &str) -> bool {
    field(status, "NSpid:").is_some_and(|ids| ids.split_whitespace().skip(1).last() == Some("1"))
}

/// `CapEff` of proc_pid_status(5).
pub(super) fn effective_capabilities(status: &str) -> Option<u64> {
    u64::from_str_radix(field(status, "CapEff:")?.trim(), 16).ok()
}

pub(super) fn field<'s>(status: &'s str, name: &str) -> Option<&'s str> {
    status.lines().find_map(|line| line.strip_prefix(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_process_of_a_namespace_is_known_by_its_last_id() {
        assert!(is_init("Name:\tx\nNSpid:\t4711\t1\n"));
        assert!(is_init("NSpid:\t4711\t17\t1\n"));
        assert!(!is_init("NSpid:\t4711\t12\n"));
        assert!(!is_init("NSpid:\t1\n"), "that of the node");
        assert!(!is_init(""));
    }

    #[test]
    fn only_root_with_the_capability_to_mount_is_root_of_the_node() {
        assert!(is_root("Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n"));
        assert!(!is_root("Uid:\t1000\t0\t0\t0\nCapEff:\t000001ffffffffff\n"), "a set-user-id program");
        assert!(!is_root("Uid:\t65534\t65534\t65534\t65534\nCapEff:\t000001ffffffffff\n"));
        assert!(!is_root("Uid:\t0\t0\t0\t0\nCapEff:\t00000000a80425fb\n"), "a container of Docker");
        assert!(!is_root(""));
    }
}
