//! Routes and neighbor entries that change without any pause: what is said about an entry fits the routes of its moment.
//!
//! `KEVTMON_TEST_SEED` repeats a run, `KEVTMON_TEST_ROUNDS` makes it longer; the seed is printed.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Command, Stdio};

use kevtmon_tests::daemon::{Daemon, WITHOUT_BUDGETS, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::lock::Exclusive;
use kevtmon_tests::netns::Netns;
use kevtmon_tests::network::enter;
use kevtmon_tests::process::{Running, comm};
use kevtmon_tests::random::{Random, rounds};
use kevtmon_tests::requests::{DefaultRoute, Requests};
use serde_json::Value;

const KIND: &str = "gateway-neighbor-lost";
/// Rounds of each family.
const ROUNDS: u16 = 600;
/// One round in so many has a pause between the route and the entry.
const PAUSES: usize = 25;
/// Gateways of each family that are lost at last.
const LOSSES: u16 = 5;
const METRIC: u32 = 1_000_000;

/// What is deleted, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deletion {
    /// The gateway, before the route leads to the next one.
    Present,
    /// The gateway of before, after that.
    Former,
    /// The next one, after that.
    Next,
    /// The next one, before that.
    Spare,
    /// The gateway, while the route leads to the next one for a moment.
    Away,
}

impl Deletion {
    const ALL: [Self; 5] = [Self::Present, Self::Former, Self::Next, Self::Spare, Self::Away];

    /// Whether what it deletes is the gateway at that moment.
    fn is_loss(self) -> bool {
        matches!(self, Self::Present | Self::Next)
    }

    fn is_before_the_route(self) -> bool {
        matches!(self, Self::Present | Self::Spare)
    }

    fn of_next(self) -> bool {
        matches!(self, Self::Next | Self::Spare)
    }
}

/// How the default route comes to lead elsewhere.
#[derive(Debug, Clone, Copy)]
enum Move {
    Replaced,
    DeletedAndAdded,
    /// A better one is added, then the other deleted.
    Outdone,
}

/// What was done in one round, to which address.
#[derive(Debug, Clone, Copy)]
struct Done {
    deletion: Deletion,
    by: Move,
    paused: bool,
}

/// A namespace in which a process lives, with a static entry for each router of the test.
struct World {
    netns: Netns,
    _far: Netns,
    _process: Running,
    ifindex: u32,
}

fn router(v6: bool, number: u16) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0xfd00, 0x79, 0, 0, 0, 0, 1, number).into()
    } else {
        let [high, low] = number.to_be_bytes();
        Ipv4Addr::new(10, 79, 16 + high, low).into()
    }
}

impl World {
    fn new(rounds: u16) -> Self {
        let (netns, far) = (Netns::new(), Netns::new());
        let mut lines = format!(
            "link add eth0 type veth peer name far0 netns {}\naddress add 10.79.0.1/16 dev eth0\n\
             address add fd00:79::1/64 dev eth0 nodad\nlink set eth0 up\n",
            far.name()
        );
        for number in 0..=rounds {
            for v6 in [false, true] {
                let router = router(v6, number);
                lines.push_str(&format!(
                    "neigh replace {router} lladdr 02:00:00:00:00:0f dev eth0 nud permanent\n"
                ));
            }
        }
        netns.path().ip_batch(&lines);
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", netns.path().path().display())).args(["sleep", "1000000"]);
        let process = Running::spawn(command.stdin(Stdio::null()));
        eventually!(comm(process.pid()).as_deref() == Some("sleep"), "it is in the network");
        let shown = netns.path().run("ip -j link show eth0").stdout;
        let shown: Value = serde_json::from_str(&shown).unwrap_or_default();
        let ifindex =
            shown[0]["ifindex"].as_u64().and_then(|index| index.try_into().ok()).unwrap_or_default();
        Self { netns, _far: far, _process: process, ifindex }
    }

    fn inum(&self) -> u64 {
        self.netns.path().inum()
    }

    /// Sends requests at once, or one group after the other, so that the daemon may hear of one before the next.
    fn send_all(&self, groups: &[Requests], at_once: bool) {
        if !at_once {
            return groups.iter().for_each(|requests| self.send(requests));
        }
        let mut all = Requests::default();
        groups.iter().cloned().for_each(|requests| all.append(requests));
        self.send(&all);
    }

    fn send(&self, requests: &Requests) {
        let sent = enter(self.netns.path().path(), || requests.send());
        assert!(matches!(sent, Ok(Ok(()))), "{sent:?}");
    }
}

/// The default route of one family.
struct Moving {
    v6: bool,
    number: u16,
    metric: u32,
    ifindex: u32,
}

impl Moving {
    fn route(&self, number: u16, metric: u32) -> DefaultRoute {
        DefaultRoute { ifindex: self.ifindex, via: router(self.v6, number), metric }
    }

    /// Has the route lead to the next router.
    fn advance(&mut self, by: Move) -> Requests {
        let mut requests = Requests::default();
        let (old, same) = (self.route(self.number, self.metric), self.route(self.number + 1, self.metric));
        match by {
            Move::Replaced => requests.replace_route(same),
            Move::DeletedAndAdded => {
                requests.delete_route(old);
                requests.add_route(same);
            }
            Move::Outdone => {
                self.metric -= 1;
                requests.add_route(self.route(self.number + 1, self.metric));
            }
        }
        self.number += 1;
        requests
    }

    /// Has the route lead to the next router and back, and deletes the entry of the present one meanwhile.
    fn leave_for_a_moment(&self) -> [Requests; 3] {
        let mut requests: [Requests; 3] = Default::default();
        requests[0].replace_route(self.route(self.number + 1, self.metric));
        requests[1].delete_neighbor(self.ifindex, router(self.v6, self.number));
        requests[2].replace_route(self.route(self.number, self.metric));
        requests
    }
}

/// Waits until the daemon has seen the new route.
fn wait_for_route(daemon: &mut Daemon, inum: u64, via: IpAddr) {
    daemon.wait_for(&format!("the route by {via}"), |event| {
        event.kind() == "route.added"
            && event.number("/route/netns") == Some(inum)
            && event.text("/route/gateway") == via.to_string()
    });
}

/// One round of a family: the entry of which address it deletes.
fn do_one(
    world: &World,
    daemon: &mut Daemon,
    random: &mut Random,
    family: &mut Moving,
    done: &BTreeMap<IpAddr, Done>,
) -> (IpAddr, Done) {
    // Only one that has its entry can lose it.
    if done.contains_key(&router(family.v6, family.number)) {
        world.send(&family.advance(Move::Replaced));
    }
    let deletion = *random.pick(&Deletion::ALL);
    let by = *random.pick(&[Move::Replaced, Move::DeletedAndAdded, Move::Outdone]);
    let (from, metric) = (family.number, family.metric);
    let address = router(family.v6, from + u16::from(deletion.of_next()));
    let at_once = random.one_in(2);
    if deletion == Deletion::Away {
        world.send_all(&family.leave_for_a_moment(), at_once);
        return (address, Done { deletion, by: Move::Replaced, paused: false });
    }
    let has_pause = random.one_in(PAUSES);
    let mut deleted = Requests::default();
    deleted.delete_neighbor(world.ifindex, address);
    let mut groups = vec![family.advance(by)];
    groups.insert(usize::from(!deletion.is_before_the_route()), deleted);
    if matches!(by, Move::Outdone) {
        let mut given_up = Requests::default();
        given_up.delete_route(family.route(from, metric));
        groups.push(given_up);
    }
    if has_pause {
        world.send(&groups.remove(0));
        if deletion.is_before_the_route() {
            daemon.wait_for_deletion(world.inum(), &address.to_string());
        } else {
            wait_for_route(daemon, world.inum(), router(family.v6, family.number));
        }
    }
    world.send_all(&groups, at_once);
    // What changed before an entry that was deleted first need not have been heard of by then.
    let paused = has_pause && !deletion.is_before_the_route();
    (address, Done { deletion, by, paused })
}

/// The route moves and the entry of the new gateway goes: that it is missed is told with who did it.
fn lose_the_next(world: &World, daemon: &mut Daemon, family: &mut Moving) {
    let mut requests = family.advance(Move::Replaced);
    let address = router(family.v6, family.number);
    requests.delete_neighbor(world.ifindex, address);
    world.send(&requests);
    let opened = daemon.wait_for(&format!("the loss of {address}"), |event| {
        event.is_incident("incident.opened", KIND)
            && event.is_in(world.inum())
            && event.text("/neighbor/address") == address.to_string()
    });
    let deletion = daemon.wait_for_deletion(world.inum(), &address.to_string());
    assert!(opened.has("/actor"), "{opened} after {deletion}");
    opened.expect("/actor/pid", std::process::id());
    opened.expect("/neighbor/gateway", true);
    opened.expect("/neighbor/reason", "missing");
}

/// The events that do not fit what was done, with what that was.
fn wrong<'e>(
    done: &BTreeMap<IpAddr, Done>,
    deletions: &'e [Event],
    all: &'e [Event],
    inum: u64,
) -> Vec<(&'e Event, String)> {
    let mut wrong = Vec::new();
    for ((address, done), event) in done.iter().zip(deletions) {
        let said = event.get("/neighbor/gateway").and_then(Value::as_bool);
        // Which of two IPv6 gateways is used depends on the entry of the better one, which nobody has read.
        let is_open =
            address.is_ipv6() && matches!((done.deletion, done.by), (Deletion::Former, Move::Outdone));
        if said.is_some_and(|said| said != done.deletion.is_loss())
            || (done.paused && !is_open && said.is_none())
        {
            let Done { deletion, by, paused } = done;
            let pause = if *paused { ", with a pause" } else { "" };
            wrong.push((event, format!("{address}: {deletion:?}, {by:?}{pause}: {event}")));
        }
    }
    for event in all.iter().filter(|event| event.is_in(inum)) {
        let address = event.text("/neighbor/address").parse().ok();
        let former = address.and_then(|address| done.get(&address));
        if event.is_incident("incident.opened", KIND)
            && former.is_some_and(|done| done.deletion == Deletion::Former)
        {
            wrong.push((event, format!("an incident of a former gateway: {event}")));
        }
    }
    wrong
}

/// What the daemon printed of this namespace in the second around an event, a line each.
fn around(event: &Event, all: &[Event], inum: u64) -> String {
    let netns = |one: &Event| one.number("/route/netns").or_else(|| one.number("/neighbor/netns"));
    let is_near = |one: &&Event| (one.seconds() - event.seconds()).abs() < 0.5 && netns(one) == Some(inum);
    let line = |one: &Event| {
        format!("{} {} {}", one.text("/time"), one.number("/seq").unwrap_or(0), one.text("/message"))
    };
    all.iter().filter(is_near).map(line).collect::<Vec<_>>().join("\n")
}

/// What counts all that the kernel does, or needs a quiet machine.
mod alone {
    use super::*;

    #[test]
    fn what_is_said_of_a_deletion_fits_the_routes_of_its_moment() {
        // So many changes at once may be more than the socket of another test's daemon holds.
        let _exclusive = Exclusive::take();
        let mut random = Random::new();
        let rounds = rounds(ROUNDS.into()).try_into().unwrap_or(ROUNDS);
        let world = World::new(2 * rounds + LOSSES);
        let mut families =
            [false, true].map(|v6| Moving { v6, number: 0, metric: METRIC, ifindex: world.ifindex });
        for family in &families {
            let mut requests = Requests::default();
            requests.add_route(family.route(0, METRIC));
            world.send(&requests);
        }
        let mut daemon = launch().config(WITHOUT_BUDGETS).start();
        for family in &families {
            daemon.wait_for_gateway(world.inum(), &router(family.v6, 0).to_string());
        }
        let mut done = BTreeMap::new();
        for _ in 0..rounds {
            for family in &mut families {
                let (address, one) = do_one(&world, &mut daemon, &mut random, family, &done);
                done.insert(address, one);
                if one.paused || random.one_in(3) {
                    daemon.wait_for_deletion(world.inum(), &address.to_string());
                }
            }
        }
        let events: Vec<Event> =
            done.keys().map(|address| daemon.wait_for_deletion(world.inum(), &address.to_string())).collect();
        let all = daemon.events();
        let wrong = wrong(&done, &events, &all, world.inum());
        for kind in Deletion::ALL {
            let of_kind = done.values().zip(&events).filter(|(done, _)| done.deletion == kind);
            let said = of_kind.clone().filter(|(_, event)| event.has("/neighbor/gateway")).count();
            println!("{kind:?}: {} deletions, of {said} something is said", of_kind.count());
        }
        let first = wrong.first().map(|(event, _)| around(event, &all, world.inum())).unwrap_or_default();
        let wrong: Vec<&str> = wrong.iter().map(|(_, text)| &**text).collect();
        assert!(
            wrong.is_empty(),
            "{} wrong: {}\naround the first:\n{first}",
            wrong.len(),
            wrong[..wrong.len().min(5)].join("\n")
        );
        for family in &mut families {
            for _ in 0..LOSSES {
                lose_the_next(&world, &mut daemon, family);
            }
        }
    }
}
