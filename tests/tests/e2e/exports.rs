//! What the kernel's NFS server exports keeps its mount in use, in whatever network namespace that is. On kernels that have such a server:
//! those of the virtual machines. None runs: the test writes the entries that mountd(8) would.

use std::path::Path;
use std::process::{Command, Stdio};

use kevtmon_tests::daemon::{held, launch, program};
use kevtmon_tests::eventually;
use kevtmon_tests::kernel;
use kevtmon_tests::mount::{Mount, Scratch, wait_for};
use kevtmon_tests::process::{Running, comm, finish};
use serde_json::{Value, json};

/// A process in a network namespace of its own, in which the server has an entry for a path. The entry ends with it.
fn exporter(path: &Path, flags: &str) -> Running {
    // Clients have a name first.
    let script = "printf '%s\\n' 'nfsd 127.0.0.1 2147483647 client' >/proc/net/rpc/auth.unix.ip/channel && \
                  printf '%s\\n' \"client $1 2147483647$2\" >/proc/net/rpc/nfsd.export/channel && \
                  exec sleep 1000000";
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", script, "sh"]);
    command.arg(path.to_string_lossy().replace(' ', "\\040")).arg(flags);
    let process = Running::spawn(command.stdin(Stdio::null()));
    eventually!(comm(process.pid()).as_deref() == Some("sleep"), "the entry is there");
    process
}

/// What a command in the network namespace of a process says.
fn held_there(process: &Running, path: &Path) -> Value {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{}/ns/net", process.pid())).arg(program());
    command.args(["holders", "--json", "--here"]).arg(path).stdin(Stdio::null());
    command.args(["--socket", "/nonexistent/kevtmon.sock", "--state-dir", "/nonexistent"]);
    let ran = finish(&mut command, "nsenter".as_ref());
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| unreachable!("{error}: {ran:?}"))
}

/// The exports among the holders of an answer.
fn exports(answer: &Value) -> Vec<Value> {
    let holders = answer["holders"].as_array().cloned().unwrap_or_default();
    let exports = holders.iter().filter(|holder| holder["access"] == "export");
    exports.map(|export| json!([export["path"], export["possible"], export["source"]])).collect()
}

#[test]
fn an_export_and_its_denial_are_told_as_what_may_hold_the_mount() {
    if !Path::new("/proc/fs/nfs/exports").exists() {
        kernel::skip("this kernel has no server of NFS", false);
        return;
    }
    let scratch = Scratch::new();
    let mut daemon = launch().start();
    for (name, flags) in [("exported volume", " 8192 65534 65534 7"), ("denied volume", "")] {
        let mount = Mount::at(&scratch.path().join(name));
        let exporter = exporter(mount.point(), flags);
        mount.umount_refused();
        let busy = wait_for(&mut daemon, "mount.busy", mount.point());
        busy.expect("/holders_verdict", "incomplete");
        assert!(busy.text("/message").contains("possibly it is held by the NFS export "), "{busy}");
        let netns = std::fs::read_link(format!("/proc/{}/ns/net", exporter.pid())).expect("a namespace");
        let expected = |netns: Value| vec![json!([mount.point().to_string_lossy(), true, netns])];
        let other = expected(json!(netns.to_string_lossy()));
        assert_eq!(exports(busy.get("").expect("an event")), other, "{busy}");
        assert_eq!(exports(&held(mount.point())), other);
        assert_eq!(exports(&held_there(&exporter, mount.point())), expected(Value::Null));
        drop(exporter);
        eventually!(mount.umount().status.success(), "nothing holds it any more");
        wait_for(&mut daemon, "mount.released", mount.point());
    }
}
