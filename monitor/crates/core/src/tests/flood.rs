//! What one user can have the core do, counted: requests, events, what waits.

use super::*;

/// Seconds between two attempts of the flood.
const PAUSE: u64 = 5 * MS;

/// A core that knows the host's mount namespace.
fn core_of_node() -> Core {
    let mut core = settled();
    let host =
        KubeletNamespace { mntns: 2, roots: vec!["/var/lib/kubelet".into()], of_kubelet: false, pid: None };
    core.observe(at(1, Fact::Kubelet(KubeletFacts { namespaces: vec![host] })));
    requests(&mut core);
    core
}

/// A call of a user in a mount namespace of his own.
fn call(mntns: NsInum, path: &str, errno: Option<u16>) -> Fact {
    let context = TaskContext { uid: 1000, euid: 1000, userns: 77, ..TaskContext::default() };
    Fact::Umount(Box::new(UmountAttempt {
        syscall: MountSyscall::Umount2,
        actor: TaskRef { key: key(), tid: 1, comm: "x".into(), context: Some(context) },
        mntns,
        path: path.into(),
        origin: None,
        flags: 0,
        errno,
        second: None,
    }))
}

/// A scan finds the mount with this id at the path.
fn report(id: u64, path: &str, mount: u64) -> Fact {
    Fact::Holders(Box::new(HolderReport {
        mount: Some(MountFacts {
            id: mount,
            parent: Some(29),
            unique: None,
            mountpoint: path.into(),
            root: "/".into(),
            fstype: "tmpfs".into(),
            source: "tmpfs".into(),
            device: "0:77".into(),
            mntns: 5,
        }),
        complete: true,
        verdict: Verdict::Kernel,
        ..HolderReport::skipped(id, path)
    }))
}

fn take(core: &mut Core) -> (Vec<Event>, Vec<Request>) {
    let (mut emitted, mut requested) = (Vec::new(), Vec::new());
    for output in core.take_output() {
        match output {
            Output::Event(event) => emitted.push(*event),
            Output::Request(request) => requested.push(request),
        }
    }
    (emitted, requested)
}

/// What a flood led to.
#[derive(Debug, Default)]
struct Caused {
    events: Vec<Event>,
    scans: usize,
    questions: usize,
}

/// Makes calls, and answers what is asked.
fn flood(
    core: &mut Core,
    calls: impl Iterator<Item = Fact>,
    mount_of: impl Fn(&str) -> (String, u64),
) -> Caused {
    let mut caused = Caused::default();
    for (number, call) in (1..).zip(calls) {
        let now = 1000 * MS + number * PAUSE;
        core.observe(at(now, call));
        let mut waiting: VecDeque<Request> = VecDeque::new();
        loop {
            let (emitted, requested) = take(core);
            caused.events.extend(emitted);
            waiting.extend(requested);
            match waiting.pop_front() {
                None => break,
                Some(Request::Holders { id, path, .. }) => {
                    caused.scans += 1;
                    let (found, mount) = mount_of(&path);
                    core.observe(at(now + MS, report(id, &found, mount)));
                }
                Some(Request::MountPresence { id, .. } | Request::MountAt { id, .. }) => {
                    caused.questions += 1;
                    let presence = MountPresence::known(id, true);
                    core.observe(at(now + MS, Fact::MountPresence(presence)));
                }
                Some(_) => {}
            }
        }
        core.observe(at(now + 2 * MS, Fact::Tick));
    }
    caused
}

#[test]
fn any_number_of_names_of_one_mount_is_one_story() {
    let mut core = core_of_node();
    let names = (0..2000).map(|number| call(5, &format!("/link{number}"), Some(16)));
    let caused = flood(&mut core, names, |_| ("/mnt".to_owned(), 410));
    // 2000 attempts in ten seconds: 11 powers of two of the mount, as many of those that were not scanned.
    assert!(caused.events.len() <= 24, "{}", caused.events.len());
    assert!(caused.scans <= 32, "{}", caused.scans);
    assert_eq!(core.umounts_ignored() + caused.events.len() as u64, 2000, "each is counted");
}

#[test]
fn what_is_kept_and_walked_does_not_grow_with_the_names_and_processes_of_a_flood() {
    // Callers, their names and the paths are all anybody's to choose; what a call costs is what of them is walked.
    let flooded = |calls: u32| {
        let mut core = core_of_node();
        let calls = (0..calls).map(|number| {
            let Fact::Umount(mut call) = call(5, &format!("/link{number}"), Some(16)) else { unreachable!() };
            call.actor.comm = format!("x{number}");
            call.actor.key.tgid = 10_000 + number;
            Fact::Umount(call)
        });
        let events = flood(&mut core, calls, |_| ("/mnt".to_owned(), 410)).events.len();
        (serde_json::to_string(&core.save().unwrap()).unwrap().len(), events)
    };
    let ((few, _), (many, events)) = (flooded(2_000), flooded(20_000));
    // Numbers and counts are longer by a digit.
    assert!(many < few + few / 20, "{few} bytes after 2000 calls, {many} after 20000");
    // In a hundred seconds, by their pace: sixteen scans in ten seconds, and powers of two.
    assert!(events <= 16 * 10 + 2 * 15, "{events}");
}

#[test]
fn attempts_that_are_identified_late_keep_to_the_powers_of_two() {
    let mut core = core_of_node();
    // Five names in turn, each of which a scan has found the first time.
    let names = (0..64).map(|number| call(5, &format!("/link{}", number % 5), Some(16)));
    let caused = flood(&mut core, names, |_| ("/mnt".to_owned(), 410));
    let attempts: Vec<u64> =
        caused.events.iter().map(|event| event.mount.as_ref().unwrap().attempts.unwrap()).collect();
    assert_eq!(attempts, [1, 2, 4, 8, 16, 32, 64]);
}

#[test]
fn any_number_of_mounts_of_one_user_is_scanned_at_his_own_pace() {
    let mut core = core_of_node();
    let calls = (0..2000).map(|number| call(5, &format!("/mnt/{number}"), Some(16)));
    let caused = flood(&mut core, calls, |path| (path.to_owned(), path[5..].parse().unwrap()));
    assert!(caused.scans <= 32 && caused.events.len() <= 32 + 11, "{} {}", caused.scans, caused.events.len());
    // A busy mount of the node is scanned at once all the same.
    let Fact::Umount(mut of_root) = call(2, "/mnt/y", Some(16)) else { unreachable!() };
    of_root.actor.context = Some(TaskContext::default());
    core.observe(at(12_001 * MS, Fact::Umount(of_root)));
    let (_, requested) = take(&mut core);
    assert!(
        requested.iter().any(|request| matches!(request, Request::Holders { path, .. } if path == "/mnt/y")),
        "{requested:?}"
    );
}

#[test]
fn whether_a_mount_went_by_another_name_is_asked_a_few_times_a_second() {
    let mut core = core_of_node();
    let busy = flood(&mut core, std::iter::once(call(5, "/mnt/x", Some(16))), |_| ("/mnt/x".to_owned(), 410));
    assert_eq!(busy.events.len(), 1);
    let names = (0..1000).map(|number| call(5, &format!("/srv/{number}/x"), None));
    let caused = flood(&mut core, names, |_| ("/mnt/x".to_owned(), 410));
    // Five seconds, at most four questions in each.
    assert!((15..=21).contains(&caused.questions), "{}", caused.questions);
    assert_eq!(caused.events.len(), 0);
}

#[test]
fn unmounts_of_one_user_that_wait_leave_room_for_others() {
    let mut core = core_of_node();
    // Nothing is answered.
    for number in 0..5000 {
        core.observe(at(1000 * MS + number, call(5, "/mnt/x", Some(16))));
    }
    let of = |core: &Core| core.holder_scans.waiting();
    assert!(of(&core) <= 513, "{}", of(&core));
    let before = of(&core);
    for number in 0..10 {
        let Fact::Umount(mut of_root) = call(2, "/mnt/y", Some(16)) else { unreachable!() };
        of_root.actor.context = Some(TaskContext::default());
        core.observe(at(1100 * MS + number, Fact::Umount(of_root)));
    }
    assert_eq!(of(&core), before + 10);
}

#[test]
fn long_paths_of_one_user_that_wait_take_half_of_the_memory_at_most() {
    const PATH: usize = 4000;
    let mut core = core_of_node();
    let path = format!("/mnt/{}", "x".repeat(PATH - 5));
    for number in 0..5000 {
        core.observe(at(1000 * MS + number, call(5, &path, Some(16))));
    }
    let waiting = core.holder_scans.waiting();
    assert!((100..=(1 << 20) / PATH).contains(&waiting), "{waiting}");
    for number in 0..10 {
        let Fact::Umount(mut of_root) = call(2, &path, Some(16)) else { unreachable!() };
        of_root.actor.context = Some(TaskContext::default());
        core.observe(at(1100 * MS + number, Fact::Umount(of_root)));
    }
    assert_eq!(core.holder_scans.waiting(), waiting + 10);
}

/// A neighbor entry in a network that a user made, deleted by himself.
fn own_deletion(netns: NsInum, address: u8, gateway: bool) -> Fact {
    let mut change = change(NeighborOp::Deleted, NeighborCause::Admin);
    let address = if gateway { "169.254.1.1".into() } else { format!("10.0.0.{address}") };
    (change.key.netns, change.key.address) = (netns, address.parse().unwrap());
    let context = TaskContext { uid: 1000, euid: 1000, userns: 77, netns, ..TaskContext::default() };
    change.actor = change.actor.map(|actor| TaskRef { context: Some(context), ..actor });
    Fact::Neighbor(Box::new(change))
}

#[test]
fn what_a_user_does_beyond_his_budget_is_summed_up_and_the_rest_is_told() {
    const OWN: NsInum = 1000;
    let mut core = core_of_node();
    core.observe(at(2, status("netlink", true)));
    core.observe(at(2, status("docker", true)));
    core.observe(at(3, task("/user.slice/user-1000.slice/session-1.scope")));
    core.observe(at(4, container(ContainerState::Running)));
    core.observe(at(5, snapshot(POD)));
    core.observe(at(2000 * MS, own_network(OWN)));
    take(&mut core);
    let (mut told, mut folded, mut received) = (Vec::new(), 0, 0);
    let mut observe = |core: &mut Core, now: u64, fact| {
        let mut facts = VecDeque::from([fact]);
        while let Some(fact) = facts.pop_front() {
            core.observe(at(now, fact));
            folded += core.folded().len() as u64;
            let (events, requests) = take(core);
            told.extend(events);
            if requests.contains(&Request::Netns { netns: OWN }) {
                facts.push_back(own_network(OWN));
            }
        }
    };
    // Twenty seconds, 2,000 a second, some of them of the gateway that he has there.
    for number in 0..40_000_u64 {
        let now = 6000 * MS + number * MS / 2;
        received += 1;
        observe(&mut core, now, own_deletion(OWN, (number % 250) as u8, number % 100 == 99));
        if number % 20 == 0 {
            observe(&mut core, now, Fact::Tick);
        }
        if number == 20_000 {
            observe(&mut core, now, deletion(NeighborCause::Admin));
        }
    }
    observe(&mut core, 26_000 * MS, Fact::Stop);
    let is_his = |event: &&Event| {
        event.kind == Kind::NeighborDeleted && event.neighbor.as_ref().is_some_and(|entry| entry.netns == OWN)
    };
    let emitted = told.iter().filter(is_his).count() as u64;
    assert!((64..=64 + 20 * 4 + 1).contains(&emitted), "{emitted}");
    assert_eq!(emitted + folded, received);
    let summaries: Vec<&Event> = told.iter().filter(|event| event.kind == Kind::EventsThrottled).collect();
    let count = |event: &&Event| event.throttled.as_ref().unwrap().count;
    assert_eq!(summaries.iter().map(count).sum::<u64>(), folded);
    // After one second, ten more, and at the end.
    assert_eq!(summaries.len(), 3);
    for summary in summaries {
        let said = summary.throttled.as_ref().unwrap();
        let place = (said.kind.as_deref(), said.lane.as_str(), said.netns, said.uid);
        assert_eq!(place, (Some("neighbor.deleted"), "events", Some(OWN), Some(1000)));
        assert!(said.from < said.to && summary.seq > 0, "{summary:?}");
    }
    // The numbers have no hole.
    assert!(told.windows(2).all(|pair| pair[0].seq + 1 == pair[1].seq));
    let of_pod = |event: &&Event| {
        event.kind == Kind::IncidentOpened && event.neighbor.as_ref().is_some_and(|it| it.netns == POD)
    };
    let opened = told.iter().find(of_pod).expect("the incident of a pod");
    let evidence = &opened.incident.as_ref().unwrap().evidence;
    assert!(told.iter().any(|event| evidence == &[event.seq] && event.kind == Kind::NeighborDeleted));
}

#[test]
fn one_user_uses_up_nothing_of_another_and_the_budgets_come_back() {
    let mut core = core_of_node();
    core.observe(at(2, status("netlink", true)));
    core.observe(at(2, status("docker", true)));
    let of_user = |user: u32| {
        let Fact::Task(mut facts) = task(&format!("/user.slice/user-{user}.slice/a.scope")) else {
            unreachable!()
        };
        facts.key.tgid = user;
        Fact::Task(facts)
    };
    let mut emitted = Vec::new();
    for (user, now) in [(1000, 10_000), (1001, 10_001), (1000, 10_002), (1000, 40_000)] {
        core.observe(at(now * MS, own_network(user)));
        core.observe(at(now * MS, of_user(user)));
        for number in 0..100 {
            let Fact::Neighbor(mut change) = own_deletion(user, number, false) else { unreachable!() };
            change.actor.as_mut().unwrap().key.tgid = user;
            core.observe(at((now + 2000) * MS, Fact::Neighbor(change)));
        }
        core.observe(at((now + 2000) * MS, own_network(user)));
        let (events, _) = take(&mut core);
        emitted.push(events.iter().filter(|event| event.kind == Kind::NeighborDeleted).count());
    }
    assert_eq!(emitted, [64, 64, 0, 64]);
}

/// A namespace that a user made, with a process and a static gateway.
fn own_network(netns: NsInum) -> Fact {
    Fact::Netns(Box::new(NetnsSnapshot {
        foreign_userns: true,
        owner: Some(NetnsOwner { tgid: netns, start_ns: 1, comm: "x".into(), cgroup: Some("/".into()) }),
        routes: vec![RouteFacts::default_via(netns, "169.254.1.1".parse().unwrap(), 2)],
        ..NetnsSnapshot::empty(netns)
    }))
}

#[test]
fn the_gateways_of_a_users_network_have_a_lane_only_if_it_is_a_containers() {
    let mut core = core_of_node();
    core.observe(at(2, status("netlink", true)));
    core.observe(at(2, status("docker", true)));
    core.observe(at(3, own_network(1000)));
    assert!(core.namespaces.get(1000).is_some(), "it is in the model");
    assert_eq!(core.known_netns(1000), None);
    let Fact::Container(mut facts) = container(ContainerState::Running) else { unreachable!() };
    (facts.id, facts.netns) = ("b".repeat(64), Some(1000));
    core.observe(at(4, Fact::Container(facts)));
    let known = core.known_netns(1000).expect("a runtime says whose it is");
    assert!(known.foreign_userns && known.gateways.len() == 1, "{known:?}");
}

#[test]
fn a_user_with_networks_without_end_has_some_in_the_model_and_each_is_asked_for_seldom() {
    let mut core = core_of_node();
    core.observe(at(2, status("netlink", true)));
    core.observe(at(2, status("docker", true)));
    let mut asked = 0;
    for number in 0..10_000_u32 {
        let now = 2000 * MS + u64::from(number) * MS / 2;
        let Fact::Neighbor(mut change) = own_deletion(1000 + number % 1000, 1, false) else { unreachable!() };
        change.netns_of_user = true;
        core.observe(at(now, Fact::Neighbor(change)));
        for request in take(&mut core).1 {
            if let Request::Netns { netns } = request {
                asked += 1;
                core.observe(at(now, own_network(netns)));
            }
        }
    }
    assert_eq!(core.namespaces.all().filter(|(_, namespace)| namespace.foreign_userns).count(), 32);
    assert!(asked < 1500, "{asked} reads in five seconds");
}

#[test]
fn incidents_of_one_pod_leave_room_for_those_of_others() {
    let mut core = core_of_node();
    core.observe(at(2, status("netlink", true)));
    core.observe(at(2, status("docker", true)));
    core.observe(at(3, task("/system.slice/x.service")));
    let gateways = |netns: NsInum, count: u8| {
        // The hops of one route are all in use.
        let via = |last: u8| RouteFacts {
            hop: last.into(),
            ..RouteFacts::default_via(netns, format!("10.0.0.{last}").parse().unwrap(), 2)
        };
        Fact::Netns(Box::new(NetnsSnapshot {
            routes: (1..=count).map(via).collect(),
            ..NetnsSnapshot::empty(netns)
        }))
    };
    core.observe(at(4, container(ContainerState::Running)));
    core.observe(at(5, gateways(POD, 200)));
    for last in 1..=200_u8 {
        let mut change = change(NeighborOp::Deleted, NeighborCause::Admin);
        change.key.address = format!("10.0.0.{last}").parse().unwrap();
        core.observe(at(5000 * MS, Fact::Neighbor(Box::new(change))));
        core.observe(at(5000 * MS, gateways(POD, 200)));
    }
    let (events, _) = take(&mut core);
    let opened = events.iter().filter(|event| event.kind == Kind::IncidentOpened).count();
    assert_eq!(opened, 128);
    assert!(core.incidents_discarded() >= 72);
}

#[test]
fn gateways_of_users_take_no_incident_from_a_pod() {
    let mut core = core_of_node();
    core.observe(at(2, status("netlink", true)));
    core.observe(at(2, status("docker", true)));
    for netns in 1000..3000 {
        core.observe(at(2000 * MS, own_network(netns)));
    }
    for netns in 1000..3000 {
        let mut change = change(NeighborOp::Deleted, NeighborCause::Admin);
        change.key.netns = netns;
        core.observe(at(5000 * MS, Fact::Neighbor(Box::new(change))));
        core.observe(at(5000 * MS, own_network(netns)));
    }
    core.observe(at(20_000 * MS, Fact::Tick));
    let opened = |core: &mut Core| -> Vec<Event> {
        let (emitted, _) = take(core);
        emitted.into_iter().filter(|event| event.kind == Kind::IncidentOpened).collect()
    };
    let of_users = opened(&mut core);
    assert!((1..=64).contains(&of_users.len()), "{}", of_users.len());
    assert!(of_users.iter().all(|event| event.tenant.priority == kevtmon_event::Priority::Foreign));
    core.observe(at(20_001 * MS, deletion(NeighborCause::Admin)));
    core.observe(at(20_002 * MS, snapshot(POD)));
    let of_pod = opened(&mut core);
    assert_eq!(of_pod.len(), 1);
    assert_eq!(of_pod[0].tenant.priority, kevtmon_event::Priority::Known);
    // It is read again as soon as if it were the only one.
    core.observe(at(21_600 * MS, Fact::Tick));
    let (_, requested) = take(&mut core);
    assert!(requested.contains(&Request::Netns { netns: POD }), "{requested:?}");
}

#[test]
fn what_a_container_does_to_its_own_network_beyond_its_budget_is_summed_up_and_still_diagnosed() {
    let mut core = core_of_node();
    core.observe(at(2, status("netlink", true)));
    core.observe(at(2, status("docker", true)));
    core.observe(at(3, task(&format!("/docker/{ID}"))));
    core.observe(at(4, container(ContainerState::Running)));
    core.observe(at(5, snapshot(POD)));
    take(&mut core);
    let link = |flags: u32| LinkFacts {
        netns: POD,
        ifindex: 3,
        ifname: "br0".into(),
        kind: Some("bridge".into()),
        flags,
        ..LinkFacts::default()
    };
    let (mut told, mut folded) = (Vec::new(), 0);
    for number in 0..10_000_u64 {
        let now = 2000 * MS + number * MS;
        core.observe(at(now, Fact::Link(Box::new(link(if number % 2 == 0 { iff::UP } else { 0 })))));
        folded += core.folded().len();
        told.extend(take(&mut core).0);
    }
    let changed = told.iter().filter(|event| event.kind == Kind::LinkChanged).count();
    assert!((512..=512 + 16 * 10 + 1).contains(&changed), "{changed}");
    assert_eq!(changed + folded, 9_999);
    // It is beyond its budget, and loses its gateway by its own doing.
    core.observe(at(12_001 * MS, deletion(NeighborCause::Admin)));
    core.observe(at(12_002 * MS, Fact::Stop));
    told.extend(take(&mut core).0);
    let opened = told.iter().find(|event| event.kind == Kind::IncidentOpened).expect("its incident");
    assert_eq!(opened.actor.as_ref().unwrap().container.as_ref().unwrap().id, ID);
    let summaries = told.iter().filter(|event| event.kind == Kind::EventsThrottled);
    let count = |event: &Event| event.throttled.as_ref().unwrap().count;
    assert!(summaries.clone().all(|event| event.target.as_ref().unwrap().pod.is_some()));
    assert_eq!(summaries.map(count).sum::<u64>(), folded as u64);
    let message = &told.iter().find(|event| event.kind == Kind::EventsThrottled).unwrap().message;
    assert!(message.ends_with("link.changed events of pod lijiaob/etcd1-0"), "{message}");
}
