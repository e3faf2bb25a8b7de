//! What holds a mount for no process, and what only may.

use super::*;

#[test]
fn a_swap_file_of_such_a_name_is_possible_and_neither_explains_nor_stops_the_search() {
    let fake = FakeProc::new();
    fs::write(fake.0.path().join("swaps"), "Filename Type\n/vol/swap file 1 0 -2\n").unwrap();
    let report = fake.scan();
    assert_eq!((report.verdict, report.complete), (Verdict::Incomplete, false), "{report:#?}");
    let [swap] = &report.holders[..] else { panic!("{report:#?}") };
    assert_eq!((swap.tgid, swap.access, swap.possible), (0, Access::Swap, true));
    assert!(!report.is_explained());

    // Of another namespace: it is only looked at where nothing is known to hold the mount.
    fake.process(20, 2, "5 0 8:1 / / rw - ext4 d rw\n");
    fake.open(20, 3, "/vol/f", &format!("mnt_id:\t{VOL}\n"));
    let report = fake.scan();
    assert_eq!(report.verdict, Verdict::Processes, "{report:#?}");
    assert_eq!(held(&report), [(0, Access::Swap), (20, Access::Fd)]);
}

#[test]
fn what_may_be_on_its_way_in_a_socket_is_possible() {
    let fake = FakeProc::new();
    fake.open(10, 5, "socket:[77]", "mnt_id:\t9\nscm_fds: 1\n");
    // Of what socket it is, a file that is none cannot tell; beside a ring all of them are looked at.
    fake.open(10, 6, "anon_inode:[io_uring]", "mnt_id:\t9\nUserFiles:\t0\n");
    let report = fake.scan();
    assert_eq!((report.verdict, report.complete), (Verdict::Incomplete, false), "{report:#?}");
    let [sender] = &report.holders[..] else { panic!("{report:#?}") };
    assert_eq!((sender.tgid, sender.access, sender.fd), (10, Access::InFlight, Some(5)));
    assert!(sender.possible);
}

#[test]
fn a_file_of_such_a_name_of_an_io_uring_is_possible() {
    let fake = FakeProc::new();
    fake.open(10, 5, "anon_inode:[io_uring]", "mnt_id:\t9\nUserFiles:\t1\n    0: /vol/f\nUserBufs:\t0\n");
    let report = fake.scan();
    assert_eq!(report.verdict, Verdict::Incomplete, "{report:#?}");
    let [ring] = &report.holders[..] else { panic!("{report:#?}") };
    assert_eq!((ring.access, ring.possible, ring.path.as_deref()), (Access::IoUring, true, Some("/vol/f")));
    let fake = FakeProc::new();
    fake.open(10, 5, "anon_inode:[io_uring]", "mnt_id:\t9\nUserFiles:\t1\n    0: /other/f\nUserBufs:\t0\n");
    assert_eq!(fake.scan().verdict, Verdict::Kernel);
}
