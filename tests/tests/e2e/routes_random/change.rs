//! Random changes, as arguments of `ip`.

use kevtmon_tests::random::Random;

use super::world::{LINKS, MARK, PRIORITY, Router, TABLES, VRF_TABLE, World, halves, own_address};

/// A random change of routes.
pub(crate) fn change(random: &mut Random, world: &World) -> String {
    let v6 = random.below(2) == 1;
    let family = family(v6);
    let of_family: Vec<Router> = world.routers.iter().filter(|router| router.v6 == v6).cloned().collect();
    let (router, other) = (random.pick(&of_family).clone(), random.pick(&of_family).hop());
    let hop = router.hop();
    let table = match random.pick(&TABLES) {
        // What leads by a VRF's link leads from its table as a rule.
        _ if router.is_in_vrf() && !random.one_in(6) => VRF_TABLE.to_string(),
        0 => "main".to_owned(),
        table => table.to_string(),
    };
    let metric = random.pick(&[10, 20, 30]);
    let [low, high] = halves(v6);
    let half = *random.pick(&[low, high]);
    // An object of one next hop, or a group of two.
    let first = 1 + if v6 { 10 } else { 0 };
    let (id, group) = (first + random.below(4), first + 4 + random.below(2));
    let member = first + random.below(4);
    let of_table = format!("table {table} metric {metric}");
    // Not of every link: with routes for all sources no packet takes one that asks for none, and the daemon does not know
    // what the sources are.
    let source = format!("fd00:{}::/64", random.pick(&[1, 2]));
    let class = if v6 { format!("from {source}") } else { "tos 0x10".to_owned() };
    match random.below(31) {
        0..=3 => format!("{family} route replace default {hop} {of_table}"),
        4 | 5 => format!("{family} route append default {hop} {of_table}"),
        6 => format!("{family} route replace default {of_table} nexthop {hop} nexthop {other}"),
        7 => format!("{family} route replace {half} {hop} {of_table}"),
        8 => format!("{family} route replace {low} {hop} {of_table}"),
        9 => format!("{family} route replace {high} {hop} {of_table}"),
        10 => {
            let kind = random.pick(&["unreachable", "blackhole", "throw"]);
            format!("{family} route replace {kind} default {of_table}")
        }
        11 | 12 => format!("{family} nexthop replace id {id} {hop}"),
        13 => format!("{family} route replace default nhid {id} {of_table}"),
        14 => format!("nexthop replace id {group} group {id}/{member}"),
        15 | 16 => format!("{family} route replace default nhid {group} {of_table}"),
        17 => format!("nexthop del id {}", random.pick(&[id, group])),
        18 => format!("{family} route del {half} table {table}"),
        19 => format!("{family} route prepend default {hop} {of_table}"),
        20 => format!("{family} route append default dev {} {of_table}", router.gateway.0),
        21 => format!("{family} route replace default {class} {hop} {of_table}"),
        22 => format!("{family} route del default {class} table {table}"),
        23 | 24 => format!("{family} rule add pref {PRIORITY} {}", rule(random)),
        25 => format!("{family} rule del pref {PRIORITY}"),
        26 if v6 => {
            let preference = random.pick(&["high", "medium", "low"]);
            format!("-6 route append default {hop} {of_table} pref {preference}")
        }
        27 if world.has_vrf => format!("link set vrf0 {}", random.pick(&["up", "up", "down"])),
        _ => format!("{family} route del default {of_table}"),
    }
}

/// What the rule that comes and goes does. None takes all that comes from here: which packets a rule is for is not looked at by
/// the daemon.
fn rule(random: &mut Random) -> String {
    let every = ["goto 101", "goto 102", "goto 60", "unreachable", "lookup main suppress_prefixlength 0"];
    let none = ["iif gone0 lookup 101", "not from all lookup 101"];
    let some = ["lookup 101", "goto 102", "prohibit", "lookup main suppress_prefixlength 1", "lookup 102"];
    let some = random.pick(&some);
    match random.below(5) {
        0 => (*random.pick(&every)).to_owned(),
        1 => (*random.pick(&none)).to_owned(),
        2 => format!("iif n0 {some}"),
        _ => format!("fwmark {MARK} {some}"),
    }
}

/// What takes addresses, routes and entries of a link along, as lines of one process of `ip`, and whether it takes an address
/// only.
pub(crate) fn disturbance(random: &mut Random) -> String {
    let link = u32::try_from(random.below(3)).unwrap_or(0) % LINKS;
    let v6 = random.below(2) == 1;
    let address = own_address(v6, link);
    match random.below(5) {
        0 | 1 => format!("link set n{link} down\n"),
        2 => format!("link set n{link} down\nlink set n{link} up\n"),
        3 => format!("address del {address}\n"),
        _ => format!("address del {address}\naddress add {address}\n"),
    }
}

fn family(v6: bool) -> &'static str {
    if v6 { "-6" } else { "-4" }
}
