//! A kernel that lets no program read its memory (lockdown, mode confidentiality): what happens is found without programs, and
//! the reason is named.

use std::path::Path;

use kevtmon_tests::daemon::launch;
use kevtmon_tests::kernel;
use kevtmon_tests::pod::{GATEWAY, Pod};
use nix::mount::{MsFlags, mount};

const SECURITY: &str = "/sys/kernel/security";

/// No mode is ever left but for a stricter one, until the machine is started again.
fn lock_down() {
    let file = Path::new(SECURITY).join("lockdown");
    if !file.exists() {
        let none: Option<&str> = None;
        mount(Some("securityfs"), SECURITY, Some("securityfs"), MsFlags::empty(), none).expect("securityfs");
    }
    let is_in = |mode: &str| {
        let modes = std::fs::read_to_string(&file).expect("the modes");
        modes.contains(&format!("[{mode}]"))
    };
    for mode in ["integrity", "confidentiality"] {
        // The one that it is in already is refused, like any that is less strict.
        if !is_in("confidentiality") && !is_in(mode) {
            std::fs::write(&file, mode).expect("a stricter mode can be chosen");
        }
    }
    assert!(is_in("confidentiality"), "it is locked down");
}

#[test]
#[ignore = "locks the machine down until it is started again, so it runs in a virtual machine, after all others"]
fn a_kernel_that_is_locked_down_is_named_and_deletions_are_still_told() {
    if !kernel::is_guest() {
        return kernel::skip("only in a virtual machine", false);
    }
    lock_down();
    let pod = Pod::new();
    let mut daemon = launch().start();
    let ready = daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
    ready.expect("/daemon/sources/hook.neighbor", "netlink");
    daemon.wait_for("that it is degraded", |event| event.kind() == "daemon.degraded");
    for hook in ["neighbor", "link", "exec"] {
        let reason = ready.text(&format!("/daemon/degraded/hook.{hook}"));
        assert!(reason.contains("lockdown=confidentiality"), "{hook}: {ready}");
        assert!(reason.len() < 300, "it is short: {reason}");
    }
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    pod.delete_gateway();
    let event = daemon.wait_for_deletion(pod.inum(), GATEWAY);
    event.expect_none("/actor/pid");
    let doctor = daemon.ask(&["doctor", "--json"]);
    assert!(doctor.stdout.contains("boot with lockdown=integrity"), "{}", doctor.stdout);
    kernel::print_attach_modes(&daemon, "lockdown=confidentiality");
    daemon.stop();
}
