//! Attach modes that take none of the kernel's types (BTF), because it hides them, and tracefs, or by choice: what can be observed
//! without them still is, and nothing is made up for the rest.

use std::path::Path;

use kevtmon_tests::balance::assert_accounted_for;
use kevtmon_tests::daemon::{Daemon, Launch, launch, program};
use kevtmon_tests::kernel;
use kevtmon_tests::mount::Mount;
use kevtmon_tests::pod::{GATEWAY, GATEWAY_LLADDR, Pod};
use kevtmon_tests::process::{attempt, hold_by_cwd};
use serde_json::Value;

/// Starts a program where the kernel's types are not to be found.
const HIDING: [&str; 6] =
    ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /sys/kernel/btf && exec \"$@\"", "sh"];

/// Has an unmount refused: its caller is told, and nothing that takes the kernel's types.
fn expect_a_named_caller(daemon: &mut Daemon) {
    let mount = Mount::new();
    let _culprit = hold_by_cwd(mount.point());
    let umount = mount.umount_refused();
    let point = mount.point().to_string_lossy().into_owned();
    let event = daemon.wait_for_holders("the refused unmount", |event| {
        event.kind() == "mount.busy" && event.text("/mount/path").ends_with(&point)
    });
    event.expect_actor(umount.pid, "umount");
    event.expect("/actor/uid", 0);
    event.expect("/mount/errno", "EBUSY");
    event.expect("/holders_complete", false);
    event.expect("/holders_verdict", "incomplete");
    for unknown in ["/actor/exe", "/actor/start_time_ns", "/actor/mntns", "/mount/mntns", "/mount/fstype"] {
        event.expect_none(unknown);
    }
    let reason = &event.list("/holders_unreadable")[0]["reason"];
    assert!(reason.as_str().is_some_and(|reason| reason.contains("BTF")), "{event}");
}

/// What the doctor tells of a part, asked where the kernel's types are hidden.
fn doctor(daemon: &Daemon, name: &str) -> Value {
    let (program, socket, state) = (program(), daemon.socket(), daemon.state());
    let mut words: Vec<&Path> = HIDING.iter().map(Path::new).collect();
    words.extend([&program, Path::new("doctor"), Path::new("--json"), Path::new("--socket"), &socket]);
    words.extend([Path::new("--state-dir"), &state]);
    let ran = attempt(&words);
    let report: Value = serde_json::from_str(&ran.stdout).expect("a report");
    let parts = report["parts"].as_array().expect("parts");
    parts.iter().find(|part| part["name"] == name).expect("a part of that name").clone()
}

#[test]
fn a_refused_unmount_names_its_caller_though_the_kernel_hides_its_types() {
    let mut daemon = launch().through(&HIDING).start();
    let ready = daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
    ready.expect("/daemon/sources/hook.umount", "helpers");
    ready.expect("/daemon/sources/hook.neighbor", "netlink");
    let degraded = daemon.wait_for("that it is degraded", |event| {
        event.kind() == "daemon.degraded" && event.text("/message").contains("umount")
    });
    assert!(degraded.text("/message").contains("/sys/kernel/btf/vmlinux"), "{degraded}");
    expect_a_named_caller(&mut daemon);

    // What the doctor calls lost is not what the attach mode still gives.
    let umount = doctor(&daemon, "hook.umount");
    assert_eq!(
        (&umount["state"], &umount["attach_mode"]),
        (&"degraded".into(), &"helpers".into()),
        "{umount}"
    );
    let lost = |part: &Value| part["lost"].as_str().expect("what is lost").to_owned();
    let of_umount = lost(&umount);
    assert!(of_umount.contains("only pid, name, user and the given path are known"), "{of_umount}");
    assert!(!of_umount.contains("without an actor"), "{of_umount}");
    let btf = doctor(&daemon, "btf");
    assert_eq!(btf["state"], "failed", "{btf}");
    assert!(lost(&btf).contains("every hook but that of unmounts"), "{btf}");
    assert!(lost(&doctor(&daemon, "hook.exec")).contains("not seen"), "it has no attach mode");
    kernel::print_attach_modes(&daemon, "without BTF");
}

#[test]
fn a_attach_mode_that_is_chosen_is_taken_though_there_are_better_ones() {
    let pod = Pod::new();
    let config = "[hooks]\numount = \"helpers\"\nneighbor = \"netlink\"\n";
    let mut daemon = launch().config(config).start();
    let ready = daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
    for (hook, attach_mode) in [("umount", "helpers"), ("neighbor", "netlink"), ("link", "tp_btf")] {
        ready.expect(&format!("/daemon/sources/hook.{hook}"), attach_mode);
    }
    for hook in ["umount", "neighbor"] {
        ready.expect(&format!("/daemon/degraded/hook.{hook}"), "switched off");
    }
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    pod.delete_gateway();
    daemon.wait_for_deletion(pod.inum(), GATEWAY).expect_none("/actor/pid");
    expect_a_named_caller(&mut daemon);
}

#[test]
fn actors_are_known_by_the_types_of_a_file_where_the_kernel_hides_them() {
    let pod = Pod::new();
    let launch = launch();
    let file = launch.directory().join(format!("{}.btf", kernel::release()));
    let types = std::fs::read(kernel::TYPES).expect("the kernel shows its types");
    std::fs::write(&file, types).expect("a file can be written");
    // This kernel only hides them, so that `tp_btf` would work, too.
    let config = format!("[hooks]\nneighbor = \"raw_tp\"\nbtf = {file:?}\n");
    let mut daemon = launch.config(&config).through(&HIDING).start();
    let ready = daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
    for (hook, attach_mode) in [("neighbor", "raw_tp"), ("umount", "tracepoint"), ("sysctl", "cgroup")] {
        ready.expect(&format!("/daemon/sources/hook.{hook}"), attach_mode);
    }
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    for (act, cause) in [
        (format!("neigh del {GATEWAY} dev eth0"), "admin"),
        ("link set eth0 address 02:00:00:00:00:09".to_owned(), "lladdr-changed"),
    ] {
        let ip = pod.ip(&act);
        let event = daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY);
        event.expect_actor(ip.pid, "ip");
        event.expect("/neighbor/cause", cause);
        event.expect("/neighbor/state", "permanent");
        event.expect("/neighbor/lladdr", GATEWAY_LLADDR);
        event.expect("/neighbor/ifname", "eth0");
        pod.set_gateway();
    }
    kernel::print_attach_modes(&daemon, "BTF from a file, raw_tp chosen");
}

/// The kernel's types without the names of these functions. `fentry` finds its function by name.
fn types_without(functions: [&str; 2]) -> Vec<u8> {
    let mut types = std::fs::read(kernel::TYPES).expect("the kernel shows its types");
    for function in functions {
        let name = format!("\0{function}\0");
        // The names are at the end.
        let at = types.windows(name.len()).rposition(|window| window == name.as_bytes());
        types[at.expect("the kernel has the function") + 1] = b'_';
    }
    types
}

#[test]
fn where_fentry_is_refused_a_kprobe_shows_who_deleted_a_route() {
    if !Path::new("/sys/bus/event_source/devices/kprobe").exists() {
        return kernel::skip("this kernel has no kprobes", false);
    }
    let pod = Pod::new();
    let launch = launch();
    let file = launch.directory().join(format!("{}.btf", kernel::release()));
    std::fs::write(&file, types_without(["rtnl_notify", "path_umount"])).expect("a file can be written");
    let mut daemon = launch.config(&format!("[hooks]\nbtf = {file:?}\n")).through(&HIDING).start();
    assert!(!daemon.log().contains("does without a program"), "{}", daemon.log());
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    let culprit = pod.ip("route del default");
    let gone = daemon.wait_for("the deleted route", |event| {
        event.kind() == "route.deleted" && event.number("/route/netns") == Some(pod.inum())
    });
    gone.expect_actor(culprit.pid, "ip");
}

#[test]
fn types_in_a_file_that_is_called_after_another_kernel_are_refused() {
    let config = "[hooks]\nbtf = \"/nowhere/5.10.btf\"\n";
    let mut daemon = launch().config(config).through(&HIDING).start();
    let ready = daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
    ready.expect("/daemon/sources/hook.neighbor", "netlink");
    let reason = ready.text("/daemon/degraded/hook.neighbor");
    assert!(reason.contains(&format!("is not called {}.btf", kernel::release())), "{reason}");
}

/// A daemon for which `/sys/kernel` has nothing, or only the kernel's types: there is no place to mount tracefs at.
fn without_tracefs(types: bool) -> Launch {
    const HIDE_ALL: &str = "mount -t tmpfs none /sys/kernel && exec \"$@\"";
    const HIDE_ALL_BUT_TYPES: &str = "mount -t tmpfs none /sys/kernel && busybox mkdir /sys/kernel/btf && \
                                      mount --bind \"$0\" /sys/kernel/btf && exec \"$@\"";
    let launch = launch();
    let copy = launch.directory().join("btf");
    std::fs::create_dir(&copy).expect("a directory can be made");
    let bytes = std::fs::read(kernel::TYPES).expect("the kernel shows its types");
    std::fs::write(copy.join("vmlinux"), bytes).expect("a file can be written");
    let script = if types { HIDE_ALL_BUT_TYPES } else { HIDE_ALL };
    let copy = copy.to_str().expect("text");
    launch.through(&["unshare", "--mount", "sh", "-c", script, copy])
}

#[test]
fn without_tracefs_hooks_on_other_tracepoints_still_work() {
    let pod = Pod::new();
    let mut daemon = without_tracefs(true).start();
    let ready = daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
    for hook in ["umount", "remove"] {
        let reason = ready.text(&format!("/daemon/degraded/hook.{hook}"));
        assert!(reason.contains("needs tracefs"), "{hook}: {ready}");
    }
    for hook in ["neighbor", "link", "exec"] {
        ready.expect(&format!("/daemon/sources/hook.{hook}"), "tp_btf");
    }
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    let deleted = pod.delete_gateway();
    daemon.wait_for_deletion(pod.inum(), GATEWAY).expect_actor(deleted.pid, "ip");
    kernel::print_attach_modes(&daemon, "without tracefs");
}

#[test]
fn without_btf_and_tracefs_it_runs_on_and_says_what_it_lost() {
    let pod = Pod::new();
    let mut daemon = without_tracefs(false).start();
    let ready = daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
    let degraded = ready.get("/daemon/degraded").map(ToString::to_string).unwrap_or_default();
    assert!(degraded.contains("BTF"), "{ready}");
    daemon.wait_for("daemon.degraded", |event| event.kind() == "daemon.degraded");
    assert_eq!(
        daemon.metrics().sum("kevtmon_hook_info", &[("hook", "neighbor"), ("attach_mode", "netlink")]),
        Some(1.0)
    );

    // State detects: the deletion is still reported, but without an actor.
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    pod.delete_gateway();
    let event = daemon.wait_for_deletion(pod.inum(), GATEWAY);
    event.expect("/neighbor/cause", "admin");
    event.expect("/neighbor/gateway", true);
    assert_ne!(event.text("/actor/confidence"), "certain", "{event}");
    let events = daemon.fence(&pod);
    assert_eq!(events.iter().filter(|event| event.is_deletion(pod.inum(), GATEWAY)).count(), 1);
    // Nothing is counted in the kernel then.
    daemon.stop();
    assert_accounted_for(&daemon.wait_for_end_of_output());
}
