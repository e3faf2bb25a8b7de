//! Commands that an operator can paste: names that come from the node are quoted.

use kevtmon_event::{Advice, Container, Form, MountServer, NamedProcess, Pod, ProcessLink, Target, form};
use kevtmon_observation::{BootNs, NsInum};
use kevtmon_types::escape::{name, quoted};

use super::Context;
use super::pod_network::is_deletion_feared;
use crate::node::view::NodeView;

pub(super) type Command = (&'static Form, Vec<String>);

/// One next step; the arguments of the command are quoted where needed.
pub(super) fn advice<S: AsRef<str>>(form: &'static Form, text: &str, command: &[S]) -> Advice {
    debug_assert!(form.fits(command), "a form of its own is in the table of forms");
    let words: Vec<String> = command.iter().map(|word| quoted(word.as_ref())).collect();
    Advice {
        text: text.to_owned(),
        form: form.name.to_owned(),
        command: words.join(" "),
        risk: form.risk,
        action: form.action,
        process: None,
    }
}

pub(super) fn is_offered(kind: &str, steps: &[Advice]) -> bool {
    let forms = |step: &Advice| form::ALL.iter().find(|form| form.name == step.form);
    steps.iter().all(|step| forms(step).is_some_and(|form| form.kinds.contains(&kind)))
}

/// The step is about a process, seen then. It is dropped from answers once another one has the id, or none of the links is
/// as it was.
pub(super) fn of_process(advice: Advice, pid: u32, seen: BootNs, links: Vec<ProcessLink>) -> Advice {
    Advice { process: Some(NamedProcess { pid, seen_ns: seen.to_string(), links }), ..advice }
}

/// Whether a restart of this unit concerns what is in it alone: that of a user's manager ends all that the user has.
pub(super) fn is_restarted_alone(unit: &str) -> bool {
    unit.ends_with(".service") && !unit.starts_with("user@")
}

/// Of a holder whose end ends all processes of its pid namespace.
pub(super) const END_INIT: &str =
    "end the holder; it is the init process of its pid namespace, so all processes there end";

/// Lets a stopped file server go on; `seen`: when it was.
pub(super) fn continue_server(server: &MountServer, seen: BootNs) -> Advice {
    let text = format!("continue {}, the server of this file system", name(&server.comm));
    let pid = server.pid.to_string();
    of_process(advice(form::CONTINUE_SERVER, &text, &["kill", "-CONT", &pid]), server.pid, seen, Vec::new())
}

/// The link that shows that a process is in a namespace, of the type `net` or `mnt`: the command enters that of the process.
pub(super) fn in_namespace(kind: &str, inum: NsInum) -> Vec<ProcessLink> {
    vec![ProcessLink { link: format!("ns/{kind}"), target: format!("{kind}:[{inum}]") }]
}

/// A process in a network namespace, through which `ip` gets there.
pub(super) struct InNetns(NamedProcess);

impl InNetns {
    /// That of whose namespace it is; none where no process is known to be in it.
    pub(super) fn of(context: &Context<'_>, netns: NsInum, target: &Target) -> Option<Self> {
        let owner = context.node.namespaces.get(netns)?.owner.as_ref().map(|owner| owner.tgid);
        let container = target.container.as_ref().and_then(|container| container.pid);
        let links = in_namespace("net", netns);
        Some(Self(NamedProcess { pid: container.or(owner)?, seen_ns: context.now.to_string(), links }))
    }

    pub(super) fn advice(&self, form: &'static Form, text: &str, words: &[&str]) -> Advice {
        let NamedProcess { pid, .. } = &self.0;
        let pid_text = pid.to_string();
        let command = [&["nsenter", "-t", &pid_text, "-n", "ip"][..], words].concat();
        Advice { process: Some(self.0.clone()), ..advice(form, text, &command) }
    }

    pub(super) fn set_up(&self, ifname: &str, text: &str) -> Advice {
        self.advice(form::SET_UP_INSIDE, text, &["link", "set", "dev", ifname, "up"])
    }
}

pub(super) fn set_up(ifname: &str, text: &str) -> Advice {
    advice(form::SET_UP, text, &["ip", "link", "set", ifname, "up"])
}

/// The command that restarts a container by the tool of its own runtime, with a new network. None where no tool is known
/// to find it: that of another runtime does not, and neither does that of another socket, or one that nobody answers at.
pub(super) fn restart(node: &NodeView<'_>, container: &Container) -> Option<Command> {
    let (engine, mut words) = engine(node, container)?;
    words.extend(["restart".to_owned(), container.id.clone()]);
    let form = match engine {
        Engine::Docker => form::RESTART_BY_DOCKER,
        Engine::Podman => form::RESTART_BY_PODMAN,
    };
    Some((form, words))
}

/// The command that removes a container of a pod by the tool of its own runtime; `force`: it may have processes.
pub(super) fn remove(node: &NodeView<'_>, container: &Container, force: bool) -> Option<Command> {
    let crictl = crictl(node, container).map(|words| (form::REMOVE_BY_CRICTL, words));
    let (form, mut words) = crictl.or_else(|| Some((form::REMOVE_BY_DOCKER, docker(node, container)?)))?;
    words.push("rm".to_owned());
    words.extend(force.then(|| "--force".to_owned()));
    words.push(container.id.clone());
    Some((form, words))
}

/// What restarts containers by their ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    Docker,
    Podman,
}

/// The tool of Docker; pods that a kubelet made are in no Podman.
fn docker(node: &NodeView<'_>, container: &Container) -> Option<Vec<String>> {
    engine(node, container).filter(|(engine, _)| *engine == Engine::Docker).map(|(_, words)| words)
}

/// The tool of Docker or Podman, for the socket by which a container is known.
fn engine(node: &NodeView<'_>, container: &Container) -> Option<(Engine, Vec<String>)> {
    let is_down = is_down(node, container);
    let socket = match socket(node, container) {
        // Which socket the adapter uses is not known.
        Some(("cri", _)) => return None,
        socket => socket.map(|(_, path)| path),
    };
    let (engine, words): (_, &[&str]) = match (container.runtime.as_deref()?, socket) {
        ("docker", _) if is_down => return None,
        ("docker", None | Some("/run/docker.sock" | "/var/run/docker.sock")) => (Engine::Docker, &["docker"]),
        ("docker", Some(socket)) => (Engine::Docker, &["docker", "--host", &format!("unix://{socket}")]),
        ("podman", None | Some("/run/podman/podman.sock" | "/var/run/podman/podman.sock")) => {
            (Engine::Podman, &["podman"])
        }
        // Only with an address does it need its service.
        ("podman", Some(_)) if is_down => return None,
        ("podman", Some(socket)) => (Engine::Podman, &["podman", "--url", &format!("unix://{socket}")]),
        _ => return None,
    };
    Some((engine, words.iter().map(|word| (*word).to_owned()).collect()))
}

/// The command that ends a container of a pod, where the kubelet starts another one in its place: a container behind
/// the CRI cannot be restarted.
pub(super) fn replace_in_pod(node: &NodeView<'_>, container: &Container) -> Option<Command> {
    let mut words = crictl(node, container)?;
    words.extend(["stop".to_owned(), container.id.clone()]);
    Some((form::STOP_BY_CRICTL, words))
}

/// The tool for the CRI, if the container is of one; it looks at the usual sockets by itself.
fn crictl(node: &NodeView<'_>, container: &Container) -> Option<Vec<String>> {
    let words: &[&str] = match socket(node, container) {
        Some((
            "cri",
            "/run/containerd/containerd.sock" | "/run/crio/crio.sock" | "/run/cri-dockerd.sock",
        )) => &["crictl"],
        Some(("cri", path)) => &["crictl", "--runtime-endpoint", &format!("unix://{path}")],
        _ if matches!(container.runtime.as_deref()?, "containerd" | "crio") => &["crictl"],
        _ => return None,
    };
    Some(words.iter().map(|word| (*word).to_owned()).collect())
}

/// Whether nobody answers at the socket by which a container is known.
fn is_down(node: &NodeView<'_>, container: &Container) -> bool {
    node.containers.get(&container.id).is_some_and(|facts| node.is_down(&facts.source))
}

/// The API and the socket by which a container is known.
fn socket<'n>(node: &NodeView<'n>, container: &Container) -> Option<(&'n str, &'n str)> {
    node.containers.get(&container.id)?.source.split_once(':')
}

/// The command that lists the sandboxes of a pod's name, those that have ended too, by the tool of its runtime.
pub(super) fn list_sandboxes(node: &NodeView<'_>, container: &Container, pod: &Pod) -> Option<Command> {
    let (namespace, name) = (pod.namespace.as_deref()?, pod.name.as_deref()?);
    if let Some(mut words) = crictl(node, container) {
        words.extend(["pods", "--namespace", namespace, "--name", name].map(str::to_owned));
        return Some((form::LIST_BY_CRICTL, words));
    }
    let mut words = docker(node, container)?;
    words.extend(["ps".to_owned(), "--all".to_owned()]);
    for (label, value) in [("io.kubernetes.pod.namespace", namespace), ("io.kubernetes.pod.name", name)] {
        words.extend(["--filter".to_owned(), format!("label={label}={value}")]);
    }
    Some((form::LIST_BY_DOCKER, words))
}

/// To delete a pod; nothing where that may harm its successor, or where it has no name.
pub(super) fn delete_pod(context: &Context<'_>, pod: &Pod, text: &str) -> Vec<Advice> {
    let (Some(namespace), Some(pod)) = (pod.namespace.as_deref(), pod.name.as_deref()) else {
        return Vec::new();
    };
    if is_deletion_feared(context, namespace, pod) {
        return Vec::new();
    }
    vec![advice(form::DELETE_POD, text, &["kubectl", "-n", namespace, "delete", "pod", pod])]
}
