//! Volumes of pods that are mounted over themselves.

use kevtmon_tests::advice::{carry_out, opened, resolved};
use kevtmon_tests::daemon::{POLL_EACH_SECOND, kubelet_roots, launch};
use kevtmon_tests::mount::Mount;
use kevtmon_tests::pod_sandbox::uuid;
use kevtmon_tests::process::run;

const KIND: &str = "mount-multiplied";

#[test]
fn a_volume_that_is_mounted_again_and_again_is_told_until_two_of_the_mounts_are_left() {
    let volume = Mount::volume();
    let other = format!("pods/{}/volumes/kubernetes.io~rbd/data", uuid());
    let twice = Mount::at(&volume.kubelet_root().join(other));
    let again = |volume: &Mount| run(&format!("mount -t tmpfs kevtmon {}", volume.point().display()));
    let _ = again(&twice);
    let _ = again(&volume);
    let config = format!(
        "{POLL_EACH_SECOND}{}[incidents]\nmount_multiplied_seconds = 1\n",
        kubelet_roots(volume.kubelet_root())
    );
    let mut daemon = launch().config(&config).start();
    daemon.wait_for_mount_inventory();
    let _ = again(&volume);
    let path = volume.point().to_str().expect("UTF-8").to_owned();
    let id = opened(&mut daemon, KIND, |event| event.text("/mount/path") == path);
    let _ = again(&volume);
    daemon.wait_for("how many", |event| {
        event.text("/incident/id") == id
            && event
                .text("/incident/summary")
                .contains(" is mounted 4 times over itself, 1 of these times within about")
    });
    let _ = carry_out(&daemon, &id, "mount-multiplied/tell-volume");
    for _ in 0..2 {
        let _ = volume.umount().succeeded("umount");
    }
    let closed = resolved(&mut daemon, &id);
    assert_eq!(closed.text("/incident/confidence"), "likely");
    let of_twice = twice.point().to_str().expect("UTF-8");
    assert!(
        !daemon.events().iter().any(|event| event.has("/incident") && event.text("/mount/path") == of_twice)
    );
    let _ = run(&format!("umount {of_twice}"));
    let _ = run(&format!("umount {path}"));
}
