//! The unit of the service: systemd takes it, it is as closed as it can be, and what it leaves the daemon is enough.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kevtmon_tests::daemon::{launch, program};
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::netns::Netns;
use kevtmon_tests::process::attempt;

/// Exposure by systemd-analyze, times ten: `security` exits with 1 above it.
const EXPOSURE: &str = "--threshold=65";

fn unit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/systemd/kevtmon.service")
}

fn text() -> String {
    std::fs::read_to_string(unit()).expect("the unit can be read")
}

/// The values of a setting.
fn values(setting: &str) -> Vec<String> {
    let lines = text();
    let lines = lines.lines().filter_map(|line| line.strip_prefix(setting)?.strip_prefix('='));
    lines.map(str::to_owned).collect()
}

#[test]
fn it_is_as_closed_as_a_monitor_of_the_node_can_be() {
    let path = unit().to_string_lossy().into_owned();
    let ran = attempt(&["systemd-analyze", "security", "--offline=true", "--no-pager", EXPOSURE, &path]);
    assert!(ran.status.success(), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("Overall exposure level"), "{}", ran.stdout);
}

#[test]
fn systemd_has_no_complaint_about_it() {
    let scratch = Scratch::without_mounts();
    // The program is not installed here.
    let installed = values("ExecStart").concat();
    let installed = installed.split(' ').next().expect("a program");
    let here = text().replace(installed, &program().to_string_lossy());
    let copy = scratch.path().join("kevtmon.service");
    std::fs::write(&copy, here).expect("a file can be written");
    let ran = attempt(&["systemd-analyze", "verify", &copy.to_string_lossy()]);
    let complaints: Vec<&str> = ran.stderr.lines().filter(|line| line.contains("kevtmon.service")).collect();
    assert!(ran.status.success() && complaints.is_empty(), "{}{}", ran.stdout, ran.stderr);
}

#[test]
fn no_setting_of_it_makes_a_mount_namespace() {
    let banned = [
        "PrivateTmp", "PrivateDevices", "PrivateMounts", "PrivateIPC", "ProtectSystem", "ProtectHome",
        "ProtectProc", "ProcSubset", "ProtectKernelTunables", "ProtectKernelModules", "ProtectKernelLogs",
        "ProtectControlGroups", "ProtectHostname", "ReadOnlyPaths", "ReadWritePaths", "InaccessiblePaths",
        "NoExecPaths", "ExecPaths", "TemporaryFileSystem", "BindPaths", "BindReadOnlyPaths", "RootDirectory",
        "RootImage", "MountAPIVFS", "DynamicUser", "MountImages", "ExtensionImages", "MountFlags",
        "LogNamespace",
    ];
    for setting in banned {
        assert_eq!(values(setting), [""; 0], "{setting}");
    }
}

#[test]
fn the_capabilities_that_it_leaves_are_enough_and_none_is_too_many() {
    // While there is one, nobody counts the entries that are deleted.
    let _shared = Netns::new();
    let listed = values("CapabilityBoundingSet").concat();
    let names: Vec<String> =
        listed.split(' ').map(|name| name.trim_start_matches("CAP_").to_ascii_lowercase()).collect();
    let set = format!("--bounding-set=-all,+{}", names.join(",+"));
    let mut daemon = launch().through(&["setpriv", "--no-new-privs", &set]).start();
    let ran = daemon.ask(&["doctor", "--json", "--self-test"]);
    assert!(ran.status.success(), "{}{}", ran.stdout, ran.stderr);
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let state = |name: &str| {
        let parts = report["parts"].as_array().expect("parts");
        parts.iter().find(|part| part["name"] == name).map(|part| part["state"].clone())
    };
    for part in ["netlink", "capabilities", "hook.neighbor", "self-pins", "store"] {
        assert_eq!(state(part), Some("ok".into()), "{part} in {report:#}");
    }
    let held = u64::from_str_radix(report["daemon"]["capabilities"].as_str().expect("a mask"), 16);
    // Three of them are given up once the programs are attached.
    let starting = ["bpf", "perfmon", "net_broadcast"];
    let count = usize::try_from(held.expect("a mask").count_ones()).expect("a number");
    assert_eq!(count, names.iter().filter(|name| !starting.contains(&name.as_str())).count(), "{report:#}");
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("it runs");
    let bound = status.lines().find_map(|line| line.strip_prefix("CapBnd:")).expect("a mask");
    let bound = u64::from_str_radix(bound.trim(), 16).expect("a mask").count_ones();
    assert_eq!(usize::try_from(bound).expect("a number"), names.len(), "what it was started with: {status}");
    daemon.stop();
}

/// Numbers of system calls, by the name; empty where this machine has no list.
fn numbers() -> BTreeMap<String, u32> {
    let list = std::fs::read_to_string("/usr/include/x86_64-linux-gnu/asm/unistd_64.h").unwrap_or_default();
    let number = |line: &str| {
        let (name, number) = line.strip_prefix("#define __NR_")?.split_once(' ')?;
        Some((name.to_owned(), number.trim().parse().ok()?))
    };
    list.lines().filter_map(number).collect()
}

#[test]
fn the_system_calls_that_it_denies_are_none_that_the_daemon_makes() {
    let numbers = numbers();
    if numbers.is_empty() {
        eprintln!("skipped: no list of system calls on this machine");
        return;
    }
    let mut denied: BTreeSet<u32> = BTreeSet::new();
    for line in values("SystemCallFilter") {
        for word in line.strip_prefix('~').expect("a list of what is denied").split(' ') {
            let names = match word.starts_with('@') {
                true => {
                    attempt(&["systemd-analyze", "--no-pager", "syscall-filter", word]).succeeded(word).stdout
                }
                false => format!(" {word}"),
            };
            // Its first lines are no names.
            denied.extend(names.lines().filter_map(|name| numbers.get(name.trim()).copied()));
        }
    }
    assert!(denied.len() > 30, "{denied:?}");
    let list = denied.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let _shared = Netns::new();
    let mut daemon = launch().through(&[env!("CARGO_BIN_EXE_filtered"), &list]).start();
    let ran = daemon.ask(&["doctor", "--json", "--self-test"]);
    assert!(ran.status.success(), "{}{}", ran.stdout, ran.stderr);
    daemon.wait_for("mount.busy with its holders", |event| {
        event.kind() == "mount.busy" && !event.list("/holders").is_empty()
    });
}

#[test]
fn the_program_is_started_with_arguments_that_it_understands() {
    let line = values("ExecStart").concat();
    let mut words: Vec<&str> = line.split(' ').skip(1).collect();
    words.push("--help");
    let program = program();
    let mut command = vec![program.to_str().expect("text")];
    command.extend(words);
    let _ = attempt(&command).succeeded(&line);
}
