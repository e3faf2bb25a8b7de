//! Joins kernel identities (tasks, network namespaces, cgroups) with containers and pods.

use kevtmon_event::culprit;
use kevtmon_event::{
    Actor, ActorSource, AncestorRef, Confidence, Join, MountHolder, MountServer, Target, UserNamespace,
};
use kevtmon_observation::{
    BootNs, ContainerFacts, FileServer, Holder, NsInum, SourceKind, SourceStatus, TaskContext, TaskFacts,
    TaskPlace, TaskRef,
};

use super::{Core, held};
use crate::node::view::{NodeView, RuntimeAvailability};

/// A view of the node that borrows only its own fields of a core, so that the others can be changed while it lives.
macro_rules! node_view {
    ($core:ident) => {
        $crate::node::view::NodeView {
            containers: &$core.containers,
            components: &$core.components,
            namespaces: &$core.namespaces,
            pods: &$core.pods,
            busy_mounts: &$core.busy_mounts,
            kubelets: &$core.kubelets,
            pods_on_node: &$core.pods_on_node,
            ipam: &$core.ipam,
            cni: &$core.cni,
            rbd: &$core.rbd,
            rbd_asked: &$core.rbd_asked,
            host_sysctls: &$core.host_sysctls,
            host_netns: $core.settings.host_netns,
            runtimes: $crate::join::runtimes($core.statuses.values(), $core.ready),
            statuses: &$core.statuses,
        }
    };
}
pub(super) use node_view;

impl Core {
    /// The task that the kernel recorded as current, as an actor; `late`: the event was held back for it.
    pub(super) fn actor(&self, task: &TaskRef, late: bool) -> Actor {
        let facts = self.tasks.get(task);
        let context = task.context.or_else(|| facts.map(as_first_seen));
        let namespace = |inum: NsInum| Some(inum).filter(|inum| *inum != 0);
        let owner = self.node().owner(facts.and_then(|facts| facts.cgroup.as_deref()));
        let join = if late && owner.join == Join::Ok { Join::Late } else { owner.join };
        let mut actor = Actor {
            source: ActorSource::Kernel,
            confidence: Confidence::Certain,
            pid: task.key.tgid,
            tid: task.tid,
            uid: context.map(|context| context.uid),
            euid: context.filter(|context| context.euid != context.uid).map(|context| context.euid),
            comm: task.comm.clone(),
            exe: facts.and_then(|facts| facts.exe.clone()),
            cmdline: facts.and_then(|facts| self.shown_cmdline(facts.cmdline.as_deref(), join)),
            start_time_ns: task.key.start_ns.to_string(),
            cgroup: facts.and_then(|facts| facts.cgroup.clone()),
            unit: owner.unit,
            netns: context.and_then(|context| namespace(context.netns)),
            mntns: context.and_then(|context| namespace(context.place.mntns)),
            userns: context.filter(TaskContext::is_in_other_userns).map(|_| UserNamespace::Other),
            ancestors: facts.map_or_else(Vec::new, |facts| {
                facts
                    .ancestors
                    .iter()
                    .map(|ancestor| AncestorRef {
                        pid: ancestor.tgid,
                        comm: ancestor.comm.clone(),
                        start_time_ns: Some(ancestor.start_ns)
                            .filter(|start| *start != 0)
                            .map(|start| start.to_string()),
                        exe: ancestor.exe.clone(),
                        started: ancestor.started,
                        uid: ancestor.uid,
                        ..AncestorRef::default()
                    })
                    .collect()
            }),
            container: owner.container,
            pod: owner.pod,
            join,
        };
        self.join_user(&mut actor, facts);
        actor
    }

    /// Joins the process whose tool the actor is with its own container, which may be another one than the tool's.
    fn join_user(&self, actor: &mut Actor, facts: Option<&TaskFacts>) {
        let Some(index) = culprit::user_of_tool(actor) else { return };
        let cgroup = facts.and_then(|facts| facts.ancestors.get(index)?.cgroup.as_deref());
        let (Some(user), Some(cgroup)) = (actor.ancestors.get_mut(index), cgroup) else { return };
        let owner = self.node().owner(Some(cgroup));
        (user.container, user.pod, user.join) = (owner.container, owner.pod, Some(owner.join));
    }

    pub(super) fn context(&self, task: &TaskRef) -> Option<TaskContext> {
        task.context.or_else(|| self.tasks.get(task).map(as_first_seen))
    }

    /// The owner of a network namespace; `late`: the event was held back for it.
    pub(super) fn target(&self, netns: NsInum, late: bool) -> Target {
        let target = self.node().target(netns);
        let join = if late && target.join == Join::Ok { Join::Late } else { target.join };
        Target { join, ..target }
    }

    pub(super) fn target_of(&self, facts: &ContainerFacts) -> Target {
        self.node().target_of(facts)
    }

    pub(super) fn node(&self) -> NodeView<'_> {
        node_view!(self)
    }

    pub(super) fn mount_holder(&self, at: BootNs, holder: Holder) -> MountHolder {
        let owner = self.node().owner(holder.cgroup.as_deref());
        let serves = held::serves(&self.kubelets, at, &holder, |uid| self.node().pod_of(uid));
        held::mount_holder(holder, owner, serves, self.settings.cmdline)
    }

    pub(super) fn mount_servers(&self, servers: &[FileServer]) -> Vec<MountServer> {
        let join = |server: &FileServer| {
            held::mount_server(server.clone(), self.node().owner(server.cgroup.as_deref()))
        };
        servers.iter().map(join).collect()
    }

    fn shown_cmdline(&self, cmdline: Option<&str>, join: Join) -> Option<String> {
        held::shown_cmdline(self.settings.cmdline, cmdline, join)
    }

    pub(super) fn runtimes(&self) -> RuntimeAvailability {
        runtimes(self.statuses.values(), self.ready)
    }
}

/// The context of a task for an act of which none was captured.
fn as_first_seen(facts: &TaskFacts) -> TaskContext {
    let place = TaskPlace { mntns: facts.mntns, ..facts.place };
    TaskContext { uid: facts.uid, euid: facts.uid, userns: 0, netns: facts.netns, place }
}

/// `ready`: whether every source has reported. One that was only guessed and never found is none.
pub(super) fn runtimes<'s>(
    statuses: impl Iterator<Item = &'s SourceStatus> + Clone,
    ready: bool,
) -> RuntimeAvailability {
    let is_one =
        |status: &&SourceStatus| status.kind == SourceKind::Runtime && !status.absent && !status.vacant;
    let mut all = statuses.filter(is_one).peekable();
    match (all.clone().any(|status| status.up), ready && all.clone().all(|status| status.up)) {
        (false, _) if ready && all.peek().is_none() => RuntimeAvailability::Absent,
        (false, _) => RuntimeAvailability::None,
        (true, false) => RuntimeAvailability::Some,
        (true, true) => RuntimeAvailability::All,
    }
}
