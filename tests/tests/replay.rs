//! Recordings of the real daemon: they replay to what it printed, hold no secrets, and outlive its death.

#![allow(clippy::expect_used, reason = "a test that cannot prepare its stage must fail")]

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, Launch, launch, program};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::Mount;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::process::{Ran, Running, attempt, finish, hold_by_cwd, idle};
use nix::sys::signal::Signal;

/// The daemon with its standard output and a recording in files.
struct Stage {
    daemon: Daemon,
    printed: PathBuf,
    recording: PathBuf,
}

impl Stage {
    fn start(launch: Launch) -> Self {
        let printed = launch.directory().join("printed");
        let recording = launch.directory().join("recording.ndjson");
        let stdout = File::create(&printed).expect("a file can be made");
        let daemon = launch.argument("--record").argument(&recording).stdout(stdout).spawn();
        let stage = Self { daemon, printed, recording };
        stage.wait_for("\"daemon.ready\"");
        stage
    }

    fn printed(&self) -> String {
        std::fs::read_to_string(&self.printed).expect("what was printed")
    }

    fn wait_for(&self, what: &str) {
        eventually!(self.printed().contains(what), "{what} is printed");
    }

    fn state(&self) -> PathBuf {
        self.daemon.directory().join("state")
    }
}

fn replay(arguments: &[&Path]) -> Ran {
    let mut words = vec![program(), "replay".into(), "--json".into(), "--strict".into()];
    words.extend(arguments.iter().map(|argument| argument.to_path_buf()));
    attempt(&words).succeeded("replay")
}

/// Everything that is kept in a directory and below.
fn kept(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { files.extend(kept(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

fn provoke(stage: &Stage, pod: &Pod) {
    for _ in 0..3 {
        pod.delete_gateway();
        pod.set_gateway();
    }
    pod.ip("link set eth0 down");
    let mount = Mount::new();
    let holder = hold_by_cwd(mount.point());
    mount.umount_in_vain();
    mount.umount_in_vain();
    stage.wait_for("\"mount.busy\"");
    drop(holder);
    eventually!(mount.umount().status.success(), "nobody holds the mount any more");
    stage.wait_for("\"mount.released\"");
}

#[test]
fn a_recording_replays_to_the_very_bytes_that_the_daemon_printed() {
    let pod = Pod::new();
    let mut stage = Stage::start(launch());
    provoke(&stage, &pod);
    stage.daemon.stop();
    let printed = stage.printed();
    for kind in ["daemon.ready", "neighbor.deleted", "link.changed", "mount.busy", "daemon.stopping"] {
        assert!(printed.contains(&format!("\"{kind}\"")), "{kind} in\n{printed}");
    }
    assert_eq!(replay(&[&stage.recording]).stdout, printed);
    assert_eq!(replay(&[&stage.recording]).stdout, printed, "and again");
    let segments = kept(&stage.state().join("recorder"));
    assert_eq!(segments.len(), 1, "{segments:?}");
    assert_eq!(replay(&[&segments[0]]).stdout, printed, "the flight recorder has the same");
}

#[test]
fn a_replay_needs_neither_privilege_nor_this_node() {
    let pod = Pod::new();
    let mut stage = Stage::start(launch().copied());
    provoke(&stage, &pod);
    stage.daemon.stop();
    let open = stage.daemon.directory().join("open.ndjson");
    std::fs::copy(&stage.recording, &open).expect("a copy");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).expect("a mode can be set");
    let program = stage.daemon.directory().join("kevtmon");
    let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all env -i";
    let mut words: Vec<PathBuf> = nobody.split(' ').map(PathBuf::from).collect();
    words.extend([program, "replay".into(), "--json".into(), open]);
    assert_eq!(attempt(&words).succeeded("replay as nobody").stdout, stage.printed());
}

#[test]
fn a_recording_of_containers_replays_too() {
    let dockerd = Dockerd::shared();
    let early = Container::idle(dockerd, &[]);
    let mut stage = Stage::start(launch().runtime(dockerd.runtime()));
    early.set_gateway("02:00:00:00:00:01");
    let late = Container::idle(dockerd, &[]);
    stage.wait_for(late.id());
    early.place().run(&format!("ip neigh del {} dev eth0", early.gateway()));
    stage.wait_for("\"neighbor.deleted\"");
    stage.daemon.stop();
    assert_eq!(replay(&[&stage.recording]).stdout, stage.printed());
}

#[test]
fn nobody_but_the_owner_reads_what_is_recorded() {
    let mut stage = Stage::start(launch());
    stage.daemon.stop();
    let mut files = kept(&stage.state());
    files.push(stage.recording.clone());
    assert!(files.len() >= 2, "{files:?}");
    for file in files {
        let mode = std::fs::metadata(&file).expect("a file").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}: {mode:o}", file.display());
    }
}

#[test]
fn secrets_of_the_node_are_in_no_recording() {
    let planted = "Planted-5ecret";
    let dockerd = Dockerd::shared();
    let (variable, label) = (format!("TOKEN={planted}"), format!("token={planted}"));
    let container = Container::start(
        dockerd,
        &["-e", &variable, "--label", &label],
        &["sh", "-c", "exec sleep 1000000", &format!("--password={planted}")],
    );
    let pod = Pod::new();
    let mut stage = Stage::start(launch().runtime(dockerd.runtime()));

    // A holder with secrets in its arguments and environment.
    let mount = Mount::new();
    let mut holder = Command::new("sh");
    holder.args(["-c", "read -r line", "sh"]).stdin(Stdio::piped());
    holder.args([
        "--password",
        planted,
        &format!("--api-token={planted}"),
        "-o",
        &format!("secret={planted}"),
    ]);
    let holder = Running::spawn(holder.current_dir(mount.point()).env("API_TOKEN", planted));
    // A culprit with the same.
    let mut culprit = Command::new("sh");
    let script = format!("umount '{}'; exit 0", mount.point().display());
    culprit.args(["-c", &script, "sh", &format!("--key={planted}")]).env("API_TOKEN", planted);
    let _ = finish(culprit.arg0(format!("sh --token={planted}")), "sh".as_ref()).succeeded("the culprit");
    let mut batch = Command::new("sh");
    batch.args(["-c", "exec ip -n \"$0\" neigh del 169.254.1.1 dev eth0", pod.netns_name()]);
    let _ = finish(batch.env("K8S_API_TOKEN", planted), "sh".as_ref()).succeeded("ip");
    stage.wait_for("\"mount.busy\"");
    stage.wait_for("\"neighbor.deleted\"");
    let late = Container::start(dockerd, &["-e", &variable, "--label", &label], &["sleep", "1000000"]);
    stage.wait_for(late.id());
    stage.daemon.stop();
    drop((holder, container));

    let mut files = kept(&stage.state());
    files.extend([stage.recording.clone(), stage.printed.clone()]);
    let mut recorded = String::new();
    for file in files {
        let bytes = std::fs::read(&file).expect("a file");
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains(planted), "a secret in {}", file.display());
        recorded.push_str(&text);
    }
    assert!(recorded.contains("--password"), "the arguments of the holder were recorded, masked");
}

#[test]
fn a_killed_daemon_leaves_a_recording_that_replays_to_all_but_its_end() {
    let pod = Pod::new();
    let mut stage = Stage::start(launch());
    provoke(&stage, &pod);
    let printed = stage.printed();
    // What was told is on disk within a second.
    eventually!(replay(&[&stage.recording]).stdout.starts_with(&printed), "all is recorded");
    stage.daemon.signal(Signal::SIGKILL);
    assert_eq!(stage.daemon.wait(), None);
    // A kill in the middle of a line.
    let length = std::fs::metadata(&stage.recording).expect("a file").len();
    let file = File::options().write(true).open(&stage.recording).expect("a file");
    file.set_len(length - 3).expect("a file can be cut");
    let ran = replay(&[&stage.recording]);
    assert!(ran.stderr.contains("the line is cut"), "{}", ran.stderr);
    assert!(printed.starts_with(&ran.stdout) || ran.stdout.starts_with(&printed));
}

#[test]
fn without_a_writable_state_directory_the_daemon_runs_and_says_so_once() {
    let pod = Pod::new();
    let launch = launch();
    File::create(launch.directory().join("state")).expect("a file can be made");
    let mut daemon = launch.start();
    pod.delete_gateway();
    daemon.wait_for_deletion(pod.inum(), GATEWAY);
    daemon.stop();
    let said = daemon.log();
    assert_eq!(said.matches("no flight recorder").count(), 1, "{said}");
}

#[test]
fn a_recording_that_cannot_be_made_is_refused_at_start() {
    let ran = launch().argument("--record").argument("/nonexistent/r").run_to_end();
    assert_eq!(ran.status.code(), Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("cannot record to /nonexistent/r"), "{}", ran.stderr);
}

#[test]
fn the_recorder_keeps_nothing_of_others_alive() {
    let mount = Mount::new();
    let mut stage = Stage::start(launch().argument("--record-max-mib").argument("1"));
    let holder = Running::spawn(idle().current_dir(mount.point()));
    mount.umount_in_vain();
    stage.wait_for("\"mount.busy\"");
    drop(holder);
    eventually!(mount.umount().status.success(), "nobody holds the mount any more");
    eventually!(stage.daemon.metrics().count("kevtmon_self_pins", &[]) == 0.0, "no pins");
    stage.daemon.stop();
}
