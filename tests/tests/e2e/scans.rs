//! Scans for holders beside users who do what they can to spoil them.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kevtmon_tests::balance::{stop_and_account, stop_and_account_for_refusals};
use kevtmon_tests::daemon::{Daemon, kubelet_roots, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::mount::{Mount, Scratch, is_about};
use kevtmon_tests::pod_sandbox::uuid;
use kevtmon_tests::process::{Running, busy_loop, hold_by_cwd, hold_by_fd, idle};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors of the first crowd; each further one has twice as many as the one before.
const DESCRIPTORS: u64 = 200_000;
/// Crowds, until one scan has not the time for all of them.
const CROWDS: u32 = 5;

fn wait_for(daemon: &mut Daemon, kind: &str, path: &Path) -> Event {
    daemon.wait_for(&format!("{kind} of {}", path.display()), |event| is_about(event, kind, path))
}

fn wait_for_holders(daemon: &mut Daemon, mount: &Mount) -> Event {
    let path = mount.point();
    daemon.wait_for_holders(&format!("mount.busy of {}", path.display()), |event| {
        is_about(event, "mount.busy", path)
    })
}

/// What makes one scan slow makes them all: each test spoils those of its own daemon.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

fn holds(event: &Event, pid: u32) -> bool {
    event.list("/holders").iter().any(|holder| holder["pid"] == pid)
}

/// An unprivileged user with two hundred busy mounts, each of which is tried to be unmounted again and again.
fn stranger(scratch: &Scratch) -> Running {
    let script = "mount -t tmpfs s \"$1\" && cd \"$1\" && i=0\n\
        while [ $i -lt 200 ]; do mkdir -p $i && mount -t tmpfs s $i && mkdir $i/in && mount -t tmpfs s $i/in\n\
        i=$((i + 1)); done; echo ready\n\
        while :; do for m in [0-9]*; do umount \"$1/$m\" 2>/dev/null; done; done";
    let mut command = Command::new("setpriv");
    let words = ["--reuid=65534", "--regid=65534", "--clear-groups", "--pdeathsig=KILL"];
    command.args(words).args(["unshare", "-Urm", "--propagation", "private", "sh", "-c", script, "sh"]);
    let mut stranger =
        Running::spawn(command.arg(scratch.path()).stdin(Stdio::null()).stdout(Stdio::piped()));
    let mut said = String::new();
    let output = stranger.child().stdout.take().expect("a pipe");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut said)
        .expect("it says it is ready");
    assert_eq!(said, "ready\n");
    stranger
}

/// Processes that together have this many descriptors, each as many as it may.
fn crowd(descriptors: u64) -> Vec<Running> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("there is a limit");
    let each = hard.saturating_sub(100).min(descriptors);
    let open = move || {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        for _ in 0..each {
            fcntl(std::io::stdin(), FcntlArg::F_DUPFD(3))?;
        }
        Ok(())
    };
    let start = |_| {
        let mut command = idle();
        // SAFETY: the child makes system calls only.
        Running::spawn(unsafe { command.pre_exec(open) })
    };
    (0..descriptors.div_ceil(each)).map(start).collect()
}

#[test]
fn descriptors_without_end_hide_no_holder_and_are_looked_at_in_the_end() {
    let _alone = one_at_a_time();
    let scratch = Scratch::new();
    let root = scratch.path().join("kubelet");
    // The kernel's own lists would spare it all of them.
    let config = format!("{}\n[hooks]\niterators = false\n", kubelet_roots(&root));
    let mut daemon = launch().config(&config).start();
    let is_cut = |event: &Event| event.to_string().contains("the time for one scan ran out");
    let mut crowds = Vec::new();
    let (mount, culprit, first) = (0..CROWDS)
        .find_map(|nth| {
            crowds.extend(crowd(DESCRIPTORS << nth));
            let mount = Mount::at(&root.join(format!("pods/{}/volumes/kubernetes.io~rbd/data", uuid())));
            let culprit = hold_by_fd(&mount.file());
            mount.umount_refused();
            let first = wait_for_holders(&mut daemon, &mount);
            assert!(holds(&first, culprit.pid()), "{first}");
            is_cut(&first).then_some((mount, culprit, first))
        })
        .expect("one scan has not the time for all descriptors");
    let opened = wait_for(&mut daemon, "incident.opened", mount.point());
    assert!(opened.text("/message").contains(&format!("(pid {})", culprit.pid())), "{opened}");
    opened.expect("/incident/confidence", "likely");
    let seq = first.number("/completes").or_else(|| first.number("/seq"));
    let later = daemon.wait_for("the rest of the scan", |event| {
        let is_later = is_about(event, "mount.busy", mount.point()) && event.number("/completes") == seq;
        is_later && !is_cut(event)
    });
    assert!(holds(&later, culprit.pid()), "{later}");
    daemon.wait_for("an incident that is certain", |event| {
        let is_certain = event.text("/incident/confidence") == "certain";
        is_about(event, "incident.updated", mount.point()) && is_certain
    });
    stop_and_account(daemon);
}

#[test]
fn whoever_holds_a_mount_is_found_though_others_take_all_processors() {
    let _alone = one_at_a_time();
    let mut daemon = launch().start();
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let _load: Vec<Running> = (0..4 * processors).map(|_| busy_loop()).collect();
    for _ in 0..3 {
        let mount = Mount::new();
        let culprit = hold_by_fd(&mount.file());
        mount.umount_refused();
        let busy = wait_for(&mut daemon, "mount.busy", mount.point());
        busy.expect("/holders_verdict", "processes");
        assert!(holds(&busy, culprit.pid()), "{busy}");
    }
    stop_and_account(daemon);
}

/// What calls without end: others would wait for its scans.
mod alone {
    use super::*;

    #[test]
    fn unmounts_of_a_stranger_without_end_delay_no_scan_of_a_volume() {
        let _alone = one_at_a_time();
        let mount = Mount::volume();
        let scratch = Scratch::new();
        std::fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o777))
            .expect("a mode can be set");
        let mut daemon = launch().kubelet(&mount).start();
        let stranger = stranger(&scratch);
        daemon.wait_for("an unmount of the stranger", |event| {
            event.kind() == "mount.busy"
                && event.text("/mount/path").starts_with(&*scratch.path().to_string_lossy())
        });
        let culprit = hold_by_cwd(mount.point());
        for _ in 0..3 {
            mount.umount_refused();
        }
        let busy = wait_for(&mut daemon, "mount.busy", mount.point());
        busy.expect("/holders_verdict", "processes");
        assert!(holds(&busy, culprit.pid()), "{busy}");
        let opened = wait_for(&mut daemon, "incident.opened", mount.point());
        assert!(opened.text("/message").contains(&format!("(pid {})", culprit.pid())), "{opened}");
        drop(stranger);
        stop_and_account_for_refusals(daemon);
    }
}
