//! Users with user and mount namespaces of their own, who build random trees where the kubelet of the host has its pods: what
//! they do is told as theirs, nothing of it is said of a pod, and nothing false for certain.
//!
//! `KEVTMON_TEST_SEED` repeats a run, `KEVTMON_TEST_ROUNDS` makes it longer.

use std::collections::BTreeSet;

use kevtmon_tests::balance::stop_and_account;
use kevtmon_tests::daemon::{Daemon, WITHOUT_BUDGETS, kubelet_roots, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::{Mount, Scratch, wait_for};
use kevtmon_tests::process::hold_by_cwd;
use kevtmon_tests::random::{Random, rounds};
use kevtmon_tests::stranger::Stranger;
use kevtmon_tests::tree::refusal::is_of;

/// Strangers of each kind, unless `KEVTMON_TEST_ROUNDS` says otherwise.
const ROUNDS: u64 = 1;
/// Unmounts of each.
const CALLS: usize = 5;

/// Who they are: the command that makes their namespaces, and the user who owns them.
const KINDS: [(&[&str], u64); 4] = [
    (&["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "-Urm"], 65_534),
    // Another user than root in it, too.
    (
        &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "-Ucm", "--keep-caps"],
        65_534,
    ),
    // One within another.
    (
        &[
            "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "-Urm", "unshare",
            "-Urm",
        ],
        65_534,
    ),
    // Root of the node, as its user id goes.
    (&["unshare", "-Urm"], 0),
];

/// Panics unless an event says what is true about whoever did it, and nothing about a pod.
fn expect_his_own(event: &Event, uid: u64) {
    assert!(event.kind().starts_with("mount."), "{event}");
    event.expect("/actor/userns", "other");
    event.expect("/actor/uid", uid);
    for pointer in ["/mount/volume", "/target/pod", "/actor/pod", "/incident"] {
        event.expect_none(pointer);
    }
    assert!(!event.text("/message").contains(" pod "), "{event}");
    assert_ne!(event.severity(), "critical", "{event}");
}

fn is_by(event: &Event, pid: u32) -> bool {
    event.number("/actor/pid") == Some(pid.into())
}

/// What one stranger did.
#[derive(Default)]
struct Done {
    callers: BTreeSet<u32>,
    refused: usize,
    resolved: usize,
}

fn act(stranger: &mut Stranger, uid: u64, daemon: &mut Daemon) -> Done {
    let mut done = Done::default();
    for _ in 0..CALLS {
        let Some(call) = stranger.refuse() else { continue };
        let pid = call.truth.pid;
        done.callers.insert(pid);
        let event = daemon.wait_for(&format!("mount.busy of {}", call.text), |event| {
            event.kind() == "mount.busy" && is_by(event, pid)
        });
        expect_his_own(&event, uid);
        if let Some(is_resolved) = call.is_told_by(&event) {
            done.refused += 1;
            done.resolved += usize::from(is_resolved);
        }
        // Of what has changed, another mount may be there.
        if let Some(truth) = stranger.release() {
            done.callers.insert(truth.pid);
            let is_end = |event: &Event| {
                matches!(event.kind(), "mount.released" | "mount.detached") && is_by(event, truth.pid)
            };
            let events = daemon.mount_fence();
            for event in events.iter().filter(|event| is_end(event)) {
                expect_his_own(event, uid);
                let is_certain =
                    !event.has("/mount/confidence") && event.text("/actor/confidence") == "certain";
                assert!(truth.errno == 0 && (!is_certain || is_of(event, &truth)), "{truth:?}: {event}");
            }
        }
    }
    done
}

#[test]
fn whatever_users_build_in_their_own_namespaces_is_theirs_and_no_pods() {
    let mut random = Random::new();
    let volume = Mount::volume();
    let config = format!("{}{WITHOUT_BUDGETS}", kubelet_roots(volume.kubelet_root()));
    let mut daemon = launch().config(&config).start();
    let culprit = hold_by_cwd(volume.point());
    volume.umount_refused();
    let opened = wait_for(&mut daemon, "incident.opened", volume.point());
    let directory = Scratch::new();
    let mut all = Done::default();
    for _ in 0..rounds(ROUNDS) {
        for (through, uid) in KINDS {
            let seed = u64::try_from(random.below(usize::MAX)).expect("64 bits");
            let mut stranger = Stranger::start(through, seed, &volume, &directory);
            let done = act(&mut stranger, uid, &mut daemon);
            all.callers.extend(done.callers);
            all.refused += done.refused;
            all.resolved += done.resolved;
        }
    }
    assert!(all.refused > 0 && all.resolved * 10 >= all.refused * 7, "{} of {}", all.resolved, all.refused);

    // Neither did they count, nor did they end what is not theirs.
    let again = volume.umount_refused();
    let busy = daemon.wait_for("the second attempt", |event| is_by(event, again.pid));
    busy.expect("/mount/attempts", 2);
    for event in daemon.mount_fence() {
        if all.callers.iter().any(|pid| is_by(&event, *pid)) {
            event.expect_none("/incident");
        }
        if event.has("/incident") && event.has("/mount") {
            event.expect("/incident/id", opened.text("/incident/id"));
            assert_ne!(event.kind(), "incident.closed", "{event}");
        }
    }
    drop(culprit);
    eventually!(volume.umount().status.success(), "the volume is free");
    let closed = wait_for(&mut daemon, "incident.closed", volume.point());
    closed.expect("/incident/close_reason", "resolved");
    stop_and_account(daemon);
}
