//! Who holds a mount and is never the same for long: one process that executes one program after the other, and many of which each
//! hands it on to the next one. Whoever looks is late; it is never told that nobody holds it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use kevtmon_tests::actor;
use kevtmon_tests::daemon::{held, launch, program};
use kevtmon_tests::eventually;
use kevtmon_tests::mount::{Mount, wait_for};
use kevtmon_tests::process::{Running, copy_program};
use serde_json::Value;

/// How often `kevtmon holders` is asked.
const TIMES: usize = 25;
/// The two programs that a process executes by turns.
const NAMES: [&str; 2] = ["restless-one", "restless-two"];

/// How it holds the mount.
const WAYS: [&str; 2] = ["fd", "cwd"];

/// The process, or the one that reaps them; they end when its standard input does.
struct Restless {
    process: Running,
    how: &'static str,
    /// Else its id is another one with each look.
    is_one_process: bool,
}

impl Restless {
    fn start(what: &str, how: &'static str, mount: &Mount) -> Self {
        let directory = mount.point().parent().expect("a directory above");
        let program = actor::restless();
        let programs = NAMES.map(|name| directory.join(name));
        programs.iter().for_each(|copy| copy_program(&program, copy));
        let path = if how == "fd" { mount.file() } else { mount.point().to_owned() };
        let mut command = Command::new(&program);
        command.args([what, how]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        if what == "exec" {
            command.args(&programs);
        }
        let mut process = Running::spawn(&mut command);
        let mut said = String::new();
        let output = process.child().stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut said).expect("it says that it holds it");
        assert_eq!(said, "ready\n");
        Self { process, how, is_one_process: what == "exec" }
    }

    /// Whether a holder is it, by all that is told of it.
    fn is(&self, holder: &Value) -> bool {
        let comm = holder["comm"].as_str().unwrap_or_default();
        let is_same = !self.is_one_process || holder["pid"] == self.process.pid();
        // Not one program's name with another one's path.
        let is_one_program = holder["exe"].as_str().is_none_or(|exe| exe.ends_with(&format!("/{comm}")));
        comm.starts_with("restless") && is_one_program && is_same && holder["access"] == self.how
    }

    /// It is named, or it is told that not all was seen; nobody else is named. Returns whether it is named.
    #[track_caller]
    fn is_not_denied(&self, answer: &Value) -> bool {
        // Containers of others may have a copy of the mount, which holds nothing; and whoever only may hold it is no answer.
        let is_told = |holder: &&Value| holder["access"] != "mount" && holder["possible"] != true;
        let all = answer["holders"].as_array().expect("a list");
        // In the namespace of its self-test it has a copy of each mount for a moment; it uses none.
        let own = program().canonicalize().expect("the program is there");
        let is_own = |holder: &Value| holder["access"] != "mount" && holder["exe"].as_str() == own.to_str();
        assert!(!all.iter().any(is_own), "{answer:#}");
        let holders: Vec<&Value> = all.iter().filter(is_told).collect();
        assert!(holders.iter().all(|holder| self.is(holder)), "{answer:#}");
        if holders.is_empty() {
            assert_eq!(answer["holders_verdict"], "incomplete", "{answer:#}");
            assert_eq!(answer["holders_complete"], false, "{answer:#}");
        }
        !holders.is_empty()
    }

    fn end(mut self, mount: &Mount) {
        drop(self.process.child().stdin.take());
        eventually!(self.process.ended().is_some(), "all of them end");
        eventually!(mount.umount().status.success(), "nobody holds it");
    }
}

/// What `kevtmon holders` tells, and a daemon of a refused unmount, with the kernel's own lists and without.
fn find(what: &str) {
    for how in WAYS {
        let mount = Mount::new();
        let restless = Restless::start(what, how, &mount);
        let named = (0..TIMES).filter(|_| restless.is_not_denied(&held(mount.point()))).count();
        assert!(named > 0, "it is named");
        for iterators in [true, false] {
            let mut daemon = launch().config(&format!("[hooks]\niterators = {iterators}\n")).start();
            mount.umount_refused();
            let busy = wait_for(&mut daemon, "mount.busy", mount.point());
            restless.is_not_denied(busy.get("").expect("an event"));
        }
        restless.end(&mount);
    }
}

/// Where other daemons have files in flight, each of them may hold the mount.
mod alone {
    use super::*;

    #[test]
    fn a_process_that_executes_one_program_after_the_other_is_found() {
        find("exec");
    }

    #[test]
    fn processes_that_each_hand_a_mount_on_to_the_next_one_are_found_or_it_is_told_that_not_all_was_seen() {
        find("fork");
    }
}
