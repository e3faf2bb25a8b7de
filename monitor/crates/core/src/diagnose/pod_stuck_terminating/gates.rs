//! What the end of a pod has to pass.

use kevtmon_event::Volume;
use kevtmon_event::wording::short_id;
use kevtmon_observation::{BootNs, PodCgroup, PodProcess};
use kevtmon_types::escape::name;

use crate::diagnose::{Context, cni_teardown_failing};
use crate::node::pod_remains::PodOnNode;
use crate::node::view::NodeView;

#[derive(Debug)]
pub(super) struct Gates<'a> {
    pod: &'a PodOnNode,
    /// Processes that are to end, and are there. As long as the containers run, only the first one of a container: others are
    /// killed for reasons of their own.
    killed: Vec<&'a PodProcess>,
    volumes: Vec<Volume>,
    /// Those whose directories are not empty, though nothing is mounted there.
    filled: Vec<Volume>,
    /// Sandboxes whose `DEL` fails.
    failing: Vec<String>,
    /// Whether one has succeeded of another.
    is_deleted: bool,
}

impl<'a> Gates<'a> {
    pub(super) fn of(context: &'a Context<'a>, uid: &str, pod: &'a PodOnNode) -> Self {
        let node = context.node;
        let is_failing = |open: &&crate::diagnose::OpenIncident| {
            open.kind() == cni_teardown_failing::KIND && is_sandbox_of(node, &open.subject, uid)
        };
        let mut calls = node.cni.sandboxes().filter(|(id, _)| is_sandbox_of(node, id, uid));
        let mut volumes: Vec<Volume> = Vec::new();
        for (volume, _) in pod.volumes() {
            // Each of its sub-paths is a mount of its own.
            if !volumes.contains(&volume) {
                volumes.push(volume);
            }
        }
        let ends = |process: &&PodProcess| {
            // A tracer can keep the first thread of a process as a zombie for as long as it likes.
            let is_first = process.state == 'D' && process.init || is_first_of_container(node, uid, process);
            process.killed && (pod.over.is_some() || is_first)
        };
        Self {
            pod,
            killed: pod.seen.processes.iter().filter(ends).collect(),
            volumes,
            filled: pod.filled().collect(),
            failing: context.incidents.iter().filter(is_failing).map(|open| open.subject.clone()).collect(),
            is_deleted: calls.any(|(_, calls)| calls.is_deleted),
        }
    }

    pub(super) fn is_killed(&self) -> bool {
        !self.killed.is_empty()
    }

    fn is_over(&self) -> bool {
        self.pod.over.is_some()
    }

    pub(super) fn is_shut(&self) -> bool {
        let is_kept = !self.volumes.is_empty() || !self.failing.is_empty() || self.pod.has_left_processes();
        self.is_killed() || self.is_over() && is_kept
    }

    /// The same of one of which that was told before. Of one that has completed, what its kubelet keeps may be there, too, so that
    /// this alone does not tell that it is to go.
    pub(super) fn is_kept_shut(&self) -> bool {
        self.is_shut() || self.is_over() && !self.filled.is_empty()
    }

    /// Since when that should have gone.
    pub(super) fn since(&self, node: &NodeView<'_>) -> Option<BootNs> {
        let is_of = |(tgid, start_ns, _): &&(u32, BootNs, BootNs)| {
            self.killed.iter().any(|process| process.key() == (*tgid, *start_ns))
        };
        let killed = self.pod.killed.iter().filter(is_of).map(|(_, _, first)| *first).min();
        let over = self.pod.over_since(node).into_iter().chain(self.pod.overdue_since(node));
        killed.into_iter().chain(over.filter(|_| self.is_shut())).min()
    }

    /// Those that are shut, and by whom.
    pub(super) fn shut(&self) -> String {
        let mut shut = Vec::new();
        if let Some(first) = self.killed.first() {
            let why = match first.state {
                'Z' => ", as other threads of it do not",
                _ => ", as it waits in the kernel",
            };
            shut.push(format!(
                "{} is to end (SIGKILL) and does not{why}{}",
                process(first),
                more(self.killed.len())
            ));
        } else if self.pod.has_left_processes() {
            shut.push(match self.pod.seen.processes.first() {
                Some(first) => {
                    let waits = if first.state == 'D' { ", and waits in the kernel" } else { "" };
                    format!("{} is left of it{waits}{}", process(first), more(self.pod.seen.processes.len()))
                }
                None => "a process is left in its control group".to_owned(),
            });
            if self.pod.refused > 0 {
                shut.push("its control group could not be removed (EBUSY)".to_owned());
            }
        }
        if self.is_over() {
            shut.extend(
                self.failing
                    .iter()
                    .map(|id| format!("the CNI DEL of its sandbox {} fails repeatedly", short_id(id))),
            );
            if let Some(volume) = self.volumes.first() {
                let (volume, plugin) = (name(&volume.name), name(&volume.plugin));
                shut.push(format!("volume {volume} ({plugin}) is mounted{}", more(self.volumes.len())));
            } else if let Some(volume) = self.filled.first() {
                let (volume, plugin) = (name(&volume.name), name(&volume.plugin));
                shut.push(format!(
                    "the directory of volume {volume} ({plugin}) is not empty, though nothing is mounted there{}",
                    more(self.filled.len())
                ));
            }
        }
        shut.join("; ")
    }

    pub(super) fn open(&self) -> Vec<String> {
        let mut open = Vec::new();
        if matches!(self.pod.seen.cgroup, PodCgroup::Empty | PodCgroup::Absent) {
            open.push("no process is in its control group".to_owned());
        }
        if self.is_over() && self.pod.seen.mounts.is_empty() && !self.pod.has_left_processes() {
            open.push("none of its volumes is mounted".to_owned());
        }
        if self.failing.is_empty() && self.is_deleted {
            open.push("a CNI DEL of its sandbox has succeeded".to_owned());
        }
        open
    }
}

fn process(process: &PodProcess) -> String {
    format!("process {} (pid {})", name(&process.comm), process.tgid)
}

fn more(number: usize) -> String {
    if number > 1 { format!(" (and {} more)", number - 1) } else { String::new() }
}

fn is_first_of_container(node: &NodeView<'_>, uid: &str, process: &PodProcess) -> bool {
    let is_it = |id: &str| node.containers.get(id).is_some_and(|facts| facts.tgid == Some(process.tgid));
    node.containers.all().any(|facts| is_sandbox_of(node, &facts.id, uid) && is_it(&facts.id))
}

pub(super) fn is_sandbox_of(node: &NodeView<'_>, id: &str, uid: &str) -> bool {
    let pod = node.containers.get(id).and_then(|facts| facts.pod.as_ref());
    pod.is_some_and(|pod| pod.uid == uid && pod.is_confirmed())
}
