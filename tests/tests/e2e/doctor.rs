//! `kevtmon doctor`: with a daemon, without one, without capabilities, and the self-test on the real kernel.

use std::os::unix::net::UnixListener;
use std::path::Path;

use kevtmon_tests::daemon::{launch, program};
use kevtmon_tests::eventually;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::netns::Netns;
use kevtmon_tests::process::{Finished, attempt, run, write_script};
use serde_json::Value;

/// Takes every capability from what it starts as root.
const POWERLESS: [&str; 3] = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];

fn report(ran: &Finished) -> Value {
    serde_json::from_str(&ran.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}\n{}", ran.stdout, ran.stderr))
}

fn part<'a>(report: &'a Value, name: &str) -> &'a Value {
    let parts = report["parts"].as_array().expect("parts");
    parts.iter().find(|part| part["name"] == name).unwrap_or_else(|| panic!("no part {name} in {report:#}"))
}

/// Asks without a daemon; `prefix` starts it.
fn without_daemon(scratch: &Scratch, prefix: &[&str], arguments: &[&str]) -> Finished {
    let (program, socket) = (program(), scratch.path().join("no.sock"));
    let mut words: Vec<&Path> = prefix.iter().map(Path::new).collect();
    words.extend([
        program.as_path(),
        Path::new("doctor"),
        Path::new("--json"),
        Path::new("--socket"),
        &socket,
    ]);
    words.extend([Path::new("--state-dir"), scratch.path()]);
    words.extend(arguments.iter().map(Path::new));
    attempt(&words)
}

/// Each part that is not as it should be tells why, and what to do.
fn check_parts(report: &Value) {
    for part in report["parts"].as_array().expect("parts") {
        let state = part["state"].as_str().expect("a state");
        assert!(["ok", "degraded", "failed", "absent", "unknown"].contains(&state), "{part}");
        if ["degraded", "failed"].contains(&state) {
            assert!(part["reason"].is_string() && part["lost"].is_string(), "{part}");
            assert!(part["remedy"].is_string(), "{part}");
        }
        let reason = part["reason"].as_str().unwrap_or_default();
        assert!(reason.len() < 600 && !reason.contains('\n'), "a reason is short: {part}");
    }
}

#[test]
fn a_running_daemon_tells_it_of_itself() {
    let daemon = launch().start();
    let ran = daemon.ask(&["doctor", "--json"]);
    let report = report(&ran);
    assert!(ran.status.success(), "{report:#}");
    assert_eq!(report["works"], true, "{report:#}");
    assert_eq!(report["daemon"]["pid"], daemon.pid(), "{report:#}");
    assert_eq!(report["daemon"]["ready"], true, "{report:#}");
    check_parts(&report);
    for name in ["netlink", "proc", "procfs", "capabilities"] {
        assert_eq!(part(&report, name)["required"], true, "{name}");
        assert_eq!(part(&report, name)["state"], "ok", "{name}: {report:#}");
    }
    assert_eq!(part(&report, "netlink")["attach_mode"], "all-nsid");
    assert_eq!(part(&report, "hook.neighbor")["attach_mode"], "tp_btf", "{report:#}");
    assert_eq!(part(&report, "self-pins")["state"], "ok", "{report:#}");
    for name in ["kernel", "btf", "tracefs", "lockdown", "cgroups", "store", "hook.umount"] {
        part(&report, name);
    }
    let text = daemon.ask(&["doctor"]);
    assert!(
        text.status.success() && text.stdout.contains("hook.neighbor     ok        by tp_btf"),
        "{}",
        text.stdout
    );
    assert!(text.stdout.lines().all(|line| line.chars().count() <= 80), "{}", text.stdout);
}

#[test]
fn without_a_daemon_everything_is_tried_and_let_go_of() {
    let scratch = Scratch::new();
    let ran = without_daemon(&scratch, &[], &[]);
    let report = report(&ran);
    assert!(ran.status.success(), "{report:#}");
    assert!(report.get("daemon").is_none(), "{report:#}");
    assert_eq!(part(&report, "daemon")["state"], "absent");
    assert_eq!(part(&report, "netlink")["state"], "ok");
    assert_eq!(part(&report, "hook.neighbor")["attach_mode"], "tp_btf", "{report:#}");
    check_parts(&report);
    let left: Vec<_> = std::fs::read_dir(scratch.path()).expect("a directory").collect();
    assert!(left.is_empty(), "nothing is written: {left:?}");
}

#[test]
fn without_capabilities_it_names_them_and_the_exit_code_is_that_of_the_daemon() {
    let scratch = Scratch::new();
    let ran = without_daemon(&scratch, &POWERLESS, &[]);
    let report = report(&ran);
    assert_eq!(ran.status.code(), Some(77), "{report:#}");
    assert_eq!(report["works"], false);
    let capabilities = part(&report, "capabilities");
    for name in ["CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_NET_ADMIN", "CAP_DAC_READ_SEARCH", "CAP_BPF"] {
        assert!(
            capabilities["reason"].as_str().is_some_and(|reason| reason.contains(name)),
            "{capabilities}"
        );
    }
    assert_eq!(part(&report, "hook.umount")["state"], "failed");
    check_parts(&report);
}

#[test]
fn where_kernel_programs_are_required_a_kernel_without_is_unsupported() {
    let scratch = Scratch::new();
    let config = scratch.path().join("kevtmon.toml");
    std::fs::write(&config, "require_ebpf = true\n").expect("a file can be written");
    let path = config.to_str().expect("text");
    let ran = without_daemon(&scratch, &[], &["--config", path]);
    assert!(ran.status.success(), "{}", ran.stdout);
    // Type information that is covered, for this command alone.
    let script = scratch.path().join("blind.sh");
    write_script(&script, "#!/bin/sh\nmount -t tmpfs none /sys/kernel/btf && exec \"$@\"\n");
    let prefix = ["unshare", "--mount", script.to_str().expect("text")];
    let ran = without_daemon(&scratch, &prefix, &["--config", path]);
    let report = report(&ran);
    assert_eq!(ran.status.code(), Some(69), "{report:#}");
    assert_eq!(part(&report, "btf")["state"], "failed");
    let remedy = part(&report, "hook.neighbor")["remedy"].as_str().unwrap_or_default().to_owned();
    assert!(remedy.contains("CONFIG_DEBUG_INFO_BTF"), "{report:#}");
}

/// Interfaces of self-tests.
fn links() -> Vec<String> {
    let entries = std::fs::read_dir("/sys/class/net").expect("interfaces");
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with("kvt") && name[3..].parse::<u32>().is_ok()).collect()
}

#[test]
fn the_self_test_sees_both_events_with_their_actor_and_leaves_nothing() {
    // While there is one, nobody counts the entries that are deleted.
    let _shared = Netns::new();
    let mut daemon = launch().start();
    let ran = daemon.ask(&["doctor", "--json", "--self-test"]);
    let report = report(&ran);
    assert!(ran.status.success(), "{report:#}");
    let steps = report["self_test"].as_array().expect("steps");
    assert_eq!(steps.len(), 3, "{report:#}");
    assert!(steps.iter().all(|step| step["passed"] == true), "{report:#}");
    for (step, kind) in steps.iter().zip(["neighbor.deleted", "mount.busy"]) {
        assert_eq!(step["named"], true);
        let seq = step["seq"].as_u64();
        let event = daemon.wait_for("the event of the step", |event| event.number("/seq") == seq);
        event.expect("/kind", kind);
        event.expect("/actor/confidence", "certain");
    }
    // Other tests have theirs meanwhile.
    eventually!(links().is_empty(), "its link is gone: {:?}", links());
    let text = daemon.ask(&["doctor", "--self-test"]);
    assert!(text.stdout.contains("passed  be refused an unmount"), "{}", text.stdout);
}

#[test]
fn the_self_test_fails_where_nobody_can_be_named_and_says_why() {
    let _shared = Netns::new();
    let daemon = launch().config("[hooks]\nneighbor = \"netlink\"\n").start();
    let ran = daemon.ask(&["doctor", "--json", "--self-test"]);
    let report = report(&ran);
    assert_eq!(ran.status.code(), Some(1), "{report:#}");
    assert_eq!(report["works"], true, "{report:#}");
    let step = &report["self_test"][0];
    assert_eq!((&step["passed"], &step["named"]), (&Value::Bool(false), &Value::Bool(false)), "{report:#}");
    assert!(step["outcome"].as_str().is_some_and(|it| it.contains("attached by netlink: ")), "{step}");
    assert_eq!(report["self_test"][1]["passed"], true, "{report:#}");
}

/// Starts a program to which the first processes of the node show nothing, as to one that a security module confines.
const CONFINED: &[&str] = &[
    "env",
    "--unset=KEVTMON_HOST_PID",
    "unshare",
    "--mount",
    "sh",
    "-c",
    "for pid in 1 2; do [ ! -e /proc/$pid ] || mount -t tmpfs none /proc/$pid || exit; done; exec \"$@\"",
    "sh",
];

#[test]
fn where_the_first_processes_show_nothing_files_of_the_node_are_said_to_be_out_of_reach() {
    let mut daemon = launch().through(CONFINED).start();
    let is_it = |message: &str| message.starts_with("node-root is degraded: /proc/1/root: ");
    daemon.wait_for("that they are out of reach", |event| {
        event.kind() == "daemon.degraded" && is_it(event.text("/message"))
    });
    let told = report(&daemon.ask(&["doctor", "--json"]));
    let tried = report(&without_daemon(&Scratch::new(), CONFINED, &[]));
    for report in [told, tried] {
        let root = part(&report, "node-root");
        assert_eq!(root["state"], "degraded", "{report:#}");
        assert!(root["lost"].as_str().is_some_and(|lost| lost.starts_with("sockets of runtimes")), "{root}");
        check_parts(&report);
    }
    daemon.stop();
}

/// Starts a program on a node that has control groups v1 alone.
const ONLY_V1: &[&str] = &[
    "unshare",
    "--mount",
    "sh",
    "-c",
    "mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/pids && KEVTMON_HOST_PID=$$ exec \"$@\"",
    "sh",
];

#[test]
fn without_control_groups_v2_it_says_which_hook_is_lost_and_how_to_mount_them() {
    let report = report(&without_daemon(&Scratch::new(), ONLY_V1, &[]));
    let (cgroups, hook) = (part(&report, "cgroups"), part(&report, "hook.sysctl"));
    assert_eq!((&cgroups["state"], &cgroups["found"]), (&"degraded".into(), &"v1".into()), "{report:#}");
    assert_eq!(hook["state"], "failed", "{report:#}");
    for part in [cgroups, hook] {
        let remedy = part["remedy"].as_str().unwrap_or_default();
        assert!(remedy.starts_with("mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2"), "{part}");
    }
    check_parts(&report);
}

#[test]
fn a_state_directory_that_is_read_only_is_told_before_a_daemon_is_started() {
    let scratch = Scratch::new();
    let path = scratch.path().display();
    run(&format!("mount --bind {path} {path}"));
    run(&format!("mount -o remount,bind,ro {path}"));
    let report = report(&without_daemon(&scratch, &[], &[]));
    let store = part(&report, "store");
    assert_eq!(store["state"], "failed", "{store}");
    assert!(store["reason"].as_str().is_some_and(|it| it.ends_with("Read-only file system")), "{store}");
    check_parts(&report);
}

#[test]
fn of_a_runtime_that_accepts_and_does_not_answer_it_says_how_to_ask_it() {
    let scratch = Scratch::without_mounts();
    let socket = scratch.path().join("silent.sock");
    let _silent = UnixListener::bind(&socket).expect("a socket can be made");
    let config = scratch.path().join("kevtmon.toml");
    let sockets = format!("[runtime]\nsockets = [\"docker={}\"]\n", socket.display());
    std::fs::write(&config, sockets).expect("a file can be written");
    let asked = ["--config", config.to_str().expect("text")];
    let report = report(&without_daemon(&scratch, &[], &asked));
    let runtime = part(&report, &format!("docker:{}", socket.display()));
    assert_eq!((&runtime["state"], &runtime["reason"]), (&"failed".into(), &"no answer within 2s".into()));
    let remedy = runtime["remedy"].as_str().unwrap_or_default();
    assert!(remedy.contains(&format!("curl --unix-socket {} ", socket.display())), "{runtime}");
    check_parts(&report);
}

/// Starts a program where there is no tracefs and no place for it, but the types of the kernel.
const NO_TRACEFS: &[&str] = &[
    "unshare",
    "--mount",
    "sh",
    "-c",
    "t=$(mktemp -d) && mount --bind /sys/kernel/btf $t && mount -t tmpfs none /sys/kernel && \
     mkdir /sys/kernel/btf && mount --move $t /sys/kernel/btf && rmdir $t && exec \"$@\"",
    "sh",
];

#[test]
fn without_tracefs_it_says_how_to_mount_it_and_other_hooks_work() {
    let mut daemon = launch().through(NO_TRACEFS).start();
    daemon.wait_for("that the hook of unmounts is down", |event| {
        let message = event.text("/message");
        event.kind() == "daemon.degraded" && message.starts_with("hook.umount is down: needs tracefs at ")
    });
    let report = report(&without_daemon(&Scratch::new(), NO_TRACEFS, &[]));
    for (name, state) in [("tracefs", "degraded"), ("hook.umount", "failed")] {
        let part = part(&report, name);
        assert_eq!(part["state"], state, "{report:#}");
        let remedy = part["remedy"].as_str().unwrap_or_default();
        assert_eq!(remedy, "mount -t tracefs tracefs /sys/kernel/tracing", "{part}");
    }
    assert_eq!(part(&report, "hook.neighbor")["attach_mode"], "tp_btf", "{report:#}");
    check_parts(&report);
    daemon.stop();
}
