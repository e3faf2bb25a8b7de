//! Random trees of directories, links, mounts, bind mounts and covers, in the namespace of the host and in others, and
//! random ways to name a mount in them: what an event says of a refused unmount is what the kernel did.
//!
//! The caller asks the kernel which mount its path leads to, and ends with the call. `KEVTMON_TEST_SEED` repeats a run,
//! `KEVTMON_TEST_ROUNDS` makes it longer.

use std::fs::File;
use std::process::Command;
use std::thread;

use kevtmon_tests::cgroup::{Cgroup, Hierarchy};
use kevtmon_tests::daemon::{Daemon, WITHOUT_BUDGETS, launch};
use kevtmon_tests::eventually;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::process::{Running, comm};
use kevtmon_tests::random::{Random, rounds};
use kevtmon_tests::tree::Tree;
use nix::sched::{CloneFlags, setns, unshare};

/// Trees, unless `KEVTMON_TEST_ROUNDS` says otherwise.
const ROUNDS: u64 = 4;
/// Unmounts in each.
const CALLS: usize = 4;

/// Everything refused in one tree. Runs in a thread of its own, whose namespace it may change.
fn round(random: &mut Random, daemon: &mut Daemon) -> (usize, usize) {
    let scratch = Scratch::new();
    let base = scratch.path().canonicalize().expect("a directory");
    let namespace = random.one_in(2).then(|| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sleep", "1000000"]);
        let keeper = Running::spawn(&mut command);
        eventually!(comm(keeper.pid()).as_deref() == Some("sleep"), "the namespace is there");
        let handle = File::open(format!("/proc/{}/ns/mnt", keeper.pid())).expect("a namespace");
        setns(handle, CloneFlags::CLONE_NEWNS).expect("a namespace can be entered");
        keeper
    });
    let mut tree = Tree::new(random, &base);
    for _ in 0..16 {
        tree.grow();
    }
    // Of one account only so many mounts are looked at; other tests have their part of that of the whole machine.
    let hierarchies = Hierarchy::all();
    let group = Cgroup::new(*hierarchies.first().expect("a hierarchy"));
    let (mut resolved, mut refused) = (0, 0);
    for _ in 0..CALLS {
        let Some(call) = tree.refuse(Some(&group.procs())) else { continue };
        refused += 1;
        let what = format!("mount.busy of {}", call.text);
        let event = daemon.wait_for(&what, |event| {
            event.kind() == "mount.busy" && event.number("/actor/pid") == Some(call.truth.pid.into())
        });
        match call.is_told_by(&event) {
            Some(is_resolved) => resolved += usize::from(is_resolved),
            // The scan did not come to its turn in time: nothing is said.
            None => refused -= 1,
        }
    }
    drop(namespace);
    (resolved, refused)
}

#[test]
fn whatever_path_leads_to_a_mount_the_event_is_about_that_mount() {
    let rounds = rounds(ROUNDS);
    let mut random = Random::new();
    let mut daemon = launch().config(WITHOUT_BUDGETS).start();
    let (mut resolved, mut refused) = (0, 0);
    for _ in 0..rounds {
        let (round_resolved, round_refused) = thread::scope(|scope| {
            let round = scope.spawn(|| {
                unshare(CloneFlags::CLONE_FS).expect("a thread can have directories of its own");
                round(&mut random, &mut daemon)
            });
            round.join().expect("what the events say is true")
        });
        resolved += round_resolved;
        refused += round_refused;
    }
    // A current directory below very many others and mounts is not captured.
    assert!(refused > 0 && resolved * 10 >= refused * 8, "{resolved} of {refused} were resolved");
}
