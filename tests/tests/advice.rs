//! The advice on an open incident, carried out as it is printed: what only looks succeeds, what is said to help helps.

#![allow(clippy::expect_used, reason = "a test whose set-up fails must fail")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, kubelet_roots, launch, program};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::{Mount, Scratch};
use kevtmon_tests::pod::Pod;
use kevtmon_tests::pod_sandbox::{PodSandbox, uuid};
use kevtmon_tests::process::{Finished, comm, finish, hold_by_cwd, run};
use serde_json::Value;

/// Carries out a command as an operator does who pastes it into a shell. `kevtmon` is this one, with this daemon.
fn carry_out(command: &str, daemon: &Daemon) -> Finished {
    let tools = daemon.directory().join("tools");
    let kevtmon = tools.join("kevtmon");
    if !kevtmon.exists() {
        std::fs::create_dir(&tools).expect("a directory can be made");
        let script = format!(
            "#!/bin/sh\nexec {} \"$@\" --socket {} --state-dir {}\n",
            program().display(),
            daemon.socket().display(),
            daemon.state().display()
        );
        std::fs::write(&kevtmon, script).expect("a file can be written");
        std::fs::set_permissions(&kevtmon, PermissionsExt::from_mode(0o755)).expect("a mode can be set");
    }
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("bash");
    shell.args(["-c", command]).env("PATH", path).stdin(Stdio::null());
    finish(&mut shell, "bash".as_ref())
}

/// The incident as `incidents` shows it now; the newest episode.
fn incident(daemon: &Daemon, id: &str) -> Event {
    let all = daemon.find(&["incidents", "--all"]);
    let found = all.into_iter().rfind(|incident| incident.text("/id") == id);
    found.unwrap_or_else(|| unreachable!("incident {id} is listed"))
}

fn advice(incident: &Event, risk: &str) -> Vec<String> {
    let steps = incident.list("/advice").iter().filter(|step| step["risk"] == risk);
    steps.filter_map(|step| step["command"].as_str().map(str::to_owned)).collect()
}

/// Carries out everything that only looks; there is something.
fn look(incident: &Event, daemon: &Daemon) {
    let commands = advice(incident, "read");
    assert!(!commands.is_empty(), "{incident}");
    for command in commands {
        let _ = carry_out(&command, daemon).succeeded(&command);
    }
}

fn closed(daemon: &mut Daemon, id: &str) -> Event {
    let closed = daemon.wait_for("incident.closed", |event| {
        event.kind() == "incident.closed" && event.text("/incident/id") == id
    });
    closed.expect("/incident/close_reason", "resolved");
    assert_eq!(incident(daemon, id).list("/advice"), [] as [Value; 0], "nothing is left to be done");
    closed
}

fn opened(daemon: &mut Daemon, kind: &str, fits: impl Fn(&Event) -> bool) -> String {
    let opened = daemon.wait_for(kind, |event| event.is_incident("incident.opened", kind) && fits(event));
    opened.text("/incident/id").to_owned()
}

#[test]
fn a_lost_gateway_is_put_back_by_the_command_that_is_shown() {
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().start();
    pod.delete_gateway();
    let id = opened(&mut daemon, "gateway-neighbor-lost", |event| event.is_in(pod.inum()));
    let open = incident(&daemon, &id);
    let ruled_out = open.list("/ruled_out").iter().filter_map(Value::as_str).collect::<Vec<_>>();
    for healthy in ["eth0 is up".to_owned(), format!("its host end {} is up", pod.host_end())] {
        assert!(ruled_out.contains(&healthy.as_str()), "{healthy} in {open}");
    }
    look(&open, &daemon);
    let cure = advice(&open, "restart").into_iter().find(|command| command.contains("neigh replace"));
    let cure = cure.expect("both ends are up, so that the entry can be put back");
    // As it is printed for people, broken to the width of a terminal.
    let text = daemon.ask(&["why", &id]).succeeded("why").stdout;
    let text = text.replace("\\\n", " ").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(&cure), "{cure} in {text}");
    let _ = carry_out(&cure, &daemon).succeeded(&cure);
    assert!(pod.has_gateway());
    closed(&mut daemon, &id);
    drop(sandbox);
}

#[test]
fn an_entry_is_not_to_be_put_back_while_the_host_end_is_down() {
    let pod = Pod::new();
    let _sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().start();
    pod.delete_gateway();
    let id = opened(&mut daemon, "gateway-neighbor-lost", |event| event.is_in(pod.inum()));
    let repairs = |daemon: &Daemon| {
        advice(&incident(daemon, &id), "restart").iter().any(|command| command.contains("neigh replace"))
    };
    assert!(repairs(&daemon));
    run(&format!("ip link set {} down", pod.host_end()));
    eventually!(!repairs(&daemon), "the command is taken back");
    look(&incident(&daemon, &id), &daemon);
    run(&format!("ip link set {} up", pod.host_end()));
    eventually!(repairs(&daemon), "the command is shown again");
}

#[test]
fn a_process_that_holds_a_volume_is_named_only_while_it_runs() {
    let volume = Mount::volume();
    let mut daemon = launch().kubelet(&volume).start();
    let holder = hold_by_cwd(volume.point());
    volume.umount_refused();
    let path = volume.point().to_string_lossy().into_owned();
    let id = opened(&mut daemon, "volume-busy", |event| event.text("/mount/path") == path);
    look(&incident(&daemon, &id), &daemon);
    let kill = format!("kill {}", holder.pid());
    assert!(advice(&incident(&daemon, &id), "destructive").contains(&kill));
    let _ = carry_out(&kill, &daemon).succeeded(&kill);
    eventually!(
        !advice(&incident(&daemon, &id), "destructive").contains(&kill),
        "no command names a process that has ended"
    );
    assert!(!daemon.ask(&["why", &id]).succeeded("why").stdout.contains(&kill));
    eventually!(volume.umount().status.success(), "the mount is free");
    closed(&mut daemon, &id);
}

#[test]
fn a_container_that_holds_a_volume_lets_go_by_the_command_of_its_own_runtime() {
    let dockerd = Dockerd::shared();
    let scratch = Scratch::new();
    let root = Mount::at(&scratch.path().join("kubelet"));
    run(&format!("mount --make-shared {}", root.point().display()));
    let uid = uuid();
    let below = format!("pods/{uid}/volumes/kubernetes.io~rbd/data");
    let volume = Mount::at(&root.point().join(&below));
    let bind = format!("{}:/kubelet:rslave", root.point().display());
    // It is in the volume until it is restarted.
    let script = format!("[ -e /left ] || {{ touch /left; cd /kubelet/{below}; }}; exec sleep 1000000");
    let container = Container::start(dockerd, &["-v", &bind], &["sh", "-c", &script]);
    eventually!(comm(container.pid()).as_deref() == Some("sleep"), "the container is in the volume");
    let mut daemon = launch().runtime(dockerd.runtime()).config(&kubelet_roots(root.point())).start();
    volume.umount_refused();
    let path = volume.point().to_string_lossy().into_owned();
    let id = opened(&mut daemon, "volume-busy", |event| event.text("/mount/path") == path);
    let open = incident(&daemon, &id);
    look(&open, &daemon);
    let cure = advice(&open, "restart").into_iter().find(|command| command.contains(container.id()));
    let cure = cure.unwrap_or_else(|| unreachable!("a command for the container in {open}"));
    assert!(cure.starts_with("docker --host unix://"), "another daemon does not know it: {cure}");
    let _ = carry_out(&cure, &daemon).succeeded(&cure);
    eventually!(volume.umount().status.success(), "the mount is free");
    closed(&mut daemon, &id);
    assert!(!Path::new(&path).join("file").exists());
}
