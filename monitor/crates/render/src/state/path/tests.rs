//! A pod as a path: what is broken is marked, and no name makes a line wider than a terminal.

use jiff::tz::TimeZone;
use kevtmon_core::state::PodIncident;

use super::*;

fn shown(state: &NodeState, index: usize) -> String {
    let clock = Clock { now: "2026-01-02T03:05:00Z".parse().unwrap(), zone: TimeZone::UTC };
    pod(state, &state.pods[index], &Pretty { colour: false, zone: TimeZone::UTC }, &clock)
}

fn hop(netns: u32, ifname: &str, facts: &[&str], broken: &[&str]) -> Hop {
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    Hop { netns, ifname: ifname.into(), facts: owned(facts), broken: owned(broken), ..Hop::default() }
}

fn state() -> NodeState {
    let mut state = crate::test_support::node_state::state();
    let host = state.host_netns;
    let gateway = Some("169.254.1.1".parse().unwrap());
    state.pods[0].path = vec![
        hop(71, "eth0", &["192.168.252.66/32"], &["up, but without carrier"]),
        Hop { gateway, ..hop(71, "eth0", &[], &["failed: nothing answers"]) },
        hop(host, "cali9118ebbb10b", &["forwarding 1", "proxy_arp 1"], &["down"]),
    ];
    state.pods[0].made_by =
        Some(MadeBy { plugin: "/opt/cni/bin/calico".into(), time: "2026-01-02T02:21:27Z".into() });
    state.pods[0].incidents = vec![PodIncident {
        id: "052deb820cbc3596".into(),
        kind: "gateway-neighbor-lost".into(),
        summary: "pod a/web cannot reach its gateway 169.254.1.1".into(),
    }];
    state.uplinks = vec![Hop {
        gateway: Some("10.0.0.254".parse().unwrap()),
        ..hop(host, "eno1", &["up", "10.0.0.7/24"], &[])
    }];
    state
}

#[test]
fn a_path_leads_from_the_pod_to_the_uplink_and_marks_what_is_broken() {
    let expected = "\
pod a/web
   in network namespace 71, made by calico at 02:21:27
!! eth0                 up, but without carrier, 192.168.252.66/32
!!   via 169.254.1.1    failed: nothing answers
   on node slave-197
!! cali9118ebbb10b      down, forwarding 1, proxy_arp 1
   eno1                 up, 10.0.0.7/24, default route via 10.0.0.254

   open  gateway-neighbor-lost pod a/web cannot reach its gateway 169.254.1.1
         kevtmon why 052deb820cbc3596
";
    assert_eq!(shown(&state(), 0), expected);
}

#[test]
fn what_leaves_past_the_routes_of_the_node_comes_to_none_of_its_uplinks() {
    let mut state = state();
    let routed = state.pods[0].path[2].clone();
    let below =
        Hop { unrouted: true, ..hop(state.host_netns, "eno2", &["up", "the device below eth0"], &[]) };
    state.pods[0].path[2] = below.clone();
    let text = shown(&state, 0);
    assert!(text.contains("eno2") && !text.contains("eno1"), "{text}");
    state.pods[0].path.push(routed);
    let text = shown(&state, 0);
    assert!(text.contains("eno2") && text.contains("eno1"), "{text}");
}

#[test]
fn a_pod_that_no_runtime_tells_of_says_by_what_it_is_known() {
    let mut state = state();
    assert!(!shown(&state, 0).contains("no runtime"));
    state.pods[0].known_by = KnownBy::Cgroup;
    assert!(shown(&state, 0).contains("a process in its network is in its control group"));
    state.pods[0].known_by = KnownBy::Directory;
    assert!(shown(&state, 0).contains("the kubelet has its directory; it may have ended"));
}

#[test]
fn a_pod_without_a_network_of_its_own_has_that_of_the_node() {
    let mut state = state();
    state.pods[1].netns = None;
    let text = shown(&state, 1);
    assert!(text.contains("it has no network of its own, or its network is unknown"), "{text}");
    assert!(text.contains("eno1") && !text.contains(MARK), "{text}");
}

#[test]
fn long_names_and_many_facts_are_wrapped() {
    let mut state = state();
    state.pods[0].pod.name = Some("deployment".repeat(20));
    let gateway = Some("2001:db8:85a3:8d3:1319:8a2e:370:7348".parse().unwrap());
    let facts = ["2001:db8:85a3:8d3:1319:8a2e:370:7348/64"; 5];
    state.pods[0].path.push(Hop { gateway, ..hop(71, "eth0", &facts, &["wrong\u{1b}[2J"]) });
    for line in shown(&state, 0).lines() {
        assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
        assert!(!line.contains('\u{1b}'), "{line:?}");
    }
}
