//! Mounts whose file server does not answer, or is gone.

use std::os::fd::AsRawFd;

use super::*;

#[test]
fn a_file_server_that_never_answers_does_not_hold_up_the_scan() {
    let mut sandbox = MountSandbox::new();
    let (target, server) = sandbox.mount_hung_fuse("hung");
    let holder = Child::spawn(vec![Step::Open(c_path(&target), libc::O_PATH)]);
    let (answered, answer) = sync_channel(1);
    let path = target.clone();
    let scanner = std::thread::spawn(move || answered.send(Box::new(scan_path(&path))));
    let report = answer.recv_timeout(Duration::from_secs(30));
    // Ends the connection, and with it any call that waits for the server.
    drop(server);
    scanner.join().unwrap().unwrap();
    let report = report.expect("the scan hangs");
    assert_eq!(held(&report), [(holder.tgid(), Access::Fd)]);
    assert_eq!(report.mount.unwrap().fstype, "fuse");
}

#[test]
fn a_file_server_that_is_gone_is_told_from_one_that_does_not_answer() {
    let mut sandbox = MountSandbox::new();
    let (target, server) = sandbox.mount_hung_fuse("volume");
    let holder = Child::spawn(vec![Step::Open(c_path(&target), libc::O_PATH)]);
    let report = scan_path(&target);
    assert!(!report.unserved, "it is there: {report:?}");
    drop(server);
    let report = scan_path(&target);
    assert_eq!(held(&report), [(holder.tgid(), Access::Fd)]);
    assert!(report.unserved, "{report:?}");
}

#[test]
fn who_has_the_connection_open_is_the_server() {
    let mut sandbox = MountSandbox::new();
    let (target, server) = sandbox.mount_hung_fuse("volume");
    let info = format!("/proc/self/fdinfo/{}", server.as_raw_fd());
    let is_shown = fs::read_to_string(info).unwrap().contains("fuse_connection");
    let report = scan_path(&target);
    let servers: Vec<u32> = report.servers.iter().map(|server| server.tgid).collect();
    // Nothing else tells it: no argument names the mount.
    assert_eq!(servers.contains(&std::process::id()), is_shown, "{report:#?}");
    drop(server);
    assert_eq!(scan_path(&target).servers, []);
}
