//! Busy mounts of NFS: who holds them is told, also while their server does not answer. A real client of the kernel, on kernels
//! that have one: those of the virtual machines.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kevtmon_tests::actor::Actor;
use kevtmon_tests::advice::{carry_out, incident, opened, resolved};
use kevtmon_tests::daemon::{Daemon, held, kubelet_roots, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::{Scratch, is_about, settle, wait_for};
use kevtmon_tests::pod_sandbox::uuid;
use kevtmon_tests::process::{Running, hold_by_cwd, hold_by_fd};
use kevtmon_tests::{kernel, nfs, unique};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// A mount, and the process that serves it.
struct NfsMount {
    server: Actor,
    point: PathBuf,
}

impl NfsMount {
    /// `None` where the kernel has no client.
    fn at(point: &Path) -> Option<Self> {
        Self::of(nfs::ADDRESS, point)
    }

    /// With this name of the server.
    fn of(name: &str, point: &Path) -> Option<Self> {
        if !nfs::is_known() {
            kernel::skip("this kernel has no client of NFS", false);
            return None;
        }
        let mut server = Actor::start();
        server.act(&format!("serve-nfs {name} {}", point.display()));
        Some(Self { server, point: point.to_owned() })
    }

    /// By a call of this process: umount(8) would ask the server first.
    fn umount(&self) -> nix::Result<()> {
        umount2(&self.point, MntFlags::UMOUNT_NOFOLLOW)
    }

    fn go_on(&self) {
        self.server.signal(Signal::SIGCONT);
    }

    /// What the daemon tells of a refused unmount, and what is told without it.
    fn answers(&self, daemon: &mut Daemon) -> [Value; 2] {
        settle(self.point.parent().expect("a directory above"));
        assert_eq!(self.umount(), Err(Errno::EBUSY), "{}", self.point.display());
        let busy = wait_for(daemon, "mount.busy", &self.point);
        let alone = held(&self.point);
        [busy.get("").expect("an event").clone(), alone]
    }
}

impl Drop for NfsMount {
    /// Whoever waits for a server that is gone would wait for good.
    fn drop(&mut self) {
        self.go_on();
        let _ = umount2(&self.point, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
    }
}

/// How a process holds a mount or may hold it, by an answer.
fn held_by(answer: &Value, pid: u32) -> Vec<Value> {
    let holders = answer["holders"].as_array().cloned().unwrap_or_default();
    let of_it = holders.into_iter().filter(|holder| holder["pid"] == pid);
    of_it.map(|holder| json!([holder["access"], holder["possible"]])).collect()
}

/// Who waits in the kernel for an answer of the server.
fn waiting(command: &mut Command) -> Running {
    let waiting = Running::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
    let function = || std::fs::read_to_string(format!("/proc/{}/wchan", waiting.pid())).unwrap_or_default();
    eventually!(function().starts_with("rpc_wait_"), "{} waits in {}", waiting.pid(), function());
    waiting
}

#[test]
fn who_holds_a_mount_of_nfs_is_named_whether_or_not_its_server_answers() {
    let scratch = Scratch::new();
    let Some(mount) = NfsMount::at(&scratch.path().join("volume")) else { return };
    let (by_cwd, by_fd) = (hold_by_cwd(&mount.point), hold_by_fd(&mount.point.join("file")));
    let mut daemon = launch().start();
    let mut later = None;
    for is_stopped in [false, true] {
        // One that has seen the mount before, and one that starts while nobody answers.
        let daemon = if is_stopped {
            mount.server.stop();
            later.insert(launch().start())
        } else {
            &mut daemon
        };
        for answer in mount.answers(daemon) {
            assert_eq!(held_by(&answer, by_cwd.pid()), [json!(["cwd", null])], "{answer}");
            assert_eq!(held_by(&answer, by_fd.pid()), [json!(["fd", null])], "{answer}");
            assert_eq!(answer["holders_verdict"], "processes", "{answer}");
            assert_eq!(answer["holders_complete"], true, "{answer}");
            let of_it = (&answer["mount"]["fstype"], &answer["mount"]["source"]);
            assert_eq!(of_it, (&json!("nfs"), &json!(nfs::SOURCE)), "{answer}");
        }
        assert_eq!(daemon.metrics().count("kevtmon_proc_readers_stuck", &[]), 0.0);
    }
    mount.go_on();
    drop((by_cwd, by_fd));
    eventually!(mount.umount().is_ok(), "nobody holds it");
    daemon.wait_for("its end", |event| is_about(event, "mount.released", &mount.point));
}

#[test]
fn where_only_who_waits_for_a_server_of_nfs_may_hold_its_mount_the_answer_is_not_complete() {
    let scratch = Scratch::new();
    let Some(mount) = NfsMount::at(&scratch.path().join("volume")) else { return };
    let mut daemon = launch().start();
    mount.server.stop();
    let waiting = waiting(Command::new("cat").arg(mount.point.join("file")));
    for answer in mount.answers(&mut daemon) {
        assert_eq!(answer["holders_verdict"], "incomplete", "{answer}");
        assert_eq!(answer["holders_complete"], false, "{answer}");
        assert_eq!(held_by(&answer, waiting.pid()), [json!(["call", true])], "{answer}");
        let unread = answer["holders_unreadable"].as_array().cloned().unwrap_or_default();
        let reason = unread.iter().find(|unread| unread["pid"] == waiting.pid());
        assert!(
            reason.is_some_and(|unread| unread["reason"].to_string().contains("waits for NFS")),
            "{answer}"
        );
    }
    mount.go_on();
    drop(waiting);
    eventually!(mount.umount().is_ok(), "nobody holds it");
}

#[test]
fn a_volume_of_nfs_whose_unmount_waits_for_the_server_is_told_until_that_answers() {
    let scratch = Scratch::new();
    let root = scratch.path().join("kubelet");
    let uid = uuid();
    let point = root.join(format!("pods/{uid}/volumes/kubernetes.io~nfs/data"));
    let Some(mount) = NfsMount::at(&point) else { return };
    let config = format!("{}[incidents]\numount_hung_seconds = 1\n", kubelet_roots(&root));
    let mut daemon = launch().config(&config).start();
    mount.server.stop();
    let mut umount = waiting(Command::new("umount").arg(&point));
    let pid = umount.pid();
    let id = opened(&mut daemon, "umount-hung", |event| event.number("/actor/pid") == Some(pid.into()));
    let open = incident(&daemon, &id);
    let words = format!("told to unmount {} of pod {uid}, waits in the kernel for NFS", point.display());
    assert!(open.text("/summary").contains(&words), "{open}");
    mount.go_on();
    eventually!(umount.ended().is_some_and(|status| status.success()), "it comes to its end");
    resolved(&mut daemon, &id);
}

#[test]
fn a_server_of_nfs_that_does_not_respond_is_an_incident_until_it_does() {
    let scratch = Scratch::new();
    let root = scratch.path().join("kubelet");
    let (uid, server) = (uuid(), unique::name("nas"));
    let point = root.join(format!("pods/{uid}/volumes/kubernetes.io~nfs/data"));
    let Some(mount) = NfsMount::of(&server, &point) else { return };
    let config = format!(
        "{}[logs]\nkmsg = true\n[incidents]\nnfs_server_unresponsive_seconds = 1\numount_hung_seconds = 1\n",
        kubelet_roots(&root)
    );
    let mut daemon = launch().config(&config).start();
    // The mount is there when it is looked whether it is still.
    let _holder = hold_by_cwd(&point);
    mount.server.stop();
    let mut umount = waiting(Command::new("umount").arg(&point));
    let is_its = |event: &Event| event.text("/nfs_server/name") == server;
    let id = opened(&mut daemon, "nfs-server-unresponsive", is_its);
    let hangs = format!(": volume data of pod {uid} hangs");
    let summary = || incident(&daemon, &id).text("/summary").to_owned();
    eventually!(summary().ends_with(&hangs), "its mounts are told: {}", summary());
    assert!(summary().starts_with(&format!("NFS server {server} has not responded since ")));
    carry_out(&daemon, &id, "nfs-server-unresponsive/show-nfs-mounts");
    let is_effect = |event: &Event| {
        event.text("/kind") == "umount-hung" && event.list("/caused_by").iter().any(|cause| *cause == *id)
    };
    eventually!(daemon.find(&["incidents"]).iter().any(is_effect), "the unmount waits because of it");
    mount.go_on();
    eventually!(umount.ended().is_some(), "it comes to its end");
    resolved(&mut daemon, &id);
}
