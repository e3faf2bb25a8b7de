//! Random routes, rules, tables and interfaces, random moves and deletions: what the daemon says about gateways is
//! compared with the routes that the kernel itself selects.
//!
//! `KEVTMON_TEST_SEED` repeats a run, `KEVTMON_TEST_ROUNDS` makes it longer; the seed is printed.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::netns::Netns;
use kevtmon_tests::patience::within_patience;
use kevtmon_tests::process::{Running, comm};
use kevtmon_tests::random::{Random, rounds};
use serde_json::Value;

const KIND: &str = "gateway-neighbor-lost";
const LINKS: u32 = 3;
/// Each link leads to so many routers of each family.
const ROUTERS: u32 = 2;
/// Packets with these marks have rules of their own.
const TABLES: [u32; 3] = [0, 101, 102];
/// Packets with this mark have another rule at times.
const MARK: u32 = 103;
/// Priority of the rule that comes and goes.
const PRIORITY: u32 = 50;
/// Names that a link without any use has in turn.
const MARKERS: [&str; 2] = ["mark0", "mark1"];
/// An end of the test, whatever the machine is doing.
const LIMIT: Duration = Duration::from_secs(12);

/// A next hop by interface and address.
type Gateway = (String, String);

/// A namespace with a few links, a process that lives in it, and a static entry for each router.
struct World {
    netns: Netns,
    _far: Netns,
    _process: Running,
    entries: BTreeSet<Gateway>,
    /// The present name of the link without any use.
    marker: usize,
}

fn address(v6: bool, link: u32, host: u32) -> String {
    if v6 { format!("fd00:{}::{host:x}", link + 1) } else { format!("10.77.{link}.{host}") }
}

fn routers() -> Vec<(bool, u32, Gateway)> {
    let mut routers = Vec::new();
    for v6 in [false, true] {
        for link in 0..LINKS {
            for router in 0..ROUTERS {
                routers.push((v6, link, (format!("n{link}"), address(v6, link, 200 + router))));
            }
        }
    }
    routers
}

impl World {
    fn new() -> Self {
        let (netns, far) = (Netns::new(), Netns::new());
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", netns.path().path().display())).args(["sleep", "1000000"]);
        let process = Running::spawn(command.stdin(Stdio::null()));
        eventually!(comm(process.pid()).as_deref() == Some("sleep"), "it is in the network");
        let world = Self { netns, _far: far, _process: process, entries: BTreeSet::new(), marker: 0 };
        let mut lines =
            format!("link add {} type veth peer name marked netns {}\n", MARKERS[0], world._far.name());
        for link in 0..LINKS {
            lines.push_str(&format!(
                "link add n{link} type veth peer name f{link} netns {}\n",
                world._far.name()
            ));
            for v6 in [false, true] {
                let (prefix, nodad) = if v6 { (64, " nodad") } else { (24, "") };
                lines
                    .push_str(&format!("address add {}/{prefix} dev n{link}{nodad}\n", address(v6, link, 1)));
            }
            lines.push_str(&format!("link set n{link} up\n"));
        }
        for table in &TABLES[1..] {
            for family in ["", "-6 "] {
                let rule = format!("rule add fwmark {table} lookup {table} pref {table}\n");
                // One process of `ip` speaks one family at a time.
                world.ip(&format!("{family}{}", rule.trim_end()));
            }
        }
        world.netns.path().ip_batch(&lines);
        let mut other = String::new();
        for link in 0..LINKS {
            other.push_str(&format!("link set f{link} up\n"));
        }
        world._far.path().ip_batch(&other);
        world
    }

    fn inum(&self) -> u64 {
        self.netns.path().inum()
    }

    /// Whatever comes of it. There is one rule that comes and goes at a time: which of two match the same packets is not
    /// looked at by the daemon.
    fn ip(&self, line: &str) -> bool {
        if let Some((family, _)) = line.split_once(" rule add") {
            self.netns.path().attempt(&format!("ip {family} rule del pref {PRIORITY}"));
        }
        self.netns.path().attempt(&format!("ip {line}")).status.success()
    }

    fn set_entries(&mut self) {
        let mut lines = String::new();
        for (_, _, (link, address)) in routers() {
            lines.push_str(&format!(
                "neigh replace {address} lladdr 02:00:00:00:00:77 dev {link} nud permanent\n"
            ));
            self.entries.insert((link, address));
        }
        self.netns.path().ip_batch(&lines);
    }

    /// The routes of the kernel, and the model of the daemon.
    fn shown(&self, daemon: &Daemon) -> String {
        let routes = ["rule", "route show table all", "-6 route show table all", "nexthop"]
            .map(|what| self.netns.path().attempt(&format!("ip {what}")).stdout);
        format!("{}\n{}", routes.join("\n"), self.model(daemon)["gateways"])
    }

    /// The model that the daemon has of it.
    fn model(&self, daemon: &Daemon) -> Value {
        let model = daemon.ask(&["state", "--json"]).stdout;
        let model: Value = serde_json::from_str(&model).unwrap_or_default();
        let namespaces = model["namespaces"].as_array().cloned().unwrap_or_default();
        let own = namespaces.into_iter().find(|namespace| namespace["netns"].as_u64() == Some(self.inum()));
        own.unwrap_or_default()
    }

    /// Waits until the daemon has heard of everything that was changed so far: the kernel announces changes in their order,
    /// and the last one shows in the model.
    fn await_announced(&mut self, daemon: &Daemon) {
        let before = MARKERS[self.marker];
        self.marker = 1 - self.marker;
        let name = MARKERS[self.marker];
        self.netns.path().run(&format!("ip link set dev {before} name {name}"));
        eventually!(
            self.model(daemon)["links"]
                .as_array()
                .is_some_and(|links| links.iter().any(|link| link["ifname"] == name)),
            "{before} is called {name}"
        );
    }

    /// The gateways that the kernel sends packets without a more specific route to, over all rules, types of service and
    /// sources.
    fn truth(&self) -> BTreeSet<Gateway> {
        ["-4", "-6"].into_iter().flat_map(|family| self.truth_of(family)).collect()
    }

    fn truth_of(&self, family: &str) -> BTreeSet<Gateway> {
        let (destinations, classes) = match family {
            "-4" => (["8.8.8.8", "200.1.1.1"], vec![String::new(), "tos 0x10".to_owned()]),
            _ => (
                ["2001:db8::1", "9000::1"],
                (0..LINKS).map(|link| format!("from {}", address(true, link, 1))).collect(),
            ),
        };
        let mut lines = String::new();
        for destination in destinations {
            for class in &classes {
                for mark in TABLES.into_iter().chain([MARK]) {
                    // Of equal routes the kernel may take two in turn.
                    let line = format!("route get fibmatch {destination} mark {mark} {class}\n");
                    lines.push_str(&line.repeat(3));
                }
            }
        }
        let all = self.answers(family, "route show table all\n");
        let has_half = |table: &Value, half: &str| {
            all.iter().any(|route| route["dst"] == half && route["table"] == *table)
        };
        let halves = if family == "-4" { ["0.0.0.0/1", "128.0.0.0/1"] } else { ["::/1", "8000::/1"] };
        // Halves stand for a default route if they are together in one table.
        let counts = |route: &&Value| {
            route["dst"] == "default" || halves.iter().all(|half| has_half(&route["table"], half))
        };
        self.answers(family, &lines).iter().filter(counts).flat_map(hops).collect()
    }

    /// Whether the kernel takes a gateway or not for reasons that are not in the routes: others can take its place, or it
    /// can take theirs.
    fn depends_on_others(&self, gateway: &Gateway) -> bool {
        let (link, address) = gateway;
        if !self.truth().contains(gateway) {
            let routes = ["-4", "-6"].map(|family| self.answers(family, "route show table all\n"));
            return routes.iter().flatten().any(|route| hops(route).contains(gateway));
        }
        self.netns.path().run(&format!("ip neigh replace {address} dev {link} nud failed"));
        !self.truth().contains(gateway)
    }

    /// What one process of `ip` prints, also where some of the lines fail.
    fn answers(&self, family: &str, lines: &str) -> Vec<Value> {
        let answer = self.netns.path().ip(&[family, "-j", "-force", "-batch", "-"], lines);
        let lists = serde_json::Deserializer::from_str(&answer.stdout).into_iter::<Vec<Value>>();
        lists.map_while(Result::ok).flatten().collect()
    }
}

/// The next hops of a route as `ip -j` prints it.
fn hops(route: &Value) -> Vec<Gateway> {
    let hop = |hop: &Value| {
        let gateway = hop["gateway"].as_str().or_else(|| hop["via"]["host"].as_str())?;
        let dead = hop["flags"].as_array().is_some_and(|flags| flags.iter().any(|flag| flag == "dead"));
        (!dead).then(|| (hop["dev"].as_str().unwrap_or_default().to_owned(), gateway.to_owned()))
    };
    match route["nexthops"].as_array() {
        Some(several) => several.iter().filter_map(hop).collect(),
        None => hop(route).into_iter().collect(),
    }
}

/// A random change of routes, as arguments of `ip`.
fn change(random: &mut Random) -> String {
    let v6 = random.below(2) == 1;
    let family = if v6 { "-6" } else { "-4" };
    let of_family: Vec<_> =
        routers().into_iter().filter(|(of, ..)| *of == v6).map(|(_, _, hop)| hop).collect();
    let (dev, via) = random.pick(&of_family).clone();
    let (other_dev, other_via) = random.pick(&of_family).clone();
    let table = match random.pick(&TABLES) {
        0 => "main".to_owned(),
        table => table.to_string(),
    };
    let metric = random.pick(&[10, 20, 30]);
    let half = *random.pick(if v6 { &["::/1", "8000::/1"] } else { &["0.0.0.0/1", "128.0.0.0/1"] });
    let (low, high) = if v6 { ("::/1", "8000::/1") } else { ("0.0.0.0/1", "128.0.0.0/1") };
    let id = 1 + random.below(4) + if v6 { 10 } else { 0 };
    let of_table = format!("table {table} metric {metric}");
    // Not of every link: with routes for all sources no packet takes one that asks for none, and the daemon does not know
    // what the sources are.
    let source = format!("fd00:{}::/64", random.pick(&[1, 2]));
    let class = if v6 { format!("from {source}") } else { "tos 0x10".to_owned() };
    match random.below(24) {
        0..=3 => format!("{family} route replace default via {via} dev {dev} {of_table}"),
        4 | 5 => format!("{family} route append default via {via} dev {dev} {of_table}"),
        6 => format!(
            "{family} route replace default {of_table} nexthop via {via} dev {dev} nexthop via {other_via} dev \
             {other_dev}"
        ),
        7 => format!("{family} route replace {half} via {via} dev {dev} {of_table}"),
        8 => format!("{family} route replace {low} via {via} dev {dev} {of_table}"),
        9 => format!("{family} route replace {high} via {via} dev {dev} {of_table}"),
        10 => {
            let kind = random.pick(&["unreachable", "blackhole", "throw"]);
            format!("{family} route replace {kind} default {of_table}")
        }
        11 => format!("{family} nexthop replace id {id} via {via} dev {dev}"),
        12 => format!("{family} route replace default nhid {id} {of_table}"),
        13 => format!("nexthop del id {id}"),
        14 => format!("{family} route del {half} table {table}"),
        15 => format!("{family} route prepend default via {via} dev {dev} {of_table}"),
        16 => format!("{family} route append default dev {dev} {of_table}"),
        17 => format!("{family} route replace default {class} via {via} dev {dev} {of_table}"),
        18 => format!("{family} route del default {class} table {table}"),
        19 => format!("{family} rule add pref {PRIORITY} {}", rule(random)),
        20 => format!("{family} rule del pref {PRIORITY}"),
        _ => format!("{family} route del default {of_table}"),
    }
}

/// What the rule that comes and goes does.
fn rule(random: &mut Random) -> String {
    let every = ["goto 101", "goto 102", "goto 60", "unreachable", "lookup main suppress_prefixlength 0"];
    let none = ["iif gone0 lookup 101", "not from all lookup 101"];
    let marked = ["lookup 101", "goto 102", "prohibit", "lookup main suppress_prefixlength 1", "lookup 102"];
    match random.below(3) {
        0 => (*random.pick(&every)).to_owned(),
        1 => (*random.pick(&none)).to_owned(),
        _ => format!("fwmark {MARK} {}", random.pick(&marked)),
    }
}

/// The gateways of the incidents that are open, by what was printed.
fn open(events: &[Event], world: &World) -> BTreeMap<Gateway, Event> {
    let mut open = BTreeMap::new();
    for event in events.iter().filter(|event| event.number("/neighbor/netns") == Some(world.inum())) {
        let gateway = (event.text("/neighbor/ifname").to_owned(), event.text("/neighbor/address").to_owned());
        if event.is_incident("incident.opened", KIND) {
            open.insert(gateway, event.clone());
        } else if event.is_incident("incident.closed", KIND) {
            open.remove(&gateway);
        }
    }
    open
}

/// Waits until the open incidents are those of gateways in use without an entry.
#[track_caller]
fn settle(daemon: &Daemon, world: &World, history: &[String]) {
    let missing: BTreeSet<Gateway> =
        world.truth().into_iter().filter(|gateway| !world.entries.contains(gateway)).collect();
    let opened = || -> BTreeSet<Gateway> { open(&daemon.events(), world).into_keys().collect() };
    let settled = within_patience(|| (opened() == missing).then_some(()));
    let shown = || format!("{}\n{}", history.join("\n"), world.shown(daemon));
    assert!(
        settled.is_some(),
        "incidents of {missing:?} and no others, but {:?} after\n{}",
        opened(),
        shown()
    );
}

/// What is said for certain is so: no packet finds another way as long as the gateway cannot be resolved.
#[track_caller]
fn assert_confidence(daemon: &Daemon, world: &World, gateway: &Gateway, history: &[String]) {
    let Some(opened) = open(&daemon.events(), world).remove(gateway) else { return };
    if opened.text("/incident/confidence") == "certain" {
        assert!(
            !world.depends_on_others(gateway),
            "others take its place: {opened} after\n{}\nwith\n{}",
            history.join("\n"),
            world.shown(daemon)
        );
    }
}

#[test]
fn what_is_said_about_gateways_is_what_the_kernel_does() {
    let mut random = Random::new();
    let mut world = World::new();
    world.set_entries();
    let mut daemon = launch().start();
    let began = Instant::now();
    let mut history = vec![format!("KEVTMON_TEST_SEED={}", random.seed())];
    let (mut done, mut paused, mut unknown) = (0, 0, 0);
    let mut unsaid = BTreeSet::new();
    let most = rounds(0);
    while done < most.max(2) || most == 0 && began.elapsed() < LIMIT {
        done += 1;
        for _ in 0..=random.below(4) {
            let line = change(&mut random);
            let mark = if world.ip(&line) { " " } else { "!" };
            history.push(format!("{mark} {line}"));
        }
        // What happens without any pause is judged as well, but not always.
        let has_paused = !random.one_in(4);
        if has_paused {
            world.await_announced(&daemon);
        }
        paused += u64::from(has_paused);
        let routers = routers();
        let (_, _, gateway) = random.pick(&routers).clone();
        let in_use = world.truth();
        let (link, address) = &gateway;
        let ip = world.netns.path().run(&format!("ip neigh del {address} dev {link}"));
        history.push(format!("  neigh del {address} dev {link}: in use are {in_use:?}"));
        world.entries.remove(&gateway);
        let inum = world.inum();
        let event = daemon.wait_for_deletion_by(ip.pid, inum, address);
        let said = event.get("/neighbor/gateway").and_then(Value::as_bool);
        settle(&daemon, &world, &history);
        if said.is_none() {
            // Without a pause routes may not have been heard of in time: then nothing is said.
            unknown += u64::from(has_paused && !world.depends_on_others(&gateway));
            unsaid.insert(gateway);
            world.set_entries();
            settle(&daemon, &world, &history);
            continue;
        }
        assert!(
            said == Some(in_use.contains(&gateway)),
            "{event} after\n{}\nwith\n{}",
            history.join("\n"),
            world.shown(&daemon)
        );
        assert_confidence(&daemon, &world, &gateway, &history);
        if random.below(3) == 0 {
            // The routes move away from what is lost, or back to it.
            let line = change(&mut random);
            let mark = if world.ip(&line) { " " } else { "!" };
            history.push(format!("{mark} {line}"));
        }
        world.set_entries();
        history.push("  all entries set".to_owned());
        settle(&daemon, &world, &history);
    }
    assert!(paused < 10 || unknown < paused / 2, "of {unknown} of {paused} deletions nothing was said");
    let blamed = daemon.events();
    let blamed = blamed.iter().filter(|event| event.is_incident("incident.opened", KIND));
    for opened in blamed.filter(|event| event.number("/neighbor/netns") == Some(world.inum())) {
        let gateway =
            (opened.text("/neighbor/ifname").to_owned(), opened.text("/neighbor/address").to_owned());
        if unsaid.contains(&gateway) {
            continue;
        }
        assert!(opened.has("/actor/pid"), "nobody is named: {opened}");
    }
}
