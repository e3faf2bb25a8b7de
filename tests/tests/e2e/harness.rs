//! The harness itself: what the guards set up works, and is cleaned up.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use kevtmon_tests::container::Container;
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::Mount;
use kevtmon_tests::pod::Pod;
use kevtmon_tests::process::{attempt, hold_by_cwd, run};

fn link_exists(name: &str) -> bool {
    Path::new("/sys/class/net").join(name).exists()
}

fn is_mounted_below(path: &str) -> bool {
    std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo").contains(path)
}

#[test]
fn a_pod_leaves_neither_link_nor_namespace() {
    let pod = Pod::new();
    let (link, netns) = (pod.host_end().to_owned(), format!("/run/netns/{}", pod.netns_name()));
    assert!(link_exists(&link) && Path::new(&netns).exists());
    drop(pod);
    assert!(!Path::new(&netns).exists());
    assert!(!link_exists(&link));
}

#[test]
fn a_dropped_mount_is_gone_even_when_it_is_held() {
    let mount = Mount::new();
    let point = mount.point().to_owned();
    let holder = hold_by_cwd(&point);
    drop(mount);
    assert!(!point.exists());
    drop(holder);
}

#[test]
fn a_docker_daemon_leaves_nothing_behind() {
    let dockerd = Dockerd::start();
    let container = Container::idle(&dockerd, &[]);
    let (bridge, directory) = (dockerd.name().to_owned(), dockerd.directory().to_owned());
    let pid = container.pid();
    // The container is still there when the daemon goes: the worst case.
    std::mem::forget(container);
    drop(dockerd);
    expect_nothing_of(&bridge, &directory.to_string_lossy(), pid);
}

fn expect_nothing_of(name: &str, directory: &str, pid: u32) {
    eventually!(!Path::new(directory).exists(), "{directory} is removed");
    eventually!(!link_exists(name), "bridge {name} is removed");
    assert!(!is_mounted_below(directory));
    eventually!(!Path::new(&format!("/proc/{pid}")).exists(), "process {pid} is gone");
    let groups = attempt(&["find", "/sys/fs/cgroup", "-name", name]).stdout;
    assert_eq!(groups, "", "control groups are left");
}

/// Run by the next test only, in a process that is killed.
#[test]
#[ignore = "what a test sets up that is killed"]
fn builds_guards_and_waits() {
    let pod = Pod::new();
    let mount = Mount::new();
    let holder = hold_by_cwd(mount.point());
    let dockerd = Dockerd::shared();
    let container = Container::idle(dockerd, &[]);
    let words = [
        pod.netns_name(),
        pod.host_end(),
        &mount.point().parent().expect("a scratch directory").to_string_lossy(),
        &holder.pid().to_string(),
        dockerd.name(),
        &dockerd.directory().to_string_lossy(),
        &container.pid().to_string(),
    ]
    .join(" ");
    writeln!(std::io::stdout(), "guards: {words}").expect("the parent listens");
    drop(std::io::stdin().lines().next());
}

#[test]
fn nothing_stays_of_a_test_process_that_is_killed() {
    let mut command = Command::new(std::env::current_exe().expect("a test has a path"));
    command.args(["--exact", "harness::builds_guards_and_waits", "--ignored", "--nocapture"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a test runs");
    let output = BufReader::new(child.stdout.take().expect("a pipe"));
    let guards = output
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.split_once("guards: ").map(|(_, words)| words.to_owned()))
        .expect("the child sets up its guards");
    child.kill().expect("a child can be killed");
    child.wait().expect("a child can be waited for");

    let words = guards.split_whitespace().collect::<Vec<_>>();
    let [netns, link, scratch, holder, dockerd, directory, container] = words[..] else {
        unreachable!("seven words: {guards}")
    };
    eventually!(!link_exists(link), "link {link} is removed");
    eventually!(!Path::new("/run/netns").join(netns).exists(), "namespace {netns} is removed");
    eventually!(!Path::new(scratch).exists(), "{scratch} is removed");
    eventually!(!Path::new("/proc").join(holder).exists(), "holder {holder} is gone");
    expect_nothing_of(dockerd, directory, container.parse().expect("a pid"));
    run("true");
}
