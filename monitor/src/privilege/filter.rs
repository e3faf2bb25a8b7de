//! A filter of system calls (seccomp(2)) for the daemon once it runs, and all that it starts.
//!
//! It denies what a taken-over process would do and this one does not: load programs or modules into the kernel, change mounts,
//! trace others by ptrace(2), open sockets that lead to another node. A list of what is denied, not of what is allowed: what the C library or a
//! new kernel call needs tomorrow keeps working. It leaves no boundary against root where there was none.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::io;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter_all_threads, sock_filter,
};
use thiserror::Error;

/// Why there is no filter.
#[derive(Debug, Error)]
pub(super) enum FilterError {
    #[error("cannot make a filter of system calls")]
    Make(#[from] BackendError),
    #[error("the kernel takes no filter of system calls: {0}")]
    Apply(io::Error),
}

/// Since Linux 6.15, by this number on every architecture.
const SYS_OPEN_TREE_ATTR: libc::c_long = 467;

/// Denied whatever their arguments are.
const DENIED: [libc::c_long; 56] = [
    // Other kernels and their parts, and the end of this one.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    // Its programs are attached by then.
    libc::SYS_perf_event_open,
    // Mounts: tracefs was mounted before, if anything.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    SYS_OPEN_TREE_ATTR,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_acct,
    // Others' memory, and files by number past all directories. /proc is only read.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_open_by_handle_at,
    libc::SYS_userfaultfd,
    libc::SYS_mknodat,
    // What goes past this filter, or has no use here.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_fanotify_init,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    // The node's clock and names.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    // It stays who it is.
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_unshare,
];

#[cfg(target_arch = "x86_64")]
const DENIED_HERE: [libc::c_long; 4] =
    [libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt, libc::SYS_mknod];
#[cfg(not(target_arch = "x86_64"))]
const DENIED_HERE: [libc::c_long; 0] = [];

/// Commands of bpf(2), `include/uapi/linux/bpf.h`, that a running daemon or a helper may give: maps are read and
/// written, a program that is loaded is run, and what it lists is read. All others load, attach, pin, find what belongs to
/// others, or are not used.
const BPF_COMMANDS: [u64; 6] = [
    1,  // BPF_MAP_LOOKUP_ELEM
    2,  // BPF_MAP_UPDATE_ELEM
    3,  // BPF_MAP_DELETE_ELEM
    4,  // BPF_MAP_GET_NEXT_KEY
    10, // BPF_PROG_TEST_RUN
    33, // BPF_ITER_CREATE, of a link that is there
];

/// Sockets that are opened later: runtimes, queries, the journal; the kernel. None of them leads to another node; what is open already can still be used (SECURITY.md).
const FAMILIES: [libc::c_int; 2] = [libc::AF_UNIX, libc::AF_NETLINK];
/// Those that do, where a sink writes to a server.
const CONNECTING: [libc::c_int; 2] = [libc::AF_INET, libc::AF_INET6];
/// Namespaces that are entered later: networks, to be read; the control groups of the node, by readers.
const NAMESPACES: [libc::c_int; 2] = [libc::CLONE_NEWNET, libc::CLONE_NEWCGROUP];

/// Filters the calls of all threads of this process, and of the processes that they start from now on.
pub(super) fn apply(connects: bool) -> Result<(), FilterError> {
    apply_filter_all_threads(&program(connects)?).map_err(|error| FilterError::Apply(io::Error::other(error)))
}

fn program(connects: bool) -> Result<BpfProgram, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        DENIED.into_iter().chain(DENIED_HERE).map(|call| (call, Vec::new())).collect();
    let numbers = |list: &[libc::c_int]| list.iter().filter_map(|it| u64::try_from(*it).ok()).collect();
    let connecting = if connects { &CONNECTING[..] } else { &[] };
    let families: Vec<u64> = numbers(&[&FAMILIES[..], connecting].concat());
    let namespaces: Vec<u64> = numbers(&NAMESPACES);
    for (call, argument, allowed) in [
        (libc::SYS_bpf, 0, &BPF_COMMANDS[..]),
        (libc::SYS_socket, 0, &families),
        (libc::SYS_setns, 1, &namespaces),
    ] {
        rules.insert(call, vec![none_of(argument, allowed)?]);
    }
    let denied = SeccompAction::Errno(EPERM);
    let arch: TargetArch = ARCH.try_into()?;
    let filter: BpfProgram = SeccompFilter::new(rules, SeccompAction::Allow, denied, arch)?.try_into()?;
    Ok(without_x32().into_iter().chain(filter).collect())
}

/// A call whose argument is none of these.
fn none_of(argument: u8, allowed: &[u64]) -> Result<SeccompRule, BackendError> {
    let differs = |value| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value);
    SeccompRule::new(allowed.iter().map(|value| differs(*value)).collect::<Result<_, _>>()?)
}

const EPERM: u32 = libc::EPERM.unsigned_abs();

/// On x86-64 the calls of x32 have the same architecture and other numbers, so that none of them would be on the list; this
/// program makes none.
fn without_x32() -> Vec<sock_filter> {
    /// `__X32_SYSCALL_BIT`
    const X32: u32 = 0x4000_0000;
    /// `BPF_LD | BPF_W | BPF_ABS`, of the number of the call, which is first in `struct seccomp_data`.
    const LOAD: sock_filter = sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 };
    /// `BPF_JMP | BPF_JGE | BPF_K`
    const IF_X32: sock_filter = sock_filter { code: 0x35, jt: 0, jf: 1, k: X32 };
    /// `BPF_RET | BPF_K` of `SECCOMP_RET_ERRNO`.
    const REFUSE: sock_filter = sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x0005_0000 | EPERM };
    if cfg!(target_arch = "x86_64") { vec![LOAD, IF_X32, REFUSE] } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use kevtmon_testing::alone::alone;

    use super::*;

    /// The errno of a call with these arguments; 0 if it succeeds.
    fn errno(call: libc::c_long, arguments: [libc::c_long; 3]) -> i32 {
        let [first, second, third] = arguments;
        // SAFETY: whatever pointers these calls take are null or not looked at before what is tested.
        let result = unsafe { libc::syscall(call, first, second, third, 0, 0, 0) };
        if result < 0 { io::Error::last_os_error().raw_os_error().unwrap_or(0) } else { 0 }
    }

    fn family(family: libc::c_int) -> i32 {
        errno(libc::SYS_socket, [family.into(), libc::SOCK_RAW.into(), 0])
    }

    #[test]
    fn what_is_denied_is_denied_in_every_thread_and_the_rest_works() {
        alone(module_path!(), "what_is_denied_is_denied_in_every_thread_and_the_rest_works", || {
            let (go, wait) = mpsc::sync_channel::<()>(0);
            let earlier = thread::spawn(move || {
                wait.recv().unwrap();
                (errno(libc::SYS_mount, [0; 3]), family(libc::AF_INET))
            });
            apply(false).unwrap();
            go.send(()).unwrap();
            assert_eq!(earlier.join().unwrap(), (libc::EPERM, libc::EPERM), "of a thread from before");
            for call in DENIED.into_iter().chain(DENIED_HERE) {
                assert_eq!(errno(call, [-1, -1, -1]), libc::EPERM, "call {call}");
            }
            for command in (0..64).filter(|command| !BPF_COMMANDS.contains(command)) {
                let command = libc::c_long::try_from(command).unwrap();
                assert_eq!(errno(libc::SYS_bpf, [command, 0, 0]), libc::EPERM, "bpf {command}");
            }
            for denied in [libc::AF_INET, libc::AF_INET6, libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG] {
                assert_eq!(family(denied), libc::EPERM, "{denied}");
            }
            for denied in [0, libc::CLONE_NEWNS, libc::CLONE_NEWUSER, libc::CLONE_NEWPID] {
                assert_eq!(errno(libc::SYS_setns, [-1, denied.into(), 0]), libc::EPERM, "{denied}");
            }

            assert_eq!(family(libc::AF_NETLINK), 0);
            assert_eq!(errno(libc::SYS_socket, [libc::AF_UNIX.into(), libc::SOCK_STREAM.into(), 0]), 0);
            for allowed in NAMESPACES {
                assert_eq!(errno(libc::SYS_setns, [-1, allowed.into(), 0]), libc::EBADF);
            }
            assert!(std::fs::read_to_string("/proc/self/status").unwrap().contains("\nSeccomp:\t2\n"));
            assert!(std::process::Command::new("/bin/true").status().unwrap().success());
        });
    }

    #[test]
    fn a_sink_that_connects_has_the_sockets_for_it_and_no_others() {
        alone(module_path!(), "a_sink_that_connects_has_the_sockets_for_it_and_no_others", || {
            apply(true).unwrap();
            for allowed in [libc::AF_UNIX, libc::AF_INET] {
                assert_eq!(errno(libc::SYS_socket, [allowed.into(), libc::SOCK_STREAM.into(), 0]), 0);
            }
            for denied in [libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG] {
                assert_eq!(family(denied), libc::EPERM, "{denied}");
            }
        });
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_numbers_of_x32_are_no_way_around_it() {
        alone(module_path!(), "the_numbers_of_x32_are_no_way_around_it", || {
            apply(false).unwrap();
            // getpid(2), which is on no list.
            assert_eq!(errno(libc::SYS_getpid | 0x4000_0000, [0; 3]), libc::EPERM);
        });
    }
}
