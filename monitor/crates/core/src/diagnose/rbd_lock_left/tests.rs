//! The lock of a kubelet that has crashed between its steps.

use kevtmon_event::{CloseReason, Confidence, Incident, Kind, Severity};
use kevtmon_observation::*;

use crate::Resume;
use crate::diagnose::tests::harness::*;

const LOCK: &str = "kubelet_lock_magic_slave-197";

/// A ready node with these images mapped.
fn node(images: &[&str]) -> TestNode {
    started(images, Resume::default())
}

fn started(images: &[&str], resume: Resume) -> TestNode {
    let mut node = TestNode::booted(resume);
    node.observe(mapped(images));
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

fn exec(tgid: u32, command: RbdCommand, lock: &str) -> RbdExec {
    RbdExec {
        actor: TaskRef { key: task_key(tgid), tid: tgid, comm: "rbd".into(), context: None },
        command,
        pool: "kube".into(),
        namespace: None,
        image: "index".into(),
        snapshot: None,
        device: None,
        nbd: false,
        lock: (command != RbdCommand::Map).then(|| lock.into()),
        shared: false,
    }
}

impl TestNode {
    fn rbd(&mut self, command: RbdCommand, lock: &str, code: u32) {
        let tgid = 40_000 + u32::try_from(self.observed.len()).unwrap();
        self.rbd_call(exec(tgid, command, lock), code);
    }

    fn rbd_call(&mut self, exec: RbdExec, code: u32) {
        let tgid = exec.actor.key.tgid;
        self.observe(task(tgid, "/usr/bin/rbd"));
        self.observe(Fact::RbdExec(Box::new(exec)));
        self.run_for(100 * MS);
        self.observe(exit(tgid, code));
        self.run_for(100 * MS);
    }
}

fn commands(incident: &Incident) -> Vec<&str> {
    incident.advice.iter().map(|step| step.command.as_str()).collect()
}

fn closed(node: &TestNode) -> Option<CloseReason> {
    let (kind, incident) = *node.incidents().last().unwrap();
    assert_eq!(kind, Kind::IncidentClosed);
    incident.close_reason
}

#[test]
fn a_lock_that_was_taken_for_an_image_that_is_not_mapped_is_an_incident_until_it_is_removed() {
    let mut node = node(&[]);
    node.rbd(RbdCommand::LockAdd, LOCK, 0);
    node.run_for(299 * S);
    assert_eq!(node.kinds(), [""; 0], "the image may be about to be mapped");
    node.run_for(2 * S);
    let incident = &node.open()[0];
    assert_eq!((incident.severity, incident.confidence), (Severity::Warning, Confidence::Likely));
    let summary = incident.summary.clone();
    let begin = "RBD image kube/index is not mapped on this node, though lock kubelet_lock_magic_slave-197 on it was taken here \
                 by rbd (pid ";
    assert!(summary.starts_with(begin), "{summary}");
    assert!(summary.ends_with(" and has not been removed here for 5 min"), "{summary}");
    assert_eq!(commands(incident), ["rbd status kube/index", "rbd lock list kube/index"]);
    let remove = format!("`rbd lock remove kube/index {LOCK} LOCKER`");
    assert!(incident.advice[1].text.contains(&remove), "{}", incident.advice[1].text);
    let event = node.last_incident();
    let rbd = event.rbd.as_ref().unwrap();
    assert_eq!((rbd.lock.as_deref(), &rbd.device), (Some(LOCK), &None));
    assert_eq!(event.actor.as_ref().unwrap().comm, "rbd");
    // That it is tried to remove it changes nothing.
    node.rbd(RbdCommand::LockRemove, LOCK, 2);
    node.rbd(RbdCommand::LockRemove, "another", 0);
    assert_eq!(node.open().len(), 1);
    node.rbd(RbdCommand::LockRemove, LOCK, 0);
    assert_eq!(closed(&node), Some(CloseReason::Resolved));
    assert_eq!(node.last_incident().message, format!("resolved: {summary}"));
    node.run_for(900 * S);
    assert_eq!(node.kinds(), ["incident.opened", "incident.closed"]);
}

#[test]
fn a_lock_is_none_while_its_image_is_mapped_and_time_begins_when_it_was_unmapped() {
    let mut node = node(&["other"]);
    node.rbd(RbdCommand::LockAdd, LOCK, 0);
    node.observe(mapped(&["other", "index"]));
    node.run_for(3600 * S);
    node.observe(mapped(&["other"]));
    node.run_for(299 * S);
    assert_eq!(node.kinds(), [""; 0]);
    node.run_for(2 * S);
    assert_eq!(node.kinds(), ["incident.opened"]);
    // It is mapped again.
    node.observe(mapped(&["other", "index"]));
    assert_eq!(closed(&node), Some(CloseReason::Resolved));
    node.observe(mapped(&["other"]));
    node.run_for(301 * S);
    assert_eq!(node.open().len(), 1);
}

#[test]
fn a_lock_that_was_removed_in_time_or_never_taken_is_none() {
    let mut node = node(&[]);
    node.rbd(RbdCommand::LockAdd, LOCK, 0);
    node.run_for(100 * S);
    node.rbd(RbdCommand::LockRemove, LOCK, 0);
    // Another node has it.
    node.rbd(RbdCommand::LockAdd, LOCK, 16);
    // How this ends is not seen.
    node.observe(Fact::RbdExec(Box::new(exec(50_000, RbdCommand::LockAdd, LOCK))));
    node.rbd(RbdCommand::Map, LOCK, 0);
    node.run_for(900 * S);
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn where_it_is_not_known_what_is_mapped_nothing_is_said() {
    let mut node = node(&[]);
    node.rbd(RbdCommand::LockAdd, LOCK, 0);
    let unread = |unread: &[u32]| {
        let unread = unread.iter().map(|number| (*number).into()).collect();
        Fact::RbdImages(RbdImages { unread, ..RbdImages::default() })
    };
    node.observe(unread(&[0]));
    node.run_for(900 * S);
    assert_eq!(node.kinds(), [""; 0]);
    node.observe(unread(&[]));
    assert_eq!(node.kinds(), ["incident.opened"]);
}

#[test]
fn whoever_gets_a_lock_for_himself_shows_that_those_of_before_are_gone() {
    let mut node = node(&[]);
    node.rbd(RbdCommand::LockAdd, LOCK, 0);
    node.run_for(301 * S);
    assert_eq!(node.open().len(), 1);
    node.rbd(RbdCommand::LockAdd, "mine", 0);
    assert_eq!(closed(&node), Some(CloseReason::Resolved));
    node.run_for(301 * S);
    let open = node.open();
    assert_eq!((open.len(), open[0].confidence), (1, Confidence::Guess), "it may be used without the kernel");
    // Others may have theirs beside it.
    let shared = RbdExec { shared: true, ..exec(50_000, RbdCommand::LockAdd, "ours") };
    node.rbd_call(shared, 0);
    node.run_for(301 * S);
    assert_eq!(node.open().len(), 2);
}

#[test]
fn a_lock_of_an_image_elsewhere_is_another_one() {
    let mut node = node(&["index"]);
    let other = RbdExec { namespace: Some("team-a".into()), ..exec(50_000, RbdCommand::LockAdd, LOCK) };
    node.rbd_call(other, 0);
    node.run_for(301 * S);
    assert!(node.open()[0].summary.starts_with("RBD image kube/team-a/index is not mapped "));
    node.rbd(RbdCommand::LockRemove, LOCK, 0);
    assert_eq!(node.open().len(), 1);
}

#[test]
fn one_of_which_nothing_is_heard_for_a_day_may_have_been_removed_elsewhere() {
    let mut node = node(&[]);
    node.rbd(RbdCommand::LockAdd, LOCK, 0);
    node.run_for(301 * S);
    node.run_for(23 * 3600 * S);
    assert_eq!(node.open().len(), 1);
    node.run_for(2 * 3600 * S);
    assert_eq!(closed(&node), Some(CloseReason::Expired));
}

#[test]
fn an_incident_of_the_run_before_stays_open_and_a_lock_that_was_none_yet_is_forgotten() {
    let mut before = node(&[]);
    before.rbd(RbdCommand::LockAdd, LOCK, 0);
    before.run_for(301 * S);
    let other = RbdExec { namespace: Some("team-a".into()), ..exec(50_000, RbdCommand::LockAdd, LOCK) };
    before.rbd_call(other, 0);
    before.run_for(100 * S);
    let resume = before.resume_state();
    let mut after = started(&[], resume.clone());
    after.run_for(900 * S);
    assert_eq!((after.kinds(), after.open().len()), (Vec::new(), 1));
    after.rbd(RbdCommand::LockRemove, LOCK, 0);
    assert_eq!(closed(&after), Some(CloseReason::Resolved));
    let mut mapped_again = started(&[], resume);
    mapped_again.observe(mapped(&["index"]));
    assert_eq!(closed(&mapped_again), Some(CloseReason::Resolved));
}
