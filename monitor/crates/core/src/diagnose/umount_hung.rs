//! An unmount does not come to its end: its process waits in the kernel for a file system whose server does not answer,
//! before the system call or within it. Whoever waits for the process waits as well: a kubelet for the end of a pod.
//!
//! Found by the state of the process alone.

use std::collections::BTreeMap;

use kevtmon_event::wording::{actor_phrase, target_label};
use kevtmon_event::{Actor, Confidence, Event, MountServer, Severity, Shared, Target};
use kevtmon_observation::{BootNs, CephServerLine, ServerState, UmountCall, UnmountedMount, is_of_ceph};
use kevtmon_types::escape::name;
use kevtmon_types::settings::{Threshold, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::advice::continue_server;
use super::conditions::{Condition, Conditions, Look, Seen, start};
use super::finding::{Findings, IncidentObjects, Report};
use super::{Alert, Context, IncidentKind, ModelChange, SECOND, Watch, nfs_server_unresponsive};

pub(super) const KIND: &str = "umount-hung";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "A process hangs in an unmount",
    symptom: "`Terminating` without end",
    names: "the process that waits in the unmount, and the FUSE server that does not answer",
    opens: "A process of root has waited in an unmount for 30 s.",
    alert: Alert::Open { severity: Severity::Warning, minutes: 5 },
    meaning: "It waits in the kernel for a file system whose server does not answer, such as NFS or a stopped FUSE server, \
             and cannot be killed. What waits for it hangs, too.",
    remedy: "Let the server answer or end it; for FUSE, abort the connection, as the advice says.",
    severities: &[Severity::Warning],
    counted: "unmounts",
    thresholds: THRESHOLDS,
    watched_by: Watch::None,
    is_optional: false,
    start: start::<UmountHung>,
};

thresholds! {
    /// A process that unmounts something and waits in the kernel hangs once it is this old; a call of umount2(2), once it was
    /// seen to wait for this time.
    AFTER = "umount_hung_seconds", default 30, Unit::Seconds;
}

/// The kernel does not say of each server of Ceph that it is back: one may be out of the cluster instead.
const LOST: BootNs = 3600 * SECOND;
/// Servers of Ceph that are followed, and those that a summary names.
const SERVERS_MAX: usize = 256;
const NAMED_MAX: usize = 2;

/// A process that unmounts something and waits in the kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Waiting {
    /// When the process started, or its call was seen first.
    pub since: BootNs,
    pub actor: Shared<Actor>,
    /// The pod whose volume it is to unmount.
    pub target: Option<Shared<Target>>,
    /// The kind of file systems in whose code it waits.
    pub waits_for: Option<String>,
    /// What it is to unmount, by its arguments; none where they name several and its call does not tell which.
    pub mount: Option<UnmountedMount>,
    /// The process that serves that.
    pub server: Option<Box<MountServer>>,
    /// The call in which it waits, of a program that is not there to unmount.
    pub call: Option<UmountCall>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct UmountHung {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    waiting: Vec<Waiting>,
    /// The servers of Ceph that do not respond, as the kernel's log says.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    lost: BTreeMap<String, Lost>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Lost {
    at: BootNs,
    /// The event that quotes the line.
    quote: Option<u64>,
}

impl UmountHung {
    fn said(&mut self, now: BootNs, line: &CephServerLine, quote: Option<u64>) {
        self.lost.retain(|_, lost| lost.at.saturating_add(LOST) > now);
        if line.is_back {
            self.lost.remove(&line.server);
        } else if self.lost.len() < SERVERS_MAX || self.lost.contains_key(&line.server) {
            self.lost.insert(line.server.clone(), Lost { at: now, quote });
        }
    }

    /// What is unmounted is of Ceph, and these of its servers do not respond.
    fn lost_to(&self, waiting: &Waiting, now: BootNs) -> Vec<(&str, &Lost)> {
        let mount = waiting.mount.as_ref().filter(|mount| is_of_ceph(&mount.fstype, &mount.source));
        // An image needs no metadata server.
        let needs =
            |server: &str| mount.is_some_and(|mount| mount.fstype == "ceph" || !server.starts_with("mds"));
        let lost = self.lost.iter();
        let lost = lost.filter(|(server, lost)| needs(server) && lost.at.saturating_add(LOST) > now);
        lost.map(|(server, lost)| (server.as_str(), lost)).collect()
    }
}

/// The events that quote the lines of a log in its summary, if there are any.
type Quotes = Option<Vec<u64>>;

fn report(seen: &Seen<'_, Quotes>, waiting: &Waiting, lost: &[(&str, &Lost)]) -> Report {
    let stopped = server(waiting)
        .filter(|server| server.state == ServerState::Stopped && server.confidence == Confidence::Certain);
    let steps = stopped.map(|server| continue_server(server, seen.context.now));
    let (subject, summary) = (subject(&waiting.actor), summary(waiting, seen.hold) + &said_of(lost));
    let told =
        seen.memory(&subject).filter(|_| seen.is_open(&subject)).cloned().flatten().unwrap_or_default();
    let mount = waiting.mount.as_ref();
    let cause =
        mount.and_then(|mount| nfs_server_unresponsive::cause(seen.context, &mount.fstype, &mount.source));
    Report {
        advice: Some(steps.into_iter().collect()),
        objects: IncidentObjects {
            actor: Some(waiting.actor.clone()),
            target: waiting.target.clone(),
            ..IncidentObjects::default()
        },
        caused_by: cause.into_iter().collect(),
        evidence: lost.iter().filter_map(|(_, lost)| lost.quote).filter(|seq| !told.contains(seq)).collect(),
        ..Report::new(subject, Severity::Warning, confidence(waiting), summary, seen.context.now)
    }
}

/// The wait is what the kernel says. What is unmounted is what is in the memory of the process by now: its arguments, or the path
/// of its call.
fn confidence(waiting: &Waiting) -> Confidence {
    let is_named = waiting.mount.is_some() || waiting.call.as_ref().is_some_and(|call| call.path.is_some());
    if is_named { Confidence::Likely } else { Confidence::Certain }
}

/// Its process, which the id alone does not tell.
fn subject(actor: &Actor) -> String {
    format!("{}@{}", actor.pid, actor.start_time_ns)
}

fn server(waiting: &Waiting) -> Option<&MountServer> {
    waiting.server.as_deref()
}

/// `after`: so old it is at least.
fn summary(waiting: &Waiting, after: BootNs) -> String {
    let mut text = actor_phrase(&waiting.actor);
    let what = match (&waiting.call, &waiting.mount) {
        (Some(UmountCall { path: Some(path), .. }), _) => {
            format!(", in a call of umount2(2) on {}", name(path))
        }
        (Some(_), _) => ", in a call of umount2(2)".to_owned(),
        (None, Some(mount)) => format!(", told to unmount {}", name(&mount.mountpoint)),
        (None, None) => String::new(),
    };
    text.push_str(&what);
    if let Some(pod) = waiting.target.as_deref().and_then(target_label) {
        text.push_str(&format!(" of {pod}"));
    }
    let what = waiting.waits_for.as_deref().map_or_else(String::new, |kind| format!(" for {kind}"));
    text.push_str(&format!(", waits in the kernel{what} and has not ended after {} s", after / SECOND));
    if let Some(server) = server(waiting) {
        let which = match server.confidence {
            Confidence::Certain => "the server",
            _ => "what is likely the server",
        };
        text.push_str(&format!("; {which} of that mount, {}, {}", server.label(), server.state_phrase()));
    }
    text
}

/// `; the kernel's log says that these servers of Ceph are down or do not respond: osd3, mds0`
fn said_of(lost: &[(&str, &Lost)]) -> String {
    if lost.is_empty() {
        return String::new();
    }
    let named = lost.iter().map(|(server, _)| if *server == "mon" { "monitors" } else { *server });
    let named: Vec<&str> = named.take(NAMED_MAX).collect();
    let more = match lost.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = named.join(", ");
    format!("; the kernel's log says that these servers of Ceph are down or do not respond: {named}{more}")
}

impl Conditions for UmountHung {
    const SPEC: &'static IncidentKind = &SPEC;
    const HOLD: &'static Threshold = &AFTER;
    const BEFORE_READY: bool = true;
    type Memory = Quotes;

    fn change(&mut self, seen: &Seen<'_, Quotes>, change: &ModelChange<'_>, _: &mut Findings) -> Look {
        match change {
            ModelChange::Unmounters(list) => {
                self.waiting = list.to_vec();
                Look::Now
            }
            // Its server may turn out to be the cause.
            ModelChange::NfsMounts(_) => Look::soon_if(!self.waiting.is_empty()),
            ModelChange::CephServer { line, quote } => {
                self.said(seen.context.now, line, *quote);
                Look::soon_if(!self.waiting.is_empty())
            }
            _ => Look::No,
        }
    }

    fn conditions(&mut self, seen: &Seen<'_, Quotes>, _: &mut Findings) -> Option<Vec<Condition<Quotes>>> {
        let condition = |waiting: &Waiting| {
            let lost = self.lost_to(waiting, seen.context.now);
            let quotes: Vec<u64> = lost.iter().filter_map(|(_, lost)| lost.quote).collect();
            Condition {
                since: Some(waiting.since),
                memory: (!quotes.is_empty()).then_some(quotes),
                ..Condition::new(report(seen, waiting, &lost))
            }
        };
        Some(self.waiting.iter().map(condition).collect())
    }

    fn resume(&mut self, _: &Context<'_>, event: &Event) -> Option<(String, Quotes)> {
        Some((subject(event.actor.as_deref()?), None))
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_event::{CloseReason, Kind};
    use kevtmon_observation::*;

    use super::*;
    use crate::Resume;
    use crate::diagnose::tests::harness::*;

    fn node(resume: Resume) -> TestNode {
        let mut node = TestNode::booted(resume);
        node.start(Vec::new());
        node.events.clear();
        node
    }

    fn unmounter(tgid: u32, start_ns: BootNs, is_stopped: bool) -> Unmounter {
        let ancestor = Ancestor { tgid: 900, comm: "kubelet".into(), ..Ancestor::default() };
        Unmounter {
            task: TaskFacts {
                key: TaskKey { tgid, start_ns, exec_id: 0 },
                place: TaskPlace::default(),
                uid: 0,
                exe: Some("/usr/bin/umount".into()),
                cmdline: Some("umount /v".into()),
                netns: HOST,
                mntns: 2,
                cgroup: Some("/system.slice/kubelet.service".into()),
                ancestors: vec![ancestor],
            },
            comm: "umount".into(),
            waits_for: Some("FUSE".into()),
            call: None,
            mount: Some(UnmountedMount {
                mountpoint: "/v".into(),
                fstype: "fuse.glusterfs".into(),
                source: "server:/vol".into(),
                server: Some(FileServer {
                    tgid: 17,
                    comm: "glusterfs".into(),
                    state: if is_stopped { ServerState::Stopped } else { ServerState::Running },
                    waits_for: None,
                    is_certain: true,
                    uid: Some(0),
                    cgroup: None,
                }),
            }),
        }
    }

    fn observe(node: &mut TestNode, unmounters: Vec<Unmounter>) {
        node.observe(Fact::Unmounters { unmounters });
    }

    #[test]
    fn what_the_kernel_says_of_the_task_that_hangs_is_quoted_and_what_it_says_of_others_is_not() {
        let mut node = node(Resume::default());
        let hung = unmounter(50, node.now, true);
        observe(&mut node, vec![hung]);
        node.run_for(31 * S);
        for (comm, tid) in [("umount", 51), ("jbd2/rbd1-8", 50), ("umount", 50)] {
            let text = format!("INFO: task {comm}:{tid} blocked for more than 120 seconds.");
            let says = LogSays::HungTask { comm: comm.into(), tid };
            node.observe(Fact::Log(Box::new(LogLine { log: "/dev/kmsg".into(), text, says })));
        }
        let quotes: Vec<_> = node.events.iter().filter(|event| event.kind == Kind::LogQuoted).collect();
        let text = quotes.iter().map(|event| event.log.as_ref().unwrap().text.as_str()).collect::<Vec<_>>();
        assert_eq!(text, ["INFO: task umount:50 blocked for more than 120 seconds."]);
        assert_eq!(node.open()[0].evidence, [quotes[0].seq]);
    }

    /// The kernel's log says of a server of Ceph that it is lost, or back.
    fn says(node: &mut TestNode, server: &str, is_back: bool) {
        let text = format!("libceph: {server} {}", if is_back { "up" } else { "down" });
        let says = LogSays::CephServer(CephServerLine { server: server.into(), is_back });
        node.observe(Fact::Log(Box::new(LogLine { log: "/dev/kmsg".into(), text, says })));
    }

    #[test]
    fn servers_of_ceph_that_the_kernel_says_are_lost_are_named_where_the_mount_is_of_ceph() {
        let mut node = node(Resume::default());
        for (server, is_back) in [("osd3", false), ("osd4", false), ("osd4", true), ("osd7", true)] {
            says(&mut node, server, is_back);
        }
        let started = node.now;
        let of = |tgid, fstype: &str, source: &str| {
            let hung = unmounter(tgid, started, false);
            let (fstype, source) = (fstype.to_owned(), source.to_owned());
            let mount = hung.mount.clone();
            let mount = mount.map(|mount| UnmountedMount { fstype, source, server: None, ..mount });
            Unmounter { mount, ..hung }
        };
        observe(&mut node, vec![of(50, "ext4", "/dev/rbd0"), of(51, "nfs", "nas1:/v")]);
        node.run_for(31 * S);
        let incident = |node: &TestNode, begin: &str| {
            node.open().into_iter().find(|incident| incident.summary.starts_with(begin)).unwrap()
        };
        let quotes = |node: &TestNode| {
            let quotes = node.events.iter().filter(|event| event.kind == Kind::LogQuoted);
            quotes.map(|event| event.seq).collect::<Vec<_>>()
        };
        let of_ceph = incident(&node, "umount (pid 50)");
        let begin = "; the kernel's log says that these servers of Ceph are down or do not respond: ";
        assert!(of_ceph.summary.ends_with(&format!("{begin}osd3")), "{}", of_ceph.summary);
        assert_eq!(of_ceph.evidence, quotes(&node)[..1]);
        let of_nfs = incident(&node, "umount (pid 51)");
        assert!(!of_nfs.summary.contains("Ceph") && of_nfs.evidence.is_empty(), "{}", of_nfs.summary);

        ["mon", "osd5"].iter().for_each(|server| says(&mut node, server, false));
        node.run_for(2 * S);
        let of_ceph = incident(&node, "umount (pid 50)");
        let end = format!("{begin}monitors, osd3 and 1 more");
        assert!(of_ceph.summary.ends_with(&end), "{}", of_ceph.summary);
        let all = quotes(&node);
        assert_eq!(of_ceph.evidence, [all[0], all[2], all[3]]);
        ["mon", "osd3", "osd5"].iter().for_each(|server| says(&mut node, server, true));
        node.run_for(2 * S);
        assert!(!incident(&node, "umount (pid 50)").summary.contains("Ceph"));
    }

    #[test]
    fn an_unmount_that_waits_for_its_file_system_is_an_incident_until_its_process_is_gone() {
        let mut node = node(Resume::default());
        let hung = unmounter(50, node.now, true);
        observe(&mut node, vec![hung.clone()]);
        node.run_for(29 * S);
        assert_eq!(node.kinds(), [""; 0], "it may be slow");
        node.run_for(2 * S);
        let incident = &node.open()[0];
        let expected = (Severity::Warning, Confidence::Likely);
        assert_eq!((incident.severity, incident.confidence), expected, "arguments are anybody's to choose");
        assert_eq!(
            incident.summary,
            "umount (pid 50), a child of kubelet (pid 900), told to unmount /v, waits in the kernel for FUSE and has not \
             ended after 30 s; the server of that mount, glusterfs (pid 17), is stopped"
        );
        assert_eq!(incident.advice[0].command, "kill -CONT 17");
        // The server goes on, and does not answer all the same.
        observe(&mut node, vec![unmounter(50, hung.task.key.start_ns, false)]);
        let incident = &node.open()[0];
        assert!(incident.summary.ends_with("glusterfs (pid 17), is running"), "{}", incident.summary);
        assert_eq!((&incident.advice[..], incident.count), (&[][..], 1));
        observe(&mut node, Vec::new());
        let (kind, incident) = *node.incidents().last().unwrap();
        assert_eq!((kind, incident.close_reason), (Kind::IncidentClosed, Some(CloseReason::Resolved)));
    }

    #[test]
    fn an_unmount_of_which_only_the_wait_is_known_blames_no_pod_and_no_server() {
        let mut node = node(Resume::default());
        let hung = Unmounter { mount: None, ..unmounter(50, node.now, true) };
        observe(&mut node, vec![hung]);
        node.run_for(31 * S);
        let incident = &node.open()[0];
        assert_eq!(incident.confidence, Confidence::Certain);
        assert_eq!(
            incident.summary,
            "umount (pid 50), a child of kubelet (pid 900), waits in the kernel for FUSE and has not ended after 30 s"
        );
        assert!(incident.advice.is_empty());
    }

    #[test]
    fn a_thread_of_any_program_that_hangs_in_the_call_is_told_once_it_was_seen_to_for_that_time() {
        let mut node = node(Resume::default());
        node.run_for(3600 * S);
        let call = |tid, since| {
            let call = UmountCall { tid, path: Some("/srv/data".into()), since };
            let (comm, ancestors) = ("csi-driver".to_owned(), Vec::new());
            let hung = unmounter(50, 7, true);
            let task = TaskFacts { exe: Some("/csi-driver".into()), ancestors, ..hung.task };
            vec![Unmounter { task, comm, mount: None, call: Some(call), ..hung }]
        };
        let now = node.now;
        observe(&mut node, call(57, now));
        node.run_for(29 * S);
        assert_eq!(node.kinds(), [""; 0], "its process is old, the call is not");
        let now = node.now;
        observe(&mut node, call(58, now));
        node.run_for(29 * S);
        assert_eq!(node.kinds(), [""; 0], "that is another call");
        node.run_for(2 * S);
        let incident = &node.open()[0];
        assert_eq!(incident.confidence, Confidence::Likely, "of the path nothing but memory tells");
        let words = ", in a call of umount2(2) on /srv/data, waits in the kernel for FUSE and has not ended after 30 s";
        assert!(incident.summary.starts_with("csi-driver (pid 50)"), "{}", incident.summary);
        assert!(incident.summary.ends_with(words), "{}", incident.summary);
        observe(&mut node, Vec::new());
        assert!(node.open().is_empty());
    }

    #[test]
    fn one_that_comes_to_its_end_or_another_of_its_id_is_none() {
        let mut node = node(Resume::default());
        for _ in 0..4 {
            let started = node.now;
            observe(&mut node, vec![unmounter(50, started, true)]);
            node.run_for(20 * S);
        }
        observe(&mut node, Vec::new());
        node.run_for(60 * S);
        assert_eq!(node.kinds(), [""; 0]);
    }

    #[test]
    fn what_hung_before_the_daemon_started_is_found_and_what_ended_meanwhile_is_closed() {
        let mut node = node(Resume::default());
        node.run_for(60 * S);
        let started = node.now - 40 * S;
        observe(&mut node, vec![unmounter(50, started, true), unmounter(51, started, true)]);
        assert_eq!(node.open().len(), 2);
        let mut next = self::node(node.resume_state());
        observe(&mut next, vec![unmounter(50, started, true)]);
        let open = next.open();
        assert_eq!(open.len(), 1);
        assert!(open[0].summary.starts_with("umount (pid 50)"), "{}", open[0].summary);
    }
}
