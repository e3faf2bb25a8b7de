//! Who changed a link: the kernel's own word for it, or nobody's.

use std::thread;

use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::netns::{Netns, NetnsPath};
use kevtmon_tests::pod::Pod;
use kevtmon_tests::random::Random;

/// The namespace of these tests, which is the host's.
fn host() -> NetnsPath {
    NetnsPath::of_process(std::process::id())
}

fn wait_for(daemon: &mut Daemon, kind: &str, netns: u64, ifname: &str, change: Option<&str>) -> Event {
    daemon.wait_for(&format!("{kind} of {ifname}"), |event| {
        event.kind() == kind
            && event.is_in(netns)
            && event.text("/link/ifname") == ifname
            && change.is_none_or(|change| event.list("/link/change").iter().any(|one| one == change))
    })
}

fn wait_for_lladdr(daemon: &mut Daemon, netns: u64, lladdr: &str) -> Event {
    daemon.wait_for(&format!("the address {lladdr}"), |event| {
        event.kind() == "link.changed"
            && event.is_in(netns)
            && event.text("/link/mac") == lladdr
            && event.list("/link/change").iter().any(|change| change == "mac")
    })
}

/// That the kernel names this process, and the sentence, too.
fn expect_actor(event: &Event, pid: u32) {
    event.expect("/actor/pid", pid);
    event.expect("/actor/source", "kernel");
    event.expect("/actor/confidence", "certain");
    assert!(event.text("/message").contains(" by "), "{event}");
}

fn expect_nobody(event: &Event) {
    assert!(event.number("/actor/pid").is_none(), "{event}");
}

#[test]
fn who_sets_down_sets_up_deletes_or_moves_an_interface_is_named() {
    let [down, up, deleted, moved] = [(); 4].map(|()| Pod::new());
    let other = Netns::new();
    let mut daemon = launch().start();
    daemon.wait_for_netns(up.inum());

    let culprit = host().run(&format!("ip link set {} down", down.host_end()));
    let event = wait_for(&mut daemon, "link.changed", host().inum(), down.host_end(), Some("down"));
    expect_actor(&event, culprit.pid);
    assert!(event.text("/message").contains("down by "), "{event}");
    // Its other end only loses its carrier.
    expect_nobody(&wait_for(&mut daemon, "link.changed", down.inum(), "eth0", Some("carrier-down")));
    let culprit = down.ip("link set eth0 down");
    expect_actor(&wait_for(&mut daemon, "link.changed", down.inum(), "eth0", Some("down")), culprit.pid);

    // For the first time.
    up.netns().run("ip link add kv0 type veth peer name kv1");
    let culprit = up.netns().run("ip link set kv0 up");
    expect_actor(&wait_for(&mut daemon, "link.changed", up.inum(), "kv0", Some("up")), culprit.pid);

    // Who deletes one end deletes both.
    let culprit = host().run(&format!("ip link del {}", deleted.host_end()));
    let event = wait_for(&mut daemon, "link.deleted", host().inum(), deleted.host_end(), None);
    expect_actor(&event, culprit.pid);
    expect_actor(&wait_for(&mut daemon, "link.deleted", deleted.inum(), "eth0", None), culprit.pid);

    let line = format!("ip link set {} netns {}", moved.host_end(), other.name());
    let culprit = host().run(&line);
    let event = wait_for(&mut daemon, "link.moved", host().inum(), moved.host_end(), None);
    expect_actor(&event, culprit.pid);

    let mut ended = up;
    let name = ended.host_end().to_owned();
    ended.delete_netns();
    expect_nobody(&wait_for(&mut daemon, "link.deleted", host().inum(), &name, None));
}

#[test]
fn who_changes_the_hardware_address_is_named_where_a_neighbor_entry_goes_with_it() {
    let pod = Pod::new();
    let mut daemon = launch().start();
    daemon.wait_for_netns(pod.inum());
    let mut named = 0;
    for number in 1..=20 {
        let lladdr = format!("02:00:00:00:00:{number:02x}");
        let culprit = pod.ip(&format!("link set eth0 address {lladdr}"));
        let changed = wait_for_lladdr(&mut daemon, pod.inum(), &lladdr);
        // The record of the entry comes right after the message, and may be read after it.
        if let Some(pid) = changed.number("/actor/pid") {
            assert_eq!(pid, u64::from(culprit.pid), "{changed}");
            changed.expect("/actor/source", "kernel");
            changed.expect("/actor/confidence", "likely");
            named += 1;
        }
        pod.set_gateway();
        // Its entry is there again before the address changes once more, and the record of the former one was read.
        daemon.fence(&pod);
    }
    assert!(named > 0, "named {named} times");
    // Without an entry nothing tells who it was.
    pod.ip("neigh flush dev eth0 nud permanent");
    daemon.fence(&pod);
    pod.ip("link set eth0 address 02:00:00:00:01:00");
    expect_nobody(&wait_for_lladdr(&mut daemon, pod.inum(), "02:00:00:00:01:00"));
}

#[test]
fn who_changes_the_queues_of_an_interface_or_reads_its_state_has_not_set_it_down() {
    let pod = Pod::new();
    let mut daemon = launch().start();
    daemon.wait_for_netns(pod.inum());
    pod.netns().run("tc qdisc replace dev eth0 root pfifo");
    pod.netns().run("tc qdisc del dev eth0 root");
    let culprit = pod.ip("link set eth0 down");
    pod.netns().run("tc qdisc replace dev eth0 root pfifo");
    pod.netns().run("ip -d link show eth0");
    expect_actor(&wait_for(&mut daemon, "link.changed", pod.inum(), "eth0", Some("down")), culprit.pid);
    // It had its queue all along, which tells nobody of the second time.
    pod.ip("link set eth0 up");
    expect_nobody(&wait_for(&mut daemon, "link.changed", pod.inum(), "eth0", Some("up")));
}

#[test]
fn of_many_who_act_at_once_nobody_is_named_for_what_another_one_did() {
    const LINKS: usize = 6;
    const ROUNDS: usize = 300;
    let mut random = Random::new();
    let pod = Pod::new();
    for link in 0..LINKS {
        pod.netns().run(&format!("ip link add kv{link} type veth peer name kw{link}"));
        pod.netns().run(&format!("ip link set kv{link} up"));
    }
    let mut daemon = launch().start();
    daemon.wait_for_netns(pod.inum());
    // Each process is the only one that sets a certain link down, and the next one that sets it up: what it does when the
    // others have done it already does nothing.
    let mut lines = [String::new(), String::new(), String::new()];
    for _ in 0..ROUNDS {
        let link = random.below(LINKS);
        lines[link % 3] += &format!("link set kv{link} down\n");
        lines[(link + 1) % 3] += &format!("link set kv{link} up\n");
    }
    let netns = pod.netns();
    let pids: Vec<u32> = thread::scope(|scope| {
        let started: Vec<_> = lines.iter().map(|lines| scope.spawn(|| netns.ip_batch(lines))).collect();
        started.into_iter().map(|thread| thread.join().expect("it has run").pid).collect()
    });
    let events = daemon.fence(&pod);
    let downs: Vec<_> = events
        .iter()
        .filter(|event| event.kind() == "link.changed" && event.is_in(pod.inum()))
        .filter(|event| event.list("/link/change").iter().any(|change| change == "down"))
        .collect();
    assert!(downs.len() > LINKS, "{} times", downs.len());
    let mut named = 0;
    for down in downs {
        let name = down.text("/link/ifname");
        let Some(link) = name.strip_prefix("kv").and_then(|number| number.parse::<usize>().ok()) else {
            continue;
        };
        if let Some(pid) = down.number("/actor/pid") {
            assert_eq!(pid, u64::from(pids[link % 3]), "seed {}: {down}", random.seed());
            named += 1;
        }
    }
    assert!(named > LINKS, "named {named} times");
}
