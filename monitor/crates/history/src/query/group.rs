//! Which events are one group: the same again, so that they are told once, with how often they happened.
//!
//! An event has a key, made of its fields. Its message is part of it only where no rule below says which fields count: what is
//! in doubt is no group.

use std::fmt::Debug;

use kevtmon_event::culprit::umount_caller;
use kevtmon_event::{
    Actor, Cni, Component, Container, Event, Kind, Link, LinkPeer, Mount, Neighbor, Pod, Recreation,
};

/// What the events of a group have in common: everything but the time, the ids of processes that live for one act, how often it
/// happened, and which of many neighbors, or of the containers of a pod, it happened to.
pub fn group_key(event: &Event, kind: &str) -> String {
    let (family, _) = kind.split_once('.').unwrap_or((kind, ""));
    let object = match family {
        // What a newer version tells in other fields is not known.
        _ if event.kind == Kind::Unknown => None,
        "neighbor" => event.neighbor.as_deref().map(neighbor),
        "link" => event.link.as_deref().map(link),
        "route" => event.route.as_ref().map(text),
        "rule" => event.rule.as_ref().map(text),
        "address" => event.address.as_ref().map(text),
        "mount" => event.mount.as_deref().map(|object| mount(event, object)),
        "container" => container(event),
        "cni" => event.cni.as_deref().map(|call| text(&Cni { duration_ms: None, ..call.clone() })),
        "component" => event.component.as_deref().map(component),
        _ => None,
    };
    let object = object.unwrap_or_else(|| event.message.clone());
    let actor = event.actor.as_deref().map(|by| actor(by, family == "mount"));
    let target = target(event, family == "container");
    text(&(kind, event.severity.name(), event.resync, actor, target, object))
}

fn text(fields: &impl Debug) -> String {
    format!("{fields:?}")
}

/// Who did it, without the id of a process that lives for one act. `keeps_caller`: each caller of a mount is its own group.
fn actor(by: &Actor, keeps_caller: bool) -> String {
    let caller = keeps_caller.then(|| umount_caller(by));
    let above: Vec<_> =
        by.ancestors.iter().filter(|_| !keeps_caller).map(|above| (&above.comm, above.started)).collect();
    let program = (&by.comm, &by.exe, by.uid, by.userns, by.confidence);
    text(&(program, caller, above, owner(by.container.as_ref(), by.pod.as_ref()), &by.unit))
}

fn owner<'a>(container: Option<&'a Container>, pod: Option<&'a Pod>) -> impl Debug + use<'a> {
    (container.map(|container| &container.id), pod.map(|pod| (&pod.uid, pod.claimed)))
}

/// Whom it happened to. `any_of_pod`: whichever container of the pod.
fn target(event: &Event, any_of_pod: bool) -> Option<String> {
    let target = event.target.as_deref()?;
    let container = target.container.as_ref().filter(|_| !any_of_pod || target.confirmed_pod().is_none());
    let place = (&target.netns_name, &target.netns_cookie, &target.process, &target.unit, target.userns);
    Some(text(&(owner(container, target.pod.as_ref()), place)))
}

fn neighbor(entry: &Neighbor) -> String {
    let is_gateway = entry.gateway == Some(true);
    let addresses = is_gateway.then_some((entry.address, &entry.lladdr, &entry.new_lladdr));
    let change = (entry.address.is_ipv4(), &entry.state, &entry.new_state, entry.new_lladdr.is_some());
    let why = (&entry.cause, &entry.reason, entry.ended_netns, entry.ended_lower, entry.link_moved);
    let place = (entry.netns, &entry.ifname, entry.after_exit, entry.other_netns);
    text(&(addresses, entry.gateway, change, why, place))
}

/// An interface that is made again has another number, but the same name.
fn link(link: &Link) -> String {
    let other = |end: &Option<LinkPeer>| end.as_ref().map(|end| (end.netns, end.ifname.clone()));
    let place = (link.netns, &link.ifname, &link.kind, other(&link.peer), link.master);
    text(&(place, link.up, &link.change, other(&link.moved_to)))
}

fn mount(event: &Event, mount: &Mount) -> String {
    let counted = Mount { attempts: None, refused: Vec::new(), servers: Vec::new(), ..mount.clone() };
    let servers: Vec<_> = mount.servers.iter().map(|server| (&server.comm, server.state)).collect();
    let holders = event.holders.iter().flatten().map(|holder| {
        let program = (&holder.comm, &holder.exe, holder.uid, holder.access, holder.possible);
        (program, &holder.unit, owner(holder.container.as_ref(), holder.pod.as_ref()))
    });
    let holders: Vec<_> = holders.collect();
    text(&(counted, servers, holders, event.holders_verdict, event.holders_complete))
}

/// What becomes of a container of a pod: one after the other, they are a group.
fn container(event: &Event) -> Option<String> {
    let container = event.target.as_deref()?.container.as_ref()?;
    let again = event.recreation.as_deref().map(|again| {
        let Recreation { name, reason, spec_hash, previous_spec_hash, same_sandbox, found_at_start, .. } =
            again;
        text(&(name, reason, spec_hash, previous_spec_hash, same_sandbox, found_at_start))
    });
    Some(text(&(container.exit_code, container.oom_killed, again)))
}

fn component(component: &Component) -> String {
    let Component { name, exe, version, previous_version, exit_code, signal, lifetime_s, .. } = component;
    text(&(name, exe, version, previous_version, exit_code, signal, lifetime_s))
}

/// Whether later events of this kind may stand with the first of it though other kinds came between. A mount that is busy
/// again after it was released, or an entry that is lost again after it was put back, is another matter.
pub fn run(kind: &str) -> &str {
    match kind.split_once('.') {
        Some((family @ ("container" | "link"), _)) => family,
        _ => kind,
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_event::{AncestorRef, Severity};
    use kevtmon_testing::sample;

    use super::*;

    fn key(event: &Event) -> String {
        group_key(event, event.kind.name())
    }

    fn busy(pid: u32, above: &[(u32, &str)]) -> Event {
        let mut event = sample::busy();
        let actor = event.actor.as_mut().unwrap();
        (actor.pid, actor.comm, actor.exe) = (pid, "umount".into(), None);
        let above = above.iter().map(|(pid, comm)| AncestorRef {
            pid: *pid,
            comm: (*comm).into(),
            started: Some(true),
            ..AncestorRef::default()
        });
        actor.ancestors = above.collect();
        event
    }

    #[test]
    fn the_attempts_of_one_caller_are_alike_and_those_of_two_are_not() {
        let first = busy(100, &[(99, "kubelet"), (1, "systemd")]);
        assert_eq!(key(&first), key(&busy(101, &[(99, "kubelet"), (1, "systemd")])));
        assert_ne!(key(&first), key(&busy(101, &[(98, "kubelet"), (1, "systemd")])));
        assert_ne!(key(&first), key(&busy(101, &[(99, "sh"), (1, "systemd")])));
        let through = busy(102, &[(103, "nsenter"), (99, "kubelet")]);
        assert_eq!(key(&first), key(&through));
    }

    #[test]
    fn entries_of_a_batch_are_alike_but_for_a_gateway() {
        let entry = |address: &str, gateway| {
            let mut event = sample::deletion();
            let neighbor = event.neighbor.as_mut().unwrap();
            (neighbor.address, neighbor.gateway) = (address.parse().unwrap(), Some(gateway));
            event
        };
        assert_eq!(key(&entry("10.0.0.1", false)), key(&entry("10.0.0.12", false)));
        assert_ne!(key(&entry("10.0.0.1", true)), key(&entry("10.0.0.12", true)));
    }

    #[test]
    fn containers_that_go_one_after_the_other_are_alike_within_their_pod() {
        let removed = |container: &str, pod: &str| {
            let mut event = Event { kind: Kind::ContainerRemoved, ..sample::deletion() };
            let target = event.target.as_mut().unwrap();
            target.container.as_mut().unwrap().id = container.into();
            target.pod.as_mut().unwrap().uid = pod.into();
            event
        };
        assert_eq!(key(&removed("a", "x")), key(&removed("b", "x")));
        assert_ne!(key(&removed("a", "x")), key(&removed("b", "y")));
    }

    #[test]
    fn another_object_outcome_or_holder_is_another_group() {
        let first = busy(100, &[(99, "kubelet")]);
        let changed = |change: &dyn Fn(&mut Event)| {
            let mut event = busy(100, &[(99, "kubelet")]);
            change(&mut event);
            key(&event)
        };
        let others = [
            changed(&|event| event.mount.as_mut().unwrap().path.push('x')),
            changed(&|event| event.mount.as_mut().unwrap().errno = None),
            changed(&|event| event.severity = Severity::Debug),
            changed(&|event| event.holders_verdict = None),
            changed(&|event| event.holders.as_mut().unwrap()[0].comm.push('x')),
        ];
        for other in others {
            assert_ne!(key(&first), other);
        }
        let same = changed(&|event| {
            event.mount.as_mut().unwrap().attempts = Some(77);
            event.holders.as_mut().unwrap()[0].pid = 77;
        });
        assert_eq!(key(&first), same);
    }

    #[test]
    fn what_has_no_rule_is_a_group_only_where_its_message_is_the_same() {
        let event = |kind, message: &str| Event::new(kind, Severity::Info, message.into());
        for kind in [Kind::Unknown, Kind::DaemonReady, Kind::ContainerStarted] {
            assert_eq!(key(&event(kind, "a (pid 1)")), key(&event(kind, "a (pid 1)")));
            assert_ne!(key(&event(kind, "a (pid 1)")), key(&event(kind, "a (pid 2)")));
        }
        let unknown = |message: &str| {
            let event = Event { message: message.into(), ..sample::busy() };
            group_key(&Event { kind: Kind::Unknown, ..event }, "mount.newer")
        };
        assert_ne!(unknown("a"), unknown("b"));
    }
}
