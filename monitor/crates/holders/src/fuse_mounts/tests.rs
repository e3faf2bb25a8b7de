//! Which FUSE file systems are followed.

use super::*;

fn fuse(paths: &[&str]) -> FuseMount {
    FuseMount {
        device: "0:61".into(),
        fstype: "fuse.s3".into(),
        source: "bucket".into(),
        paths: paths.iter().map(|path| (*path).to_owned()).collect(),
        ..FuseMount::default()
    }
}

fn table(lines: &[&str]) -> MountTable {
    MountTable::parse(&lines.join("\n"), "/")
}

#[test]
fn the_file_systems_of_the_host_are_followed_with_all_their_places() {
    let look = Look { known: Vec::new(), budget: BUDGET, may_ask: true, in_turn: true };
    let table = table(&[
        "30 1 0:61 / /v rw - fuse.s3 bucket rw",
        "31 1 0:61 /a /w rw - fuse.s3 bucket rw",
        "32 1 0:5 / /dev rw - devtmpfs udev rw",
        "33 1 0:62 / /x rw - fuseblk /dev/sdb rw",
    ]);
    let found = look.followed(&table, 9);
    assert_eq!(found[0].mount, FuseMount { mntns: 9, ..fuse(&["/v", "/w"]) });
    assert_eq!((found.len(), found[1].mount.source.as_str()), (2, "/dev/sdb"));
}

#[test]
fn the_number_of_a_device_alone_is_no_file_system() {
    let known = vec![Followed { mount: fuse(&["/v"]), looks: 0, cut_off_looks: 0 }];
    let look = Look { known, budget: BUDGET, may_ask: true, in_turn: true };
    let found = look.followed(&table(&["30 1 0:61 / /v rw - fuse.s3 other rw"]), 9);
    let sources: Vec<_> = found.iter().map(|followed| followed.mount.source.as_str()).collect();
    assert_eq!(sources, ["bucket", "other"]);
}

fn this_process(proc: &Proc) -> FuseServer {
    let tgid = std::process::id();
    FuseServer { tgid, start_ns: proc.stat(tgid).unwrap().start_ns, ..FuseServer::default() }
}

#[test]
fn what_is_dead_stays_so_where_the_time_to_read_its_server_is_over() {
    let look = Look { known: Vec::new(), budget: BUDGET, may_ask: false, in_turn: true };
    let proc = Proc::default();
    let servers = [this_process(&proc)];
    let deadline = Deadline::after(Duration::ZERO);
    let mut opened = Opened { proc: &proc, deadline, known: BTreeMap::new() };
    for unserved in [false, true] {
        let fuse = FuseMount { unserved, ..fuse(&["/v"]) };
        assert_eq!(look.is_cut_off(&table(&[]), &fuse, &servers, &mut opened), unserved);
    }
    assert!(opened.known.is_empty(), "it is read once there is time");
}

#[test]
fn a_server_that_ended_before_is_not_why_the_connection_of_another_one_is_aborted() {
    let proc = Proc::default();
    let living = this_process(&proc);
    let former = FuseServer { tgid: u32::MAX, ..living.clone() };
    let mount = FuseMount { servers: vec![former.clone(), living.clone()], ..fuse(&["/v"]) };
    let mut followed = Followed { mount, looks: 0, cut_off_looks: 0 };
    for _ in 0..LIVES_ON {
        assert!(!followed.mount.unserved);
        followed.set(&proc, vec![living.clone()], true, true, true);
    }
    assert_eq!((followed.mount.cut_off, followed.mount.servers), (true, vec![living]));
    let mount = FuseMount { servers: vec![former.clone()], ..fuse(&["/v"]) };
    let mut ended = Followed { mount, looks: 0, cut_off_looks: 0 };
    ended.set(&proc, Vec::new(), true, true, true);
    assert_eq!((ended.mount.unserved, ended.mount.cut_off), (true, false));
    assert_eq!(ended.mount.servers, [former], "who served it last stays");
}
