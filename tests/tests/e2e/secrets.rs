//! Secrets in sources of mounts and in command lines stand in nothing that the daemon writes.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kevtmon_tests::daemon::launch;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::Mount;
use kevtmon_tests::process::{Running, attempt};
use nix::sys::signal::Signal;

/// Stands in every secret, and nowhere else.
const SECRET: &str = "s3cr3t";

/// A process in a directory, with this name and these arguments behind a script.
fn holder(directory: &Path, name: &str, arguments: &[&str]) -> Running {
    let mut command = Command::new("sh");
    command.arg0(name).args(["-c", "read never"]).args(arguments).current_dir(directory);
    Running::spawn(command.stdin(Stdio::piped()).stdout(Stdio::null()))
}

/// All files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("a directory can be read");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn holds(bytes: &[u8], words: &str) -> bool {
    bytes.windows(words.len()).any(|window| window == words.as_bytes())
}

#[test]
fn no_secret_reaches_output_store_recordings_or_bundles() {
    let volume = Mount::volume();
    let point = volume.point().to_string_lossy().into_owned();
    // Another tmpfs on top, whose source is a URL with user and password, as of WebDAV or S3.
    let source = format!("https://operator:{SECRET}1@nas.example/share?password={SECRET}2");
    let _ = attempt(&["mount", "-t", "tmpfs", source.as_str(), point.as_str()]).succeeded("mount");
    let launch = launch().kubelet(&volume);
    let record = launch.directory().join("record.ndjson");
    let mut daemon = launch.argument("--record").argument(&record).start();
    let holders = [
        holder(volume.point(), "mysql", &[&format!("-p{SECRET}3")]),
        holder(volume.point(), "mount.cifs", &["-o", &format!("username=u,password={SECRET}4,ro")]),
        holder(volume.point(), "s3fs", &[&format!("--token={SECRET}5"), &format!("--secret-key {SECRET}6")]),
        holder(volume.point(), "curl", &[&format!("https://u:{SECRET}7@h/")]),
    ];
    for holder in &holders {
        let cwd = format!("/proc/{}/cwd", holder.pid());
        eventually!(std::fs::read_link(&cwd).is_ok_and(|at| at == volume.point()), "it is in the mount");
    }
    volume.umount_refused();
    let opened = daemon.wait_for("the incident", |event| event.is_incident("incident.opened", "volume-busy"));
    let busy = daemon.wait_for_holders("the event", |event| {
        event.kind() == "mount.busy" && event.text("/mount/path") == point
    });
    assert!(busy.text("/mount/source").contains("nas.example"), "{busy}");
    assert!(busy.list("/holders").len() >= holders.len(), "{busy}");
    // Others have a copy of the mount in a namespace of their own.
    for holder in busy.list("/holders").iter().filter(|holder| holder["access"] != "mount") {
        let cmdline = holder["cmdline"].as_str().unwrap_or_default();
        assert!(cmdline.contains("read never") && cmdline.contains("***"), "masked, not dropped: {cmdline}");
    }

    let id = opened.text("/incident/id");
    let bundle = daemon.directory().join("bundle");
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0), "{}", daemon.log());
    let mut command = Command::new(kevtmon_tests::daemon::program());
    command.args(["bundle", id, "--output"]).arg(&bundle).arg("--state-dir").arg(daemon.state());
    assert!(command.status().expect("kevtmon starts").success());

    let mut looked = 0;
    for path in files(daemon.directory()) {
        let bytes = std::fs::read(&path).unwrap_or_default();
        assert!(!holds(&bytes, SECRET), "a secret in {}", path.display());
        looked += usize::from(holds(&bytes, "nas.example"));
    }
    assert!(looked >= 4, "store, flight recorder, recording and bundle have the mount: {looked}");
    assert!(std::fs::metadata(&record).is_ok_and(|file| file.len() > 0));
    for event in daemon.events() {
        assert!(!event.to_string().contains(SECRET), "{event}");
    }
    assert!(!daemon.log().contains(SECRET));
    for question in [&["incidents", "--all"][..], &["events"], &["why", &point]] {
        let answer = daemon.ask(question);
        assert!(answer.status.success() && !answer.stdout.contains(SECRET), "{}", answer.stdout);
    }
    drop(holders);
    let _ = attempt(&["umount", point.as_str()]);
}
