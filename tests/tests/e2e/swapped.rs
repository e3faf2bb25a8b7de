//! Directories and links of a path that are replaced between a refused unmount and the look at it. No mount table tells that,
//! and where the kernel does not show which mount was meant, what the path leads to by then may be another one.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kevtmon_tests::daemon::{Daemon, WITHOUT_BUDGETS, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::mount::{Mount, Scratch, settle};
use kevtmon_tests::process::{Running, attempt, hold_by_cwd};
use kevtmon_tests::random::{Random, rounds};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::sys::signal::Signal;

/// A link to one of two directories, each with a mount that somebody is in.
struct Fork {
    base: PathBuf,
    _mounts: [Mount; 2],
    holders: [Running; 2],
    _scratch: Scratch,
}

impl Fork {
    fn new() -> Self {
        let scratch = Scratch::new();
        let base = scratch.path().join("base");
        let mounts = ["one", "two"].map(|name| Mount::at(&base.join(name).join("vol")));
        let holders = mounts.each_ref().map(|mount| hold_by_cwd(mount.point()));
        symlink("one", base.join("link")).expect("a link can be made");
        symlink("two", base.join("spare")).expect("a link can be made");
        settle(&base);
        Self { base, _mounts: mounts, holders, _scratch: scratch }
    }

    fn path(&self) -> PathBuf {
        self.base.join("link/vol")
    }

    /// Panics if an event says for certain that the path led to another mount; returns whether it says which one.
    fn is_certain(&self, which: usize, event: &Event) -> bool {
        let users = event.list("/holders").iter().filter(|holder| holder["access"] != "mount");
        let users: BTreeSet<u64> = users.filter_map(|holder| holder["pid"].as_u64()).collect();
        if event.has("/mount/confidence") || !event.has("/mount/device") {
            event.expect("/holders_complete", false);
            return false;
        }
        assert_eq!(users, BTreeSet::from([self.holders[which].pid().into()]), "{event}");
        true
    }
}

fn is_refusal_of(event: &Event, caller: u32) -> bool {
    event.kind() == "mount.busy" && event.number("/actor/pid") == Some(caller.into())
}

/// The event of an unmount by way of the link, before whose look something happens.
fn refused_before(daemon: &mut Daemon, fork: &Fork, meanwhile: impl FnOnce(&Path)) -> Event {
    daemon.signal(Signal::SIGSTOP);
    let refused = attempt(&["umount".as_ref(), fork.path().as_os_str()]);
    meanwhile(&fork.base);
    daemon.signal(Signal::SIGCONT);
    assert!(!refused.status.success());
    daemon.wait_for_holders("the refusal", |event| is_refusal_of(event, refused.pid))
}

fn rename(base: &Path, from: &str, to: &str) {
    fs::rename(base.join(from), base.join(to)).expect("it can be renamed");
}

#[test]
fn what_the_path_leads_to_after_a_swap_is_not_for_certain_what_refused() {
    let mut daemon = launch().config(WITHOUT_BUDGETS).start();
    let swaps: [fn(&Path); 4] = [
        |base| rename(base, "spare", "link"),
        |base| {
            fs::remove_file(base.join("link")).expect("a link can be removed");
            symlink("two", base.join("link")).expect("a link can be made");
        },
        |base| {
            rename(base, "one", "three");
            rename(base, "two", "one");
        },
        // In a namespace where they are no mount points these can be renamed, and the mounts go with them.
        |base| {
            let script = "cd \"$1\" && umount -l one/vol && umount -l two/vol && mv -T one/vol three && \
                mv -T two/vol one/vol";
            let mut command = Command::new("unshare");
            command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]).arg(base);
            assert!(command.status().expect("unshare runs").success());
        },
    ];
    for swap in swaps {
        let fork = Fork::new();
        let event = refused_before(&mut daemon, &fork, swap);
        fork.is_certain(0, &event);
    }
}

#[test]
fn what_changes_beside_the_path_leaves_it_certain() {
    let fork = Fork::new();
    let mut daemon = launch().start();
    let event = refused_before(&mut daemon, &fork, |base| {
        fs::create_dir(base.join("beside")).expect("a directory can be made");
        rename(base, "beside", "aside");
        fs::write(base.join("two/file"), "x").expect("a file can be written");
    });
    assert!(fork.is_certain(0, &event), "{event}");
}

/// Pairs of mounts, unless `KEVTMON_TEST_ROUNDS` says otherwise.
const ROUNDS: u64 = 4;
/// Unmounts of each pair: as many callers as are told apart.
const CALLS: usize = 6;

/// How often a link was swapped, twice: odd while it is.
struct Swaps(*const AtomicU64);

// SAFETY: it points to memory that is shared, and never unmapped.
unsafe impl Sync for Swaps {}

impl Swaps {
    fn new() -> Self {
        // SAFETY: a new mapping, which forked processes share.
        let page = unsafe {
            let (access, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), 4096, access, flags, -1, 0)
        };
        assert_ne!(page, libc::MAP_FAILED);
        Self(page.cast())
    }

    fn count(&self) -> &AtomicU64 {
        // SAFETY: aligned, and zeros are a number.
        unsafe { &*self.0 }
    }

    /// Has a process unmount a path; its id, and which of the two mounts refused it if the link was not swapped meanwhile.
    fn refused(&self, path: &Path) -> (u32, Option<usize>) {
        let path = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
        let place = self.count();
        // SAFETY: the child only makes system calls, with what was prepared before, and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: as above.
            unsafe {
                let began = place.load(Ordering::SeqCst);
                let result = libc::umount2(path.as_ptr(), 0);
                let same = began == place.load(Ordering::SeqCst) && began & 1 == 0;
                let which = i32::from(began & 2 != 0);
                libc::_exit(if result == 0 {
                    3
                } else if same {
                    which
                } else {
                    2
                });
            }
        }
        assert!(pid > 0, "a process can be made");
        let mut status = 0;
        // SAFETY: a child of this process, waited for once.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) < 3, "{status}");
        let which = usize::try_from(libc::WEXITSTATUS(status)).ok().filter(|which| *which < 2);
        (u32::try_from(pid).expect("a child was made"), which)
    }
}

/// Sets a flag when dropped.
struct End<'f>(&'f AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn whenever_a_link_is_swapped_nothing_false_is_said_for_certain() {
    let mut random = Random::new();
    let mut daemon = launch().config(WITHOUT_BUDGETS).start();
    let mut known = 0;
    for _ in 0..rounds(ROUNDS) {
        let (fork, swaps, done) = (Fork::new(), Swaps::new(), AtomicBool::new(false));
        let pauses: Vec<usize> = (0..64).map(|_| random.below(200_000)).collect();
        std::thread::scope(|scope| {
            // Also if the test fails.
            let _end = End(&done);
            scope.spawn(|| {
                for pause in pauses.iter().cycle().take_while(|_| !done.load(Ordering::Relaxed)) {
                    swaps.count().fetch_add(1, Ordering::SeqCst);
                    let [link, spare] = ["link", "spare"].map(|name| fork.base.join(name));
                    renameat2(AT_FDCWD, &link, AT_FDCWD, &spare, RenameFlags::RENAME_EXCHANGE)
                        .expect("links can be exchanged");
                    swaps.count().fetch_add(1, Ordering::SeqCst);
                    (0..*pause).for_each(|_| std::hint::spin_loop());
                }
            });
            for _ in 0..CALLS {
                let (caller, which) = swaps.refused(&fork.path());
                let event = daemon.wait_for("the refusal", |event| is_refusal_of(event, caller));
                if let Some(which) = which {
                    known += 1;
                    fork.is_certain(which, &event);
                }
            }
        });
    }
    assert_ne!(known, 0, "it was never known which mount was meant");
}
