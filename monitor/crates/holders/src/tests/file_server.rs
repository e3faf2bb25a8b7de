//! Mounts whose file server does not answer, or is gone.

use std::os::fd::AsRawFd;

use super::*;
use crate::file_server::serving;

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

#[test]
fn a_server_whose_first_thread_has_ended_is_still_the_server() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.place("volume");
    let steps = vec![Step::Serve(c_path(&target)), Step::ThreadIn(c_path(Path::new("/"))), Step::EndLeader];
    let server = Child::spawn(steps);
    while Proc::default().stat(server.tgid()).unwrap().state != 'Z' {
        std::thread::yield_now();
    }
    let report = scan_path(&target);
    assert!(!report.unserved, "{report:#?}");
    let threads = fs::read_dir(format!("/proc/{}/task", server.tgid())).unwrap();
    let infos = threads.filter_map(|thread| fs::read_to_string(thread.unwrap().path().join("fdinfo/0")).ok());
    let is_shown = infos.into_iter().any(|info| info.contains("fuse_connection"));
    let is_named = report.servers.iter().any(|named| named.tgid == server.tgid());
    assert_eq!(is_named, is_shown, "{report:#?}");
    drop(server);
    assert!(scan_path(&target).unserved);
}

#[test]
fn who_has_the_device_open_without_a_connection_hides_no_server() {
    let mut sandbox = MountSandbox::new();
    let (target, server) = sandbox.mount_hung_fuse("volume");
    let info = format!("/proc/self/fdinfo/{}", server.as_raw_fd());
    let is_shown = fs::read_to_string(info).unwrap().contains("fuse_connection");
    let _holder = Child::spawn(vec![Step::Open(c_path(&target), libc::O_PATH)]);
    let _idle = Child::spawn(vec![Step::Open(c"/dev/fuse".to_owned(), libc::O_RDWR)]);
    drop(server);
    // Where the kernel shows no connections, it may be that of the mount.
    assert_eq!(scan_path(&target).unserved, is_shown);
}

/// A process that has the device open, with its connection, if that is shown.
fn device(fake: &FakeProc, tgid: u32, connection: Option<u32>) {
    fake.process(tgid, 1, &fake_table());
    let shown = connection.map_or(String::new(), |number| format!("fuse_connection:\t{number}\n"));
    fake.open(tgid, 4, "/dev/fuse", &format!("mnt_id:\t1\n{shown}"));
}

#[test]
fn who_may_not_be_read_makes_a_server_less_certain() {
    let fake = FakeProc::new();
    let proc = Proc::new(fake.0.path());
    device(&fake, 30, Some(9));
    device(&fake, 40, None);
    fake.process(20, 1, &fake_table());
    for fd in 0..5000 {
        fake.open(20, fd, "/dev/null", "mnt_id:\t1\n");
    }
    // It may not be read.
    fs::create_dir(fake.0.path().join("25")).unwrap();
    fs::write(fake.0.path().join("25/fd"), "").unwrap();
    let table = MountTable::parse(&fake_table().replace("tmpfs t", "fuse t"), "/");
    let found = || {
        let mount = table.at("/vol").unwrap();
        let found = serving(&proc, mount, &Deadline::after(AMPLE));
        assert!(!found.is_unserved);
        found.servers.iter().map(|server| (server.tgid, server.is_certain)).collect::<Vec<_>>()
    };
    assert_eq!(found(), [(30, false)], "it may be a child that has the connection, too");
    fs::remove_dir_all(fake.0.path().join("25")).unwrap();
    assert_eq!(found(), [(30, true)]);
    device(&fake, 50, Some(9));
    assert_eq!(found(), [(30, false), (50, false)]);
}
