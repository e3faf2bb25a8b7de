//! Processes that hang whoever reads them. They hang for good, so they are made in a virtual machine only.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kevtmon_tests::balance::{Balance, assert_accounted_for, stop_and_account, wait_for_balance};
use kevtmon_tests::daemon::{Daemon, launch, program};
use kevtmon_tests::eventually;
use kevtmon_tests::fuse::mount_halting_above;
use kevtmon_tests::kernel;
use kevtmon_tests::lock::Exclusive;
use kevtmon_tests::mount::{Mount, Scratch};
use kevtmon_tests::patience::patience;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::process::{attempt, hold_by_cwd};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// What is promised: a service manager may kill it then.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Ends it: whatever hangs, what it holds is free then.
fn stop_in_time(daemon: &mut Daemon) {
    // The processor of a virtual machine may be emulated, and takes many times as long for everything.
    let is_guest = kernel::is_guest();
    wait_for_balance(daemon, Balance::of_all);
    daemon.stop_within(if is_guest { patience() } else { ENDS_WITHIN });
    assert_accounted_for(&daemon.wait_for_end_of_output());
}

/// The processes that the daemon has started: with arguments of their own, and no copies of it that are about to get those.
fn readers(daemon: u32) -> Vec<Pid> {
    let children = fs::read_to_string(format!("/proc/{daemon}/task/{daemon}/children")).expect("a daemon");
    let arguments = |pid: &str| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let own = arguments(&daemon.to_string());
    let started = children.split_whitespace().filter(|pid| arguments(pid) != own);
    started.map(|pid| Pid::from_raw(pid.parse().expect("an id"))).collect()
}

#[test]
fn readers_that_do_not_answer_keep_neither_the_daemon_nor_what_it_holds() {
    let mut daemon = launch().start();
    eventually!(!readers(daemon.pid()).is_empty(), "namespaces are read at the start");
    for reader in readers(daemon.pid()) {
        // It may have ended by now.
        let _ = kill(reader, Signal::SIGSTOP);
    }
    let address = daemon.address();
    stop_in_time(&mut daemon);
    stop_and_account(launch().listen(address).on_state_of(&daemon).start());
}

#[test]
fn started_in_a_mount_namespace_of_its_own_it_says_so() {
    let mut daemon = launch().through(&["unshare", "-m", "--propagation", "private"]).start();
    let event = daemon.wait_for("daemon.degraded", |event| event.text("/message").contains("own-mounts"));
    assert!(event.text("/daemon/degraded/own-mounts").contains("mount namespace of its own"), "{event}");
    assert!(daemon.log().contains("mount namespace of its own"), "{}", daemon.log());
    let pins = || daemon.metrics().count("kevtmon_self_pins", &[]);
    eventually!(pins() == 1.0, "nothing but its mount namespace stays, when namespaces have been read");
    stop_and_account(daemon);
}

/// Each counts what hangs on the whole machine.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `wedge`: everything hangs until this is dropped.
struct Wedge {
    server: Child,
    victim: u32,
    place: Scratch,
}

impl Wedge {
    /// `None` outside of a virtual machine.
    fn new() -> Option<Self> {
        Self::by(&[])
    }

    /// A process in this directory whose command line, once begun to be read, is waited for even by who is killed.
    fn of_cmdline(cwd: &Path) -> Option<Self> {
        Self::by(&[cwd.to_str().expect("a plain path")])
    }

    fn by(arguments: &[&str]) -> Option<Self> {
        if !kernel::is_guest() {
            return None;
        }
        let place = Scratch::new();
        let program = PathBuf::from("/tests/wedge");
        let mut server = Command::new(program)
            .arg(place.path())
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a program of the guest");
        let mut line = String::new();
        let said = server.stdout.take().expect("a pipe");
        BufReader::new(said).read_line(&mut line).expect("it says that it is done");
        let victim = line.trim().strip_prefix("wedged ").and_then(|pid| pid.parse().ok());
        Some(Self { server, victim: victim.expect("a process id"), place })
    }
}

impl Drop for Wedge {
    fn drop(&mut self) {
        // It is not a child of the test, and may have ended.
        let _ = kill(Pid::from_raw(self.victim.cast_signed()), Signal::SIGKILL);
        drop(self.server.kill());
        drop(self.server.wait());
        // The kernel may have ended it with its server.
        let _ = nix::mount::umount2(self.place.path(), nix::mount::MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_process_that_hangs_whoever_reads_it_is_named_and_stops_nothing() {
    let _alone = one_at_a_time();
    let Some(wedge) = Wedge::new() else {
        return kernel::skip("only in a virtual machine", false);
    };
    let victim = wedge.victim;
    let mut daemon = launch().start();
    let mount = Mount::new();
    let holder = hold_by_cwd(mount.point());
    mount.umount_refused();
    let event = daemon.wait_for("daemon.degraded", |event| event.kind() == "daemon.degraded");
    let reason = event.text("/daemon/degraded/procfs").to_owned();
    for word in [&format!("process {victim} (wedge)"), &*wedge.place.path().to_string_lossy()] {
        assert!(reason.contains(word), "{word} in {reason}");
    }
    assert_eq!(daemon.metrics().count("kevtmon_proc_readers_stuck", &[]), 1.0);
    assert_eq!(daemon.get("/healthz").expect("an answer").status, 200);

    // It is set aside now, so the scan of another mount takes no longer than any.
    let other = Mount::new();
    let second = hold_by_cwd(other.point());
    other.umount_refused();
    daemon.wait_for("the holder", |event| {
        let is_held = |holder: &serde_json::Value| holder["pid"] == second.pid();
        event.kind() == "mount.busy" && event.list("/holders").iter().any(is_held)
    });
    let address = daemon.address();
    stop_in_time(&mut daemon);
    let mut next = launch().listen(address).on_state_of(&daemon).start();
    mount.umount_refused();
    next.wait_for("daemon.degraded", |event| event.kind() == "daemon.degraded");
    drop(wedge);
    next.wait_for("daemon.recovered", |event| event.kind() == "daemon.recovered");
    eventually!(next.metrics().count("kevtmon_proc_readers_stuck", &[]) == 0.0, "it can be read again");
    stop_and_account(next);
    drop(holder);
}

#[test]
fn who_holds_a_mount_is_told_beside_a_process_that_hangs_whoever_reads_it() {
    let _alone = one_at_a_time();
    let mount = Mount::new();
    let Some(wedge) = Wedge::of_cmdline(mount.point()) else {
        return kernel::skip("only in a virtual machine", false);
    };
    let holder = hold_by_cwd(mount.point());
    let ran = attempt(&[program().as_os_str(), "holders".as_ref(), mount.point().as_os_str()]);
    assert_eq!(ran.status.code(), Some(0), "one is known for certain: {} {}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains(&format!(" {}  cwd", holder.pid())), "{}", ran.stdout);
    let missing = format!("(pid {}): reads of it hang", wedge.victim);
    assert!(ran.stdout.contains(&missing), "{missing} in {}", ran.stdout);
}

/// The daemon's readers that SIGKILL has not ended.
fn killed_and_there(daemon: u32) -> BTreeSet<Pid> {
    readers(daemon).into_iter().filter(|reader| is_killed(*reader)).collect()
}

/// Whether SIGKILL is pending for a thread, which waits uninterruptibly then.
fn is_killed(process: Pid) -> bool {
    const SIGKILL: u64 = 1 << 8;
    let is_pending = |thread: fs::DirEntry| {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
        let pending = pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        status.contains("State:\tD") && pending.is_some_and(|pending| pending & SIGKILL != 0)
    };
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    threads.into_iter().any(is_pending)
}

/// Whether a reader reads this process, and nobody has killed it for that yet.
fn reads(reader: Pid, tgid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{reader}/task")).into_iter().flatten().flatten();
    let mut names = threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
    names.any(|name| name.trim_end() == format!("read {tgid}")) && !is_killed(reader)
}

/// Has the daemon find who holds a new mount.
fn finds_a_holder(daemon: &mut Daemon) {
    let mount = Mount::new();
    let holder = hold_by_cwd(mount.point());
    mount.umount_refused();
    daemon.wait_for("the holder", |event| {
        let is_held = |held: &serde_json::Value| held["pid"] == holder.pid();
        event.kind() == "mount.busy" && event.list("/holders").iter().any(is_held)
    });
}

/// Has the daemon tell who deletes the gateway of a new pod.
fn tells_a_deletion(daemon: &mut Daemon) {
    let pod = Pod::new();
    let ip = pod.delete_gateway();
    daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY).expect_actor(ip.pid, "ip");
}

fn wait_until_set_aside(daemon: &mut Daemon, wedge: &Wedge) {
    daemon.wait_for("daemon.degraded", |event| {
        let reason = event.text("/daemon/degraded/procfs");
        reason.contains(&format!("process {} (wedge)", wedge.victim))
    });
}

#[test]
fn a_reader_that_not_even_sigkill_ends_keeps_neither_the_daemon_nor_what_it_holds() {
    let _alone = one_at_a_time();
    let mount = Mount::new();
    let Some(wedge) = Wedge::of_cmdline(mount.point()) else {
        return kernel::skip("only in a virtual machine", false);
    };
    let mut daemon = launch().start();
    mount.umount_refused();
    wait_until_set_aside(&mut daemon, &wedge);
    eventually!(!killed_and_there(daemon.pid()).is_empty(), "a reader is killed, and does not end");
    let stuck = killed_and_there(daemon.pid());
    finds_a_holder(&mut daemon);
    tells_a_deletion(&mut daemon);
    let address = daemon.address();
    stop_in_time(&mut daemon);
    assert!(stuck.iter().all(|reader| is_killed(*reader)), "the readers of the first daemon outlive it");

    let mut next = launch().listen(address).on_state_of(&daemon).start();
    mount.umount_refused();
    wait_until_set_aside(&mut next, &wedge);
    assert_eq!(next.metrics().count("kevtmon_proc_readers_stuck", &[]), 1.0);
    finds_a_holder(&mut next);
    assert!(stuck.iter().all(|reader| is_killed(*reader)), "it did not have to wait for them");
    stop_and_account(next);
    drop(wedge);
    eventually!(!stuck.iter().any(|reader| is_killed(*reader)), "they end with what they wait for");
}

#[test]
fn a_process_that_still_holds_a_killed_reader_is_given_no_other() {
    let _alone = one_at_a_time();
    let mount = Mount::new();
    let Some(wedge) = Wedge::of_cmdline(mount.point()) else {
        return kernel::skip("only in a virtual machine", false);
    };
    let mut other = Wedge::of_cmdline(mount.point()).expect("as the one before");
    let mut daemon = launch().start();
    mount.umount_refused();
    for wedge in [&wedge, &other] {
        wait_until_set_aside(&mut daemon, wedge);
        let reads = || readers(daemon.pid()).into_iter().any(|reader| reads(reader, wedge.victim));
        eventually!(!reads(), "who reads it is killed");
    }
    let stuck = killed_and_there(daemon.pid());
    assert!(!stuck.is_empty());
    other.server.kill().and_then(|()| other.server.wait()).expect("a child");
    // It lives, so that it must be tried again; by then it is time for the first one, too.
    eventually!(daemon.metrics().count("kevtmon_proc_readers_stuck", &[]) == 1.0, "it can be read again");
    let now = killed_and_there(daemon.pid());
    assert!(now.is_subset(&stuck), "{now:?} hang, and {stuck:?} did before: {}", daemon.log());
    stop_and_account(daemon);
}

#[test]
fn more_processes_one_after_the_other_than_readers_work_leave_the_daemon_others() {
    // More than the readers that work, and fewer than those that may be lost.
    const NUMBER: usize = 9;
    let _alone = one_at_a_time();
    let mut daemon = launch().start();
    let mut wedges = Vec::new();
    for number in 1..=NUMBER {
        let mount = Mount::new();
        let Some(wedge) = Wedge::of_cmdline(mount.point()) else {
            return kernel::skip("only in a virtual machine", false);
        };
        mount.umount_refused();
        // Dropped before its mount.
        wedges.push((wedge, mount));
        let is_set_aside = || daemon.metrics().count("kevtmon_proc_readers_stuck", &[]) == number as f64;
        eventually!(is_set_aside(), "number {number} is found after those before");
    }
    eventually!(killed_and_there(daemon.pid()).len() >= NUMBER, "each has a reader that was killed");
    finds_a_holder(&mut daemon);
    tells_a_deletion(&mut daemon);
    let up = daemon.metrics().count("kevtmon_source_up", &[("source", "procfs")]);
    assert_eq!(up, 1.0, "there are readers left: {}", daemon.log());
    drop(wedges);
    eventually!(daemon.metrics().count("kevtmon_proc_readers_stuck", &[]) == 0.0, "all can be read again");
    eventually!(killed_and_there(daemon.pid()).is_empty(), "the readers end");
    finds_a_holder(&mut daemon);
    stop_and_account(daemon);
}

#[test]
fn many_processes_that_hang_whoever_reads_them_are_recognised_together() {
    const NUMBER: usize = 20;
    let _alone = one_at_a_time();
    let wedges: Vec<Wedge> = (0..NUMBER).map_while(|_| Wedge::new()).collect();
    if wedges.is_empty() {
        return kernel::skip("only in a virtual machine", false);
    }
    let mut daemon = launch().start();
    let mount = Mount::new();
    let holder = hold_by_cwd(mount.point());
    mount.umount_refused();
    eventually!(daemon.metrics().count("kevtmon_proc_readers_stuck", &[]) == NUMBER as f64, "all are known");
    // One reader has hung for them, or one for each job that was under way at the same time.
    let hung = daemon.log().matches("reading a process hangs").count();
    assert!(hung <= NUMBER / 2, "{hung} readers hung: {}", daemon.log());
    daemon.wait_for("what is left out", |event| {
        event.kind() == "daemon.degraded"
            && event.text("/daemon/degraded/procfs").contains(&format!("and {} more", NUMBER - 4))
    });
    daemon.wait_for("the holder", |event| {
        let is_held = |held: &serde_json::Value| held["pid"] == holder.pid();
        event.kind() == "mount.busy" && event.list("/holders").iter().any(is_held)
    });
    drop(wedges);
    eventually!(daemon.metrics().count("kevtmon_proc_readers_stuck", &[]) == 0.0, "all can be read again");
    stop_and_account(daemon);
}

/// What counts all that the kernel does, or needs a quiet machine.
mod alone {
    use super::*;

    #[test]
    fn a_file_server_that_does_not_answer_above_a_busy_mount_is_not_asked() {
        // While the daemon is stopped, what others do waits for it, and storms would be before what is looked for.
        let _exclusive = Exclusive::take();
        // Whether the kernel remembers the directory until the daemon looks, or would have to ask for it.
        for remembered in [1000, 0] {
            let scratch = Scratch::new();
            let above = scratch.path().join("served");
            let server = mount_halting_above(&above, remembered);
            let mount = Mount::at(&above.join("pod/volume"));
            let holder = hold_by_cwd(mount.point());
            let mut daemon = launch().start();
            let process = Pid::from_raw(daemon.pid().cast_signed());
            // The server answers who unmounts, and not the daemon.
            kill(process, Signal::SIGSTOP).expect("it runs");
            let refused = mount.umount();
            assert!(!refused.status.success(), "{} was not busy", mount.point().display());
            server.halt();
            kill(process, Signal::SIGCONT).expect("it is stopped");
            let event = daemon.wait_for_holders("mount.busy", |event| {
                event.kind() == "mount.busy" && event.number("/actor/pid") == Some(refused.pid.into())
            });
            finds_a_holder(&mut daemon);
            assert_eq!(server.asked_in_vain(), 0, "somebody waited for the server: {event}");
            server.resume();
            event.expect("/mount/path", &*mount.point().to_string_lossy());
            let holders = event.list("/holders").iter().map(|held| held["pid"].as_u64()).collect::<Vec<_>>();
            // Where the kernel does not tell which mount it was, only the server could.
            if remembered > 0 || !holders.is_empty() {
                assert_eq!(holders, [Some(holder.pid().into())], "{event}");
            } else {
                event.expect("/holders_verdict", "incomplete");
                let reason = event.text("/holders_unreadable/0/reason");
                assert!(reason.contains("cannot look up") && reason.contains("/served/pod"), "{event}");
            }
            assert_eq!(daemon.metrics().count("kevtmon_proc_readers_stuck", &[]), 0.0);
            stop_and_account(daemon);
        }
    }
}
