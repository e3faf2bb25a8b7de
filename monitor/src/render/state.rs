//! The model of the node as tables.

use std::fmt::Write as _;

use super::time::Clock;
use super::{Pretty, Style, escaped};
use crate::core::state::{ContainerStatus, NetnsStatus, NodeState, PodStatus};
use crate::escape;
use crate::event::Pod;
use crate::observation::SourceStatus;
use crate::query::record::timestamp;

/// The model of the node as tables.
#[must_use]
pub fn text(state: &NodeState, pretty: &Pretty, clock: &Clock) -> String {
    let mut text = String::new();
    let mut line = |line: &str| {
        text.push_str(line.trim_end());
        text.push('\n');
    };
    let head = format!("node {}", escaped(&state.node));
    line(&format!(
        "{} at {}, kevtmon {}{}",
        pretty.paint(Style::Bold, &head),
        clock.local_and_age(timestamp(&state.time)),
        escaped(&state.version),
        if state.ready { "" } else { ", not ready yet" },
    ));
    let mut table = |title: &str, header: &[&str], rows: Vec<Vec<String>>| {
        line("");
        line(&pretty.paint(Style::Bold, &format!("{title} ({})", rows.len())));
        if !rows.is_empty() {
            columns(header, &rows).iter().for_each(|row| line(row));
        }
    };
    table("Sources", &["SOURCE", "STATE", "WAY", "REASON"], sources(state));
    table("Pods", &["POD", "ADDRESS", "GATEWAY", "HOST LINK", "NETNS", "CONTAINERS"], pods(state));
    table("Containers", &["CONTAINER", "NAME", "STATE", "PID", "POD"], containers(state));
    table("Network namespaces", &["NETNS", "OF", "LINKS", "ADDRESSES"], namespaces(state));
    text
}

fn sources(state: &NodeState) -> Vec<Vec<String>> {
    let row = |status: &SourceStatus| {
        vec![
            escaped(&status.source),
            if status.up { "up" } else { "down" }.to_owned(),
            words(status.rung.as_deref()),
            words(status.reason.as_deref()),
        ]
    };
    state.sources.iter().map(row).collect()
}

fn pods(state: &NodeState) -> Vec<Vec<String>> {
    let row = |pod: &PodStatus| {
        vec![
            pod_name(&pod.pod),
            list(&pod.pod.ip),
            list(&pod.gateways),
            escaped(&list(&pod.host_links)),
            pod.netns.map_or_else(dash, |netns| netns.to_string()),
            pod.containers.len().to_string(),
        ]
    };
    state.pods.iter().map(row).collect()
}

fn containers(state: &NodeState) -> Vec<Vec<String>> {
    let row = |status: &ContainerStatus| {
        let container = &status.container;
        vec![
            escaped(container.id.get(..12).unwrap_or(&container.id)),
            words(container.name.as_deref()),
            words(container.state.as_deref()) + if status.stale { " (stale)" } else { "" },
            container.pid.map_or_else(dash, |pid| pid.to_string()),
            status.pod.as_ref().map_or_else(dash, claimed_name),
        ]
    };
    state.containers.iter().map(row).collect()
}

fn namespaces(state: &NodeState) -> Vec<Vec<String>> {
    let row = |namespace: &NetnsStatus| {
        let links: Vec<String> = namespace.links.iter().map(|link| escaped(&link.ifname)).collect();
        vec![
            namespace.netns.to_string(),
            owner(state, namespace),
            list(&links),
            escaped(&list(&namespace.addresses)),
        ]
    };
    state.namespaces.iter().map(row).collect()
}

fn owner(state: &NodeState, namespace: &NetnsStatus) -> String {
    if namespace.netns == state.host_netns {
        return "the host".to_owned();
    }
    if let Some(pod) = namespace.owner.confirmed_pod() {
        return pod_name(pod);
    }
    if let Some(container) = &namespace.owner.container {
        return escaped(container.name.as_deref().unwrap_or(&container.id));
    }
    match (&namespace.name, &namespace.comm, namespace.pid) {
        (Some(name), ..) => format!("/run/netns/{}", escaped(name)),
        (None, Some(comm), Some(pid)) => format!("{} (pid {pid})", escape::name(comm)),
        _ => dash(),
    }
}

/// The name of a pod, or what a container claims to be.
fn claimed_name(pod: &Pod) -> String {
    if pod.claimed { format!("{} (claimed)", pod_name(pod)) } else { pod_name(pod) }
}

fn pod_name(pod: &Pod) -> String {
    match (&pod.namespace, &pod.name) {
        (Some(namespace), Some(name)) => format!("{}/{}", escaped(namespace), escaped(name)),
        _ => escaped(&pod.uid),
    }
}

/// Lists in a table stay short.
const LISTED: usize = 4;

fn list(items: &[impl ToString]) -> String {
    if items.is_empty() {
        return dash();
    }
    let mut text = items.iter().take(LISTED).map(ToString::to_string).collect::<Vec<_>>().join(",");
    if items.len() > LISTED {
        // Writing to a string cannot fail.
        let _ = write!(text, " +{}", items.len() - LISTED);
    }
    text
}

fn words(text: Option<&str>) -> String {
    text.map_or_else(dash, escaped)
}

fn dash() -> String {
    "-".to_owned()
}

fn columns(header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("  {}", padded.join("  "))
    };
    let head = line(&mut header.iter().copied());
    std::iter::once(head).chain(rows.iter().map(|row| line(&mut row.iter().map(String::as_str)))).collect()
}
