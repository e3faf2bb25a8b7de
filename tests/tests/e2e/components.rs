//! Kubelet and runtimes as processes: when they start, in which version, and how they end.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kevtmon_tests::advice::{carry_out, opened};
use kevtmon_tests::component::{Component, Program, start, start_with};
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::patience::wait_until;
use kevtmon_tests::process::{Running, comm};

fn wait_for(daemon: &mut Daemon, kind: &str, pid: u32) -> Event {
    daemon.wait_for(&format!("{kind} of {pid}"), |event| {
        event.kind() == kind && event.number("/component/pid") == Some(pid.into())
    })
}

fn exe(program: &Path) -> String {
    program.to_string_lossy().into_owned()
}

/// Whether the kernel tells how a process ended that is no child (`PIDFD_INFO_EXIT`, since 6.15).
fn kernel_tells_ends() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("the release of the kernel");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>());
    let mut next = || numbers.next().and_then(Result::ok).expect("a number");
    (next(), next()) >= (6, 15)
}

#[test]
fn what_a_kubelet_that_ends_again_and_again_has_logged_is_shown_by_the_command_of_the_advice() {
    let scratch = Scratch::without_mounts();
    let program = Program::new(&scratch, "kubelet", Some("v1.20.2"));
    let mut daemon = launch().start();
    for _ in 0..3 {
        let mut kubelet = start(&program);
        daemon.wait_for_component(kubelet.pid());
        kubelet.end_with("1");
        wait_for(&mut daemon, "component.exited", kubelet.pid());
    }
    let path = exe(program.path());
    let id = opened(&mut daemon, "kubelet-crash-loop", |event| event.text("/component/exe") == path);
    // It may have logged nothing where no systemd has started it.
    let _ = carry_out(&daemon, &id, "kubelet-crash-loop/show-log");
}

#[test]
fn one_that_runs_between_two_looks_at_all_processes_is_told() {
    let scratch = Scratch::without_mounts();
    let known = start(&Program::new(&scratch, "known/crio", None));
    let mut daemon = launch().start();
    // Nothing has ended, so that the next look at all processes is in a minute.
    daemon.wait_for_component(known.pid());
    let mut crio = start(&Program::new(&scratch, "crio", None));
    crio.run("sleep 5 >&- 2>&-; exit 3");
    wait_for(&mut daemon, "component.started", crio.pid()).expect("/component/name", "crio");
}

#[test]
fn a_program_without_build_information_has_no_version() {
    let scratch = Scratch::without_mounts();
    // No kubelet: of one that runs beside others it is not told which of them it replaces.
    let adapter = start(&Program::new(&scratch, "cri-dockerd", None));
    let mut daemon = launch().start();
    daemon.wait_for_component(adapter.pid());
    let pid = adapter.pid();
    drop(adapter);
    let exited = wait_for(&mut daemon, "component.exited", pid);
    exited.expect_none("/component/version");
    if kernel_tells_ends() {
        exited.expect("/component/signal", 9);
    }
}

#[test]
fn what_a_kubelet_has_forked_to_execute_something_is_no_other_one() {
    let scratch = Scratch::without_mounts();
    let program = Program::new(&scratch, "kubelet", Some("v1.20.2"));
    let mut kubelet = start(&program);
    // It ends with the kubelet, whose standard input it has.
    kubelet.run("exec 9<&0; { read -r word <&9; } &");
    let children = format!("/proc/{0}/task/{0}/children", kubelet.pid());
    let child = wait_until("it has a child", || {
        let child: u32 = std::fs::read_to_string(&children).ok()?.trim().parse().ok()?;
        (std::fs::read_link(format!("/proc/{child}/exe")).ok()? == program.path()).then_some(child)
    });
    let daemon = launch().start();
    daemon.wait_for_component(kubelet.pid());
    assert!(!daemon.knows_component(child), "{child}");
}

/// Starts what only calls itself a runtime, after `prefix`.
fn pretend(prefix: &[&str], program: &Path) -> Running {
    let path = exe(program);
    let words = [prefix, &[&path, "-c", "read -r word; exit"]].concat();
    let mut command = Command::new(words[0]);
    let process = Running::spawn(command.args(&words[1..]).stdin(Stdio::piped()));
    let link = PathBuf::from(format!("/proc/{}/exe", process.pid()));
    eventually!(std::fs::read_link(&link).is_ok_and(|exe| exe == program), "it runs");
    process
}

#[test]
fn who_only_has_the_name_of_a_kubelet_or_runtime_is_none() {
    let scratch = Scratch::without_mounts();
    let program = Program::new(&scratch, "dockerd", None);
    let kubelet = Program::new(&scratch, "kubelet", Some("v1.20.2"));
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let in_userns = [&nobody[..], &["unshare", "--user", "--map-root-user"]].concat();
    let without_rights = ["setpriv", "--bounding-set=-sys_admin"];
    let mut fakes = Vec::new();
    for program in [&program, &kubelet] {
        let prefixes = [&nobody[..], &in_userns, &without_rights];
        fakes.extend(prefixes.map(|prefix| pretend(prefix, program.path())));
    }
    // Root itself, which takes the name and the arguments alone.
    let shell = std::fs::canonicalize("/bin/sh").expect("a shell");
    let mut command = Command::new(shell);
    let script = "echo kubelet >/proc/$$/comm; read -r word; exit";
    command.arg0("kubelet").args(["-c", script, "kubelet", "--root-dir=/var/lib/kubelet"]);
    let named = Running::spawn(command.stdin(Stdio::piped()));
    eventually!(comm(named.pid()).as_deref() == Some("kubelet"), "it has the name");
    fakes.push(named);
    // The programs themselves, but as the tools that they are as well.
    let containerd = Program::new(&scratch, "containerd", None);
    let tools = [
        start_with(&program, &["--version"]),
        start_with(&kubelet, &["--help"]),
        start_with(&containerd, &["--config", "/etc/containerd/config.toml", "config", "dump"]),
        start_with(&containerd, &["--config=config", "--log-level", "debug", "config", "default"]),
    ];
    let mut helper = Command::new(program.path());
    helper.arg0("libnetwork-setkey").args(["-c", "read -r word; exit"]);
    fakes.push(Running::spawn(helper.stdin(Stdio::piped())));
    let real = start(&program);
    let daemon = launch().start();
    daemon.wait_for_component(real.pid());
    for pid in fakes.iter().map(Running::pid).chain(tools.iter().map(Component::pid)) {
        assert!(!daemon.knows_component(pid), "{pid}");
    }
}

/// Of a kubelet that runs beside others it is not told which of them it replaces.
mod alone {
    use super::*;

    #[test]
    fn a_kubelet_that_ends_and_its_successor_of_another_version_are_told() {
        let scratch = Scratch::without_mounts();
        let old = Program::new(&scratch, "old/kubelet", Some("v1.7.16"));
        let new = Program::new(&scratch, "new/kubelet", Some("v1.9.11"));
        let mut first = start(&old);
        let mut daemon = launch().start();
        daemon.wait_for_component(first.pid());
        first.end_with("7");
        let exited = wait_for(&mut daemon, "component.exited", first.pid());
        exited.expect("/component/name", "kubelet");
        exited.expect("/component/version", "v1.7.16");
        exited.expect("/component/exe", exe(old.path()));
        if kernel_tells_ends() {
            exited.expect("/component/exit_code", 7);
        }
        let second = start(&new);
        let started = wait_for(&mut daemon, "component.started", second.pid());
        started.expect("/component/version", "v1.9.11");
        started.expect("/component/previous_version", "v1.7.16");
        started.expect("/severity", "notice");
        assert!(!daemon.events().iter().any(|event| event.has("/incident") && event.has("/component")));
    }
}
