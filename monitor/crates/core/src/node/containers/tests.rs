#[cfg(target_env = "gnu")]
use kevtmon_testing::{alone::alone, heap::assert_stays};

use super::*;

fn container(id: &str, state: ContainerState, netns: Option<NsInum>, sandbox: bool) -> ContainerFacts {
    ContainerFacts {
        id: id.into(),
        name: id.into(),
        runtime: "docker".into(),
        source: "docker".into(),
        image: "busybox".into(),
        state,
        netns,
        sandbox,
        ..ContainerFacts::default()
    }
}

#[test]
fn a_namespace_belongs_to_the_sandbox_that_runs() {
    let mut containers = Containers::default();
    containers.put(0, container("app", ContainerState::Running, Some(7), false));
    containers.put(0, container("pause", ContainerState::Running, Some(7), true));
    containers.put(0, container("dead", ContainerState::Exited, Some(7), true));
    assert_eq!(containers.in_netns(7).unwrap().id, "pause");
}

#[test]
fn a_namespace_belongs_to_the_container_that_created_it_not_to_one_that_joined() {
    let mut containers = Containers::default();
    let owner = container("a", ContainerState::Running, Some(7), false);
    let guest = ContainerFacts { id: "z".into(), joined_netns: true, ..owner.clone() };
    containers.put(1, owner);
    containers.put(1, guest);
    assert_eq!(containers.in_netns(7).unwrap().id, "a");
}

#[test]
fn an_exited_container_keeps_its_namespace_until_that_is_gone() {
    let mut containers = Containers::default();
    containers.put(0, container("a", ContainerState::Running, Some(7), false));
    containers.put(0, container("a", ContainerState::Exited, None, false));
    assert_eq!(containers.in_netns(7).unwrap().id, "a");
    containers.forget_netns(7);
    assert!(containers.in_netns(7).is_none());
}

#[test]
fn one_that_outlives_its_namespace_has_none_once_it_is_told_to_have_ended() {
    let mut containers = Containers::default();
    let exited = |id| container(id, ContainerState::Exited, None, false);
    for id in ["exits", "is removed"] {
        containers.put(0, container(id, ContainerState::Running, Some(7), false));
        containers.forget_netns(7);
        assert_eq!(containers.in_netns(7).unwrap().id, id, "as far as is known it runs");
        match id {
            "exits" => drop(containers.put(1, exited(id))),
            _ => drop(containers.remove(1, id, "docker")),
        }
        assert_eq!(containers.in_netns(7), None, "{id}");
    }
    containers.put(2, container("a", ContainerState::Running, Some(7), false));
    containers.forget_netns(7);
    containers.put(3, container("a", ContainerState::Running, Some(7), false));
    containers.put(4, exited("a"));
    assert_eq!(containers.in_netns(7).unwrap().id, "a", "it was seen there afterwards");
}

#[test]
fn whoever_was_in_another_namespace_of_a_number_is_not_in_the_one_that_is_read() {
    let mut containers = Containers::default();
    let running = |id| container(id, ContainerState::Running, Some(7), false);
    let exited = |id| container(id, ContainerState::Exited, None, false);
    let in_it = |containers: &Containers| containers.in_netns(7).map(|facts| facts.id.clone());
    containers.put(0, running("a"));
    assert!(!containers.are_elsewhere(7, 2), "it is not known where it is");
    assert_eq!(containers.netns_read(7, 1 << 32 | 1, true), [""; 0]);
    assert!(containers.are_elsewhere(7, 2) && !containers.are_elsewhere(7, 1));
    containers.put(1, exited("a"));
    assert_eq!(in_it(&containers).as_deref(), Some("a"), "what comes late is told of it");
    assert_eq!(containers.netns_read(7, 2, false), [""; 0]);
    assert_eq!(in_it(&containers), None);
    // That it has ended is not told yet.
    containers.put(2, running("b"));
    containers.netns_read(7, 2, false);
    assert_eq!(containers.netns_read(7, 3, false), ["b"]);
    assert_eq!(in_it(&containers), None);
    containers.put(3, running("b"));
    assert_eq!(containers.netns_read(7, 3, false), [""; 0]);
    // One that is known to have ended is not the one that is read next.
    containers.put(3, running("c"));
    containers.forget_netns(7);
    containers.netns_read(7, 3, true);
    assert_eq!(containers.get("c").unwrap().netns, None);
    // Who is tied to none stays where nothing tells that it was another one.
    containers.put(3, running("d"));
    containers.put(3, exited("d"));
    containers.netns_read(7, 3, true);
    assert_eq!(containers.get("d").unwrap().netns, Some(7));
    // Started again, it is in a new one with the old number.
    containers.put(4, exited("b"));
    containers.put(5, running("b"));
    assert_eq!(containers.netns_read(7, 4, false), [""; 0]);
    assert_eq!(in_it(&containers).as_deref(), Some("b"));
}

#[test]
fn who_made_a_namespace_takes_its_number_from_those_that_have_exited() {
    let mut containers = Containers::default();
    let running = |id| container(id, ContainerState::Running, Some(7), false);
    containers.put(0, running("z"));
    containers.put(1, container("z", ContainerState::Exited, None, false));
    containers.put(2, running("a"));
    containers.put(3, container("a", ContainerState::Exited, None, false));
    assert_eq!(containers.in_netns(7).unwrap().id, "a");
    assert_eq!(containers.get("z").unwrap().netns, None);
    // Both ran, as far as their source had told.
    containers.put(4, running("c"));
    containers.put(5, running("b"));
    containers.put(6, container("c", ContainerState::Exited, None, false));
    containers.put(7, container("b", ContainerState::Exited, None, false));
    assert_eq!(containers.in_netns(7).unwrap().id, "b", "it changed last");
}

#[test]
fn a_container_missing_from_a_list_is_removed_and_kept_for_ten_minutes() {
    let mut containers = Containers::default();
    containers.put(0, container("a", ContainerState::Running, None, false));
    let transitions = containers.replace(1, 1, "docker", Vec::new());
    assert_eq!(transitions[0].to, None);
    containers.expire(2);
    assert!(containers.get("a").is_some());
    containers.expire(RETENTION_NS + 2);
    assert!(containers.get("a").is_none());
}

#[test]
fn of_too_many_removed_containers_the_first_are_dropped() {
    let mut containers = Containers::default();
    let (number, most) = (2 * REMOVED_MAX as u64, REMOVED_MAX as u64);
    for at in 0..number {
        let id = at.to_string();
        containers.put(at, container(&id, ContainerState::Running, u32::try_from(at).ok(), false));
        containers.remove(at, &id, "docker");
    }
    containers.put(number, container("running", ContainerState::Running, None, false));
    containers.expire(number);
    assert_eq!(containers.all().count(), REMOVED_MAX + 1);
    assert!(containers.get(&(number - most).to_string()).is_some() && containers.get("running").is_some());
    assert_eq!(containers.by_netns.len(), REMOVED_MAX);
}

#[test]
fn what_is_kept_of_removed_containers_is_bounded_in_bytes_and_given_back() {
    let mut containers = Containers::default();
    for at in 0..4 * REMOVED_MAX as u64 {
        let id = format!("{at:064x}");
        let mut facts = container(&id, ContainerState::Created, u32::try_from(at).ok(), false);
        facts.incarnation.error = Some("x".repeat(4096));
        containers.put(at, facts);
        containers.remove(at, &id, "docker");
        if at % 512 == 0 {
            containers.expire(at);
        }
    }
    containers.expire(0);
    assert_eq!(containers.known.len(), REMOVED_MAX);
    // Half of the places of a tree are in use at least.
    let of_map = 2 * containers.known.len() * size_of::<(String, Box<KnownContainer>)>();
    let of_each = containers.known.values().map(|known| {
        let KnownContainer { facts, sources, changed, .. } = &**known;
        let texts = [&facts.id, &facts.name, &facts.runtime, &facts.source, &facts.image, &changed.0];
        let texts = texts.into_iter().chain(&facts.incarnation.error).map(String::capacity);
        size_of::<KnownContainer>() + texts.sum::<usize>() + sources.capacity() * size_of::<String>()
    });
    let of_netns = containers.by_netns.len() * (size_of::<(u32, String)>() + 64);
    let bytes = of_map + of_each.sum::<usize>() + of_netns;
    assert!(bytes < REMOVED_MAX * 1024, "{} each", bytes / REMOVED_MAX);
    containers.expire(u64::MAX);
    assert!(containers.known.is_empty());
}

#[cfg(target_env = "gnu")]
#[test]
fn containers_that_come_and_go_take_no_more_memory_than_those_that_are_kept() {
    alone(module_path!(), "containers_that_come_and_go_take_no_more_memory_than_those_that_are_kept", || {
        let mut containers = Containers::default();
        assert_stays(REMOVED_MAX as u64, |at| {
            let id = format!("{at:064x}");
            containers.put(at, container(&id, ContainerState::Created, u32::try_from(at).ok(), false));
            containers.remove(at, &id, "docker");
            // As often as once a second, where fifty a second come and go.
            if (at + 1) % 64 == 0 {
                containers.expire(at);
            }
        });
        assert_eq!(containers.known.len(), REMOVED_MAX);
    });
}

#[test]
fn a_container_that_moves_to_another_namespace_leaves_the_old_one() {
    let mut containers = Containers::default();
    containers.put(0, container("a", ContainerState::Running, Some(7), false));
    containers.put(0, container("a", ContainerState::Exited, None, false));
    containers.put(0, container("a", ContainerState::Running, Some(8), false));
    assert!(containers.in_netns(7).is_none());
    assert_eq!(containers.live_netns().map(|(netns, _)| netns).collect::<Vec<_>>(), [8]);
    containers.remove(0, "a", "docker");
    containers.expire(RETENTION_NS);
    assert!(containers.by_netns.is_empty());
}

#[test]
fn the_start_is_known_only_if_it_was_observed() {
    let mut containers = Containers::default();
    let running = |id| container(id, ContainerState::Running, None, false);
    containers.replace(5, 5, "docker", vec![running("old")]);
    containers.put(6, running("new"));
    containers.put(7, running("old"));
    assert_eq!((containers.started("old"), containers.started("new")), (None, Some(6)));
}

#[test]
fn the_same_state_twice_is_no_transition() {
    let mut containers = Containers::default();
    assert!(containers.put(0, container("a", ContainerState::Running, None, false)).is_some());
    assert!(containers.put(0, container("a", ContainerState::Running, None, false)).is_none());
}
