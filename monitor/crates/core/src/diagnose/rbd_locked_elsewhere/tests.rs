//! What a kubelet logs of an image that another node has.

use kevtmon_event::{CloseReason, Confidence, Kind, Severity};
use kevtmon_observation::*;

use crate::Resume;
use crate::diagnose::tests::harness::*;

const LOG: &str = "/var/log/kubelet.log";

/// A ready node on which nothing is mapped.
fn node() -> TestNode {
    started(Resume::default())
}

fn started(resume: Resume) -> TestNode {
    let mut node = TestNode::booted(resume);
    node.observe(mapped(&[]));
    node.start(Vec::new());
    node.events.clear();
    node
}

fn mapped(images: &[&str]) -> Fact {
    let image = |(number, image): (u32, &&str)| RbdImage {
        number: number.into(),
        device: format!("252:{}", number * 16),
        pool: "kube".into(),
        image: (*image).into(),
        ..RbdImage::default()
    };
    let images = (0..).zip(images).map(image).collect();
    Fact::RbdImages(RbdImages { images, ..RbdImages::default() })
}

fn line(pool: Option<&str>, image: &str, vague: bool) -> Fact {
    let refusal = RbdRefusal {
        pool: pool.map(str::to_owned),
        namespace: None,
        image: image.into(),
        held_by: pool.map(|_| "10.47.136.60:0/1504107565".into()),
        vague,
    };
    let text = format!("rbd: image {image} is locked by other nodes");
    Fact::Log(Box::new(LogLine { log: LOG.into(), text, says: LogSays::RbdRefused(refusal) }))
}

impl TestNode {
    fn asks(&mut self, command: RbdCommand, image: &str) {
        let tgid = 40_000 + u32::try_from(self.observed.len()).unwrap();
        self.observe(task(tgid, "/usr/bin/rbd"));
        self.observe(Fact::RbdExec(Box::new(RbdExec {
            actor: TaskRef { key: task_key(tgid), tid: tgid, comm: "rbd".into(), context: None },
            command,
            pool: "kube".into(),
            namespace: None,
            image: image.into(),
            snapshot: None,
            device: None,
            nbd: false,
            lock: None,
            shared: false,
        })));
        self.observe(exit(tgid, 1));
        self.run_for(100 * MS);
    }

    fn logs(&mut self, pool: Option<&str>, image: &str) {
        self.observe(line(pool, image, false));
        self.run_for(100 * MS);
    }

    /// The kinds of all events so far.
    fn told(&self) -> Vec<&'static str> {
        self.events.iter().map(|event| event.kind.name()).collect()
    }

    fn closed_for(&self) -> Option<CloseReason> {
        let (kind, incident) = *self.incidents().last().unwrap();
        assert_eq!(kind, Kind::IncidentClosed);
        incident.close_reason
    }
}

#[test]
fn an_image_that_is_wanted_here_and_refused_is_an_incident_until_it_is_mapped() {
    let mut node = node();
    node.asks(RbdCommand::LockAdd, "index");
    assert_eq!(node.told(), [""; 0]);
    node.logs(None, "index");
    assert_eq!(node.told(), ["rbd.attach_refused", "incident.opened"]);
    let open = node.open().remove(0);
    assert_eq!((open.severity, open.confidence), (Severity::Warning, Confidence::Likely));
    let summary = open.summary.clone();
    assert_eq!(
        summary,
        "RBD image kube/index was asked for on this node, is not mapped by this node's kernel, and was refused according to \
         /var/log/kubelet.log: \"rbd: image index is locked by other nodes\""
    );
    let steps: Vec<&str> = open.advice.iter().map(|step| step.command.as_str()).collect();
    assert_eq!(steps, ["rbd status kube/index", "rbd lock list kube/index"]);
    assert_eq!(open.evidence, [node.events[0].seq]);
    // Another node has the image that is mapped here meanwhile under another name.
    node.observe(mapped(&["other"]));
    assert_eq!(node.open().len(), 1);
    node.observe(mapped(&["other", "index"]));
    assert_eq!(node.closed_for(), Some(CloseReason::Resolved));
    assert_eq!(node.events.last().unwrap().message, format!("resolved: {summary}"));
    // What is mapped is not refused, whatever a log says.
    node.logs(None, "index");
    assert!(node.open().is_empty());
}

#[test]
fn it_is_over_ten_minutes_after_the_last_refusal() {
    let mut node = node();
    node.asks(RbdCommand::Status, "index");
    node.logs(Some("kube"), "index");
    for _ in 0..3 {
        node.run_for(500 * S);
        node.asks(RbdCommand::Status, "index");
        node.logs(Some("kube"), "index");
    }
    let open = node.open().remove(0);
    assert_eq!((open.count, &open.counted[..]), (4, "refusals"));
    let named = "kubelet.log, which names the client at 10.47.136.60:0/1504107565: \"rbd: image";
    assert!(open.summary.contains(named), "{}", open.summary);
    node.run_for(599 * S);
    assert_eq!(node.open().len(), 1);
    node.run_for(2 * S);
    assert_eq!(node.closed_for(), Some(CloseReason::Expired));
}

#[test]
fn a_log_alone_holds_nothing_open() {
    let mut node = node();
    node.asks(RbdCommand::Map, "index");
    node.logs(Some("kube"), "index");
    for _ in 0..2 {
        node.run_for(300 * S);
        node.logs(Some("kube"), "index");
    }
    assert_eq!(node.open()[0].count, 2, "nobody asked for it again");
    node.run_for(300 * S);
    assert_eq!(node.closed_for(), Some(CloseReason::Expired));
}

#[test]
fn a_log_alone_opens_nothing() {
    let mut node = node();
    node.logs(None, "index");
    assert_eq!(node.told(), [""; 0], "nobody knows in which pool");
    node.logs(Some("kube"), "index");
    assert_eq!(node.told(), ["rbd.attach_refused"], "nobody has asked for it");
    node.asks(RbdCommand::Map, "another");
    node.asks(RbdCommand::LockRemove, "third");
    node.run_for(10 * S);
    for image in ["index", "third"] {
        node.logs(Some("kube"), image);
    }
    assert!(node.open().is_empty());
    // It was asked for long ago.
    node.asks(RbdCommand::Map, "old");
    node.run_for(601 * S);
    node.logs(Some("kube"), "old");
    assert!(node.open().is_empty());
}

#[test]
fn names_that_nobody_has_asked_for_hide_no_refusal_and_what_is_left_out_is_told() {
    let mut node = node();
    for number in 0..100 {
        node.observe(line(Some("kube"), &format!("forged-{number}"), false));
    }
    node.asks(RbdCommand::Map, "index");
    node.logs(Some("kube"), "index");
    assert_eq!(node.open().len(), 1);
    node.run_for(120 * S);
    let lost: Vec<_> = node.events.iter().filter_map(|event| event.lost.as_ref()).collect();
    assert_eq!(lost.len(), 1, "{lost:?}");
    let told = (lost[0].source.as_str(), lost[0].reason.as_str(), lost[0].count.as_str());
    assert_eq!(told, ("logs", "too-many-images", "36"));
}

#[test]
fn where_it_is_not_known_what_is_mapped_nothing_is_said() {
    let mut node = node();
    node.observe(Fact::RbdImages(RbdImages { unread: vec![0.into()], ..RbdImages::default() }));
    node.asks(RbdCommand::Map, "index");
    node.logs(None, "index");
    assert_eq!(node.told(), ["rbd.attach_refused"]);
}

#[test]
fn a_line_that_stands_for_other_failures_is_a_guess() {
    let mut node = node();
    node.asks(RbdCommand::LockAdd, "index");
    node.observe(line(None, "index", true));
    assert_eq!(node.open()[0].confidence, Confidence::Guess);
    // The same refusal, by another line.
    node.logs(None, "index");
    assert_eq!(node.open()[0].count, 1);
    node.run_for(10 * S);
    node.logs(None, "index");
    assert_eq!((node.open()[0].count, node.open()[0].confidence), (2, Confidence::Likely));
}

#[test]
fn an_incident_of_the_run_before_stays_open_as_long_as_it_would_have() {
    let mut before = node();
    before.asks(RbdCommand::Map, "index");
    before.logs(None, "index");
    let resume = before.resume_state();
    let mut after = started(resume.clone());
    after.run_for(100 * S);
    assert_eq!(after.open().len(), 1);
    after.observe(mapped(&["index"]));
    assert_eq!(after.closed_for(), Some(CloseReason::Resolved));
    let mut quiet = started(resume);
    quiet.run_for(700 * S);
    assert_eq!(quiet.closed_for(), Some(CloseReason::Expired));
}
