//! The model of the node as tables of 80 columns.

use std::ops::Range;

use kevtmon_core::state::{ContainerStatus, Hop, KnownBy, NetnsStatus, NodeState, PodStatus};
use kevtmon_event::Pod;
use kevtmon_event::wording::short_id;
use kevtmon_history::query::record::timestamp;
use kevtmon_history::query::stale::Stale;
use kevtmon_observation::SourceStatus;
use kevtmon_types::escape;

use super::time::Clock;
use super::{Pretty, Style, escaped, wrap};

mod path;

pub use path::pod;

/// The model of the node as tables; `stale`: why it may be otherwise by now.
pub fn text(state: &NodeState, stale: Option<&Stale>, pretty: &Pretty, clock: &Clock) -> String {
    let mut text = head(state, stale, pretty, clock);
    let mut table = |title: &str, table: &Table, remark: Option<String>| {
        let title = pretty.paint(Style::Bold, &format!("{title} ({})", table.rows.len()));
        let remark = remark.map(|remark| wrap::lines(&escaped(&remark), INDENT, INDENT)).unwrap_or_default();
        let remark = remark.iter().map(|line| format!("{:INDENT$}{line}", ""));
        for line in [String::new(), title].into_iter().chain(table.lines()).chain(remark) {
            text.push_str(line.trim_end());
            text.push('\n');
        }
    };
    table("Sources", &sources(state, stale.is_some()), None);
    // Why a runtime does not answer stands above.
    let short = |why: String| why.split(" (").next().unwrap_or_default().to_owned();
    let incomplete = state.pods_incomplete().map(|why| format!("there may be others, since {}", short(why)));
    table("Pods", &pods(state), incomplete);
    let broken = broken(state);
    if !broken.rows.is_empty() {
        table("Broken", &broken, None);
    }
    table("Uplinks", &uplinks(state), None);
    table("Containers", &containers(state), None);
    table("Network namespaces", &namespaces(state), None);
    text
}

/// The node and the time of its model.
pub fn head(state: &NodeState, stale: Option<&Stale>, pretty: &Pretty, clock: &Clock) -> String {
    let head = wrap::shortened(&format!("node {}", escaped(&state.node)), HEAD);
    let rest = format!(
        "{}at {}, kevtmon {}{}{}",
        if stale.is_some() { "as it was " } else { "" },
        clock.local_and_age(timestamp(&state.time)),
        escaped(&state.version),
        if state.ready { "" } else { ", not ready yet" },
        stale.map_or_else(String::new, |stale| format!("; {}", escaped(&stale.reason))),
    );
    let mut rest = wrap::lines(&rest, head.chars().count() + 1, INDENT).into_iter();
    let first = format!("{} {}", pretty.paint(Style::Bold, &head), rest.next().unwrap_or_default());
    let lines = [first].into_iter().chain(rest.map(|rest| format!("{:INDENT$}{rest}", "")));
    lines.map(|line| format!("{}\n", line.trim_end())).collect()
}

fn sources(state: &NodeState, is_past: bool) -> Table {
    let row = |status: &SourceStatus| {
        vec![
            Cell::of(&status.source),
            Cell::of(match (status.up, is_past) {
                (true, false) => "up",
                (false, false) => "down",
                (true, true) => "was up",
                (false, true) => "was down",
            }),
            Cell::known(status.attach_mode.as_deref()),
            Cell::known(status.reason.as_deref()),
        ]
    };
    Table::new(&["SOURCE", "STATE", "WAY"], &["REASON"], state.sources.iter().map(row))
}

fn pods(state: &NodeState) -> Table {
    // Else it goes without saying.
    let by_others = state.pods.iter().any(|pod| pod.known_by != KnownBy::Runtime);
    let row = |pod: &PodStatus| {
        let made_by = pod.made_by.as_ref().map(|made| made.plugin.rsplit('/').next().unwrap_or_default());
        let mut cells = vec![
            Cell::of(pod_name(&pod.pod)),
            Cell::list(&pod.pod.ip),
            Cell::list(&pod.gateways),
            Cell::list(&pod.host_links),
            Cell::known(made_by),
            Cell::known(pod.netns),
        ];
        cells.extend(by_others.then(|| Cell::of(pod.known_by.name())));
        cells
    };
    let mut rest = vec!["ADDRESS", "GATEWAY", "HOST LINK", "MADE BY", "NETNS"];
    rest.extend(by_others.then_some("KNOWN BY"));
    Table::new(&["POD"], &rest, state.pods.iter().map(row))
}

/// The pods on the way of whose packets something is broken.
fn broken(state: &NodeState) -> Table {
    let what = |pod: &PodStatus| {
        let of_hop = |hop: &Hop| {
            let place = hop.gateway.map_or_else(|| hop.ifname.clone(), |gateway| gateway.to_string());
            format!("{place} {}", hop.broken.join(", ")).trim_start().to_owned()
        };
        let broken = pod.path.iter().filter(|hop| !hop.broken.is_empty()).map(of_hop);
        broken.collect::<Vec<_>>().join("; ")
    };
    let rows = state.pods.iter().map(|pod| (pod, what(pod))).filter(|(_, what)| !what.is_empty());
    let rows = rows.map(|(pod, what)| vec![Cell::of(pod_name(&pod.pod)), Cell::of(what)]);
    Table::new(&["POD"], &["BROKEN"], rows)
}

fn uplinks(state: &NodeState) -> Table {
    let row = |uplink: &Hop| {
        let words: Vec<&String> = uplink.broken.iter().chain(&uplink.facts).collect();
        vec![Cell::of(&uplink.ifname), Cell::known(uplink.gateway), Cell::list(&words)]
    };
    Table::new(&["INTERFACE", "GATEWAY", "STATE"], &[], state.uplinks.iter().map(row))
}

fn containers(state: &NodeState) -> Table {
    let row = |status: &ContainerStatus| {
        let container = &status.container;
        vec![
            Cell::of(short_id(&container.id)),
            Cell::known(container.name.as_deref()),
            Cell::of(format!(
                "{}{}",
                container.state.as_deref().unwrap_or(DASH),
                if status.stale { " (stale)" } else { "" }
            )),
            Cell::known(container.pid),
            Cell::known(status.pod.as_ref().map(claimed_name)),
        ]
    };
    Table::new(&["CONTAINER", "NAME"], &["STATE", "PID", "POD"], state.containers.iter().map(row))
}

fn namespaces(state: &NodeState) -> Table {
    let row = |namespace: &NetnsStatus| {
        let links: Vec<&str> = namespace.links.iter().map(|link| link.ifname.as_str()).collect();
        vec![
            Cell::of(namespace.netns),
            Cell::of(owner(state, namespace)),
            Cell::list(&links),
            Cell::list(&namespace.addresses),
        ]
    };
    Table::new(&["NETNS", "OF"], &["LINKS", "ADDRESSES"], state.namespaces.iter().map(row))
}

fn owner(state: &NodeState, namespace: &NetnsStatus) -> String {
    if namespace.netns == state.host_netns {
        return "the host".to_owned();
    }
    if let Some(pod) = namespace.owner.confirmed_pod() {
        return pod_name(pod);
    }
    if let Some(container) = &namespace.owner.container {
        return container.name.as_deref().unwrap_or(&container.id).to_owned();
    }
    match (&namespace.name, &namespace.comm, namespace.pid) {
        (Some(name), ..) => format!("/run/netns/{name}"),
        (None, Some(comm), Some(pid)) => format!("{} (pid {pid})", escape::name(comm)),
        _ => DASH.to_owned(),
    }
}

/// The name of a pod, or what a container claims to be.
fn claimed_name(pod: &Pod) -> String {
    if pod.claimed { format!("{} (claimed)", pod_name(pod)) } else { pod_name(pod) }
}

fn pod_name(pod: &Pod) -> String {
    match (&pod.namespace, &pod.name) {
        (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
        _ => pod.uid.clone(),
    }
}

/// What is absent.
const DASH: &str = "-";
/// Lists in a table stay short.
const LISTED: usize = 4;
/// Columns before a row, and more before the second line of one.
const INDENT: usize = 2;
/// Columns between two cells.
const GAP: usize = 2;
/// Room for the name of the node.
const HEAD: usize = 48;

/// Text, or a list of which as much is shown as there is room for.
struct Cell(Vec<String>);

impl Cell {
    fn of(text: impl ToString) -> Self {
        Self(vec![escaped(&text.to_string())])
    }

    fn known(text: Option<impl ToString>) -> Self {
        text.map_or_else(|| Self::of(DASH), Self::of)
    }

    fn list(items: &[impl ToString]) -> Self {
        if items.is_empty() {
            Self::of(DASH)
        } else {
            Self(items.iter().map(|item| escaped(&item.to_string())).collect())
        }
    }

    /// Its text in so many columns: fewer items of a list, then the middle of a text is left out.
    fn within(&self, room: usize) -> String {
        let most = self.0.len().min(LISTED);
        let some = |shown: usize| {
            let text = self.0[..shown].join(",");
            match self.0.len() - shown {
                0 => text,
                more => format!("{text} +{more}"),
            }
        };
        let fitting = (1..=most).rev().map(some).find(|text| text.chars().count() <= room);
        fitting.unwrap_or_else(|| wrap::shortened(&some(1), room))
    }

    fn width(&self) -> usize {
        self.within(usize::MAX).chars().count()
    }
}

/// Rows of one line each, or of two where one would be too wide.
struct Table {
    header: Vec<Cell>,
    /// So many cells are on the first of two lines.
    first: usize,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    fn new(first: &[&str], second: &[&str], rows: impl Iterator<Item = Vec<Cell>>) -> Self {
        let header = first.iter().chain(second).map(Cell::of).collect();
        Self { header, first: first.len(), rows: rows.collect() }
    }

    fn lines(&self) -> Vec<String> {
        if self.rows.is_empty() {
            return Vec::new();
        }
        let all = 0..self.header.len();
        let fits = |widths: &[usize]| INDENT + room(widths) <= wrap::WIDTH;
        let natural = self.widths(all.clone());
        let rows = std::iter::once(&self.header).chain(&self.rows);
        if fits(&natural) {
            return rows.map(|row| line(INDENT, row, &natural)).collect();
        }
        let (first, second) = (0..self.first, self.first..all.end);
        let above = narrowed(self.widths(first.clone()), wrap::WIDTH - INDENT);
        let below = narrowed(self.widths(second.clone()), wrap::WIDTH - 2 * INDENT);
        let mut lines = Vec::new();
        for row in rows {
            lines.push(line(INDENT, &row[first.clone()], &above));
            match &row[second.clone()] {
                // A text that stands alone has as many lines as it needs.
                [Cell(text)] if text.len() == 1 => {
                    let text = if text[0] == DASH { "" } else { &text[0] };
                    let wrapped = wrap::lines(text, 2 * INDENT, 2 * INDENT).into_iter();
                    let wrapped = wrapped.filter(|line| !line.is_empty());
                    lines.extend(wrapped.map(|line| format!("{:1$}{line}", "", 2 * INDENT)));
                }
                cells => lines.push(line(2 * INDENT, cells, &below)),
            }
        }
        lines
    }

    fn widths(&self, columns: Range<usize>) -> Vec<usize> {
        let rows = || std::iter::once(&self.header).chain(&self.rows);
        columns.map(|column| rows().map(|row| row[column].width()).max().unwrap_or(0)).collect()
    }
}

/// Columns that cells of these widths need.
fn room(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
}

/// The widths with the widest made as narrow as all of them together need.
fn narrowed(mut widths: Vec<usize>, most: usize) -> Vec<usize> {
    while room(&widths) > most {
        let Some(widest) = widths.iter_mut().max().filter(|widest| **widest > wrap::SHORTEST) else { break };
        *widest -= 1;
    }
    widths
}

fn line(indent: usize, cells: &[Cell], widths: &[usize]) -> String {
    let cells = cells.iter().zip(widths).map(|(cell, width)| format!("{:<width$}", cell.within(*width)));
    format!("{:indent$}{}", "", cells.collect::<Vec<_>>().join(&" ".repeat(GAP)))
}

#[cfg(test)]
mod tests;
