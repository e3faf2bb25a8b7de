//! An unmount that does not come to its end.

use std::process::{Command, Stdio};

use kevtmon_tests::actor::Actor;
use kevtmon_tests::advice::{carry_out, opened, resolved};
use kevtmon_tests::daemon::{Daemon, Launch, POLL_EACH_SECOND, launch};
use kevtmon_tests::eventually;
use kevtmon_tests::fuse::mount_unserved;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::process::Running;
use nix::sys::signal::Signal;

fn impatient() -> Launch {
    launch().config(&format!("{POLL_EACH_SECOND}[incidents]\numount_hung_seconds = 1\n"))
}

fn umount<const N: usize>(paths: [&str; N]) -> Running {
    Running::spawn(Command::new("umount").args(paths).stdin(Stdio::null()).stderr(Stdio::null()))
}

/// A FUSE file system whose server is a process of its own.
fn served(scratch: &Scratch) -> (Actor, String) {
    served_at(scratch, "fuse")
}

fn served_at(scratch: &Scratch, name: &str) -> (Actor, String) {
    let point = scratch.path().join(name);
    let mut server = Actor::start();
    server.act(&format!("serve {}", point.display()));
    (server, point.display().to_string())
}

fn of_process(daemon: &mut Daemon, pid: u32) -> String {
    opened(daemon, "umount-hung", |event| event.number("/actor/pid") == Some(pid.into()))
}

#[test]
fn an_unmount_whose_file_server_is_stopped_is_told_and_ends_when_the_server_goes_on() {
    let scratch = Scratch::new();
    let (server, point) = served(&scratch);
    let mut daemon = impatient().start();
    server.stop();
    let mut hung = umount([&point]);
    let id = of_process(&mut daemon, hung.pid());
    let incident = kevtmon_tests::advice::incident(&daemon, &id);
    let summary = incident.text("/summary");
    for words in ["umount (pid", &format!("told to unmount {point}"), "waits in the kernel for FUSE"] {
        assert!(summary.contains(words), "{summary}");
    }
    assert!(summary.contains(&format!("(pid {}), is stopped", server.pid())), "{summary}");
    assert_eq!(incident.text("/confidence"), "likely", "its arguments are anybody's to choose");
    // Older kernels do not show whose a file system is: then nobody is said to be stopped for certain, and nothing is advised.
    match summary.contains("what is likely the server") {
        true => server.signal(Signal::SIGCONT),
        false => drop(carry_out(&daemon, &id, "umount-hung/continue-server")),
    }
    eventually!(hung.ended().is_some(), "it comes to its end");
    resolved(&mut daemon, &id);
}

#[test]
fn of_several_mounts_none_is_blamed_for_which_the_unmount_does_not_wait() {
    let scratch = Scratch::new();
    let (stopped, hanging) = served_at(&scratch, "hanging");
    let (other, healthy) = served_at(&scratch, "healthy");
    stopped.stop();
    let mut hung = umount([&hanging, &healthy]);
    let mut daemon = impatient().start();
    let id = of_process(&mut daemon, hung.pid());
    let summary = kevtmon_tests::advice::incident(&daemon, &id).text("/summary").to_owned();
    assert!(!summary.contains(&healthy), "{summary}");
    assert!(!summary.contains(&format!("(pid {})", other.pid())), "{summary}");
    // Which one it is the kernel need not show.
    let is_named = summary.contains("told to unmount");
    assert!(!is_named || summary.contains(&format!("told to unmount {hanging}, ")), "{summary}");
    stopped.signal(Signal::SIGCONT);
    eventually!(hung.ended().is_some(), "it comes to its end");
    resolved(&mut daemon, &id);
}

#[test]
fn an_unmount_that_hung_before_the_daemon_started_is_found_and_one_that_is_killed_is_over() {
    let scratch = Scratch::new();
    let (server, point) = served(&scratch);
    server.stop();
    let hung = umount([&point]);
    let mut daemon = impatient().start();
    let id = of_process(&mut daemon, hung.pid());
    drop(hung);
    resolved(&mut daemon, &id);
    server.signal(Signal::SIGCONT);
}

#[test]
fn a_thread_of_any_program_that_hangs_in_the_call_is_told_until_it_returns() {
    let scratch = Scratch::new();
    let point = scratch.path().join("fuse");
    let device = mount_unserved(&point);
    let path = point.join("a/b");
    let hung = {
        let path = path.clone();
        // The kernel looks the path up, and waits for the server, until that is gone.
        std::thread::spawn(move || nix::mount::umount2(&path, nix::mount::MntFlags::empty()))
    };
    let call = format!("{} ", libc::SYS_umount2);
    let is_in_call = || {
        let tasks = std::fs::read_dir("/proc/self/task").expect("threads are listed");
        let mut calls =
            tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("syscall")).ok());
        calls.any(|text| text.starts_with(&call))
    };
    eventually!(is_in_call(), "the thread is in the call");
    let mut daemon = impatient().start();
    let id = of_process(&mut daemon, std::process::id());
    let incident = kevtmon_tests::advice::incident(&daemon, &id);
    let words = format!(", in a call of umount2(2) on {}, waits in the kernel for FUSE", path.display());
    assert!(incident.text("/summary").contains(&words), "{incident}");
    drop(device);
    assert!(hung.join().expect("it returns").is_err(), "nothing is mounted there");
    resolved(&mut daemon, &id);
}
