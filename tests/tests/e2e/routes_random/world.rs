//! A namespace with links, routers and rules in which a process lives, and what the kernel does with packets in it.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use kevtmon_tests::daemon::Daemon;
use kevtmon_tests::eventually;
use kevtmon_tests::kernel;
use kevtmon_tests::netns::Netns;
use kevtmon_tests::process::{Running, comm};
use serde_json::Value;

/// Links beside that of the VRF.
pub(crate) const LINKS: u32 = 3;
/// Each link leads to so many routers of each family.
const ROUTERS: u32 = 2;
/// Packets with these marks have rules of their own.
pub(crate) const TABLES: [u32; 3] = [0, 101, 102];
/// Packets with this mark have another rule at times.
pub(crate) const MARK: u32 = 103;
/// Priority of the rule that comes and goes.
pub(crate) const PRIORITY: u32 = 50;
/// The table that a VRF selects, and the link in it.
pub(crate) const VRF_TABLE: u32 = 201;
const VRF_LINK: u32 = LINKS;
/// Names that a link without any use has in turn.
const MARKERS: [&str; 2] = ["mark0", "mark1"];
/// `RTM_GETNEIGH` shows it as that.
const PERMANENT: &str = "PERMANENT";

/// A next hop by interface and address.
pub(crate) type Gateway = (String, String);

/// What can be a gateway.
#[derive(Debug, Clone)]
pub(crate) struct Router {
    pub(crate) v6: bool,
    pub(crate) gateway: Gateway,
    /// The link has no address of the router's prefix.
    onlink: bool,
}

impl Router {
    fn new(v6: bool, link: u32, home: u32, host: u32) -> Self {
        Self { v6, gateway: (format!("n{link}"), address(v6, home, host)), onlink: link != home }
    }

    /// As `ip` takes a next hop.
    pub(crate) fn hop(&self) -> String {
        let (dev, via) = &self.gateway;
        format!("via {via} dev {dev}{}", if self.onlink { " onlink" } else { "" })
    }

    pub(crate) fn is_in_vrf(&self) -> bool {
        self.gateway.0 == format!("n{VRF_LINK}")
    }
}

pub(crate) struct World {
    pub(crate) netns: Netns,
    _far: Netns,
    _process: Running,
    pub(crate) has_vrf: bool,
    pub(crate) routers: Vec<Router>,
    /// The static entries that there are.
    pub(crate) entries: BTreeSet<Gateway>,
    /// The present name of the link without any use.
    marker: usize,
}

pub(crate) fn address(v6: bool, link: u32, host: u32) -> String {
    if v6 { format!("fd00:{}::{host:x}", link + 1) } else { format!("10.77.{link}.{host}") }
}

/// The arguments of `ip` that give a link one address of a family, and take it away.
pub(crate) fn own_address(v6: bool, link: u32) -> String {
    let (prefix, nodad) = if v6 { (64, " nodad") } else { (24, "") };
    format!("{}/{prefix} dev n{link}{nodad}", address(v6, link, 1))
}

impl World {
    /// `by_object`: routes are told by the number of their nexthop object alone.
    pub(crate) fn new(by_object: bool) -> Self {
        let (netns, far) = (Netns::new(), Netns::new());
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", netns.path().path().display())).args(["sleep", "1000000"]);
        let process = Running::spawn(command.stdin(Stdio::null()));
        eventually!(comm(process.pid()).as_deref() == Some("sleep"), "it is in the network");
        let has_vrf = netns.path().attempt(&format!("ip link add vrf0 type vrf table {VRF_TABLE}"));
        let mut world = Self {
            netns,
            _far: far,
            _process: process,
            has_vrf: has_vrf.status.success(),
            routers: Vec::new(),
            entries: BTreeSet::new(),
            marker: 0,
        };
        assert!(
            world.has_vrf || !kernel::is_guest(),
            "the kernels of the guests have VRFs: {}",
            has_vrf.stderr
        );
        world.add_routers();
        world.add_links();
        for setting in ["ip_forward=1", "conf.all.rp_filter=0", "conf.default.rp_filter=0"] {
            world.netns.path().run(&format!("busybox sysctl -q -w net.ipv4.{setting}"));
        }
        if by_object {
            world.netns.path().run("busybox sysctl -q -w net.ipv4.nexthop_compat_mode=0");
        }
        for table in &TABLES[1..] {
            for family in ["-4", "-6"] {
                // One process of `ip` speaks one family at a time.
                world.ip(&format!("{family} rule add fwmark {table} lookup {table} pref {table}"));
            }
        }
        world
    }

    fn links(&self) -> u32 {
        LINKS + u32::from(self.has_vrf)
    }

    fn add_routers(&mut self) {
        for v6 in [false, true] {
            for link in 0..self.links() {
                self.routers.extend((0..ROUTERS).map(|router| Router::new(v6, link, link, 200 + router)));
            }
            // One address by two links.
            self.routers.push(Router::new(v6, 1, 0, 200));
        }
    }

    fn add_links(&self) {
        let far = self._far.name();
        let mut lines = format!("link add {} type veth peer name marked netns {far}\n", MARKERS[0]);
        let mut other = String::new();
        for link in 0..self.links() {
            lines.push_str(&format!("link add n{link} type veth peer name f{link} netns {far}\n"));
            if link == VRF_LINK {
                lines.push_str(&format!("link set vrf0 up\nlink set n{link} master vrf0\n"));
            }
            lines.push_str(&format!("link set n{link} up\n"));
            for v6 in [false, true] {
                lines.push_str(&format!("address add {}\n", own_address(v6, link)));
            }
            other.push_str(&format!("link set f{link} up\n"));
        }
        // Without one of its addresses this one has another.
        lines.push_str("address add 10.78.0.1/32 dev n2\n");
        self.netns.path().ip_batch(&lines);
        self._far.path().ip_batch(&other);
    }

    pub(crate) fn inum(&self) -> u64 {
        self.netns.path().inum()
    }

    /// Whatever comes of it. There is one rule that comes and goes at a time: which of two match the same packets is not
    /// looked at by the daemon.
    pub(crate) fn ip(&self, line: &str) -> bool {
        if let Some((family, _)) = line.split_once(" rule add") {
            self.netns.path().attempt(&format!("ip {family} rule del pref {PRIORITY}"));
        }
        self.netns.path().attempt(&format!("ip {line}")).status.success()
    }

    /// Gives the links their addresses, and each router its entry.
    pub(crate) fn repair(&mut self) {
        let mut lines = String::new();
        for link in 0..self.links() {
            lines.push_str(&format!("link set n{link} up\n"));
            for v6 in [false, true] {
                lines.push_str(&format!("address replace {}\n", own_address(v6, link)));
            }
        }
        for Router { gateway: (link, address), .. } in &self.routers {
            lines.push_str(&format!(
                "neigh replace {address} lladdr 02:00:00:00:00:77 dev {link} nud permanent\n"
            ));
        }
        self.netns.path().ip_batch(&lines);
        self.read_entries();
    }

    /// Looks which entries there are; returns those that have gone.
    pub(crate) fn read_entries(&mut self) -> BTreeSet<Gateway> {
        let routers: BTreeSet<&Gateway> = self.routers.iter().map(|router| &router.gateway).collect();
        let all = ["-4", "-6"].into_iter().flat_map(|family| self.answers(family, "neigh show\n"));
        let is_static = |entry: &Value| {
            let mut states = entry["state"].as_array().into_iter().flatten();
            states.any(|state| state == PERMANENT)
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let gateway = |entry: Value| (text(&entry["dev"]), text(&entry["dst"]));
        let now = all.filter(is_static).map(gateway).filter(|gateway| routers.contains(gateway)).collect();
        let before = std::mem::replace(&mut self.entries, now);
        before.difference(&self.entries).cloned().collect()
    }

    /// The routes of the kernel, and the model of the daemon.
    pub(crate) fn shown(&self, daemon: &Daemon) -> String {
        let routes = [
            "link", "address", "rule", "-6 rule", "route show table all", "-6 route show table all",
            "nexthop", "neigh",
        ]
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
    pub(crate) fn await_announced(&mut self, daemon: &Daemon) {
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

    /// The gateways that the kernel sends packets without a more specific route to, over all rules, types of service,
    /// sources, VRFs, and whether they come from here or not.
    pub(crate) fn truth(&self) -> BTreeSet<Gateway> {
        ["-4", "-6"].into_iter().flat_map(|family| self.truth_of(family)).collect()
    }

    fn truth_of(&self, family: &str) -> BTreeSet<Gateway> {
        let v6 = family == "-6";
        let (destinations, mut classes) = match v6 {
            false => (["8.8.8.8", "200.1.1.1"], vec![String::new(), "tos 0x10".to_owned()]),
            true => (
                ["2001:db8::1", "9000::1"],
                (0..LINKS).map(|link| format!("from {}", address(true, link, 1))).collect(),
            ),
        };
        classes.push(format!("iif n0 from {}", address(v6, 0, 77)));
        if self.has_vrf {
            classes.push("vrf vrf0".to_owned());
        }
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
        let halves = halves(v6);
        // Halves stand for a default route if they are together in one table.
        let counts = |route: &&Value| {
            route["dst"] == "default" || halves.iter().all(|half| has_half(&route["table"], half))
        };
        let objects = self.objects();
        let taken = self.answers(family, &lines);
        let used = |route: &Value| {
            let hops = hops(route, &objects);
            // What is asked for is the route. The kernel shares packets among its next hops if it is the one that it found; where
            // it takes an equal one instead, IPv4 takes the first of that (net/ipv4/fib_semantics.c, `fib_select_default`).
            let is_instead = !v6 && first_like(route, &all).is_some_and(|first| !is_same(first, route));
            let number = if is_instead { 1 } else { hops.len() };
            hops.into_iter().take(number).collect::<Vec<_>>()
        };
        taken.iter().filter(counts).flat_map(used).collect()
    }

    /// The families in which packets of every kind have a gateway, whatever else there is.
    pub(crate) fn families_with_gateway(&self, used: &BTreeSet<Gateway>) -> BTreeSet<bool> {
        let objects = self.objects();
        let has_one = |v6: &bool| {
            let routes = self.answers(if *v6 { "-6" } else { "-4" }, "route show table main default\n");
            let mut gateways = routes.iter().flat_map(|route| hops(route, &objects));
            gateways.any(|gateway| used.contains(&gateway))
        };
        [false, true].into_iter().filter(has_one).collect()
    }

    /// The gateways of equal routes of IPv6 that share nothing: the kernel goes from one to the next when it meets one without
    /// an entry, and tells nobody. Those among them that may come after a route without a gateway are true.
    pub(crate) fn by_turns(&self) -> BTreeMap<Gateway, bool> {
        let objects = self.objects();
        let mut equal: BTreeMap<String, (usize, bool, Vec<Gateway>)> = BTreeMap::new();
        for route in self.answers("-6", "route show table all\n") {
            let key =
                ["dst", "from", "table", "metric", "pref"].map(|name| route[name].to_string()).join(" ");
            let hops = hops(&route, &objects);
            let (routes, leads_to_none, gateways) = equal.entry(key).or_default();
            *routes += 1;
            *leads_to_none |= hops.is_empty();
            gateways.extend(hops);
        }
        let several = equal.into_values().filter(|(routes, ..)| *routes > 1);
        let mut by_turns = BTreeMap::new();
        for (_, leads_to_none, gateways) in several {
            for gateway in gateways {
                *by_turns.entry(gateway).or_default() |= leads_to_none;
            }
        }
        by_turns
    }

    /// The gateways of IPv4 routes that the kernel takes in turn with an equal one before them, and tells nobody; none is
    /// among them that is also of a first one.
    pub(crate) fn alternates(&self) -> BTreeSet<Gateway> {
        let (objects, all) = (self.objects(), self.answers("-4", "route show table all\n"));
        let is_first = |route: &&Value| first_like(route, &all).is_some_and(|first| is_same(first, route));
        let (first, others): (Vec<&Value>, Vec<&Value>) = all.iter().partition(is_first);
        let hops_of = |routes: Vec<&Value>| -> BTreeSet<Gateway> {
            routes.into_iter().flat_map(|route| hops(route, &objects)).collect()
        };
        &hops_of(others) - &hops_of(first)
    }

    /// Whether the kernel takes a gateway or not for reasons that are not in the routes: others can take its place, or it
    /// can take theirs.
    pub(crate) fn depends_on_others(&self, gateway: &Gateway) -> bool {
        let (link, address) = gateway;
        if !self.truth().contains(gateway) {
            let objects = self.objects();
            let routes = ["-4", "-6"].map(|family| self.answers(family, "route show table all\n"));
            return routes.iter().flatten().any(|route| hops(route, &objects).contains(gateway));
        }
        self.netns.path().run(&format!("ip neigh replace {address} dev {link} nud failed"));
        !self.truth().contains(gateway)
    }

    /// The next hops of the nexthop objects.
    fn objects(&self) -> Objects {
        // Without a family: it would leave out those of the other one.
        let all = self.answers("", "nexthop show\n");
        let id = |object: &Value| object["id"].as_u64().unwrap_or_default();
        let single: BTreeMap<u64, Gateway> =
            all.iter().filter_map(|object| Some((id(object), gateway(object)?))).collect();
        let members = |object: &Value| -> Vec<Gateway> {
            let group = object["group"].as_array().into_iter().flatten();
            group.filter_map(|member| single.get(&id(member)).cloned()).collect()
        };
        let groups = all.iter().map(|object| (id(object), members(object)));
        let mut objects: Objects = groups.collect();
        for (id, gateway) in &single {
            objects.entry(*id).or_default().push(gateway.clone());
        }
        objects
    }

    /// What one process of `ip` prints, also where some of the lines fail.
    fn answers(&self, family: &str, lines: &str) -> Vec<Value> {
        let family = Some(family).filter(|family| !family.is_empty());
        let arguments: Vec<&str> = family.into_iter().chain(["-j", "-force", "-batch", "-"]).collect();
        let answer = self.netns.path().ip(&arguments, lines);
        let lists = serde_json::Deserializer::from_str(&answer.stdout).into_iter::<Vec<Value>>();
        lists.map_while(Result::ok).flatten().collect()
    }
}

/// Their next hops by number.
type Objects = BTreeMap<u64, Vec<Gateway>>;

/// The halves of a default route.
pub(crate) fn halves(v6: bool) -> [&'static str; 2] {
    if v6 { ["::/1", "8000::/1"] } else { ["0.0.0.0/1", "128.0.0.0/1"] }
}

/// The first of the routes that are like one to the kernel and can be used.
fn first_like<'a>(route: &Value, all: &'a [Value]) -> Option<&'a Value> {
    let key = |route: &Value| ["dst", "table", "metric", "tos"].map(|name| route[name].clone());
    let is_unusable = |route: &Value| match route["nexthops"].as_array() {
        Some(hops) => hops.iter().all(is_dead),
        None => is_dead(route),
    };
    all.iter().find(|other| key(other) == key(route) && !is_unusable(other))
}

/// Whether two have the same next hops.
fn is_same(one: &Value, other: &Value) -> bool {
    ["nexthops", "nhid", "gateway", "via", "dev"].iter().all(|name| one[*name] == other[*name])
}

fn is_dead(hop: &Value) -> bool {
    hop["flags"].as_array().is_some_and(|flags| flags.iter().any(|flag| flag == "dead"))
}

/// The next hops of a route as `ip -j` prints it.
fn hops(route: &Value, objects: &Objects) -> Vec<Gateway> {
    let hop = |hop: &Value| gateway(hop).filter(|_| !is_dead(hop));
    match (route["nexthops"].as_array(), route["nhid"].as_u64()) {
        (Some(several), _) => several.iter().filter_map(hop).collect(),
        (None, Some(id)) if gateway(route).is_none() => objects.get(&id).cloned().unwrap_or_default(),
        (None, _) => hop(route).into_iter().collect(),
    }
}

fn gateway(hop: &Value) -> Option<Gateway> {
    let gateway = hop["gateway"].as_str().or_else(|| hop["via"]["host"].as_str())?;
    Some((hop["dev"].as_str().unwrap_or_default().to_owned(), gateway.to_owned()))
}
