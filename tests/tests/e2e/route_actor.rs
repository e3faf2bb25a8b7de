//! Who had a route, an address or a routing rule added or deleted: the kernel's own word for it, where it allows a program at the start of a
//! function of its own (`fentry` or a kprobe), or nobody's.

use std::process;
use std::thread;

use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::netns::{NetnsPath, made_at};
use kevtmon_tests::own_node::OwnNode;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::run;
use kevtmon_tests::random::Random;

fn host() -> NetnsPath {
    NetnsPath::of_process(process::id())
}

/// Whether this kernel lets the daemon see who it is.
fn is_told(daemon: &Daemon) -> bool {
    !daemon.log().lines().any(|line| line.contains("does without") && line.contains("rtnl_notify"))
}

/// That this process is named, and in the sentence, too; or nobody.
fn expect_actor(daemon: &Daemon, event: &Event, pid: u32) {
    if is_told(daemon) {
        event.expect("/actor/pid", pid);
        event.expect("/actor/source", "kernel");
        event.expect("/actor/confidence", "certain");
        assert!(event.text("/message").ends_with(", by means of ip"), "{event}");
    } else {
        expect_nobody(event);
    }
}

fn expect_nobody(event: &Event) {
    event.expect_none("/actor");
    assert!(!event.text("/message").contains(" by means of "), "{event}");
}

/// Whether it is about a route, an address or a rule in this namespace, and not in a former one of that number.
fn is_in(event: &Event, netns: u64) -> bool {
    let pointers = ["/route/netns", "/address/netns", "/rule/netns"];
    pointers.into_iter().find_map(|pointer| event.number(pointer)) == Some(netns)
        && event.seconds() >= made_at(netns)
}

fn wait_for(daemon: &mut Daemon, kind: &str, netns: u64, pointer: &str, value: &str) -> Event {
    daemon.wait_for(&format!("{kind} of {value}"), |event| {
        event.kind() == kind && is_in(event, netns) && event.text(pointer) == value
    })
}

#[test]
fn who_adds_and_who_deletes_a_route_or_an_address_of_a_pod_or_of_its_host_end_is_named() {
    let (pod, other_pod) = (Pod::new(), Pod::new());
    let sandbox = PodSandbox::of(&other_pod);
    let mut daemon = launch().start();
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    let culprit = pod.ip("route del default");
    let gone = wait_for(&mut daemon, "route.deleted", pod.inum(), "/route/destination", "default");
    expect_actor(&daemon, &gone, culprit.pid);
    let other = pod.ip(&format!("route add default via {GATEWAY} dev eth0 onlink"));
    let back = wait_for(&mut daemon, "route.added", pod.inum(), "/route/destination", "default");
    expect_actor(&daemon, &back, other.pid);
    let culprit = pod.ip("-6 route add default via fe80::7447 dev eth0");
    let six = wait_for(&mut daemon, "route.added", pod.inum(), "/route/gateway", "fe80::7447");
    expect_actor(&daemon, &six, culprit.pid);
    let culprit = pod.ip("-6 route del default");
    let gone = wait_for(&mut daemon, "route.deleted", pod.inum(), "/route/gateway", "fe80::7447");
    expect_actor(&daemon, &gone, culprit.pid);

    let pod = &other_pod;
    daemon.wait_for_netns(pod.inum());
    let [_, high, middle, low] = process::id().to_be_bytes();
    let destination = format!("10.{high}.{middle}.{low}/32");
    for (what, kind) in [("add", "route.added"), ("del", "route.deleted")] {
        let route = format!("ip route {what} {destination} dev {} scope link", pod.host_end());
        let culprit = host().run(&route);
        let told = wait_for(&mut daemon, kind, host().inum(), "/route/destination", &destination);
        told.expect("/target/pod/uid", sandbox.uid());
        expect_actor(&daemon, &told, culprit.pid);
    }
    for (netns, ifname) in [(pod.netns(), "eth0"), (&host(), pod.host_end())] {
        for (what, kind) in [("add", "address.added"), ("del", "address.deleted")] {
            let culprit = netns.run(&format!("ip address {what} 10.74.47.9/32 dev {ifname}"));
            let told = wait_for(&mut daemon, kind, netns.inum(), "/address/address", "10.74.47.9");
            told.expect("/address/ifname", ifname);
            told.expect("/address/prefix_len", 32);
            told.expect("/target/pod/uid", sandbox.uid());
            expect_actor(&daemon, &told, culprit.pid);
        }
    }
    // A message about one of IPv6 may be sent by whoever was interrupted.
    pod.ip("-6 address add fd00:7447::9/128 dev eth0 nodad");
    let told = wait_for(&mut daemon, "address.added", pod.inum(), "/address/address", "fd00:7447::9");
    expect_nobody(&told);
}

#[test]
fn who_changes_a_rule_of_a_pod_is_named() {
    let (node, pod) = (OwnNode::new(), Pod::new());
    node.take(&pod);
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = node.launch().start();
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    let netns = node.netns().inum();
    let address = format!("{}/32", pod.address());
    for (what, kind) in [("add", "rule.added"), ("del", "rule.deleted")] {
        let culprit = node.netns().run(&format!("ip rule {what} from {address} lookup 101 priority 100"));
        let told = wait_for(&mut daemon, kind, netns, "/rule/from", &address);
        told.expect("/rule/table", 101);
        told.expect("/target/pod/uid", sandbox.uid());
        expect_actor(&daemon, &told, culprit.pid);
    }
}

#[test]
fn an_address_of_the_host_that_is_the_gateway_of_a_pod_is_told() {
    let pod = Pod::new();
    let _sandbox = PodSandbox::of(&pod);
    let [_, high, middle, low] = process::id().to_be_bytes();
    let gateway = format!("10.{high}.{middle}.{low}");
    // Nobody lives at the other end of this one.
    let other = Pod::new();
    let link = other.host_end();
    run(&format!("ip address add {gateway}/32 dev {link}"));
    pod.ip(&format!("route replace default via {gateway} dev eth0 onlink"));
    let mut daemon = launch().start();
    daemon.wait_for_gateway(pod.inum(), &gateway);
    run(&format!("ip address add 10.74.47.10/32 dev {link}"));
    run(&format!("ip address del 10.74.47.10/32 dev {link}"));
    let culprit = host().run(&format!("ip address del {gateway}/32 dev {link}"));
    let told = wait_for(&mut daemon, "address.deleted", host().inum(), "/address/address", &gateway);
    told.expect("/address/ifname", link);
    expect_actor(&daemon, &told, culprit.pid);
    let of_another = |event: &&Event| event.text("/address/address") == "10.74.47.10";
    assert!(daemon.events().iter().find(of_another).is_none(), "it is nobody's gateway");
}

#[test]
fn of_many_who_change_routes_at_once_nobody_is_named_for_what_another_one_did() {
    const ROUTES: usize = 6;
    const ROUNDS: usize = 200;
    const FORCED: [&str; 3] = ["-force", "-batch", "-"];
    let mut random = Random::new();
    let pod = Pod::new();
    let mut daemon = launch().start();
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    // Each process is the only one that adds a certain route, and the next one that deletes it: what it does when that was done
    // already does nothing.
    let mut lines = [String::new(), String::new(), String::new()];
    for _ in 0..ROUNDS {
        let number = random.below(ROUTES);
        let route = format!("default via 169.254.2.{number} dev eth0 onlink metric {}", 100 + number);
        lines[number % 3] += &format!("route add {route}\n");
        lines[(number + 1) % 3] += &format!("route del {route}\n");
    }
    let netns = pod.netns();
    let pids: Vec<u32> = thread::scope(|scope| {
        let started: Vec<_> = lines.iter().map(|lines| scope.spawn(|| netns.ip(&FORCED, lines))).collect();
        started.into_iter().map(|thread| thread.join().expect("it has run").pid).collect()
    });
    let events = daemon.fence(&pod);
    let (mut named, mut told) = (0, 0);
    for event in events.iter().filter(|event| is_in(event, pod.inum())) {
        let by = match event.kind() {
            "route.added" => 0,
            "route.deleted" => 1,
            _ => continue,
        };
        let Some(number) = event.text("/route/gateway").strip_prefix("169.254.2.") else { continue };
        let number: usize = number.parse().expect("the kernel's own number");
        told += 1;
        if let Some(pid) = event.number("/actor/pid") {
            assert_eq!(pid, u64::from(pids[(number + by) % 3]), "seed {}: {event}", random.seed());
            named += 1;
        }
    }
    assert!(told > ROUTES, "told {told} times");
    assert_eq!(named > ROUTES, is_told(&daemon), "named {named} of {told} times");
}
