//! One pod as the path of its packets: from its interfaces to the uplink of the node. What is broken is marked.

use kevtmon_core::state::{Hop, KnownBy, MadeBy, NodeState, PodStatus};
use kevtmon_history::query::history::status;
use kevtmon_history::query::record::timestamp;
use kevtmon_types::escape;

use crate::incident::headline;
use crate::paragraph::Paragraphs;
use crate::time::Clock;
use crate::{Pretty, Style, escaped, wrap};

/// Before what is broken.
const MARK: &str = "!!";
/// Columns of the mark, with the gap behind it.
const MARGIN: usize = 3;
/// Columns of an interface or gateway at most, with the gap behind it.
const NAME: usize = 20;

pub fn pod(state: &NodeState, pod: &PodStatus, pretty: &Pretty, clock: &Clock) -> String {
    let mut page = Paragraphs::new(pretty);
    let name = wrap::shortened(&escaped(&super::pod_name(&pod.pod)), wrap::WIDTH - "pod ".len());
    page.line(&pretty.paint(Style::Bold, &format!("pod {name}")));
    if pod.netns.is_none() {
        page.put(MARGIN, None, "it has no network of its own, or its network is unknown");
    }
    let known_by = match pod.known_by {
        KnownBy::Runtime => None,
        KnownBy::Cgroup => Some("no runtime reports it; a process in its network is in its control group"),
        KnownBy::Directory => Some("no runtime reports it; the kubelet has its directory; it may have ended"),
    };
    if let Some(known_by) = known_by {
        page.put(MARGIN, None, known_by);
    }
    let side = |title: String, page: &mut Paragraphs<'_>| {
        page.line(&format!("{:MARGIN$}{}", "", pretty.paint(Style::Dim, &title)));
    };
    let mut last = None;
    // What does not go by the routes of the node comes to no uplink of these.
    let is_routed = pod.path.iter().all(|hop| !hop.unrouted)
        || pod.path.iter().any(|hop| hop.netns == state.host_netns && !hop.unrouted);
    for hop in pod.path.iter().chain(state.uplinks.iter().filter(|_| is_routed)) {
        if last != Some(hop.netns) {
            side(place(state, pod, hop, clock), &mut page);
        }
        last = Some(hop.netns);
        line(hop, hop.netns != state.host_netns, &mut page);
    }
    for incident in &pod.incidents {
        page.line("");
        let label = format!("open  {} ", escaped(&incident.kind));
        let painted = pretty.paint(Style::Red, &label);
        let quiet_period = state.quiet_periods.iter().find(|quiet_period| quiet_period.id == incident.id);
        let status = status(None, None, quiet_period.map(|quiet_period| quiet_period.since.as_str()), None);
        page.put_behind(MARGIN, &label, &painted, None, &headline(status, &incident.summary));
        page.put(MARGIN + 6, Some(Style::Dim), &format!("kevtmon why {}", escaped(&incident.id)));
    }
    page.text
}

/// Whose the interfaces below are.
fn place(state: &NodeState, pod: &PodStatus, hop: &Hop, clock: &Clock) -> String {
    if hop.netns == state.host_netns {
        return format!("on node {}", wrap::shortened(&escaped(&state.node), super::HEAD));
    }
    let made = pod.made_by.as_ref().map(|made| {
        let MadeBy { plugin, time } = made;
        let plugin = plugin.rsplit('/').next().unwrap_or(plugin);
        format!(", made by {} at {}", escape::name(plugin), clock.local(timestamp(time)))
    });
    format!("in network namespace {}{}", hop.netns, made.unwrap_or_default())
}

/// A gateway of the pod stands below the interface by which it is reached; that of an uplink behind it.
fn line(hop: &Hop, is_in_pod: bool, page: &mut Paragraphs<'_>) {
    let name = match hop.gateway.filter(|_| is_in_pod) {
        Some(gateway) => format!("  via {gateway}"),
        None if hop.ifname.is_empty() => "-".to_owned(),
        None => escape::name(&hop.ifname).into_owned(),
    };
    let name = wrap::shortened(&name, wrap::WIDTH / 2);
    let uplink = hop.gateway.filter(|_| !is_in_pod).map(|gateway| format!("default route via {gateway}"));
    let words: Vec<String> =
        hop.broken.iter().chain(&hop.facts).map(|fact| escaped(fact)).chain(uplink).collect();
    let mark = if hop.broken.is_empty() { "" } else { MARK };
    let label = format!("{mark:MARGIN$}{name:<NAME$} ");
    let style = (!hop.broken.is_empty()).then_some(Style::Red);
    let painted = style.map_or_else(|| label.clone(), |style| page.pretty.paint(style, &label));
    page.put_behind(0, &label, &painted, None, &words.join(", "));
}

#[cfg(test)]
mod tests;
