//! Whose process, whose namespace: the join of kernel identities with containers and pods.

use super::Core;
use crate::config::Cmdline;
use crate::event::{Actor, ActorSource, AncestorRef, Confidence, Container, Join, MountHolder, Pod, Target};
use crate::node::cgroup;
use crate::observation::{ContainerFacts, Holder, NsInum, TaskRef};

/// What a control group tells.
pub(super) struct Owner {
    pub(super) container: Option<Container>,
    pub(super) pod: Option<Pod>,
    pub(super) unit: Option<String>,
    pub(super) join: Join,
}

impl Core {
    /// The actor of a fact, as the kernel saw it.
    pub(super) fn actor(&self, task: &TaskRef, late: bool) -> Actor {
        let facts = self.tasks.get(&task.key);
        let owner = self.owner(facts.and_then(|facts| facts.cgroup.as_deref()));
        let join = if late && owner.join == Join::Ok { Join::Late } else { owner.join };
        Actor {
            source: ActorSource::Kernel,
            confidence: Confidence::Certain,
            pid: task.key.tgid,
            tid: task.tid,
            uid: facts.map(|facts| facts.uid),
            comm: task.comm.clone(),
            exe: facts.and_then(|facts| facts.exe.clone()),
            cmdline: facts.and_then(|facts| self.shown_cmdline(facts.cmdline.as_deref(), join)),
            start_time_ns: task.key.start_ns.to_string(),
            cgroup: facts.and_then(|facts| facts.cgroup.clone()),
            unit: owner.unit,
            netns: facts.map(|facts| facts.netns),
            mntns: facts.map(|facts| facts.mntns),
            ancestors: facts.map_or_else(Vec::new, |facts| {
                facts
                    .ancestors
                    .iter()
                    .map(|ancestor| AncestorRef {
                        pid: ancestor.tgid,
                        comm: ancestor.comm.clone(),
                        exe: ancestor.exe.clone(),
                    })
                    .collect()
            }),
            container: owner.container,
            pod: owner.pod,
            join,
        }
    }

    /// Container and pod of a control group path.
    pub(super) fn owner(&self, cgroup: Option<&str>) -> Owner {
        let Some(path) = cgroup else {
            return Owner { container: None, pod: None, unit: None, join: Join::Missed };
        };
        let identity = cgroup::identify(path);
        let Some(id) = identity.container_id else {
            return Owner { container: None, pod: None, unit: identity.unit, join: Join::Host };
        };
        let uid = identity.pod_uid;
        match self.containers.get(&id) {
            Some(facts) => Owner {
                container: Some(container(facts)),
                pod: self.pod(facts).or_else(|| uid.map(bare_pod)),
                unit: identity.unit,
                join: Join::Ok,
            },
            None => Owner {
                container: Some(bare_container(
                    id,
                    identity.runtime.map(|runtime| runtime.name().to_owned()),
                    None,
                )),
                pod: uid.map(bare_pod),
                unit: identity.unit,
                // Where no runtime can be asked, the control group is all there is to know.
                join: if self.runtime_is_up() { Join::Missed } else { Join::Ok },
            },
        }
    }

    /// Whose a network namespace is.
    pub(super) fn target(&self, netns: NsInum, late: bool) -> Target {
        let found = |join| if late { Join::Late } else { join };
        if netns == self.settings.host_netns {
            return nobody(Join::Host);
        }
        if let Some(facts) = self.containers.in_netns(netns) {
            return Target { join: found(Join::Ok), ..self.target_of(facts) };
        }
        let Some(namespace) = self.namespaces.get(netns) else {
            return nobody(Join::Missed);
        };
        let owner = namespace.owner.as_ref().map(|process| {
            let mut owner = self.owner(process.cgroup.as_deref());
            if let Some(container) = &mut owner.container {
                container.pid.get_or_insert(process.tgid);
            }
            owner
        });
        let (container, pod, join) =
            owner.map_or((None, None, Join::Missed), |owner| (owner.container, owner.pod, owner.join));
        let netns_name = namespace.name.clone().filter(|_| container.is_none());
        Target { container, pod, netns_name, join }
    }

    pub(super) fn target_of(&self, facts: &ContainerFacts) -> Target {
        Target { container: Some(container(facts)), pod: self.pod(facts), netns_name: None, join: Join::Ok }
    }

    /// A holder of a mount, with its container and pod.
    pub(super) fn mount_holder(&self, holder: Holder) -> MountHolder {
        let owner = self.owner(holder.cgroup.as_deref());
        MountHolder {
            pid: holder.tgid,
            comm: holder.comm,
            cmdline: self.shown_cmdline(holder.cmdline.as_deref(), owner.join),
            exe: holder.exe,
            access: holder.access,
            path: holder.path,
            fd: holder.fd,
            unit: owner.unit,
            mntns: holder.mntns,
            container: owner.container,
            pod: owner.pod,
        }
    }

    fn pod(&self, facts: &ContainerFacts) -> Option<Pod> {
        let identity = facts.pod.as_ref()?;
        // The sandbox owns the addresses; those that joined its namespace have none of their own.
        let sandbox = identity.sandbox_id.as_deref().and_then(|id| self.containers.get(id));
        let mut ip = sandbox.filter(|_| facts.addresses.is_empty()).unwrap_or(facts).addresses.clone();
        ip.sort_unstable();
        Some(Pod {
            namespace: Some(identity.namespace.clone()),
            name: Some(identity.name.clone()),
            uid: identity.uid.clone(),
            sandbox_id: identity.sandbox_id.clone(),
            ip,
        })
    }

    fn shown_cmdline(&self, cmdline: Option<&str>, join: Join) -> Option<String> {
        let shown = match self.settings.cmdline {
            Cmdline::Off => false,
            Cmdline::Host => join == Join::Host,
            Cmdline::All => true,
        };
        cmdline.filter(|_| shown).map(str::to_owned)
    }

    pub(super) fn runtime_is_up(&self) -> bool {
        // Runtimes are the sources that name containers.
        ["docker"].iter().any(|runtime| self.statuses.get(*runtime).is_some_and(|status| status.up))
    }
}

fn container(facts: &ContainerFacts) -> Container {
    Container {
        id: facts.id.clone(),
        name: Some(facts.name.clone()),
        runtime: Some(facts.runtime.clone()),
        image: Some(facts.image.clone()),
        pid: facts.tgid,
        state: Some(facts.state.name().to_owned()),
    }
}

fn bare_container(id: String, runtime: Option<String>, pid: Option<u32>) -> Container {
    Container { id, name: None, runtime, image: None, pid, state: None }
}

pub(super) fn bare_pod(uid: String) -> Pod {
    Pod { namespace: None, name: None, uid, sandbox_id: None, ip: Vec::new() }
}

/// How a message calls a target: pod before container, nothing for the host.
pub(super) fn whose(target: &Target) -> String {
    match (&target.pod, &target.container) {
        (Some(Pod { namespace: Some(namespace), name: Some(name), .. }), _) => {
            format!(" of pod {namespace}/{name}")
        }
        (Some(pod), _) => format!(" of pod {}", pod.uid),
        (None, Some(container)) => format!(" of container {}", container_label(container)),
        (None, None) => {
            target.netns_name.as_ref().map_or_else(String::new, |name| format!(" in namespace {name}"))
        }
    }
}

/// A target of which nothing is known.
pub(super) fn nobody(join: Join) -> Target {
    Target { container: None, pod: None, netns_name: None, join }
}

/// A container's name, or the short form of its id.
pub(super) fn container_label(container: &Container) -> &str {
    container.name.as_deref().unwrap_or_else(|| container.id.get(..12).unwrap_or(&container.id))
}

/// How a message calls an actor.
pub(super) fn who(actor: &Actor) -> String {
    let mut text = format!("{} (pid {})", actor.comm, actor.pid);
    if let Some(Pod { namespace: Some(namespace), name: Some(name), .. }) = &actor.pod {
        text.push_str(&format!(" of pod {namespace}/{name}"));
    } else if let Some(container) = &actor.container {
        text.push_str(&format!(" of container {}", container_label(container)));
    }
    text
}
