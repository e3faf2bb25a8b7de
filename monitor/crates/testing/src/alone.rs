//! Tests that change what all others in their process share.

use std::env;
use std::process::Command;

/// Set in the process of one test.
const ALONE: &str = "KEVTMON_TEST_ALONE";

/// Runs a test of a module, `module_path!()`, in a process of its own.
#[track_caller]
pub fn alone(module: &str, test: &str, body: impl FnOnce()) {
    if env::var_os(ALONE).is_some() {
        return body();
    }
    let (_, module) = module.split_once("::").unwrap();
    let test = format!("{module}::{test}");
    let run = Command::new(env::current_exe().unwrap()).args(["--exact", &test]).env(ALONE, "1").output();
    let run = run.unwrap();
    let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && said.contains("1 passed"), "{test}: {said}");
}
