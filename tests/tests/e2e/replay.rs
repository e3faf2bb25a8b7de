//! Recordings of the real daemon: they replay to the events that it emitted, contain no secrets, and survive a kill.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, Launch, kubelet_roots, launch, program};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::Mount;
use kevtmon_tests::patience::wait_until;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::{Finished, Running, attempt, finish, hold_by_cwd, idle};
use nix::sys::signal::Signal;

/// The daemon with its standard output and a recording in files.
struct RecordedDaemon {
    daemon: Daemon,
    printed: PathBuf,
    recording: PathBuf,
}

impl RecordedDaemon {
    fn start(launch: Launch) -> Self {
        let printed = launch.directory().join("printed");
        let recording = launch.directory().join("recording.ndjson");
        let stdout = File::create(&printed).expect("a file can be made");
        let daemon = launch.argument("--record").argument(&recording).stdout(stdout).spawn();
        let recorded = Self { daemon, printed, recording };
        recorded.wait_for("\"daemon.ready\"");
        recorded
    }

    fn printed(&self) -> String {
        std::fs::read_to_string(&self.printed).expect("what was printed")
    }

    fn events(&self) -> Vec<Event> {
        events(&self.printed())
    }

    fn wait_for_event(&self, what: &str, fits: impl Fn(&Event) -> bool) -> Event {
        wait_until(&format!("{what} is printed"), || self.events().into_iter().find(|event| fits(event)))
    }

    /// Waits for a transition of the lost gateway of this sandbox.
    fn wait_for_gateway(&self, transition: &str, sandbox: &PodSandbox) -> Event {
        self.wait_for_event(transition, |event| is_gateway(event, transition, sandbox))
    }

    /// Waits for a transition of this busy volume.
    fn wait_for_volume(&self, transition: &str, volume: &Mount) -> Event {
        self.wait_for_event(transition, |event| is_volume(event, transition, volume))
    }

    fn wait_for(&self, what: &str) {
        eventually!(self.printed().contains(what), "{what} is printed");
    }

    fn state(&self) -> PathBuf {
        self.daemon.directory().join("state")
    }
}

impl Drop for RecordedDaemon {
    #[expect(clippy::print_stderr, reason = "the test runner shows it with the failure")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let printed = std::fs::read_to_string(&self.printed).unwrap_or_default();
            let emitted = printed.lines().filter_map(|line| Event::parse(line).ok());
            for event in emitted {
                eprintln!("{} {} {}", event.text("/time"), event.kind(), event.text("/message"));
            }
        }
    }
}

fn replay(arguments: &[&Path]) -> Finished {
    attempt_replay(arguments).succeeded("replay")
}

fn attempt_replay(arguments: &[&Path]) -> Finished {
    let mut words = vec![program(), "replay".into(), "--json".into(), "--strict".into()];
    words.extend(arguments.iter().map(|argument| argument.to_path_buf()));
    attempt(&words)
}

/// The events of whole lines; a file may end in the middle of one while it is written.
fn events(printed: &str) -> Vec<Event> {
    let whole = printed.rfind('\n').map_or("", |end| &printed[..end]);
    whole.lines().map(|line| Event::parse(line).expect("an event")).collect()
}

fn is_gateway(event: &Event, transition: &str, sandbox: &PodSandbox) -> bool {
    event.is_incident(transition, "gateway-neighbor-lost")
        && event.text("/target/container/id") == sandbox.id()
}

fn is_volume(event: &Event, transition: &str, volume: &Mount) -> bool {
    event.is_incident(transition, "volume-busy")
        && event.text("/mount/path") == volume.point().to_string_lossy()
}

/// Everything that is kept in a directory and below.
fn kept(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => files.extend(kept(&path)),
            false if path.extension().is_some() => files.push(path),
            // The lock of the writer.
            false => {}
        }
    }
    files.sort();
    files
}

fn provoke(recorded: &RecordedDaemon, pod: &Pod) {
    for _ in 0..3 {
        pod.delete_gateway();
        pod.set_gateway();
    }
    pod.set_up(false);
    let mount = Mount::new();
    let holder = hold_by_cwd(mount.point());
    mount.umount_refused();
    mount.umount_refused();
    recorded.wait_for("\"mount.busy\"");
    drop(holder);
    eventually!(mount.umount().status.success(), "nobody holds the mount any more");
    recorded.wait_for("\"mount.released\"");
}

#[test]
fn a_recording_replays_to_the_very_bytes_that_the_daemon_printed() {
    let pod = Pod::new();
    let mut recorded = RecordedDaemon::start(launch());
    provoke(&recorded, &pod);
    recorded.daemon.stop();
    let printed = recorded.printed();
    for kind in ["daemon.ready", "neighbor.deleted", "link.changed", "mount.busy", "daemon.stopping"] {
        assert!(printed.contains(&format!("\"{kind}\"")), "{kind} in\n{printed}");
    }
    assert_eq!(replay(&[&recorded.recording]).stdout, printed);
    assert_eq!(replay(&[&recorded.recording]).stdout, printed, "and again");
    let segments = kept(&recorded.state().join("recorder"));
    assert_eq!(segments.len(), 1, "{segments:?}");
    assert_eq!(replay(&[&segments[0]]).stdout, printed, "the flight recorder has the same");
}

#[test]
fn incidents_replay_to_the_very_bytes_that_were_reported_of_them() {
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let volume = Mount::volume();
    let mut recorded = RecordedDaemon::start(launch().kubelet(&volume));
    pod.delete_gateway();
    let lost = recorded.wait_for_gateway("incident.opened", &sandbox);
    let holder = hold_by_cwd(volume.point());
    volume.umount_refused();
    let busy = recorded.wait_for_volume("incident.opened", &volume);
    busy.expect("/severity", "info");
    // With the third attempt it is worth a warning.
    volume.umount_refused();
    volume.umount_refused();
    recorded.wait_for_event("the warning", |event| {
        is_volume(event, "incident.updated", &volume) && event.severity() == "warning"
    });
    drop(holder);
    eventually!(volume.umount().status.success(), "nobody holds the volume any more");
    pod.set_gateway();
    for (opened, closed) in [
        (lost, recorded.wait_for_gateway("incident.closed", &sandbox)),
        (busy, recorded.wait_for_volume("incident.closed", &volume)),
    ] {
        closed.expect("/incident/close_reason", "resolved");
        closed.expect("/incident/id", opened.text("/incident/id"));
    }
    recorded.daemon.stop();
    let printed = recorded.printed();
    assert_eq!(replay(&[&recorded.recording]).stdout, printed);
    assert_eq!(replay(&[&recorded.recording]).stdout, printed, "and again");
    let segments = kept(&recorded.state().join("recorder"));
    assert_eq!(segments.len(), 1, "{segments:?}");
    assert_eq!(replay(&[&segments[0]]).stdout, printed, "the flight recorder has the same");
}

#[test]
fn a_replay_with_another_configuration_shows_what_it_would_have_done() {
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let volume = Mount::volume();
    let live = format!("{}[incidents]\ngateway_teardown_seconds = 1\n", kubelet_roots(volume.kubelet_root()));
    let mut recorded = RecordedDaemon::start(launch().config(&live));
    let holder = hold_by_cwd(volume.point());
    volume.umount_refused();
    // A pod that goes loses its interface first, so its gateway counts as lost only if the pod stays.
    pod.netns().network(|network| network.delete_link("eth0"));
    let lost = recorded.wait_for_gateway("incident.opened", &sandbox);
    let busy = recorded.wait_for_volume("incident.opened", &volume);
    busy.expect("/severity", "info");
    recorded.daemon.stop();
    drop(holder);

    let with = |text: &str| {
        let config = recorded.daemon.directory().join("other.toml");
        std::fs::write(&config, text).expect("a file can be written");
        attempt_replay(&[&recorded.recording, "--config".as_ref(), &config])
    };
    assert_eq!(with(&live).succeeded("replay").stdout, recorded.printed());
    let other = "[incidents]\ngateway_teardown_seconds = 3600\nvolume_busy_warning_attempts = 1\n";
    let emitted = events(&with(other).succeeded("replay").stdout);
    assert!(!emitted.iter().any(|event| is_gateway(event, "incident.opened", &sandbox)), "instead of {lost}");
    let opened = emitted.iter().find(|event| is_volume(event, "incident.opened", &volume));
    let opened = opened.unwrap_or_else(|| unreachable!("instead of {busy}"));
    opened.expect("/severity", "warning");
    opened.expect("/incident/id", busy.text("/incident/id"));

    let broken = with("[incidents]\n\ngateway_teardown = 1\n");
    assert_eq!(broken.status.code(), Some(64), "{}", broken.stderr);
    for word in ["other.toml:3", "\"gateway_teardown\"", "\"gateway_teardown_seconds\""] {
        assert!(broken.stderr.contains(word), "{word} in {}", broken.stderr);
    }
    assert_eq!(broken.stdout, "");
}

#[test]
fn the_bundle_of_an_open_incident_replays_to_it() {
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut recorded = RecordedDaemon::start(launch());
    pod.delete_gateway();
    let opened = recorded.wait_for_gateway("incident.opened", &sandbox);
    let id = opened.text("/incident/id");
    let state = recorded.state();
    let bundle =
        |id: &str| attempt(&[program(), "bundle".into(), id.into(), "--state-dir".into(), state.clone()]);
    let replays = |file: &Path, packed: &Finished| {
        std::fs::write(file, &packed.stdout).expect("a file can be written");
        let emitted = events(&replay(&[file]).stdout);
        emitted.iter().any(|event| event.to_string() == opened.to_string())
    };
    let file = recorded.daemon.directory().join("bundle");
    // It has just opened.
    assert!(replays(&file, &bundle(id).succeeded("bundle")));
    let by_socket = [program(), "bundle".into(), id.into(), "--socket".into(), recorded.daemon.socket()];
    assert!(
        replays(&file, &attempt(&by_socket).succeeded("bundle --socket")),
        "it names its state directory"
    );
    recorded.daemon.signal(Signal::SIGKILL);
    assert_eq!(recorded.daemon.wait(), None);
    assert!(replays(&file, &bundle(&id[..8]).succeeded("bundle")), "also of a dead daemon");

    let dead = attempt(&by_socket);
    assert_eq!(dead.status.code(), Some(1), "{}", dead.stderr);
    let unknown = bundle("0000");
    assert_eq!(unknown.status.code(), Some(1), "{}", unknown.stderr);
    for word in [id, &state.to_string_lossy()] {
        assert!(unknown.stderr.contains(word), "{word} in {}", unknown.stderr);
    }
    assert_eq!(unknown.stdout, "");
}

#[test]
fn a_replay_needs_neither_privilege_nor_this_node() {
    let pod = Pod::new();
    let mut recorded = RecordedDaemon::start(launch().copied());
    provoke(&recorded, &pod);
    recorded.daemon.stop();
    let open = recorded.daemon.directory().join("open.ndjson");
    std::fs::copy(&recorded.recording, &open).expect("a copy");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).expect("a mode can be set");
    let program = recorded.daemon.directory().join("kevtmon");
    let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all env -i";
    let mut words: Vec<PathBuf> = nobody.split(' ').map(PathBuf::from).collect();
    words.extend([program, "replay".into(), "--json".into(), open]);
    assert_eq!(attempt(&words).succeeded("replay as nobody").stdout, recorded.printed());
}

#[test]
fn a_recording_of_containers_replays_too() {
    let dockerd = Dockerd::shared();
    let early = Container::idle(dockerd, &[]);
    let mut recorded = RecordedDaemon::start(launch().runtime(dockerd.runtime()));
    recorded.daemon.wait_for_source("docker");
    early.set_gateway("02:00:00:00:00:01");
    let late = Container::idle(dockerd, &[]);
    recorded.wait_for(late.id());
    let gateway = early.gateway().parse().expect("an address");
    early.netns().network(|network| network.delete_neighbor("eth0", gateway));
    recorded.wait_for("\"neighbor.deleted\"");
    recorded.daemon.stop();
    assert_eq!(replay(&[&recorded.recording]).stdout, recorded.printed());
}

#[test]
fn nobody_but_the_owner_reads_what_is_recorded() {
    let mut recorded = RecordedDaemon::start(launch());
    recorded.daemon.stop();
    let mut files = kept(&recorded.state());
    files.push(recorded.recording.clone());
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
    let mut recorded = RecordedDaemon::start(launch().runtime(dockerd.runtime()));
    recorded.daemon.wait_for_source("docker");

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
    recorded.wait_for("\"mount.busy\"");
    recorded.wait_for("\"neighbor.deleted\"");
    let late = Container::start(dockerd, &["-e", &variable, "--label", &label], &["sleep", "1000000"]);
    recorded.wait_for(late.id());
    recorded.daemon.stop();
    drop((holder, container));

    let mut files = kept(&recorded.state());
    files.extend([recorded.recording.clone(), recorded.printed.clone()]);
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
    let mut recorded = RecordedDaemon::start(launch());
    provoke(&recorded, &pod);
    let printed = recorded.printed();
    // What was emitted is on disk within a second.
    let replayed = || replay(&[&recorded.recording]).stdout;
    eventually!(replayed().len() >= printed.len(), "all is recorded");
    assert_eq!(&replayed()[..printed.len()], printed);
    recorded.daemon.signal(Signal::SIGKILL);
    assert_eq!(recorded.daemon.wait(), None);
    // A kill in the middle of a line.
    let length = std::fs::metadata(&recorded.recording).expect("a file").len();
    let file = File::options().write(true).open(&recorded.recording).expect("a file");
    file.set_len(length - 3).expect("a file can be cut");
    let ran = replay(&[&recorded.recording]);
    assert!(ran.stderr.contains("the line is truncated"), "{}", ran.stderr);
    assert!(printed.starts_with(&ran.stdout) || ran.stdout.starts_with(&printed));
}

#[test]
fn without_a_writable_state_directory_the_daemon_runs_and_says_so_once() {
    let pod = Pod::new();
    let launch = launch();
    File::create(launch.directory().join("state")).expect("a file can be made");
    let mut daemon = launch.start();
    let ready = daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
    assert!(ready.text("/daemon/degraded/recorder").starts_with("cannot write: "), "{ready}");
    pod.delete_gateway();
    daemon.wait_for_deletion(pod.inum(), GATEWAY);
    daemon.stop();
    let said = daemon.log();
    assert_eq!(said.matches("no flight recorder").count(), 1, "{said}");
    assert!(!said.contains("recording resumes"), "it is said once: {said}");
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
    let mut recorded = RecordedDaemon::start(launch().argument("--record-max-mib").argument("1"));
    let holder = Running::spawn(idle().current_dir(mount.point()));
    mount.umount_refused();
    recorded.wait_for("\"mount.busy\"");
    drop(holder);
    eventually!(mount.umount().status.success(), "nobody holds the mount any more");
    eventually!(recorded.daemon.metrics().count("kevtmon_self_pins", &[]) == 0.0, "no pins");
    recorded.daemon.stop();
}
