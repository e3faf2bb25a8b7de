//! The gateways that follow from what a namespace holds, and those that the kernel itself takes.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::process::Stdio;

use kevtmon_core::node::routing::{Use, gateways_in_use};
use nix::sched::{CloneFlags, setns};

use super::super::dump::read_host;
use super::*;

/// A namespace with two interfaces; the routers on them have static entries.
fn connected() -> Netns {
    let netns = Netns::new();
    for link in ["va", "vb"] {
        netns.ip(&format!("link add {link} type veth peer name {link}0"));
        netns.ip(&format!("link set {link}0 up"));
        netns.ip(&format!("link set {link} up"));
    }
    for (link, net) in [("va", 1), ("vb", 2)] {
        netns.ip(&format!("addr add 10.9.{net}.1/24 dev {link}"));
        netns.ip(&format!("addr add fd00:{net}::1/64 dev {link} nodad"));
        for router in 2..5 {
            for address in [format!("10.9.{net}.{router}"), format!("fd00:{net}::{router}")] {
                netns.ip(&format!("neigh add {address} lladdr 02:00:00:00:00:01 nud permanent dev {link}"));
            }
        }
    }
    netns
}

/// By the model, the gateways that packets may go to, those that they go to, and those on which packets depend.
fn modelled(netns: &Netns) -> [BTreeSet<IpAddr>; 3] {
    let (file, inode) = (File::open(format!("/run/netns/{}", netns.name)).unwrap(), netns.inode);
    let reading = std::thread::spawn(move || {
        setns(&file, CloneFlags::CLONE_NEWNET).unwrap();
        read_host(inode).unwrap()
    });
    let snapshot = reading.join().unwrap().snapshot;
    let gateways = gateways_in_use(&snapshot.routes, &snapshot.rules);
    let of = |least| {
        let used = gateways.iter().filter(move |(_, used)| **used >= least);
        used.map(|((_, address), _)| *address).collect()
    };
    [Use::Either, Use::Alternate, Use::Only].map(of)
}

/// The gateways by which the kernel sends some packets.
fn taken(netns: &Netns) -> BTreeSet<IpAddr> {
    let mut lines = String::new();
    for host in 1..=16 {
        let (v4, v6) = (format!("8.8.8.{host}"), format!("2001:db8::{host}"));
        let of_v4 = ["", "tos 0x10", "mark 7"].map(|class| format!("route get {v4} {class}\n"));
        let of_v6 = ["from fd00:1::1", "from fd00:2::1", "mark 7"];
        let of_v6 = of_v6.map(|class| format!("route get {v6} {class}\n"));
        // Of equal routes the kernel may take two in turn.
        of_v4.iter().chain(&of_v6).for_each(|line| lines.push_str(&line.repeat(2)));
    }
    let mut command = Command::new("ip");
    command.args(["-n", &netns.name, "-force", "-batch", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()).unwrap());
    let text = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    writer.join().unwrap();
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    words.windows(2).filter(|pair| pair[0] == "via").map(|pair| address(pair[1])).collect()
}

#[test]
fn the_gateways_in_use_are_those_that_the_kernel_takes() {
    let cases: [&[&str]; 19] = [
        &["append default via 10.9.1.2", "append default via 10.9.2.2", "append default via 10.9.2.3"],
        &["append default via 10.9.1.2", "prepend default via 10.9.2.2", "prepend default via 10.9.2.3"],
        &["append default dev va scope global", "append default via 10.9.2.2"],
        &["append default via 10.9.1.2", "append default nexthop via 10.9.1.3 nexthop via 10.9.2.3"],
        &["append default nexthop via 10.9.1.3 nexthop via 10.9.2.3", "append default via 10.9.1.2"],
        &[
            "nexthop: add id 5 via 10.9.1.2 dev va", "nexthop: add id 6 via 10.9.2.2 dev vb",
            "nexthop: add id 7 group 5/6", "add default nhid 7",
        ],
        &["add default via 10.9.1.2", "add default tos 0x10 via 10.9.2.2 metric 50"],
        &["add throw default metric 1", "add default via 10.9.1.2 metric 2"],
        &["add unreachable default metric 1", "add default via 10.9.1.2 metric 2"],
        &["add default via 10.9.1.2", "rule: add pref 9 fwmark 7 unreachable", "rule: add pref 8 goto 9"],
        &["add default via 10.9.1.2", "rule: add pref 9 unreachable"],
        &["add default via 10.9.1.2", "rule: add pref 9 goto 32767"],
        &[
            "add default via 10.9.1.2", "rule: add pref 9 iif none lookup 5",
            "add default via 10.9.2.2 table 5",
        ],
        &[
            "add default via 10.9.1.2",
            "add default dev vb table 5",
            "rule: add pref 9 not from all fwmark 7 lookup 5",
            "rule: add pref 8 lookup main suppress_prefixlength 0",
        ],
        &[
            "append default via fd00:1::2", "append default via fd00:2::2",
            "append default dev vb metric 1024",
        ],
        &["append default dev vb metric 1024", "append default via fd00:1::2"],
        &["append default dev vb metric 1024", "append default via fd00:1::2 pref high"],
        &["add default via fd00:1::2", "add default from fd00:2::/64 via fd00:2::2 metric 9000"],
        &["append unreachable default metric 1024", "append default via fd00:1::2"],
    ];
    for case in cases {
        let netns = connected();
        let family = if case.iter().any(|line| line.contains("fd00")) { "-6" } else { "-4" };
        for line in case {
            match line.split_once(": ") {
                Some(("nexthop", change)) => netns.ip(&format!("nexthop {change}")),
                Some((object, change)) => netns.ip(&format!("{family} {object} {change}")),
                None => netns.ip(&format!("{family} route {line}")),
            }
        }
        let truth = taken(&netns);
        let [possible, used, relied_on] = modelled(&netns);
        assert!(used.is_subset(&truth) && truth.is_subset(&possible), "{truth:?} of {case:?}");
        for gateway in relied_on {
            let link = if ["10.9.1.", "fd00:1::"].iter().any(|net| gateway.to_string().starts_with(net)) {
                "va"
            } else {
                "vb"
            };
            netns.ip(&format!("neigh change {gateway} dev {link} nud failed"));
            assert!(taken(&netns).contains(&gateway), "{gateway} of {case:?}: packets find another way");
            netns.ip(&format!("neigh change {gateway} lladdr 02:00:00:00:00:01 dev {link} nud permanent"));
        }
    }
}
