//! FUSE file systems whose servers end.

use kevtmon_sources::procfs::readers::Job as _;

use super::*;
use crate::file_server::{Connection, connection_of};
use crate::fuse_mounts::{Followed, Look, is_disconnected};

#[test]
fn a_file_system_is_unserved_once_its_server_has_ended_and_while_it_is_mounted() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.place("volume");
    let server = Child::spawn(vec![Step::Serve(c_path(&target))]);
    let proc = Proc::default().with_host(std::process::id());
    let path = target.to_str().unwrap();
    let of_it = |found: &[Followed]| {
        let is_it = |followed: &&Followed| followed.mount.paths.iter().any(|known| known == path);
        found.iter().find(is_it).cloned()
    };
    let look = |known: Vec<Followed>| {
        let look = Look { known, budget: Duration::from_secs(60), may_ask: false };
        look.run(&proc).unwrap()
    };
    let mut known = look(Vec::new());
    let served = of_it(&known).unwrap().mount;
    assert!(!served.unserved);
    let is_shown = !served.servers.is_empty();
    assert!(served.servers.iter().all(|found| found.tgid == server.tgid()), "{served:?}");
    drop(server);
    known = look(known);
    let unserved = of_it(&known).unwrap().mount;
    // Kernels that do not show connections do not tell whose it was.
    assert_eq!(unserved.unserved, is_shown, "{unserved:?}");
    assert!(!is_shown || unserved.mounts.iter().any(|holder| holder.path.as_deref() == Some(path)));
    drop(sandbox);
    known = look(known);
    assert_eq!(of_it(&known), None);
}

#[test]
fn an_access_tells_that_a_connection_is_closed() {
    let mut sandbox = MountSandbox::new();
    let (target, server) = sandbox.mount_hung_fuse("volume");
    let other = sandbox.mount("other");
    drop(server);
    let proc = Proc::default().with_host(std::process::id());
    let table = proc.init_dir().unwrap().mount_table("/", |_| true).unwrap();
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
    let table = proc.init_dir().unwrap().mount_table("/", |_| true).unwrap();
    let connection = |server: &Child, path: &Path| {
        connection_of(&proc, server.tgid(), table.at(path.to_str().unwrap()).unwrap())
    };
    assert_eq!(connection(&former, &closed), Some(Connection::Closed));
    assert_eq!(connection(&server, &aborted), None, "it is open");
    let look = |known: Vec<Followed>| {
        let look = Look { known, budget: Duration::from_secs(60), may_ask: false };
        look.run(&proc).unwrap()
    };
    let path = aborted.to_str().unwrap();
    let of_it = |found: &[Followed]| {
        let is_it = |followed: &&Followed| followed.mount.paths.iter().any(|known| known == path);
        found.iter().find(is_it).unwrap().mount.clone()
    };
    let known = look(Vec::new());
    let is_shown = !of_it(&known).servers.is_empty();
    // The kernel aborts it before it finds the mount busy.
    let _busy = Child::spawn(vec![Step::Open(c_path(&aborted), libc::O_PATH)]);
    assert_eq!(umount(&aborted, libc::MNT_FORCE), Err(libc::EBUSY));
    let expected = if is_shown { Connection::Aborted } else { Connection::LikelyAborted };
    assert_eq!(connection(&server, &aborted), Some(expected));
    // It stays so, though the server has the connection open.
    let mut known = look(known);
    for _ in 0..2 {
        let now = of_it(&known);
        assert_eq!((now.unserved, now.cut_off), (is_shown, is_shown), "{now:?}");
        known = look(known);
    }
}
