//! Random lines for `ip -batch`, and what they are about.

use std::collections::BTreeSet;

use kevtmon_tests::random::Random;

/// What somebody changes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Thing {
    /// By name.
    Link(String),
    /// By address.
    Neighbor(String),
}

/// What one process executes. The names and neighbors in it are its own: nobody else ever touches them.
pub(crate) struct Script {
    lines: Vec<String>,
    things: BTreeSet<Thing>,
}

impl Script {
    /// `elsewhere`: names of network namespaces to which a link may be moved.
    pub(crate) fn new(random: &mut Random, number: u64, length: usize, elsewhere: &[String]) -> Self {
        let mut script = Self { lines: Vec::new(), things: BTreeSet::new() };
        while script.lines.len() < length {
            match random.below(21) {
                0 => script.link(random, number, elsewhere),
                1 => script.gateway(random),
                2..=6 => script.address(random, number),
                7..=11 => script.route(random, number),
                _ => script.neighbor(random, number),
            }
        }
        script
    }

    pub(crate) fn text(&self) -> String {
        self.lines.join("\n") + "\n"
    }

    pub(crate) fn things(&self) -> &BTreeSet<Thing> {
        &self.things
    }

    fn line(&mut self, line: String) {
        self.lines.push(line);
    }

    /// A pair of veth devices, some of which get an index that another one had.
    fn link(&mut self, random: &mut Random, number: u64, elsewhere: &[String]) {
        let of = random.below(3);
        let (one, other) = (format!("v{number}x{of}"), format!("w{number}x{of}"));
        let renamed = format!("r{number}x{of}");
        self.things.extend([&one, &other, &renamed].map(|name| Thing::Link(name.clone())));
        let index = 1_000 + 2 * of;
        match random.below(9) {
            0 => self.line(format!("link del {one}")),
            1 => self.line(format!(
                "link set {one} address 02:00:00:00:{:02x}:{:02x}",
                number % 256,
                random.below(256)
            )),
            2 => self.line(format!("link set {one} down")),
            3 => {
                self.line(format!(
                    "link add {one} index {index} type veth peer name {other} index {}",
                    index + 1
                ));
            }
            4 => {
                self.line(format!("link set {one} down"));
                self.line(format!("link set {one} name {renamed}"));
            }
            5 => self.line(format!("link set {renamed} name {one}")),
            6 if !elsewhere.is_empty() => {
                let there = &elsewhere[random.below(elsewhere.len())];
                self.line(format!("link set {one} netns {there}"));
            }
            _ => self.line(format!("link add {one} type veth peer name {other}")),
        }
        if random.one_in(2) {
            self.line(format!("link set {one} up"));
            self.line(format!("link set {other} up"));
        }
    }

    /// The entry of the pod's own gateway, which is anybody's.
    fn gateway(&mut self, random: &mut Random) {
        let address = "169.254.1.1";
        self.things.insert(Thing::Neighbor(address.to_owned()));
        let lladdr = ["ee:ee:ee:ee:ee:ee", "02:00:00:00:02:01"][random.below(2)];
        self.line(match random.one_in(3) {
            true => format!("neigh del {address} dev eth0"),
            false => format!("neigh replace {address} lladdr {lladdr} nud permanent dev eth0"),
        });
    }

    fn address(&mut self, random: &mut Random, number: u64) {
        let what = if random.one_in(3) { "del" } else { "replace" };
        let (low, high) = (random.below(20) + 1, number % 200);
        self.line(match random.one_in(4) {
            true => format!("address {what} fd00:{high:x}::{low:x}/128 dev eth0 nodad"),
            false => format!("address {what} 10.80.{high}.{low}/32 dev eth0"),
        });
    }

    /// Of the default routes the one with the lowest metric counts; the pod's own has none, which is the lowest.
    fn route(&mut self, random: &mut Random, number: u64) {
        let what = if random.one_in(3) { "del" } else { "replace" };
        let low = random.below(20) + 1;
        self.line(match random.below(3) {
            0 => format!("route {what} default via 169.254.1.1 dev eth0 onlink metric {}", 100 + low),
            1 => format!("route {what} blackhole 10.90.{}.{low}/32", number % 200),
            _ => format!("route {what} 10.91.{}.{low}/32 dev eth0", number % 200),
        });
    }

    fn neighbor(&mut self, random: &mut Random, number: u64) {
        let address = format!("10.95.{}.{}", number % 200, random.below(20) + 1);
        self.things.insert(Thing::Neighbor(address.clone()));
        let lladdr = format!("02:00:00:00:01:{:02x}", random.below(4));
        self.line(match random.one_in(3) {
            true => format!("neigh del {address} dev eth0"),
            false => format!("neigh replace {address} lladdr {lladdr} nud permanent dev eth0"),
        });
    }
}
