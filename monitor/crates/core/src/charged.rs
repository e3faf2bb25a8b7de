//! Who is charged for an observation where not all of them can be recorded.

use kevtmon_event::{Charge, Standing};
use kevtmon_observation::cgroup;
use kevtmon_observation::{ContainerFacts, Fact, NsInum, Observation, TaskContext, TaskRef};

use super::Core;
use crate::node::charge::of_process;

impl Core {
    /// Who is charged for an observation: what users do among themselves has the standing of a stranger; what no single
    /// process or network causes is charged to the daemon.
    pub fn charge_of(&mut self, observation: &Observation) -> Charge {
        match &observation.fact {
            Fact::Task(facts) => {
                let (cgroup, uid) = (facts.cgroup.as_deref(), Some(facts.uid));
                let standing = self.standing_of(cgroup, facts.uid != 0);
                self.charge_to(standing, cgroup, uid, false)
            }
            Fact::Neighbor(change) => match &change.actor {
                Some(actor) => {
                    let is_users = self.is_users(change.key.netns, change.netns_of_user);
                    let charge = self.charge_task(actor, is_users);
                    match self.is_of_own_network(actor, change.key.netns) {
                        true => Charge { standing: Standing::Known, ..charge },
                        false => charge,
                    }
                }
                None => self.charge_netns(change.key.netns, change.netns_of_user),
            },
            Fact::Umount(attempt) => self.charge_task(&attempt.actor, false),
            Fact::CniExec(exec) => self.charge_task(&exec.actor, false),
            Fact::RbdExec(exec) => self.charge_task(&exec.actor, false),
            Fact::Netns(snapshot) => self.charge_netns(snapshot.netns, snapshot.foreign_userns),
            Fact::Link(link) => self.charge_netns(link.netns, false),
            Fact::LinkGone { netns, .. }
            | Fact::NetnsHeard { netns, .. }
            | Fact::NetnsStale { netns, .. } => self.charge_netns(*netns, false),
            Fact::RouteAsked { route, .. } | Fact::Route(route) | Fact::RouteGone(route) => {
                self.charge_netns(route.netns, false)
            }
            Fact::Address(address) | Fact::AddressGone(address) => self.charge_netns(address.netns, false),
            Fact::ComponentExecuted { .. } => self.charge_users(),
            Fact::Holders(report) => self.charge_asker(report.id),
            Fact::MountPresence(presence) => self.charge_asker(presence.id),
            _ => Charge::default(),
        }
    }

    /// Whose unmount made the daemon look. What is found later, or was looked for by the daemon itself, shares an account.
    fn charge_asker(&mut self, id: u64) -> Charge {
        match self.asked_for(id).cloned() {
            Some(actor) => self.charge_task(&actor, false),
            None => Charge { standing: Standing::Node, account: self.accounts.name("") },
        }
    }

    fn charge_users(&mut self) -> Charge {
        Charge { standing: Standing::Foreign, account: self.accounts.users() }
    }

    fn charge_task(&mut self, task: &TaskRef, is_users: bool) -> Charge {
        let cgroup = self.tasks.get(task).and_then(|facts| facts.cgroup.clone());
        let context = self.context(task);
        let in_userns = context.is_some_and(|context| TaskContext::is_in_other_userns(&context));
        let uid = context.map(|context| context.uid);
        let is_user = in_userns || uid.is_some_and(|uid| uid != 0);
        let standing =
            if is_users { Standing::Foreign } else { self.standing_of(cgroup.as_deref(), is_user) };
        self.charge_to(standing, cgroup.as_deref(), uid, in_userns)
    }

    fn charge_to(
        &mut self,
        standing: Standing,
        cgroup: Option<&str>,
        uid: Option<u32>,
        in_userns: bool,
    ) -> Charge {
        let name = of_process(cgroup, uid, in_userns);
        Charge { standing, account: self.accounts.name(&name) }
    }

    /// A container may be allowed to change its own network, as often as it likes: it pays for that itself.
    fn charge_netns(&mut self, netns: NsInum, of_user: bool) -> Charge {
        if self.is_users(netns, of_user) {
            return self.charge_users();
        }
        if netns == self.settings.host_netns {
            return Charge::default();
        }
        let (standing, account) = match self.containers.in_netns(netns) {
            Some(owner) => (Standing::Known, owner.id.as_str()),
            None => (Standing::Node, ""),
        };
        Charge { standing, account: self.accounts.name(account) }
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
    fn standing_of(&self, cgroup: Option<&str>, is_user: bool) -> Standing {
        if is_user && self.container_of(cgroup).is_none() { Standing::Foreign } else { Standing::Node }
    }
}
