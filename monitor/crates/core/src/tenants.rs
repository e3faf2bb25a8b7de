//! The tenant of an observation where not all of them can be recorded.

use kevtmon_event::{Priority, Tenant};
use kevtmon_observation::cgroup;
use kevtmon_observation::{ContainerFacts, Fact, NsInum, Observation, TaskContext, TaskRef};

use super::Core;
use crate::node::tenant::of_process;

impl Core {
    /// The tenant of an observation: what users do among themselves has the lowest priority; what no single
    /// process or network causes counts for the daemon.
    pub fn tenant_of(&mut self, observation: &Observation) -> Tenant {
        match &observation.fact {
            Fact::Task(facts) => {
                let (cgroup, uid) = (facts.cgroup.as_deref(), Some(facts.uid));
                let priority = self.priority_of(cgroup, facts.uid != 0);
                self.tenant_named(priority, cgroup, uid, false)
            }
            Fact::Neighbor(change) => match &change.actor {
                Some(actor) => {
                    let is_users = self.is_users(change.key.netns, change.netns_of_user);
                    let tenant = self.tenant_of_task(actor, is_users);
                    match self.is_of_own_network(actor, change.key.netns) {
                        true => Tenant { priority: Priority::Known, ..tenant },
                        false => tenant,
                    }
                }
                None => self.tenant_of_netns(change.key.netns, change.netns_of_user),
            },
            Fact::Umount(attempt) => self.tenant_of_task(&attempt.actor, false),
            Fact::CniExec(exec) => self.tenant_of_task(&exec.actor, false),
            Fact::RbdExec(exec) => self.tenant_of_task(&exec.actor, false),
            Fact::ContainerStart(start) => self.tenant_of_task(&start.actor, false),
            Fact::NeighborCreator(creator) => {
                let is_users = self.is_users(creator.netns, creator.netns_of_user);
                self.tenant_of_task(&creator.actor, is_users)
            }
            Fact::Netns(snapshot) => self.tenant_of_netns(snapshot.netns, snapshot.foreign_userns),
            Fact::Link(link) => self.tenant_of_netns(link.netns, false),
            Fact::LinkGone { netns, .. }
            | Fact::NetnsHeard { netns, .. }
            | Fact::NetnsStale { netns, .. } => self.tenant_of_netns(*netns, false),
            Fact::RouteAsked { route, .. } | Fact::Route(route) | Fact::RouteGone(route) => {
                self.tenant_of_netns(route.netns, false)
            }
            Fact::Rule(rule) | Fact::RuleGone(rule) => self.tenant_of_netns(rule.netns, false),
            Fact::Address(address) | Fact::AddressGone(address) => self.tenant_of_netns(address.netns, false),
            Fact::ComponentExecuted { .. } => self.tenant_of_users(),
            Fact::Holders(report) => self.tenant_of_asker(report.id),
            Fact::MountPresence(presence) => self.tenant_of_asker(presence.id),
            _ => Tenant::default(),
        }
    }

    /// Whose unmount made the daemon look. What is found later, or was looked for by the daemon itself, shares an account.
    fn tenant_of_asker(&mut self, id: u64) -> Tenant {
        match self.asked_for(id).cloned() {
            Some(actor) => self.tenant_of_task(&actor, false),
            None => Tenant { priority: Priority::Node, name: self.accounts.name("") },
        }
    }

    fn tenant_of_users(&mut self) -> Tenant {
        Tenant { priority: Priority::Foreign, name: self.accounts.users() }
    }

    fn tenant_of_task(&mut self, task: &TaskRef, is_users: bool) -> Tenant {
        let cgroup = self.tasks.get(task).and_then(|facts| facts.cgroup.clone());
        let context = self.context(task);
        let in_userns = context.is_some_and(|context| TaskContext::is_in_other_userns(&context));
        let uid = context.map(|context| context.uid);
        let is_user = in_userns || uid.is_some_and(|uid| uid != 0);
        let priority =
            if is_users { Priority::Foreign } else { self.priority_of(cgroup.as_deref(), is_user) };
        self.tenant_named(priority, cgroup.as_deref(), uid, in_userns)
    }

    fn tenant_named(
        &mut self,
        priority: Priority,
        cgroup: Option<&str>,
        uid: Option<u32>,
        in_userns: bool,
    ) -> Tenant {
        let name = of_process(cgroup, uid, in_userns);
        Tenant { priority, name: self.accounts.name(&name) }
    }

    /// A container may be allowed to change its own network, as often as it likes: it pays for that itself.
    fn tenant_of_netns(&mut self, netns: NsInum, of_user: bool) -> Tenant {
        if self.is_users(netns, of_user) {
            return self.tenant_of_users();
        }
        if netns == self.settings.host_netns {
            return Tenant::default();
        }
        let (priority, account) = match self.containers.in_netns(netns) {
            Some(owner) => (Priority::Known, owner.id.as_str()),
            None => (Priority::Node, ""),
        };
        Tenant { priority, name: self.accounts.name(account) }
    }

    /// Whether the process is in a container of this network; in a pod that need not be the sandbox, which owns it.
    fn is_of_own_network(&self, task: &TaskRef, netns: NsInum) -> bool {
        let cgroup = self.tasks.get(task).and_then(|facts| facts.cgroup.as_deref());
        let is_in = |container: &ContainerFacts| container.netns == Some(netns);
        netns != self.settings.host_netns && self.container_of(cgroup).is_some_and(is_in)
    }

    fn container_of(&self, cgroup: Option<&str>) -> Option<&ContainerFacts> {
        self.containers.get(&cgroup::identify(cgroup?).container_id?)
    }

    /// Whether users made a network namespace, and no known container is in it.
    fn is_users(&self, netns: NsInum, of_user: bool) -> bool {
        (of_user || self.namespaces.get(netns).is_some_and(|namespace| namespace.foreign_userns))
            && self.containers.in_netns(netns).is_none()
    }

    /// A container that root of the node runs may use any user.
    fn priority_of(&self, cgroup: Option<&str>, is_user: bool) -> Priority {
        if is_user && self.container_of(cgroup).is_none() { Priority::Foreign } else { Priority::Node }
    }
}
