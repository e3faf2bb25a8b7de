//! Changes of one namespace leave in the order in which they happened.

use super::*;

fn deleted(last: u8) -> Fact {
    let mut one = change(NeighborOp::Deleted, NeighborCause::Admin);
    one.key.address = [10, 0, 0, last].into();
    Fact::Neighbor(Box::new(one))
}

fn link() -> LinkFacts {
    LinkFacts { netns: POD, ifindex: 2, ifname: "eth0".into(), flags: iff::UP, ..LinkFacts::default() }
}

#[test]
fn a_change_does_not_overtake_one_that_waits_for_its_namespace_to_be_read() {
    let mut core = core();
    let Fact::Netns(bare) = snapshot(POD) else { unreachable!() };
    let tables = || Fact::Netns(Box::new(NetnsSnapshot { links: vec![link()], ..(*bare).clone() }));
    core.observe(at(0, tables()));
    core.observe(at(1_000 * MS, Fact::Link(Box::new(LinkFacts { flags: 0, ..link() }))));
    core.take_output().for_each(drop);
    // Just after a change of the link the model is not sure; a second later it is.
    core.observe(at(1_900 * MS, deleted(1)));
    assert_eq!(requests(&mut core), [Request::Netns { netns: POD }]);
    core.observe(at(2_100 * MS, deleted(2)));
    assert!(events(&mut core).is_empty());
    core.observe(at(2_110 * MS, tables()));
    let order = events(&mut core).into_iter().filter_map(|event| event.neighbor);
    let order: Vec<String> = order.map(|neighbor| neighbor.address.to_string()).collect();
    assert_eq!(order, ["10.0.0.1", "10.0.0.2"]);
}
