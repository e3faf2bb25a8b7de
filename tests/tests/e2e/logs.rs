//! What a log says of a Ceph RBD image that another node has. The log, where it is not that of a real journald, and the program `rbd` are fakes: real ones need a kubelet and
//! a cluster. That the kernel has an image mapped is a tree in place of sysfs.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use kevtmon_tests::advice::{incident, is_understood, opened, resolved};
use kevtmon_tests::daemon::{Daemon, POLL_EACH_SECOND, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::journald::{Journald, followers_of};
use kevtmon_tests::process::comm;
use kevtmon_tests::rbd_call::FakeRbd;
use kevtmon_tests::unique;
use nix::sys::signal::Signal;

const KIND: &str = "rbd-locked-elsewhere";
/// As a kubelet 1.7 calls it.
const KUBELETS: &str = "--pool kube --id admin -m 10.47.136.2:6789 --key=AQs3cr3t1==";

/// A log and a tree in place of sysfs, in the directory of the program.
struct Node {
    rbd: FakeRbd,
    log: PathBuf,
    sysfs: PathBuf,
}

impl Node {
    fn new() -> Self {
        let rbd = FakeRbd::script();
        let directory = rbd.directory().path();
        let (log, sysfs) = (directory.join("kubelet.log"), directory.join("sys"));
        fs::create_dir_all(sysfs.join("bus/rbd/devices")).expect("a directory can be made");
        fs::write(&log, "").expect("a file can be written");
        Self { rbd, log, sysfs }
    }

    fn start(&self) -> Daemon {
        let (sysfs, log) = (self.sysfs.display(), self.log.display());
        let sources = format!("[rbd]\nsysfs = \"{sysfs}\"\n[logs]\nfiles = [\"{log}\"]\n");
        launch().config(&format!("{POLL_EACH_SECOND}{sources}")).start()
    }

    fn logs(&self, line: &str) {
        let file = fs::File::options().append(true).create(true).open(&self.log);
        let line = format!("E0305 20:21:27.123456    1893 rbd.go:415] {line}\n");
        file.expect("the log can be opened").write_all(line.as_bytes()).expect("a file can be written");
    }

    /// A refusal of the image that the daemon has certainly got: it is logged until an event tells it.
    fn refuses(&self, daemon: &mut Daemon, line: &str, image: &str) -> Event {
        let is_its =
            |event: &Event| event.kind() == "rbd.attach_refused" && event.text("/rbd/image") == image;
        eventually!(
            {
                self.logs(line);
                daemon.metrics().count("kevtmon_events_total", &[("kind", "rbd.attach_refused")]) > 0.0
            },
            "the log is read"
        );
        daemon.wait_for("rbd.attach_refused", is_its)
    }

    /// As sysfs shows an image that is mapped.
    fn map(&self, image: &str) {
        let directory = self.sysfs.join("bus/rbd/devices/0");
        fs::create_dir_all(&directory).expect("a directory can be made");
        let files =
            [("pool", "kube"), ("name", image), ("current_snap", "-"), ("major", "252"), ("minor", "0")];
        for (name, text) in files {
            fs::write(directory.join(name), format!("{text}\n")).expect("a file can be written");
        }
    }
}

fn is_wanted(daemon: &Daemon, image: &str) -> bool {
    let labels = [("pool", "kube"), ("rados_namespace", ""), ("image", image)];
    daemon.metrics().sum("kevtmon_rbd_image_wanted", &labels) == Some(1.0)
}

#[test]
fn an_image_that_is_wanted_and_refused_is_an_incident_until_it_is_mapped() {
    let node = Node::new();
    let image = unique::name("locked");
    let mut daemon = node.start();
    let call = format!("lock add {image} kubelet_lock_magic_slave-197 {KUBELETS}");
    assert_eq!(node.rbd.fail(&call, 16).status.code(), Some(16));
    eventually!(is_wanted(&daemon, &image), "the call is seen");
    let said = format!("rbd: image {image} is locked by other nodes");
    let event = node.refuses(&mut daemon, &format!("AttachVolume failed: {said}, --key=AQs3cr3t2=="), &image);
    event.expect("/rbd/pool", "kube");
    event.expect("/log/name", node.log.display().to_string());
    event.expect("/log/text", said.as_str());
    assert!(!event.to_string().contains("AQs3cr3t"), "{event}");

    let id = opened(&mut daemon, KIND, |event| event.text("/rbd/image") == image);
    let open = incident(&daemon, &id);
    let summary = open.text("/summary");
    let begin = format!(
        "RBD image kube/{image} was asked for on this node, is not mapped by this node's kernel, and was refused according to "
    );
    assert!(summary.starts_with(&begin) && summary.ends_with(&format!(": \"{said}\"")), "{summary}");
    assert_eq!(open.text("/confidence"), "likely");
    let unreachable = ["ceph.conf", "connect to the cluster", "No such", "unable to get monitor"];
    let _ = is_understood(&daemon, &id, "rbd-locked-elsewhere/list-watchers", &unreachable);
    let _ = is_understood(&daemon, &id, "rbd-locked-elsewhere/list-locks", &unreachable);
    let shown = [("incident", KIND), ("severity", "warning")];
    assert_eq!(daemon.metrics().sum("kevtmon_incidents_open", &shown), Some(1.0));

    node.map(&image);
    let closed = resolved(&mut daemon, &id);
    assert!(closed.text("/incident/summary").contains(", is not mapped by this node's kernel, "), "{closed}");
}

#[test]
fn the_journal_of_a_unit_is_read_as_journalctl_prints_it() {
    let Some(journald) = Journald::start() else { return };
    let (node, unit, other) = (Node::new(), journald.unit(), journald.unit());
    let image = unique::name("journal");
    let config = format!(
        "[rbd]\nsysfs = \"{}\"\n[logs]\njournal = [\"{}\"]\njournalctl = \"{}\"\n",
        node.sysfs.display(),
        unit.name(),
        journald.journalctl().display()
    );
    let mut daemon = launch().config(&config).start();
    let line =
        |image: &str| format!("MESSAGE=E1 --key=AQs3cr3t rbd image kube/{image} is still being used\n");
    eventually!(
        {
            other.write(&line(&format!("{image}-other")));
            // The second is none that a program can set.
            other.write(&format!("{}_SYSTEMD_UNIT={}\n", line(&format!("{image}-faked")), unit.name()));
            unit.write(&line(&image));
            daemon.metrics().count("kevtmon_events_total", &[("kind", "rbd.attach_refused")]) > 0.0
        },
        "the journal is read"
    );
    let event = daemon.wait_for("rbd.attach_refused", |event| event.kind() == "rbd.attach_refused");
    event.expect("/rbd/image", image.as_str());
    event.expect("/log/name", format!("journal:{}", unit.name()));
    assert!(!event.to_string().contains("AQs3cr3t"), "{event}");
    let all = format!("{:?}{}", daemon.events(), daemon.log());
    assert!(!all.contains(&format!("{image}-")), "of the other unit nothing is read");
    let followers = followers_of(daemon.pid());
    assert_eq!(followers.len(), 1);
    daemon.signal(Signal::SIGKILL);
    let _ = daemon.wait();
    eventually!(comm(followers[0]).is_none(), "it ends with the daemon");
}

#[test]
fn where_there_is_no_journalctl_that_is_said() {
    let node = Node::new();
    let missing = node.rbd.directory().path().join("journalctl");
    let config = format!("[logs]\njournal = [\"kubelet.service\"]\njournalctl = \"{}\"\n", missing.display());
    let mut daemon = launch().config(&config).start();
    let reason = format!("the journal: there is no {}", missing.display());
    let _ = daemon.wait_for("its reason", |event| event.to_string().contains(&reason));
}

#[test]
fn a_log_that_is_rotated_is_followed_and_alone_opens_nothing() {
    let node = Node::new();
    let (first, second) = (unique::name("first"), unique::name("second"));
    let mut daemon = node.start();
    let line = |image: &str| format!("rbd image kube/{image} is still being used, watcher=10.47.136.60:0/7");
    let event = node.refuses(&mut daemon, &line(&first), &first);
    event.expect("/rbd/held_by", "10.47.136.60:0/7");
    let old: &Path = &node.log;
    fs::rename(old, old.with_extension("log.1")).expect("a file can be renamed");
    node.logs(&line(&second));
    let is_second =
        |event: &Event| event.kind() == "rbd.attach_refused" && event.text("/rbd/image") == second;
    let _ = daemon.wait_for("the line in the new file", is_second);
    let opened = daemon.metrics().sum("kevtmon_incidents_total", &[("incident", KIND)]);
    assert_eq!(opened, None, "nobody has asked for these images");
}

#[test]
fn the_kernels_messages_are_read_where_that_takes_a_capability_which_the_daemon_gives_up() {
    // Where kernel.dmesg_restrict is 0 anybody may open them.
    let mut daemon = launch().config("[logs]\nkmsg = true\n").start();
    let ready = daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
    ready.expect("/daemon/sources/logs", "up");
    assert!(!ready.has("/daemon/degraded/logs"), "{ready}");
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("/proc can be read");
    let has = |set: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(set)).map(str::trim);
        let mask = mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).expect("a mask of capabilities");
        mask & 1 << 34 != 0
    };
    assert!(!has("CapEff:") && !has("CapPrm:"), "{status}");
}
