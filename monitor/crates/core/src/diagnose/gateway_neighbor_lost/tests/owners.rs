//! Whose gateway it is, where no runtime knows a container.

use super::*;

const NETNS: NsInum = 99;

fn owner(tgid: u32, cgroup: &str) -> NetnsOwner {
    NetnsOwner { tgid, start_ns: 5, comm: "nginx".into(), cgroup: Some(cgroup.into()) }
}

/// A namespace with a static gateway entry in which this process lives.
fn with_owner(owner: Option<NetnsOwner>) -> TestNode {
    let mut node = TestNode::with_running_pod();
    node.add_pod(NETNS, "veth1234567", NudState::PERMANENT);
    let tables = node.tables.get_mut(&NETNS).unwrap();
    (tables.owner, tables.cookie) = (owner, Some(4_097));
    node.observe_netns(HOST);
    node.observe_netns(NETNS);
    node.run_for(20 * S);
    node.events.clear();
    node
}

fn service() -> TestNode {
    with_owner(Some(owner(700, "/system.slice/web.service")))
}

#[test]
fn a_process_without_a_container_loses_its_gateway_like_any_other() {
    let mut node = service();
    node.delete_entry(NETNS, NeighborCause::Admin);
    assert_eq!(node.kinds(), ["incident.opened"]);
    let opened = node.last_incident();
    assert_eq!(
        opened.message,
        "the network namespace of nginx (pid 700, web.service) has lost its gateway 169.254.1.1: its static ARP \
         entry on eth0 was deleted by calico (pid 28997)"
    );
    let target = opened.target.as_ref().unwrap();
    assert_eq!((target.join, target.unit.as_deref()), (Join::Late, Some("web.service")));
    assert_eq!((target.process.as_ref().unwrap().pid, target.netns_cookie.as_deref()), (700, Some("4097")));
    node.run_for(61 * S);
    assert_eq!(node.open()[0].severity, Severity::Critical);
    let id = node.open()[0].id.clone();

    let mut again = TestNode::booted(node.resume_state());
    (again.tables, again.now) = (node.tables.clone(), node.now);
    again.start(vec![etcd_sandbox()]);
    assert_eq!(again.open().iter().map(|open| open.id.clone()).collect::<Vec<_>>(), [id]);
    again.set_entry(NETNS, Some((NudState::PERMANENT, Some(host_mac()))));
    again.run_for(3 * S);
    assert!(again.open().is_empty());
}

#[test]
fn nobody_loses_anything_where_nothing_lives() {
    let mut node = with_owner(None);
    node.delete_entry(NETNS, NeighborCause::Admin);
    node.run_for(200 * S);
    assert_eq!(node.kinds(), [""; 0]);
    assert_eq!(node.events[0].target.as_ref().unwrap().join, Join::Missed);
}

#[test]
fn the_last_process_that_leaves_closes_the_incident() {
    let mut node = service();
    node.delete_entry(NETNS, NeighborCause::Admin);
    node.tables.get_mut(&NETNS).unwrap().owner = Some(owner(701, "/"));
    node.run_for(5 * S);
    assert_eq!(node.open().len(), 1, "another one still lives there");
    node.tables.get_mut(&NETNS).unwrap().owner = None;
    node.run_for(2 * S);
    assert_eq!(node.last_incident().incident.as_ref().unwrap().close_reason, Some(CloseReason::SubjectGone));
}

#[test]
fn a_process_that_has_ended_before_is_no_subject() {
    let mut node = service();
    // The model still has it.
    node.tables.get_mut(&NETNS).unwrap().owner = None;
    node.delete_entry(NETNS, NeighborCause::Admin);
    node.run_for(100 * S);
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn a_process_that_came_after_the_deletion_has_lost_nothing() {
    let mut node = with_owner(None);
    node.delete_entry(NETNS, NeighborCause::Admin);
    let late = NetnsOwner { start_ns: node.now + S, ..owner(800, "/") };
    node.tables.get_mut(&NETNS).unwrap().owner = Some(late);
    node.observe_netns(NETNS);
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn a_process_that_came_only_to_delete_the_entry_does_not_live_there() {
    let mut node = with_owner(Some(owner(28_997, "/")));
    node.delete_entry(NETNS, NeighborCause::Admin);
    node.tables.get_mut(&NETNS).unwrap().owner = None;
    node.run_for(100 * S);
    assert_eq!(node.kinds(), [""; 0]);
    let mut node = with_owner(Some(owner(28_997, "/")));
    node.delete_entry(NETNS, NeighborCause::Admin);
    node.run_for(6 * S);
    assert_eq!(node.kinds(), ["incident.opened"], "unless it stays");
}

#[test]
fn what_users_do_in_a_namespace_of_their_own_is_a_notice_at_most() {
    for cgroup in
        ["/user.slice/user-1000.slice/session-3.scope", "/user.slice/user-1000.slice/docker-1.scope"]
    {
        let mut node =
            with_owner(Some(owner(700, &cgroup.replace("-1.scope", &format!("-{SANDBOX}.scope")))));
        node.tables.get_mut(&NETNS).unwrap().foreign_userns = true;
        node.observe_netns(NETNS);
        node.delete_entry(NETNS, NeighborCause::Admin);
        node.run_for(100 * S);
        assert!(node.events.iter().all(|event| event.severity <= Severity::Notice), "{:?}", node.kinds());
        assert_eq!(node.open()[0].severity, Severity::Notice);
    }
    // A container of the system is one in whatever user namespace.
    let mut node = with_owner(Some(owner(700, &format!("/system.slice/docker-{}.scope", "a".repeat(64)))));
    node.tables.get_mut(&NETNS).unwrap().foreign_userns = true;
    node.observe_netns(NETNS);
    node.delete_entry(NETNS, NeighborCause::Admin);
    assert_eq!(node.open()[0].severity, Severity::Warning);
}

#[test]
fn a_further_namespace_of_a_container_is_not_the_containers_own() {
    let mut node = with_owner(Some(owner(700, &format!("/system.slice/docker-{SANDBOX}.scope"))));
    node.delete_entry(NETNS, NeighborCause::Admin);
    let opened = node.last_incident();
    assert!(opened.message.starts_with("the network namespace of nginx (pid 700, "), "{}", opened.message);
    assert!(opened.target.as_ref().unwrap().container.is_none());
}

#[test]
fn another_namespace_with_the_same_inode_number_is_another_subject() {
    let mut node = service();
    node.delete_entry(NETNS, NeighborCause::Admin);
    let first = node.open()[0].id.clone();
    let tables = node.tables.get_mut(&NETNS).unwrap();
    (tables.owner, tables.cookie) = (Some(owner(900, "/")), Some(4_098));
    node.run_for(5 * S);
    assert_eq!(node.kinds(), ["incident.opened", "incident.closed"]);
    assert_eq!(node.last_incident().incident.as_ref().unwrap().close_reason, Some(CloseReason::SubjectGone));
    node.delete_entry(NETNS, NeighborCause::Admin);
    assert_ne!(node.open()[0].id, first);
}

#[test]
fn a_namespace_that_turns_out_to_be_a_containers_keeps_its_incident() {
    let mut node = service();
    node.delete_entry(NETNS, NeighborCause::Admin);
    let facts = sandbox(&"e".repeat(64), NETNS, "cam", "web-0", "uid");
    node.observe(Fact::Container(Box::new(facts)));
    node.run_for(5 * S);
    node.delete_entry(NETNS, NeighborCause::Admin);
    assert_eq!(node.open().len(), 1);
    assert_eq!(node.kinds().iter().filter(|kind| **kind == "incident.opened").count(), 1);
}

/// The sandbox of a pod that got the number of the namespace; it started at a time.
fn web(started_ns: Option<BootNs>) -> Fact {
    let facts = sandbox(&"e".repeat(64), NETNS, "cam", "web-0", "uid");
    Fact::Container(Box::new(ContainerFacts { started_ns, ..facts }))
}

#[test]
fn a_deletion_goes_with_its_namespace_and_not_to_the_next_one_of_its_number() {
    let mut node = with_owner(None);
    node.delete_entry(NETNS, NeighborCause::Admin);
    node.observe(Fact::NetnsGone { netns: NETNS });
    node.observe(web(None));
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn an_undecided_deletion_goes_with_its_namespace() {
    let mut node = with_owner(None);
    let tables = node.tables.get_mut(&NETNS).unwrap();
    let routes = std::mem::take(&mut tables.routes);
    let address = "192.168.252.66".parse().unwrap();
    tables.addresses = vec![AddressFacts { netns: NETNS, ifindex: 2, address, prefix_len: 32 }];
    node.observe_netns(NETNS);
    node.run_for(10 * S);
    // The route comes back about when the entry is deleted.
    node.observe(Fact::NetnsHeard { netns: NETNS, until: node.now });
    node.run_for(S);
    node.observe(Fact::NetnsStale { netns: NETNS, told: false });
    node.now -= S / 2;
    node.tables.get_mut(&NETNS).unwrap().routes = routes;
    node.observe(Fact::Neighbor(Box::new(deletion(NETNS, NeighborCause::Admin))));
    let deleted = node.events.iter().find(|event| event.kind == Kind::NeighborDeleted);
    assert_eq!(deleted.unwrap().neighbor.as_ref().unwrap().gateway, None);
    node.run_for(S);
    node.observe(Fact::NetnsGone { netns: NETNS });
    // The next one loses its entry while nobody sees it.
    node.tables.get_mut(&NETNS).unwrap().cookie = Some(4_098);
    node.observe_netns(NETNS);
    node.observe(web(None));
    node.run_for(20 * S);
    assert_eq!(node.kinds(), [""; 0]);
    node.set_entry(NETNS, None);
    node.observe_netns(NETNS);
    node.run_for(20 * S);
    let opened = node.last_incident();
    assert!(opened.actor.is_none(), "{}", opened.message);
}

#[test]
fn a_container_that_came_later_has_lost_what_is_missed_in_the_very_namespace() {
    for (cookie, expected) in [(4_097, vec!["incident.opened"]), (4_098, Vec::new())] {
        let mut node = with_owner(None);
        node.delete_entry(NETNS, NeighborCause::Admin);
        // Its network is set up before it starts; the end of a namespace may be told after the next one is used.
        let started = node.now + S;
        node.run_for(2 * S);
        let mut tables = node.tables.remove(&NETNS).unwrap();
        node.observe(web(Some(started)));
        assert_eq!(node.kinds(), [""; 0], "nobody has looked whether it is the same one");
        tables.cookie = Some(cookie);
        node.tables.insert(NETNS, tables);
        node.run_for(5 * S);
        assert_eq!(node.kinds(), expected, "{cookie}");
    }
}

#[test]
fn a_loss_in_a_namespace_that_another_one_followed_while_no_daemon_ran_is_not_resolved() {
    let of = |id: &str| Some(owner(700, &format!("/system.slice/docker-{}.scope", id.repeat(64))));
    let mut node = with_owner(of("a"));
    node.delete_entry(NETNS, NeighborCause::Admin);
    assert_eq!(node.open().len(), 1);
    let mut again = TestNode::booted(node.resume_state());
    (again.tables, again.now) = (node.tables.clone(), node.now);
    let tables = again.tables.get_mut(&NETNS).unwrap();
    (tables.owner, tables.cookie) = (of("b"), Some(4_098));
    again.set_entry(NETNS, Some((NudState::PERMANENT, Some(host_mac()))));
    again.start(vec![etcd_sandbox()]);
    again.run_for(5 * S);
    let reason = again.last_incident().incident.as_ref().unwrap().close_reason;
    assert_eq!(reason, Some(CloseReason::SubjectGone));
}

/// The process of a container that no runtime tells of, and one that was put into its namespace since, by `nsenter`.
fn left_behind() -> (NetnsOwner, NetnsOwner) {
    let of_container = owner(700, &format!("/system.slice/docker-{}.scope", "a".repeat(64)));
    let entered = NetnsOwner {
        tgid: 900,
        start_ns: 60 * S,
        comm: "sleep".into(),
        cgroup: Some("/system.slice/ssh.service".into()),
    };
    (of_container, entered)
}

#[test]
fn a_container_that_left_its_namespace_to_another_process_is_gone_and_that_one_has_lost_nothing() {
    for with_link in [false, true] {
        let (of_container, entered) = left_behind();
        let mut node = with_owner(Some(of_container));
        node.delete_entry(NETNS, NeighborCause::Admin);
        assert!(node.last_incident().message.starts_with("container aaaaaaaaaaaa has lost"));
        // It is restarted, in a namespace of its own.
        let tables = node.tables.get_mut(&NETNS).unwrap();
        tables.owner = Some(entered);
        if with_link {
            (tables.links, tables.routes) = Default::default();
            node.tables.get_mut(&HOST).unwrap().links.retain(|link| link.ifname != "veth1234567");
            node.observe(Fact::LinkGone { netns: NETNS, ifindex: 2, moved_to: None });
        }
        node.run_for(2 * S);
        let reason = node.last_incident().incident.as_ref().unwrap().close_reason;
        assert_eq!(reason, Some(CloseReason::SubjectGone));
        node.observe_netns(NETNS);
        node.run_for(200 * S);
        let opened = node.kinds().iter().filter(|kind| **kind == "incident.opened").count();
        assert_eq!((opened, node.open().len()), (1, 0), "{with_link}");
        if with_link {
            continue;
        }
        // What it loses itself is told.
        node.set_entry(NETNS, Some((NudState::PERMANENT, Some(host_mac()))));
        node.observe_netns(NETNS);
        node.delete_entry(NETNS, NeighborCause::Admin);
        let lost = node.last_incident();
        assert!(lost.message.starts_with("the network namespace of sleep (pid 900, "), "{}", lost.message);
    }
}

#[test]
fn a_process_that_is_older_than_the_container_and_came_to_it_does_not_end_it() {
    let (of_container, entered) = left_behind();
    let mut node = with_owner(Some(of_container));
    node.delete_entry(NETNS, NeighborCause::Admin);
    // It is the oldest one now, whoever else is there.
    node.tables.get_mut(&NETNS).unwrap().owner = Some(NetnsOwner { start_ns: 1, ..entered });
    node.run_for(10 * S);
    assert_eq!(node.kinds(), ["incident.opened"]);
}
