use super::*;

#[test]
fn a_gateway_of_a_namespace_that_sends_no_messages_is_looked_up_for_each_event() {
    let mut core = core();
    let unheard = |foreign_userns, gateway: &str| {
        let routes = vec![RouteFacts::default_via(POD, gateway.parse().unwrap(), 2)];
        let bare = NetnsSnapshot::empty(POD);
        Fact::Netns(Box::new(NetnsSnapshot { unheard: true, foreign_userns, routes, ..bare }))
    };
    let gateways = |core: &mut Core| -> Vec<Option<bool>> {
        let events = core.take_output().filter_map(|output| match output {
            Output::Event(event) => event.neighbor.filter(|_| event.kind == Kind::NeighborDeleted),
            Output::Request(request) => panic!("{request:?}"),
        });
        events.map(|entry| entry.gateway).collect()
    };
    core.observe(at(1, status("netlink", true)));
    core.observe(at(1, status("docker", false)));
    core.observe(at(2, unheard(false, "169.254.1.1")));
    events(&mut core);
    core.observe(at(10, deletion(NeighborCause::Admin)));
    assert_eq!(requests(&mut core), [Request::Netns { netns: POD }]);
    core.observe(at(11, unheard(false, "169.254.1.1")));
    assert_eq!(gateways(&mut core), [Some(true)]);
    core.observe(at(20, deletion(NeighborCause::Admin)));
    assert_eq!(requests(&mut core), [Request::Netns { netns: POD }]);
    core.observe(at(21, unheard(false, "169.254.1.9")));
    assert_eq!(gateways(&mut core), [None], "nobody knows when the route changed");
    core.observe(at(22, unheard(true, "169.254.1.1")));
    requests(&mut core);
    core.observe(at(5_000_000_000, deletion(NeighborCause::Admin)));
    assert_eq!(gateways(&mut core), [None], "any user can make as many as they like");
}

#[test]
fn what_waits_for_a_namespace_is_not_judged_by_the_next_one_of_its_number() {
    let of = |cookie| {
        let Fact::Netns(tables) = snapshot(POD) else { unreachable!() };
        Fact::Netns(Box::new(NetnsSnapshot { unheard: true, cookie: Some(cookie), ..*tables }))
    };
    let mut core = core();
    for fact in [of(1), container(ContainerState::Running), task("/system.slice/kubelet.service")] {
        core.observe(at(1, fact));
    }
    events(&mut core);
    core.observe(at(10, deletion(NeighborCause::Admin)));
    assert_eq!(requests(&mut core), [Request::Netns { netns: POD }]);
    core.observe(at(11, of(2)));
    let [event] = &events(&mut core)[..] else { panic!("not one event") };
    assert_eq!(event.neighbor.as_ref().unwrap().gateway, None);
    assert_eq!(event.target.as_ref().unwrap().container.as_ref().map(|one| &*one.id), Some(ID));
}

/// A deletion in the namespace with this cookie.
fn deletion_in(half: u32) -> Fact {
    let change = change(NeighborOp::Deleted, NeighborCause::Admin);
    Fact::Neighbor(Box::new(NeighborChange { netns_cookie: Some(half), ..change }))
}

fn snapshot_of(cookie: u64) -> Fact {
    let Fact::Netns(tables) = snapshot(POD) else { unreachable!() };
    Fact::Netns(Box::new(NetnsSnapshot { cookie: Some(cookie), ..*tables }))
}

/// Gateway or not, and container.
type Said = (Option<bool>, Option<String>);

/// What was said of each deletion, and whether an incident was opened.
fn said(core: &mut Core) -> (Vec<Said>, bool) {
    let told = core.take_output().filter_map(|output| match output {
        Output::Event(event) => Some(*event),
        Output::Request(_) => None,
    });
    let (incidents, events): (Vec<Event>, Vec<Event>) = told.partition(|event| event.incident.is_some());
    let of_entry = |event: Event| {
        let container = event.target.as_ref().and_then(|target| target.container.as_ref());
        (event.neighbor.unwrap().gateway, container.map(|one| one.id.clone()))
    };
    let deletions = events.into_iter().filter(|event| event.kind == Kind::NeighborDeleted);
    (deletions.map(of_entry).collect(), !incidents.is_empty())
}

#[test]
fn what_happened_in_a_namespace_that_was_never_read_is_not_told_of_the_next_one_of_its_number() {
    let mut core = core();
    core.observe(at(1, task("/system.slice/kubelet.service")));
    events(&mut core);
    core.observe(at(10, deletion_in(1)));
    assert_eq!(said(&mut core), (vec![], false), "it is read first");
    core.observe(at(11, container(ContainerState::Running)));
    core.observe(at(12, snapshot_of(1 << 32 | 2)));
    assert_eq!(said(&mut core), (vec![(None, None)], false));
    // Whatever comes late, too.
    core.observe(at(13, deletion_in(1)));
    core.observe(at(14, snapshot_of(1 << 32 | 2)));
    assert_eq!(said(&mut core), (vec![(None, None)], false));
}

#[test]
fn what_happened_in_the_next_namespace_of_a_number_waits_until_that_is_read() {
    let mut core = core();
    for fact in [snapshot_of(1), task("/system.slice/kubelet.service")] {
        core.observe(at(1, fact));
    }
    events(&mut core);
    core.observe(at(10, deletion_in(2)));
    assert_eq!(requests(&mut core), [Request::Netns { netns: POD }]);
    core.observe(at(12, snapshot_of(2)));
    assert_eq!(said(&mut core).0, [(Some(true), None)]);
    core.observe(at(13, container(ContainerState::Running)));
    said(&mut core);
    core.observe(at(14, deletion_in(2)));
    assert_eq!(said(&mut core).0, [(Some(true), Some(ID.to_owned()))]);
}

#[test]
fn of_the_host_nothing_is_said_where_routes_were_missed() {
    let mut core = core();
    core.observe(at(1, snapshot(HOST)));
    core.observe(at(1, task("/system.slice/kubelet.service")));
    let of_host = |address: &str| {
        let mut one = change(NeighborOp::Deleted, NeighborCause::Admin);
        one.key = NeighborKey { netns: HOST, address: address.parse().unwrap(), ..one.key };
        Fact::Neighbor(Box::new(one))
    };
    let said = |core: &mut Core| events(core).into_iter().map(|event| event.neighbor.unwrap().gateway);
    core.observe(at(10, of_host("10.0.0.9")));
    assert_eq!(said(&mut core).collect::<Vec<_>>(), [Some(false)]);
    core.observe(at(30, Fact::NetnsMissed { since: 20 }));
    core.observe(at(40, of_host("10.0.0.9")));
    assert_eq!(said(&mut core).collect::<Vec<_>>(), [None], "it is not waited for, and not known");
}
