//! The kernel that runs, and what cannot be tested on it.

use std::io::Write as _;

use serde_json::Value;

use crate::daemon::Daemon;

/// Where it shows its types (BTF).
pub const TYPES: &str = "/sys/kernel/btf/vmlinux";

/// Its name, as `uname -r` prints it.
///
/// # Panics
/// If it has none.
#[must_use]
pub fn release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("it has a release").trim().to_owned()
}

/// Whether it is of this release or a later one.
///
/// # Panics
/// If it has none.
#[must_use]
pub fn is_since(major: u32, minor: u32) -> bool {
    let release = release();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or_default());
    (numbers.next(), numbers.next()) >= (Some(major), Some(minor))
}

/// Whether this is a virtual machine of the kernel matrix.
#[must_use]
pub fn is_guest() -> bool {
    std::env::var_os("KEVTMON_TEST_GUEST").is_some()
}

/// Tells why a test cannot run here. The guests are there to run it: there it is a failure, unless this is `permitted`, since it
/// does not exist on this kernel.
///
/// # Panics
/// In a guest, unless it is permitted.
#[track_caller]
pub fn skip(reason: &str, permitted: bool) {
    assert!(permitted || !is_guest(), "skipped in a guest: {reason}");
    print_past_runner(&format!("skipped: {reason}\n"));
}

/// Prints the attach modes of a daemon in a guest, for docs/kernels.md. `condition`: what the kernel lacks.
///
/// # Panics
/// If the daemon does not answer.
pub fn print_attach_modes(daemon: &Daemon, condition: &str) {
    if !is_guest() {
        return;
    }
    let doctor = daemon.ask(&["doctor", "--json"]);
    let report: Value = serde_json::from_str(&doctor.stdout).expect("a report");
    for part in report["parts"].as_array().expect("parts") {
        let Some(hook) = part["name"].as_str().and_then(|name| name.strip_prefix("hook.")) else { continue };
        let mut attach_mode = part["attach_mode"].as_str().unwrap_or("none").to_owned();
        // `without path_umount: EINVAL: …`
        let found = part["found"].as_str().unwrap_or_default();
        for lack in found.split("; ").filter_map(|lack| lack.strip_prefix("without ")?.split(':').next()) {
            attach_mode.push_str(", without ");
            attach_mode.push_str(lack);
        }
        print_past_runner(&format!("attached: {hook} | {condition} | {attach_mode}\n"));
    }
}

/// Past the test runner, which shows what a test prints only if it fails; at once, since tests run side by side.
fn print_past_runner(line: &str) {
    let _ = std::io::stderr().write_all(line.as_bytes());
}
