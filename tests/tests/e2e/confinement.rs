//! What a running daemon may still do, by what the kernel shows of its threads and helpers, and that it sees as much as before.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, Launch, launch};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::{Mount, is_about};
use kevtmon_tests::patience::wait_until;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::process::{Running, hold_by_cwd, run};

const DAC_OVERRIDE: u64 = 1 << 1;
/// CAP_DAC_READ_SEARCH, CAP_NET_ADMIN, CAP_SYS_PTRACE, CAP_SYS_ADMIN.
const RUNNING: u64 = 1 << 2 | 1 << 12 | 1 << 19 | 1 << 21;
/// The threads that read what clients send, and what they have: CAP_NET_ADMIN, and of queries CAP_DAC_READ_SEARCH.
const OF_CLIENTS: [(&str, u64); 2] = [("http", 1 << 12), ("api", 1 << 2 | 1 << 12)];

/// What proc_pid_status(5) shows of a thread.
struct Status(String);

impl Status {
    /// `None` if it has ended.
    fn of(task: &Path) -> Option<Self> {
        fs::read_to_string(task.join("status")).ok().map(Self)
    }

    fn value(&self, key: &str) -> &str {
        let line = self.0.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.expect("the kernel shows it").trim()
    }

    fn mask(&self, key: &str) -> u64 {
        u64::from_str_radix(self.value(key), 16).expect("a mask")
    }

    /// Panics unless it has these capabilities, none that it could take again, and is filtered.
    #[track_caller]
    fn expect(&self, capabilities: u64) {
        assert_eq!(self.mask("CapEff"), capabilities, "{:x} {}", self.mask("CapEff"), self.0);
        assert_eq!(self.mask("CapPrm"), capabilities, "{}", self.0);
        assert_eq!((self.mask("CapInh"), self.mask("CapAmb")), (0, 0), "{}", self.0);
        assert_eq!((self.value("NoNewPrivs"), self.value("Seccomp")), ("1", "2"), "{}", self.0);
    }
}

fn tasks(pid: u32) -> Vec<Status> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let tasks = tasks.filter_map(|task| Status::of(&task.path()));
    // What has ended has nothing any more, whatever is shown of it.
    tasks.filter(|status| !status.value("State").starts_with(['Z', 'X'])).collect()
}

/// The processes that a thread of the daemon has started and that are still there.
fn helpers(daemon: &Daemon) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("it runs").flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    children
        .flat_map(|text| text.split(' ').filter_map(|pid| pid.trim().parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Panics unless every thread of the daemon, and of each helper, has what it needs and nothing else.
#[track_caller]
fn expect_confined(daemon: &Daemon, more: u64) {
    let running = RUNNING | more;
    let of_clients = OF_CLIENTS.map(|(name, mask)| (name, if name == "api" { mask | more } else { mask }));
    let mut seen = BTreeSet::new();
    for status in tasks(daemon.pid()) {
        let name = status.value("Name").to_owned();
        let exactly = match of_clients.iter().find(|(thread, _)| *thread == name) {
            Some((_, mask)) => *mask,
            // A thread that one of those has started, to wait for a disk.
            None if of_clients.iter().any(|(_, mask)| *mask == status.mask("CapEff")) => {
                status.mask("CapEff")
            }
            None => running,
        };
        status.expect(exactly);
        seen.insert(name);
    }
    assert!(OF_CLIENTS.iter().all(|(thread, _)| seen.contains(*thread)), "{seen:?}");
    let main = Status::of(Path::new(&format!("/proc/{}", daemon.pid()))).expect("it runs");
    main.expect(running);
    for status in helpers(daemon).into_iter().flat_map(tasks) {
        status.expect(running);
    }
}

#[test]
fn what_is_not_needed_is_given_up_and_everything_that_comes_later_is_seen_as_before() {
    let dockerd = Dockerd::shared();
    let mut daemon = launch().joining(dockerd.runtime()).start();
    expect_confined(&daemon, 0);

    // A namespace that comes later is entered, by a socket of the kernel that was opened before.
    let pod = Pod::new();
    daemon.wait_for_netns(pod.inum());
    let ip = pod.delete_gateway();
    let deleted = daemon.wait_for_deletion(pod.inum(), GATEWAY);
    deleted.expect_actor(ip.pid, "ip");
    deleted.expect("/neighbor/gateway", true);

    // A container, by the socket of its runtime.
    let container = Container::idle(dockerd, &[]);
    container.set_gateway("02:00:00:00:00:01");
    let gateway = container.gateway();
    daemon.wait_for_gateway(container.netns().inum(), &gateway);
    container.netns().run(&format!("ip neigh del {gateway} dev eth0"));
    let deleted = daemon.wait_for_deletion(container.netns().inum(), &gateway);
    deleted.expect("/target/container/id", container.id());

    // Holders, by helpers that are started when they are needed.
    let volume = Mount::volume();
    let holder = hold_by_cwd(volume.point());
    let helper = wait_until("a helper is there", || {
        volume.umount_refused();
        helpers(&daemon).into_iter().find_map(|pid| tasks(pid).into_iter().next())
    });
    helper.expect(RUNNING);
    let is_holder = |held: &serde_json::Value| held["pid"].as_u64() == Some(holder.pid().into());
    daemon.wait_for("its holder", |event| {
        is_about(event, "mount.busy", volume.point()) && event.list("/holders").iter().any(is_holder)
    });

    // The configuration is read again.
    daemon.signal(nix::sys::signal::Signal::SIGHUP);
    eventually!(daemon.log().contains("configuration reloaded"), "it is read again");

    let counted = daemon.metrics().count("kevtmon_kernel_neighbor_deletions_total", &[]);
    assert!(counted >= 2.0, "counters of the kernel are read: {counted}");
    expect_confined(&daemon, 0);
    let report = daemon.ask(&["doctor", "--json", "--self-test"]);
    assert!(report.status.success(), "{}{}", report.stdout, report.stderr);
    let report: serde_json::Value = serde_json::from_str(&report.stdout).expect("JSON");
    let parts = report["parts"].as_array().expect("parts");
    let state = |name: &str| parts.iter().find(|part| part["name"] == name).expect("a part")["state"].clone();
    for part in ["capabilities", "confinement", "netlink", "hook.neighbor", "self-pins", "store"] {
        assert_eq!(state(part), "ok", "{part} in {report:#}");
    }
    daemon.stop();
}

#[test]
fn a_state_directory_of_another_user_works_and_takes_one_capability_more() {
    let launch = launch();
    let state = launch.directory().join("state");
    fs::create_dir(&state).expect("a directory");
    run(&format!("chown 1234:1234 {}", state.display()));
    run(&format!("chmod 700 {}", state.display()));
    let mut daemon = launch.start();
    let pod = Pod::new();
    daemon.wait_for_netns(pod.inum());
    let ip = pod.delete_gateway();
    daemon.wait_for_deletion(pod.inum(), GATEWAY).expect_actor(ip.pid, "ip");
    eventually!(!daemon.find_committed(&["events", "--since", "1h"]).is_empty(), "it is stored");
    expect_confined(&daemon, DAC_OVERRIDE);
    let text = daemon.ask(&["doctor"]).stdout;
    assert!(text.contains("CAP_DAC_OVERRIDE"), "{text}");
    daemon.stop();
}

/// The paths below a directory that are another user's than root's.
fn of_others(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path()) {
        let metadata = fs::symlink_metadata(&path).expect("it is there");
        if metadata.is_dir() {
            found.extend(of_others(&path));
        }
        if metadata.uid() != 0 {
            found.push(path);
        }
    }
    found
}

/// A launch on the state that a daemon has left, all of whose files are another user's since, but not the directory.
fn on_state_of_another_user() -> Launch {
    let mut before = launch().start();
    let pod = Pod::new();
    let mut lives = Command::new("nsenter");
    lives.arg(format!("--net={}", pod.netns().path().display())).args(["sleep", "1000000"]);
    let _lives = Running::spawn(lives.stdin(Stdio::null()));
    before.wait_for_netns(pod.inum());
    let ip = pod.delete_gateway();
    before.wait_for_deletion(pod.inum(), GATEWAY).expect_actor(ip.pid, "ip");
    // It has a window for the incident, with links to segments.
    let windows = before.state().join("incidents");
    eventually!(fs::read_dir(&windows).is_ok_and(|mut all| all.next().is_some()), "a window is kept");
    before.stop();
    let launch = launch();
    let state = launch.directory().join("state");
    run(&format!("cp -a {} {}", before.state().display(), state.display()));
    run(&format!("chown -R 1234:1234 {}", state.display()));
    run(&format!("chown root: {}", state.display()));
    assert!(of_others(&state).len() > 5, "{:?}", of_others(&state));
    launch
}

/// How often the log has a text.
fn logged(daemon: &Daemon, text: &str) -> usize {
    daemon.log().lines().filter(|line| line.contains(text)).count()
}

#[test]
fn files_of_another_user_in_its_state_directory_work_and_take_one_capability_more() {
    let mut daemon = on_state_of_another_user().start();
    let ready = daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
    for sink in ["store", "recorder"] {
        assert!(!ready.has(&format!("/daemon/degraded/{sink}")), "{ready}");
    }
    let is_deletion = |event: &Event| event.kind() == "neighbor.deleted";
    let stored = || daemon.find_committed(&["events", "--since", "1h"]);
    eventually!(stored().iter().any(is_deletion), "what was stored before is found");
    expect_confined(&daemon, DAC_OVERRIDE);
    daemon.stop();
}

#[test]
fn files_of_another_user_that_it_cannot_write_are_said_with_how_to_mend_it() {
    let launch = on_state_of_another_user();
    // As the unit and the DaemonSet have it.
    let mut daemon = launch.through(&["setpriv", "--bounding-set=-dac_override"]).start();
    let mend = format!("chown -R root: {}", daemon.state().display());
    assert_eq!(logged(&daemon, &mend), 1, "{}", daemon.log());
    assert_eq!(logged(&daemon, "uid 1234"), 1, "{}", daemon.log());
    expect_confined(&daemon, 0);
    daemon.stop();
    // Both commands of that line, as it gives them.
    run(&mend);
    run(&format!("chmod -R u+rwX,go-w {}", daemon.state().display()));
    assert!(of_others(&daemon.state()).is_empty());
}
