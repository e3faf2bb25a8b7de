//! What has the same name as something on the mount, and is on another one.

use super::*;

#[test]
fn what_was_entered_before_the_mount_was_covered_does_not_hold_the_cover() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    fs::write(target.join("f"), "x").unwrap();
    fs::copy("/bin/cat", target.join("cat")).unwrap();
    let _below = [
        Child::spawn(vec![Step::Chdir(c_path(&target))]),
        Child::spawn(vec![Step::Chroot(c_path(&target))]),
        Child::spawn(vec![Step::ThreadIn(c_path(&target))]),
        Child::spawn(vec![Step::Map(c_path(&target.join("f")))]),
    ];
    let mut cat = Command::new(target.join("cat")).stdin(Stdio::piped()).spawn().unwrap();
    sandbox.mount("vol");
    let above = Child::spawn(vec![Step::Open(c_path(&target), libc::O_RDONLY)]);
    assert_eq!(umount(&target, 0), Err(libc::EBUSY));
    let report = scan_path(&target);
    drop(cat.stdin.take());
    cat.wait().unwrap();
    assert_eq!(held(&report), [(above.tgid(), Access::Fd)]);
    drop(above);
    assert_eq!(umount(&target, 0), Ok(()));
}

#[test]
fn a_mapping_of_a_file_below_does_not_hide_one_of_the_same_name_above() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    fs::write(target.join("f"), "x").unwrap();
    let below = Child::spawn(vec![Step::Map(c_path(&target.join("f")))]);
    // The same directory again, so that device, inode and name are the same.
    sandbox.bind("vol", "vol");
    let both = Child::spawn(vec![Step::Map(c_path(&target.join("f")))]);
    assert_eq!(umount(&target, 0), Err(libc::EBUSY));
    assert_eq!(held(&scan_path(&target)), [(both.tgid(), Access::Mmap)]);
    drop(both);
    assert_eq!(umount(&target, 0), Ok(()));
    assert_eq!(held(&scan_path(&target)), [(below.tgid(), Access::Mmap)]);
}
