//! FUSE file systems whose servers end.

use kevtmon_sources::procfs::readers::Job as _;

use super::*;
use crate::file_server::{Connection, Connections};
use crate::fuse_mounts::{Followed, LIVES_ON, Look, is_disconnected};

fn look(proc: &Proc, known: Vec<Followed>, in_turn: bool) -> Vec<Followed> {
    let look = Look { known, budget: Duration::from_secs(60), may_ask: false, in_turn };
    look.run(proc).unwrap()
}

fn of_it(found: &[Followed], target: &Path) -> Option<Followed> {
    let path = target.to_str().unwrap();
    let is_it = |followed: &&Followed| followed.mount.paths.iter().any(|known| known == path);
    found.iter().find(is_it).cloned()
}

/// Aborts its connection: the kernel does so before it finds the mount busy.
fn abort(target: &Path) {
    let _busy = Child::spawn(vec![Step::Open(c_path(target), libc::O_PATH)]);
    assert_eq!(umount(target, libc::MNT_FORCE), Err(libc::EBUSY));
}

#[test]
fn a_file_system_is_unserved_once_its_server_has_ended_and_while_it_is_mounted() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.place("volume");
    let server = Child::spawn(vec![Step::Serve(c_path(&target))]);
    let proc = Proc::default().with_host(std::process::id());
    let mut known = look(&proc, Vec::new(), true);
    let served = of_it(&known, &target).unwrap().mount;
    assert!(!served.unserved);
    let is_shown = !served.servers.is_empty();
    assert!(served.servers.iter().all(|found| found.tgid == server.tgid()), "{served:?}");
    drop(server);
    known = look(&proc, known, true);
    let unserved = of_it(&known, &target).unwrap().mount;
    // Kernels that do not show connections do not tell whose it was.
    assert_eq!(unserved.unserved, is_shown, "{unserved:?}");
    let path = target.to_str();
    assert!(!is_shown || unserved.mounts.iter().any(|holder| holder.path.as_deref() == path));
    drop(sandbox);
    known = look(&proc, known, true);
    assert_eq!(of_it(&known, &target), None);
}

#[test]
fn an_access_tells_that_a_connection_is_closed() {
    let mut sandbox = MountSandbox::new();
    let (target, server) = sandbox.mount_hung_fuse("volume");
    let other = sandbox.mount("other");
    drop(server);
    let proc = Proc::default().with_host(std::process::id());
    let table = proc.host_dir().unwrap().1.mount_table("/", |_| true).unwrap();
    let is_closed = |path: &Path| is_disconnected(&proc, table.at(path.to_str().unwrap()).unwrap());
    assert!(is_closed(&target));
    assert!(!is_closed(&other));
    // What is mounted there by now is another one.
    let before = table.at(target.to_str().unwrap()).unwrap().clone();
    umount(&target, libc::MNT_DETACH).unwrap();
    let _again = sandbox.mount("volume");
    assert!(!is_disconnected(&proc, &before));
}

#[test]
fn the_descriptors_of_a_server_that_lives_tell_that_it_serves_no_more() {
    let mut sandbox = MountSandbox::new();
    let [aborted, closed] = ["aborted", "closed"].map(|name| sandbox.place(name));
    let server = Child::spawn(vec![Step::Serve(c_path(&aborted))]);
    let closing = vec![Step::Serve(c_path(&closed)), Step::OpenAt(c"/dev/null".to_owned(), 0)];
    let former = Child::spawn(closing);
    let proc = Proc::default().with_host(std::process::id());
    let table = proc.host_dir().unwrap().1.mount_table("/", |_| true).unwrap();
    let connection = |server: &Child, path: &Path| {
        let mount = table.at(path.to_str().unwrap()).unwrap();
        Connections::of(&proc, server.tgid()).unwrap().to(mount)
    };
    assert_eq!(connection(&former, &closed), Connection::Closed);
    assert_eq!(connection(&server, &aborted), Connection::Open);
    let mut known = look(&proc, Vec::new(), true);
    let is_shown = !of_it(&known, &aborted).unwrap().mount.servers.is_empty();
    abort(&aborted);
    let expected = if is_shown { Connection::Aborted } else { Connection::LikelyAborted };
    assert_eq!(connection(&server, &aborted), expected);
    known = look(&proc, known, false);
    // It stays so, though the server has the connection open.
    for count in 1..LIVES_ON + 2 {
        known = look(&proc, known, true);
        let (now, lives_on) = (of_it(&known, &aborted).unwrap().mount, is_shown && count >= LIVES_ON);
        assert_eq!((now.unserved, now.cut_off), (lives_on, lives_on), "{now:?}");
    }
}

#[test]
fn a_server_that_ends_soon_after_its_connection_has_ended_and_that_is_likely_why() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.place("volume");
    let server = Child::spawn(vec![Step::Serve(c_path(&target))]);
    let proc = Proc::default().with_host(std::process::id());
    let mut known = look(&proc, Vec::new(), true);
    let is_shown = !of_it(&known, &target).unwrap().mount.servers.is_empty();
    abort(&target);
    known = look(&proc, known, true);
    assert!(!of_it(&known, &target).unwrap().mount.unserved);
    drop(server);
    known = look(&proc, known, true);
    let ended = of_it(&known, &target).unwrap().mount;
    assert_eq!((ended.unserved, ended.cut_off), (is_shown, false), "{ended:?}");
    assert!(ended.servers.iter().all(|server| !server.is_certain), "{ended:?}");
}
