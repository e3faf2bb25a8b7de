//! A pod's volume of GlusterFS that does not unmount: who holds it, whose volume that one serves, and what the server of the
//! volume itself does; and one that unmounts, and lives on in containers. Real clients of GlusterFS.

use kevtmon_tests::advice::{carry_out, incident, opened, resolved};
use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, kubelet_roots, launch};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::glusterfs::GlusterVolume;
use kevtmon_tests::mount::{Scratch, settle, wait_for};
use kevtmon_tests::process::hold_by_cwd;
use nix::sys::signal::Signal;

fn of_volume(daemon: &mut Daemon, volume: &GlusterVolume) -> String {
    let path = volume.point().to_string_lossy().into_owned();
    opened(daemon, "volume-busy", |event| event.text("/mount/path") == path)
}

/// The only server that an event names.
fn server(event: &Event, volume: &GlusterVolume) -> serde_json::Value {
    let servers = event.list("/mount/servers");
    assert_eq!(servers.len(), 1, "{event}");
    assert_eq!(servers[0]["pid"], volume.client().pid(), "{event}");
    assert_eq!(servers[0]["comm"], "glusterfs", "{event}");
    servers[0].clone()
}

#[test]
fn the_client_of_another_pods_volume_that_holds_a_volume_is_told_with_the_pod_that_it_serves() {
    let scratch = Scratch::new();
    let root = scratch.path().join("kubelet");
    let held = GlusterVolume::mount(&root, "cam-pv-50g", scratch.path(), &scratch.path().join("cam.log"));
    let other = GlusterVolume::mount(&root, "web", scratch.path(), &held.point().join("web.log"));
    let sure = if held.is_shown() { "certain" } else { "likely" };
    let mut daemon = launch().config(&kubelet_roots(&root)).start();
    settle(&root);
    held.refuse();
    let open = wait_for(&mut daemon, "incident.opened", held.point());
    let id = open.text("/incident/id").to_owned();
    open.expect("/target/pod/uid", held.uid());
    let holders = open.list("/holders");
    let holder = holders.iter().find(|holder| holder["pid"] == other.client().pid()).expect("who holds it");
    assert_eq!((&holder["access"], &holder["comm"]), (&"fd".into(), &"glusterfs".into()), "{open}");
    assert!(holder["path"].as_str().is_some_and(|path| path.ends_with("/web.log")), "{open}");
    assert_eq!(holder["serves"]["pod"]["uid"], other.uid(), "{open}");
    assert_eq!(holder["serves"]["confidence"], sure, "{open}");
    let told = server(&open, &held);
    assert_eq!((&told["state"], &told["confidence"]), (&"running".into(), &sure.into()), "{open}");
    let summary = open.text("/message");
    let by = format!("held by glusterfs (pid {}) with an open file", other.client().pid());
    assert!(summary.contains(&by) && summary.contains(other.uid()), "{summary}");

    drop(other);
    eventually!(held.umount().status.success(), "the volume is free");
    resolved(&mut daemon, &id);
}

#[test]
fn a_busy_volume_whose_server_is_stopped_is_told_so_and_what_lets_that_go_on() {
    let scratch = Scratch::new();
    let root = scratch.path().join("kubelet");
    let volume = GlusterVolume::mount(&root, "cam-pv-50g", scratch.path(), &scratch.path().join("cam.log"));
    let holder = hold_by_cwd(volume.point());
    let mut daemon = launch().config(&kubelet_roots(&root)).start();
    volume.client().signal(Signal::SIGSTOP);
    settle(&root);
    volume.refuse();
    let path = volume.point().to_string_lossy().into_owned();
    let event = daemon.wait_for_holders("the refusal", |event| {
        event.kind() == "mount.busy" && event.text("/mount/path") == path
    });
    assert_eq!(server(&event, &volume)["state"], "stopped", "{event}");
    event.expect_none("/mount/unserved");
    let stopped =
        format!("the file server of that mount, glusterfs (pid {}), is stopped", volume.client().pid());
    let is_told = |text: &str| text.contains(&stopped);
    assert!(is_told(event.text("/message")), "{event}");

    // Nobody waits for it: neither this nor the daemon.
    let ran = daemon.ask(&["holders", &path]);
    assert!(is_told(&ran.stdout) && ran.stdout.contains(&holder.pid().to_string()), "{}", ran.stdout);
    let id = of_volume(&mut daemon, &volume);
    let open = incident(&daemon, &id);
    assert!(is_told(open.text("/summary")), "{open}");
    assert_eq!(daemon.metrics().count("kevtmon_proc_readers_stuck", &[]), 0.0);

    // Older kernels do not show whose a file system is, and where a process cannot be read it may be another's, too.
    match server(&event, &volume)["confidence"].as_str() {
        Some("certain") => drop(carry_out(&daemon, &id, "volume-busy/continue-server")),
        _ => volume.client().signal(Signal::SIGCONT),
    }
    drop(holder);
    eventually!(volume.umount().status.success(), "the volume is free");
    resolved(&mut daemon, &id);
}

#[test]
fn a_volume_that_three_containers_have_keeps_its_client_and_each_of_them_is_named_until_it_ends() {
    const KIND: &str = "mount-leak";
    let dockerd = Dockerd::shared();
    let scratch = Scratch::new();
    let root = scratch.path().join("kubelet");
    let config = format!("{}\n[incidents]\nmount_leak_seconds = 1\n", kubelet_roots(&root));
    let mut volume =
        GlusterVolume::mount(&root, "cam-pv-50g", scratch.path(), &scratch.path().join("cam.log"));
    let mut daemon = launch().joining(dockerd.runtime()).config(&config).start();
    // Only one may write.
    let mut holders = ["", ":ro", ":ro"].map(|mode| {
        let bind = format!("{}:/data{mode}", volume.point().display());
        Container::idle(dockerd, &["-v", &bind])
    });
    daemon.wait_for_mount_inventory();
    let _ = volume.umount().succeeded("private copies refuse no unmount");

    let of_container = |daemon: &mut Daemon, holder: &Container<'_>| {
        opened(daemon, KIND, |event| event.text("/actor/container/id") == holder.id())
    };
    let ids = holders.each_ref().map(|holder| of_container(&mut daemon, holder));
    for (id, holder) in ids.iter().zip(&holders) {
        let open = incident(&daemon, id);
        assert_eq!((open.text("/severity"), open.text("/confidence")), ("info", "certain"), "{open}");
        assert_eq!((open.number("/count"), open.text("/leaks/0/fstype")), (Some(1), "fuse.glusterfs"));
        assert_eq!(open.text("/leaks/0/path"), volume.point().to_string_lossy(), "{open}");
        assert_eq!(open.text("/leaks/0/volume/name"), "cam-pv-50g", "{open}");
        open.expect("/target/pod/uid", volume.uid());
        let summary = open.text("/summary");
        let subject = format!("container {} still has volume cam-pv-50g", holder.name());
        for words in [subject.as_str(), volume.uid(), " at /data", "its file server is not asked to end"] {
            assert!(summary.contains(words), "{words} in {summary}");
        }
    }
    assert!(!volume.has_ended(), "its client serves the copies");
    // Who starts later has not seen that the host had it.
    let mut later = launch().joining(dockerd.runtime()).config(&config).start();
    let found = holders.each_ref().map(|holder| of_container(&mut later, holder));
    for id in &found {
        let open = incident(&later, id);
        assert_eq!(open.text("/confidence"), "likely", "{open}");
        assert!(open.text("/summary").contains("what is likely volume cam-pv-50g"), "{open}");
    }
    let [first, second, third] = &mut holders;
    for (index, holder) in [first, second, third].into_iter().enumerate() {
        assert!(!volume.has_ended(), "somebody still has it");
        holder.end(&["rm", "-f"]);
        for (daemon, id) in [(&mut daemon, &ids[index]), (&mut later, &found[index])] {
            let closed = daemon.wait_for("incident.closed", |event| {
                event.kind() == "incident.closed" && event.text("/incident/id") == *id
            });
            assert!(
                ["subject-gone", "resolved"].contains(&closed.text("/incident/close_reason")),
                "{closed}"
            );
        }
    }
    eventually!(volume.has_ended(), "with the last copy its client ends");
}
