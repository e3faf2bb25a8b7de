//! What the kernel lists, and where the model is another.

use std::collections::BTreeSet;

use kevtmon_tests::netns::NetnsPath;
use kevtmon_tests::pod::Pod;
use serde_json::Value;

fn listed(netns: &NetnsPath, what: &str) -> Vec<Value> {
    let json = netns.run(&format!("ip -json -details {what}")).stdout;
    let listed: Value = serde_json::from_str(&json).expect("ip prints JSON");
    // Where there is nothing, older versions print an empty object in the list.
    listed
        .as_array()
        .cloned()
        .unwrap_or_default()
        .into_iter()
        .filter(|one| one != &serde_json::json!({}))
        .collect()
}

/// `INDEX NAME KIND MAC up|down` of each link.
pub(crate) fn links(netns: &NetnsPath) -> BTreeSet<String> {
    let of = |link: &Value| {
        let is_up = link["flags"].as_array().is_some_and(|flags| flags.iter().any(|flag| flag == "UP"));
        shown(link, link["linkinfo"]["info_kind"].as_str(), link["address"].as_str(), is_up)
    };
    listed(netns, "link show").iter().map(of).collect()
}

fn shown(link: &Value, kind: Option<&str>, mac: Option<&str>, is_up: bool) -> String {
    let (kind, mac) = (kind.unwrap_or("-"), mac.filter(|mac| mac.len() == 17).unwrap_or("-"));
    let name = link["ifname"].as_str().unwrap_or_default();
    format!("{} {name} {kind} {mac} {}", link["ifindex"], if is_up { "up" } else { "down" })
}

fn addresses(netns: &NetnsPath) -> BTreeSet<String> {
    let all = listed(netns, "address show");
    let all = all.iter().filter_map(|link| link["addr_info"].as_array()).flatten();
    let text = |address: &Value| Some(format!("{}/{}", address["local"].as_str()?, address["prefixlen"]));
    all.filter_map(text).collect()
}

/// The next hop of the default route with the lowest metric.
fn gateways(netns: &NetnsPath) -> BTreeSet<String> {
    let routes = listed(netns, "route show default");
    let metric = |route: &Value| route["metric"].as_u64().unwrap_or(0);
    let best = routes.iter().min_by_key(|route| metric(route));
    best.and_then(|route| Some(route["gateway"].as_str()?.to_owned())).into_iter().collect()
}

/// Each default route of IPv4 in the main table.
fn routes(netns: &NetnsPath) -> BTreeSet<String> {
    let of = |route: &Value| {
        let gateway = route["gateway"].as_str().unwrap_or("-");
        format!("{gateway} metric {}", route["metric"].as_u64().unwrap_or(0))
    };
    listed(netns, "-4 route show default").iter().map(of).collect()
}

fn known_routes(list: &Value) -> BTreeSet<String> {
    let is_it =
        |route: &&Value| route["table"] == 254 && route["destination"] == "default" && route["ipv6"] != true;
    let of =
        |route: &Value| format!("{} metric {}", route["gateway"].as_str().unwrap_or("-"), route["metric"]);
    list.as_array().into_iter().flatten().filter(is_it).map(of).collect()
}

/// The static entries of these gateways: `ADDRESS LLADDR`.
fn entries(netns: &NetnsPath, gateways: &BTreeSet<String>) -> BTreeSet<String> {
    let of = |entry: &Value| {
        let is_static =
            entry["state"].as_array().is_some_and(|state| state.iter().any(|one| one == "PERMANENT"));
        let (address, lladdr) = (entry["dst"].as_str()?, entry["lladdr"].as_str()?);
        (is_static && gateways.contains(address)).then(|| format!("{address} {lladdr}"))
    };
    listed(netns, "neigh show dev eth0").iter().filter_map(of).collect()
}

fn known_entries(list: &Value) -> BTreeSet<String> {
    let of = |entry: &Value| {
        let is_static = entry["state"] == "permanent";
        is_static.then_some(())?;
        Some(format!("{} {}", entry["address"].as_str()?, entry["lladdr"].as_str()?))
    };
    list.as_array().into_iter().flatten().filter_map(of).collect()
}

fn words(list: &Value) -> BTreeSet<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Each line of one that the other lacks.
pub(crate) fn differences(pod: &Pod, model: &Value) -> Vec<String> {
    let of = |link: &Value| {
        shown(link, link["kind"].as_str(), link["mac"].as_str(), link["up"].as_bool().unwrap_or_default())
    };
    let known: BTreeSet<String> = model["links"].as_array().into_iter().flatten().map(of).collect();
    let netns = pod.netns();
    let mut differences = Vec::new();
    for (what, kernel, model) in [
        ("link", links(netns), known),
        ("address", addresses(netns), words(&model["addresses"])),
        ("gateway", gateways(netns), words(&model["gateways"])),
        ("default route", routes(netns), known_routes(&model["routes"])),
        ("entry", entries(netns, &gateways(netns)), known_entries(&model["neighbors"])),
    ] {
        let inum = pod.inum();
        differences.extend(kernel.difference(&model).map(|line| format!("{inum} lacks {what} {line}")));
        differences.extend(model.difference(&kernel).map(|line| format!("{inum} has no {what} {line}")));
    }
    differences
}
