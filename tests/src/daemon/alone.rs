//! `kevtmon holders` without a daemon.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use super::program;
use crate::mount::Scratch;
use crate::patience::wait_until;
use crate::process::Running;

/// What it tells of a path in the mount namespace of this process. One that waits for a file server does not keep the test
/// waiting for good.
///
/// # Panics
/// If that is no JSON, does not come, or does not go with the exit code.
#[must_use]
pub fn held(path: &Path) -> serde_json::Value {
    let scratch = Scratch::without_mounts();
    let [stdout, stderr] = ["stdout", "stderr"].map(|name| scratch.path().join(name));
    let create = |path: &Path| File::create(path).expect("a file can be made");
    let mut command = Command::new(program());
    command.args(["holders", "--json", "--here"]).arg(path).stdin(Stdio::null());
    command.args(["--socket", "/nonexistent/kevtmon.sock", "--state-dir", "/nonexistent"]);
    let mut process = Running::spawn(command.stdout(create(&stdout)).stderr(create(&stderr)));
    let status = wait_until(&format!("who holds {} is told", path.display()), || process.ended());
    let [stdout, stderr] = [stdout, stderr].map(|path| std::fs::read_to_string(path).expect("text"));
    let answer: serde_json::Value =
        serde_json::from_str(&stdout).unwrap_or_else(|error| unreachable!("{error}: {stdout}{stderr}"));
    let is_explained =
        matches!(answer["holders_verdict"].as_str(), Some("processes" | "child-mount" | "kernel"));
    let is_complete = answer["holders_complete"].as_bool().expect("it says so");
    let has_holders = answer["holders"].as_array().is_some_and(|holders| !holders.is_empty());
    let code = match (is_explained, is_complete) {
        (true, _) => 0,
        (false, true) => i32::from(!has_holders),
        (false, false) => 2,
    };
    assert_eq!(status.code(), Some(code), "{answer}{stderr}");
    answer
}
