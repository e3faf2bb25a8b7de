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
