//! What one user can have the core do, counted: requests, events, what waits.

use super::*;

/// Seconds between two attempts of the flood.
const PAUSE: u64 = 5 * MS;

/// A core that knows the host's mount namespace.
fn core_of_node() -> Core {
    let mut core = settled();
    let host = KubeletNamespace { mntns: 2, roots: vec!["/var/lib/kubelet".into()], of_kubelet: false };
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
                    let presence = MountPresence { id, present: Some(true), reason: None };
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
    let caused = flood(&mut core, names, |_| unreachable!());
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
    assert!(of_users.iter().all(|event| event.charge.standing == crate::event::Standing::Foreign));
    core.observe(at(20_001 * MS, deletion(NeighborCause::Admin)));
    core.observe(at(20_002 * MS, snapshot(POD)));
    let of_pod = opened(&mut core);
    assert_eq!(of_pod.len(), 1);
    assert_eq!(of_pod[0].charge.standing, crate::event::Standing::Known);
    // It is read again as soon as if it were the only one.
    core.observe(at(21_600 * MS, Fact::Tick));
    let (_, requested) = take(&mut core);
    assert!(requested.contains(&Request::Netns { netns: POD }), "{requested:?}");
}
