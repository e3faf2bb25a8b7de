//! Losses for whose incidents there is no room, or that come in masses.

use super::*;

/// As many as there are incidents of one pod.
const MANY: u8 = 128;

fn router(number: u8) -> IpAddr {
    [169, 254, 2, number].into()
}

fn delete(node: &mut TestNode, netns: NsInum, address: IpAddr) {
    let mut change = deletion(netns, NeighborCause::Admin);
    change.key.address = address;
    node.observe(Fact::Neighbor(Box::new(change)));
}

/// A pod that shares its default route among many gateways and loses all but the first.
fn with_many_lost() -> TestNode {
    let mut node = TestNode::with_running_pod();
    let tables = node.tables.get_mut(&ETCD).unwrap();
    tables.addresses = vec![AddressFacts {
        netns: ETCD,
        ifindex: 2,
        address: "192.168.252.66".parse().unwrap(),
        prefix_len: 32,
    }];
    let hop = |number: u8| RouteFacts {
        hop: u16::from(number) + 2,
        ..RouteFacts::default_via(ETCD, router(number), 2)
    };
    tables.routes[0].hop = 1;
    tables.routes.extend((0..MANY).map(hop));
    node.observe_netns(ETCD);
    node.run_for(10 * S);
    for number in 0..MANY {
        delete(&mut node, ETCD, router(number));
    }
    assert_eq!(node.open().len(), usize::from(MANY));
    node
}

#[test]
fn a_loss_for_which_there_is_no_room_is_told_with_its_actor_once_there_is() {
    let mut node = with_many_lost();
    node.delete_entry(ETCD, NeighborCause::Admin);
    assert_eq!(node.open().len(), usize::from(MANY));
    let seq = node.events.last().unwrap().seq;
    // The way by the others is given up: none of them is missed any more, which the routes alone show.
    node.tables.get_mut(&ETCD).unwrap().routes.truncate(1);
    node.observe_netns(ETCD);
    assert_eq!(node.open().len(), 0);
    node.run_for(2 * S);
    assert_eq!(node.open().len(), 1);
    let opened = node.last_incident();
    assert_eq!(opened.actor.as_ref().map(|actor| actor.pid), Some(28_997), "{}", opened.message);
    let incident = opened.incident.as_ref().unwrap();
    assert_eq!((incident.confidence, &incident.evidence), (Confidence::Certain, &vec![seq]));
}

#[test]
fn many_losses_in_one_namespace_make_it_no_less_often_read() {
    let mut node = with_many_lost();
    node.run_for(2 * S);
    node.requests.clear();
    node.run_for(15 * S);
    assert!((9..=10).contains(&node.requests.len()), "{:?}", node.requests);
}

#[test]
fn what_is_deleted_in_one_pod_displaces_nothing_that_was_seen_in_another() {
    const OTHER: NsInum = 100;
    let mut node = TestNode::booted(Resume::default());
    for netns in [ETCD, OTHER] {
        node.add_pod(netns, &format!("cali9118ebbb{netns:03x}"), NudState::PERMANENT);
    }
    let other = sandbox(&format!("{OTHER:064x}"), OTHER, "lijiaob", "web-0", "uid-0");
    node.start(vec![etcd_sandbox(), other]);
    node.run_for(10 * S);
    let routes = std::mem::take(&mut node.tables.get_mut(&ETCD).unwrap().routes);
    node.observe_netns(ETCD);
    node.run_for(10 * S);
    for netns in [ETCD, OTHER] {
        node.observe(Fact::NetnsHeard { netns, until: node.now });
    }
    node.run_for(S);
    for netns in [ETCD, OTHER] {
        node.observe(Fact::NetnsStale { netns, told: false });
    }
    // All before that.
    node.now -= S / 2;
    node.tables.get_mut(&ETCD).unwrap().routes = routes;
    node.observe(Fact::Neighbor(Box::new(deletion(ETCD, NeighborCause::Admin))));
    for number in 0..200 {
        delete(&mut node, OTHER, router(number));
    }
    node.set_entry(ETCD, None);
    node.run_for(2 * S);
    node.observe_netns(ETCD);
    node.run_for(10 * S);
    assert_eq!(node.open().len(), 1, "{:?}", node.kinds());
    let opened = node.last_incident();
    assert_eq!(opened.actor.as_ref().map(|actor| actor.pid), Some(28_997), "{}", opened.message);
    assert_eq!(opened.incident.as_ref().unwrap().confidence, Confidence::Certain);
}
