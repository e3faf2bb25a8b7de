use kevtmon_observation::{NeighborCause, NeighborChange, NeighborOp, NudState};

use super::*;

const GATEWAY: &str = "10.9.0.1";

async fn listening(netns: &Netns) -> Running {
    let config = NetlinkConfig { neighbors_live: true, ..NetlinkConfig::default() };
    let mut source = Running::start(config);
    source.snapshot(netns.inode).await;
    source.up().await;
    source
}

async fn change(source: &mut Running, netns: &Netns) -> NeighborChange {
    source
        .find(|fact| match fact {
            Fact::Neighbor(change) if change.key.netns == netns.inode => Some(*change),
            _ => None,
        })
        .await
}

fn add_gateway(netns: &Netns) {
    netns.ip(&format!("neigh replace {GATEWAY} lladdr ee:ee:ee:ee:ee:ee nud permanent dev eth0"));
}

#[tokio::test]
async fn a_permanent_entry_deleted_by_request_is_one_event_with_the_port_of_the_request() {
    let netns = Netns::new();
    netns.connect();
    let mut source = listening(&netns).await;
    netns.ip(&format!("neigh del {GATEWAY} dev eth0"));
    let deleted = change(&mut source, &netns).await;
    assert_eq!((deleted.op, deleted.cause), (NeighborOp::Deleted, NeighborCause::Admin));
    assert_eq!((deleted.old_state, deleted.new_state), (Some(NudState::PERMANENT), None));
    assert_eq!((deleted.ifname.as_str(), deleted.key.address), ("eth0", address(GATEWAY)));
    assert_eq!(deleted.lladdr.unwrap().to_string(), "ee:ee:ee:ee:ee:ee");
    assert!(deleted.netlink_port.is_some());
    add_gateway(&netns);
    let added = change(&mut source, &netns).await;
    assert_eq!(added.op, NeighborOp::Added, "the DELNEIGH that followed was no second event");
}

#[tokio::test]
async fn a_permanent_entry_that_is_overwritten_is_changed() {
    let netns = Netns::new();
    netns.connect();
    let mut source = listening(&netns).await;
    netns.ip(&format!("neigh replace {GATEWAY} lladdr aa:aa:aa:aa:aa:aa nud permanent dev eth0"));
    let replaced = change(&mut source, &netns).await;
    assert_eq!((replaced.op, replaced.cause), (NeighborOp::Changed, NeighborCause::Replaced));
    assert_eq!(replaced.new_lladdr.unwrap().to_string(), "aa:aa:aa:aa:aa:aa");
    netns.ip(&format!("neigh replace {GATEWAY} lladdr aa:aa:aa:aa:aa:aa nud reachable dev eth0"));
    let downgraded = change(&mut source, &netns).await;
    assert_eq!((downgraded.op, downgraded.new_lladdr), (NeighborOp::Changed, None));
    assert!(!downgraded.new_state.unwrap().is_permanent());
}

#[tokio::test]
async fn a_learned_entry_that_comes_and_goes_is_no_event() {
    let netns = Netns::new();
    netns.connect();
    let mut source = listening(&netns).await;
    netns.ip("neigh add 10.9.0.7 lladdr aa:aa:aa:aa:aa:aa nud stale dev eth0");
    netns.ip("neigh del 10.9.0.7 dev eth0");
    netns.ip(&format!("neigh del {GATEWAY} dev eth0"));
    assert_eq!(change(&mut source, &netns).await.key.address, address(GATEWAY));
}

#[tokio::test]
async fn what_happened_to_the_link_explains_the_loss_of_its_entries() {
    let netns = Netns::new();
    netns.connect();
    let mut source = listening(&netns).await;
    let restore = ["link set eth0 up", "addr replace 10.9.0.2/24 dev eth0"];
    for (done, cause) in [
        ("link set eth0 down", NeighborCause::LinkDown),
        ("link set eth0 address 02:00:00:00:00:07", NeighborCause::LladdrChanged),
        ("link set eth0 arp off", NeighborCause::Noarp),
        ("addr del 10.9.0.2/24 dev eth0", NeighborCause::LastAddressRemoved),
        ("link del eth0", NeighborCause::LinkDeleted),
    ] {
        netns.ip(done);
        let deleted = change(&mut source, &netns).await;
        assert_eq!((deleted.op, deleted.cause), (NeighborOp::Deleted, cause), "{done}");
        assert_eq!((deleted.old_state, deleted.netlink_port), (Some(NudState::PERMANENT), None), "{done}");
        if done.starts_with("link del") {
            break;
        }
        netns.ip("link set eth0 arp on");
        restore.iter().for_each(|words| netns.ip(words));
        add_gateway(&netns);
        assert_eq!(change(&mut source, &netns).await.op, NeighborOp::Added, "after {done}");
    }
}

#[tokio::test]
async fn a_pair_deleted_from_the_host_is_distinguished_from_a_link_set_down() {
    let netns = Netns::new();
    netns.connect();
    let mut source = listening(&netns).await;
    ip(&format!("link del {}", netns.veth()));
    assert_eq!(change(&mut source, &netns).await.cause, NeighborCause::LinkDeleted);
}
