use kevtmon_observation::RuleAction::{Goto, Lookup, Refuse};
use kevtmon_observation::{Loss, NudState, PeerLink, PolicyRule};
use netlink_packet_core::{NLM_F_EXCL, NLM_F_REPLACE, NetlinkMessage};
use netlink_packet_route::link::{InfoData, InfoKind, InfoVrf, LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use tokio::sync::mpsc;

use super::super::message::{Change, DecodeError, decode, messages};
use super::super::route::{Rule, policy_rule};
use super::super::socket::Subscription;
use super::super::stream::Stream;
use super::*;

fn bytes(message: RouteNetlinkMessage, flags: u16, port: u32) -> Vec<u8> {
    let mut message = NetlinkMessage::from(message);
    message.header.flags = flags;
    message.header.port_number = port;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

fn decoded(datagram: &[u8]) -> Result<Vec<Change>, DecodeError> {
    messages(datagram).map(|message| decode(1, &message?)).collect()
}

fn route() -> RouteMessage {
    let mut route = RouteMessage::default();
    route.header.address_family = AddressFamily::Inet;
    route.header.table = RouteHeader::RT_TABLE_MAIN;
    route.header.kind = RouteType::Unicast;
    route.attributes =
        vec![RouteAttribute::Gateway(RouteAddress::Inet([10, 0, 0, 1].into())), RouteAttribute::Oif(3)];
    route
}

fn neighbor() -> NeighbourMessage {
    let mut neighbor = NeighbourMessage::default();
    neighbor.header.family = AddressFamily::Inet;
    neighbor.header.ifindex = 2;
    neighbor.header.state = NeighbourState::Permanent;
    neighbor.attributes = vec![
        NeighbourAttribute::Destination(address("169.254.1.1").into()),
        NeighbourAttribute::LinkLayerAddress(vec![0xee; 6]),
    ];
    neighbor
}

fn named_link(family: AddressFamily) -> LinkMessage {
    let mut link = LinkMessage::default();
    link.header.interface_family = family;
    link.header.index = 5;
    link.attributes = vec![LinkAttribute::IfName("eth0".into()), LinkAttribute::Controller(9)];
    link
}

#[test]
fn every_message_of_a_datagram_is_read() {
    let mut datagram = bytes(RouteNetlinkMessage::NewRoute(route()), NLM_F_EXCL, 0);
    datagram.extend(bytes(RouteNetlinkMessage::NewNeighbour(neighbor()), 0, 77));
    let changes = decoded(&datagram).unwrap();
    let [Change::Route { routes, alone: true, .. }, Change::Neighbor { entry, port: 77 }] = &changes[..]
    else {
        panic!("{changes:?}")
    };
    assert_eq!((routes[0].gateway, routes[0].destination), (Some(address("10.0.0.1")), None));
    assert_eq!((entry.state, entry.address), (NudState::PERMANENT, address("169.254.1.1")));
}

#[test]
fn who_asked_for_a_change_of_routes_is_told_by_the_port() {
    let put = |flags, port| match &decoded(&bytes(RouteNetlinkMessage::NewRoute(route()), flags, port))
        .unwrap()[..]
    {
        [Change::Route { replaces, .. }] => *replaces,
        other => panic!("{other:?}"),
    };
    assert!(put(NLM_F_REPLACE, 77));
    assert!(!put(NLM_F_REPLACE, 0), "the kernel itself");
    assert!(!put(0, 77), "beside others");
    let gone = |port| match &decoded(&bytes(RouteNetlinkMessage::DelRoute(route()), 0, port)).unwrap()[..] {
        [Change::RouteGone { asked, .. }] => *asked,
        other => panic!("{other:?}"),
    };
    assert!(gone(77));
    assert!(!gone(0), "it went with its interface");
}

#[test]
fn a_bridge_port_that_leaves_its_bridge_is_no_deleted_link() {
    let bridge = bytes(RouteNetlinkMessage::DelLink(named_link(AddressFamily::Bridge)), 0, 0);
    assert_eq!(decoded(&bridge).unwrap(), [Change::Other]);
    let deleted = bytes(RouteNetlinkMessage::DelLink(named_link(AddressFamily::Unspec)), 0, 0);
    assert_eq!(decoded(&deleted).unwrap(), [Change::LinkGone { ifindex: 5, moved_to: None, was_vrf: false }]);
}

#[test]
fn of_other_tables_only_default_routes_are_observed_and_only_unicast_ones() {
    let decode = |message| decoded(&bytes(RouteNetlinkMessage::NewRoute(message), 0, 0)).unwrap();
    let mut numbered = route();
    numbered.attributes.push(RouteAttribute::Table(1000));
    let [Change::Route { routes, .. }] = &decode(numbered.clone())[..] else { panic!("no route") };
    assert_eq!((routes[0].table, routes[0].destination), (1000, None));
    numbered.header.destination_prefix_length = 24;
    let mut unreachable = route();
    unreachable.header.kind = RouteType::Unreachable;
    let [Change::Route { routes, .. }] = &decode(unreachable.clone())[..] else { panic!("no route") };
    assert_eq!((routes[0].gateway, routes[0].ifindex), (None, None), "it hides worse ones");
    assert!(routes[0].refuses && !routes[0].throws, "packets go nowhere");
    unreachable.header.kind = RouteType::Throw;
    let [Change::Route { routes, .. }] = &decode(unreachable.clone())[..] else { panic!("no route") };
    assert!(routes[0].throws, "packets go on to the next rule");
    unreachable.header.destination_prefix_length = 24;
    for message in [numbered, unreachable] {
        assert_eq!(decode(message), [Change::Other]);
    }
}

#[test]
fn half_of_a_default_route_has_a_destination_though_the_kernel_leaves_it_out() {
    let mut half = route();
    half.header.destination_prefix_length = 1;
    let half = decoded(&bytes(RouteNetlinkMessage::NewRoute(half), 0, 0)).unwrap();
    let [Change::Route { routes, .. }] = &half[..] else { panic!("{half:?}") };
    assert_eq!(routes[0].destination, Some((address("0.0.0.0"), 1)));
}

#[test]
fn a_multicast_neighbor_is_noise() {
    let mut noise = neighbor();
    noise.attributes[0] = NeighbourAttribute::Destination(address("224.0.0.22").into());
    let noise = bytes(RouteNetlinkMessage::DelNeighbour(noise), 0, 0);
    assert_eq!(decoded(&noise).unwrap(), [Change::Other]);
}

#[test]
fn a_name_that_is_not_utf_8_does_not_cost_the_link() {
    let mut link = bytes(RouteNetlinkMessage::NewLink(named_link(AddressFamily::Unspec)), 0, 0);
    let name = link.windows(4).position(|window| window == b"eth0").unwrap();
    link[name] = 0xff;
    let [Change::Link(link)] = &decoded(&link).unwrap()[..] else { panic!("no link") };
    assert_eq!(link.facts.ifname, "\u{fffd}th0");
    assert_eq!(link.facts.master, Some(9));
}

#[test]
fn cut_and_garbled_bytes_are_errors_or_nothing_but_never_a_panic() {
    let mut sample = bytes(RouteNetlinkMessage::NewLink(named_link(AddressFamily::Unspec)), 0, 0);
    sample.extend(bytes(RouteNetlinkMessage::NewRoute(route()), 0, 0));
    sample.extend(bytes(RouteNetlinkMessage::NewNeighbour(neighbor()), 0, 0));
    for length in 1..sample.len() {
        let cut = decoded(&sample[..length]);
        assert!(cut.is_err() || cut.unwrap().len() < 3);
    }
    // A linear congruential generator: the same garbage in every run.
    let mut seed = 1_u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 40).unwrap()
    };
    for _ in 0..50_000 {
        let mut garbled = sample.clone();
        for _ in 0..=random() % 8 {
            let at = random() % garbled.len();
            garbled[at] = u8::try_from(random() % 256).unwrap();
        }
        let _ = decoded(&garbled);
        let kinds = [16_u8, 17, 20, 21, 24, 25, 28, 29, 32, 33, 88, 89, 104, 105];
        garbled[4] = kinds[random() % kinds.len()];
        garbled[5] = 0;
        let _ = decoded(&garbled);
    }
}

#[test]
fn a_next_hop_that_lies_about_its_length_is_an_error() {
    let mut multipath = route();
    let liar = netlink_packet_core::DefaultNla::new(libc::RTA_MULTIPATH, vec![200, 0, 0, 0, 3, 0, 0, 0]);
    multipath.attributes = vec![RouteAttribute::Other(liar)];
    let message = bytes(RouteNetlinkMessage::NewRoute(multipath), 0, 0);
    assert!(decoded(&message).is_err());
}

#[tokio::test]
async fn a_message_that_does_not_decode_is_counted_and_followed_by_a_resync() {
    let config = NetlinkConfig::default();
    let subscription = Subscription::open(config.receive_buffer, &[]).unwrap();
    let host = super::super::discover::own_namespace(&Proc::default()).unwrap();
    let (tx, facts) = mpsc::channel(64);
    let (requests, asked) = mpsc::channel(1);
    let socket = subscription.watch().unwrap();
    let mut stream = Stream::new(config, Proc::default().into(), host, socket, tx);
    stream.changed(None, b"this is no netlink message", 0).await;
    let (barriers, waited) = mpsc::channel(1);
    tokio::spawn(stream.run(asked, waited));
    let mut running = Running { host, facts, requests, barriers };
    let lost = Loss { source: "netlink".into(), reason: "decode".into(), count: Some(1) };
    assert_eq!(running.next().await, Fact::Lost(lost));
    let host = running.host;
    running.snapshot(host).await;
    let resync = Fact::Resync { source: "netlink".into(), reason: "decode".into() };
    running.find(|fact| (fact == resync).then_some(())).await;
    drop(running.requests);
}

#[test]
fn the_table_of_a_vrf_and_a_rule_by_device_are_seen() {
    let mut vrf = named_link(AddressFamily::Unspec);
    vrf.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Vrf),
        LinkInfo::Data(InfoData::Vrf(vec![InfoVrf::TableId(77)])),
    ]));
    let new = bytes(RouteNetlinkMessage::NewLink(vrf.clone()), 0, 0);
    let [Change::Link(link)] = &decoded(&new).unwrap()[..] else { panic!("no link") };
    assert_eq!(link.vrf_table, Some(77));
    let gone = decoded(&bytes(RouteNetlinkMessage::DelLink(vrf), 0, 0)).unwrap();
    assert!(matches!(gone[..], [Change::LinkGone { was_vrf: true, .. }]), "{gone:?}");
    let mut rule = RuleMessage::default();
    rule.header.family = AddressFamily::Inet6;
    rule.header.action = RuleAction::ToTable;
    let decode =
        |rule: &RuleMessage| decoded(&bytes(RouteNetlinkMessage::NewRule(rule.clone()), 0, 0)).unwrap();
    rule.attributes = vec![RuleAttribute::L3MDev(true)];
    let by_device =
        Rule { ipv6: true, table: None, priority: 0, matches_all: false, action: Lookup, suppresses: None };
    assert_eq!(decode(&rule), [Change::Rule(by_device)]);
    rule.attributes = vec![RuleAttribute::Table(300), RuleAttribute::Priority(7)];
    let found = Rule { table: Some(300), priority: 7, matches_all: true, ..by_device };
    assert_eq!(decode(&rule), [Change::Rule(found)]);
    let mut marked = rule.clone();
    marked.attributes.push(RuleAttribute::FwMark(9));
    assert_eq!(decode(&marked), [Change::Rule(Rule { matches_all: false, ..found })]);
    rule.attributes.push(RuleAttribute::SuppressPrefixLen(0));
    assert_eq!(decode(&rule), [Change::Rule(Rule { suppresses: Some(0), ..found })]);
    rule.header.action = RuleAction::Unreachable;
    assert!(matches!(decode(&rule)[..], [Change::Rule(Rule { action: Refuse, .. })]));
    rule.header.action = RuleAction::Goto;
    rule.attributes.push(RuleAttribute::Goto(9));
    assert!(matches!(decode(&rule)[..], [Change::Rule(Rule { action: Goto(9), .. })]));
}

/// As the kernel lays them out (rtnl_fill_ifinfo, net/core/rtnetlink.c): not every kernel has all these kinds.
#[test]
fn a_link_has_another_end_or_a_device_below_or_neither_by_its_kind() {
    let other = |kind: Option<&str>, other: Option<u32>, nsid: Option<i32>| {
        let mut link = named_link(AddressFamily::Unspec);
        link.attributes.extend(other.map(LinkAttribute::Link));
        link.attributes.extend(nsid.map(LinkAttribute::LinkNetNsId));
        let info = kind.map(|kind| vec![LinkInfo::Kind(InfoKind::Other(kind.to_owned()))]);
        link.attributes.extend(info.map(LinkAttribute::LinkInfo));
        let decoded = decoded(&bytes(RouteNetlinkMessage::NewLink(link), 0, 0)).unwrap();
        let [Change::Link(link)] = &decoded[..] else { panic!("{decoded:?}") };
        (link.facts.peer.clone(), link.facts.lower.clone(), link.other_nsid)
    };
    let here = Some(PeerLink { ifindex: 7, netns: Some(1) });
    let elsewhere = Some(PeerLink { ifindex: 7, netns: None });
    for kind in ["veth", "netkit"] {
        assert_eq!(other(Some(kind), Some(7), Some(3)), (elsewhere.clone(), None, Some(3)), "{kind}");
        assert_eq!(other(Some(kind), Some(7), None), (here.clone(), None, None), "{kind}");
        assert_eq!(other(Some(kind), Some(0), None), (None, None, None), "{kind} of which one end is gone");
    }
    for kind in ["ipvlan", "macvlan", "ipvtap", "macvtap", "vlan"] {
        assert_eq!(other(Some(kind), Some(7), Some(3)), (None, elsewhere.clone(), Some(3)), "{kind}");
    }
    // A tunnel stays without the device below; a virtual function of a card is a link like any physical one.
    assert_eq!(other(Some("vxlan"), Some(7), Some(3)), (None, None, None));
    assert_eq!(other(None, None, None), (None, None, None));
}

#[test]
fn a_rule_by_addresses_or_interfaces_is_told_with_what_it_selects() {
    let told = |message: RouteNetlinkMessage| {
        let datagram = bytes(message, 0, 0);
        policy_rule(1, &messages(&datagram).next().unwrap().unwrap())
    };
    let mut rule = RuleMessage::default();
    rule.header.family = AddressFamily::Inet;
    rule.header.action = RuleAction::ToTable;
    rule.header.src_len = 32;
    rule.attributes = vec![
        RuleAttribute::Source(address("10.0.0.5")),
        RuleAttribute::Table(300),
        RuleAttribute::Priority(7),
        RuleAttribute::SuppressPrefixLen(0),
    ];
    let from = Some((address("10.0.0.5"), 32));
    let plain = PolicyRule { netns: 1, priority: 7, from, table: 300, ..PolicyRule::default() };
    assert_eq!(told(RouteNetlinkMessage::NewRule(rule.clone())), Some((plain.clone(), true)));
    assert_eq!(told(RouteNetlinkMessage::DelRule(rule.clone())), Some((plain.clone(), false)));
    rule.header.flags = RuleFlags::Invert | RuleFlags::IifDetached;
    rule.attributes.extend([RuleAttribute::Iifname("cali0".into()), RuleAttribute::FwMark(9)]);
    let more = PolicyRule { iif: Some("cali0".into()), has_more: true, is_inverse: true, ..plain };
    assert_eq!(told(RouteNetlinkMessage::NewRule(rule.clone())), Some((more, true)));
    rule.attributes = vec![RuleAttribute::Table(300), RuleAttribute::FwMark(9)];
    assert_eq!(told(RouteNetlinkMessage::NewRule(rule)), None, "by a mark alone");
    assert_eq!(told(RouteNetlinkMessage::NewRoute(route())), None);
}

#[test]
fn a_rule_that_no_packet_can_match_is_none() {
    let decode =
        |rule: &RuleMessage| decoded(&bytes(RouteNetlinkMessage::NewRule(rule.clone()), 0, 0)).unwrap();
    let mut rule = RuleMessage::default();
    rule.header.family = AddressFamily::Inet;
    rule.header.action = RuleAction::ToTable;
    rule.attributes = vec![RuleAttribute::Table(300), RuleAttribute::Iifname("gone0".into())];
    assert!(matches!(decode(&rule)[..], [Change::Rule(Rule { matches_all: false, .. })]));
    rule.header.flags = RuleFlags::IifDetached;
    assert_eq!(decode(&rule), [Change::Other]);
    rule.header.flags = RuleFlags::IifDetached | RuleFlags::Invert;
    assert!(matches!(decode(&rule)[..], [Change::Rule(Rule { matches_all: true, .. })]));
    rule.attributes.pop();
    rule.header.flags = RuleFlags::Invert;
    assert_eq!(decode(&rule), [Change::Other], "not all");
}

#[test]
fn a_route_by_nexthop_object_matters_only_if_it_is_a_default_route() {
    let mut route = route();
    let object = netlink_packet_core::DefaultNla::new(30, 5_u32.to_ne_bytes().to_vec());
    route.attributes = vec![RouteAttribute::Other(object)];
    let decode =
        |route: &RouteMessage| decoded(&bytes(RouteNetlinkMessage::NewRoute(route.clone()), 0, 0)).unwrap();
    assert!(matches!(&decode(&route)[..], [Change::RouteByObject { nexthop: 5, .. }]));
    route.header.destination_prefix_length = 24;
    assert_eq!(decode(&route), [Change::Other]);
}
