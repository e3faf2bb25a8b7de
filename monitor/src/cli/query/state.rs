//! `state`: what the daemon knows of this node, or knew when it was last recorded.

use std::fmt::Write as _;

use clap::Args;

use super::{Desk, Failure, Place, Source};
use crate::cli::exit;
use crate::core::state::{NetnsState, State};
use crate::query::moment::Clock;
use crate::query::record::timestamp;
use crate::recording::remains::last_state;
use crate::sinks::pretty::{Ink, Pretty, shown};

/// Arguments of `state`.
#[derive(Debug, Default, Args)]
pub struct StateArgs {
    /// One JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would show it in the help")]
    pub place: Place,
}

impl StateArgs {
    pub(super) fn answer(&self, desk: &mut Desk<'_>) -> Result<u8, Failure> {
        let state = match (desk.source.history().state()?, desk.source) {
            (None, Source::Store { dir, .. }) => last_state(dir)?,
            (state, _) => state,
        };
        let Some(state) = state else {
            return Ok(desk.nothing("no state of the node was recorded"));
        };
        match self.json {
            true => desk.json(&state)?,
            false => desk.out.write_all(text(&state, &desk.pretty, &desk.clock).as_bytes())?,
        }
        Ok(exit::OK)
    }
}

pub(super) fn text(state: &State, pretty: &Pretty, clock: &Clock) -> String {
    let mut text = String::new();
    let mut line = |line: &str| {
        text.push_str(line.trim_end());
        text.push('\n');
    };
    let head = format!("node {}", shown(&state.node));
    line(&format!(
        "{} at {}, kevtmon {}{}",
        pretty.ink(Ink::Bold, &head),
        clock.local_and_age(timestamp(&state.time)),
        shown(&state.version),
        if state.ready { "" } else { ", not ready yet" },
    ));
    let mut table = |title: &str, header: &[&str], rows: Vec<Vec<String>>| {
        line("");
        line(&pretty.ink(Ink::Bold, &format!("{title} ({})", rows.len())));
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

fn sources(state: &State) -> Vec<Vec<String>> {
    let row = |status: &crate::observation::SourceStatus| {
        vec![
            shown(&status.source),
            if status.up { "up" } else { "down" }.to_owned(),
            words(status.rung.as_deref()),
            words(status.reason.as_deref()),
        ]
    };
    state.sources.iter().map(row).collect()
}

fn pods(state: &State) -> Vec<Vec<String>> {
    let row = |pod: &crate::core::state::PodState| {
        vec![
            pod_name(&pod.pod),
            list(&pod.pod.ip),
            list(&pod.gateways),
            shown(&list(&pod.host_links)),
            pod.netns.map_or_else(dash, |netns| netns.to_string()),
            pod.containers.len().to_string(),
        ]
    };
    state.pods.iter().map(row).collect()
}

fn containers(state: &State) -> Vec<Vec<String>> {
    let row = |place: &crate::core::state::ContainerPlace| {
        let container = &place.container;
        vec![
            shown(container.id.get(..12).unwrap_or(&container.id)),
            words(container.name.as_deref()),
            words(container.state.as_deref()),
            container.pid.map_or_else(dash, |pid| pid.to_string()),
            place.pod.as_ref().map_or_else(dash, pod_name),
        ]
    };
    state.containers.iter().map(row).collect()
}

fn namespaces(state: &State) -> Vec<Vec<String>> {
    let row = |namespace: &NetnsState| {
        let links: Vec<String> = namespace.links.iter().map(|link| shown(&link.ifname)).collect();
        vec![
            namespace.netns.to_string(),
            owner(state, namespace),
            list(&links),
            shown(&list(&namespace.addresses)),
        ]
    };
    state.namespaces.iter().map(row).collect()
}

fn owner(state: &State, namespace: &NetnsState) -> String {
    if namespace.netns == state.host_netns {
        return "the host".to_owned();
    }
    if let Some(pod) = &namespace.owner.pod {
        return pod_name(pod);
    }
    if let Some(container) = &namespace.owner.container {
        return shown(container.name.as_deref().unwrap_or(&container.id));
    }
    match (&namespace.name, &namespace.comm, namespace.pid) {
        (Some(name), ..) => format!("/run/netns/{}", shown(name)),
        (None, Some(comm), Some(pid)) => format!("{} (pid {pid})", shown(comm)),
        _ => dash(),
    }
}

fn pod_name(pod: &crate::event::Pod) -> String {
    match (&pod.namespace, &pod.name) {
        (Some(namespace), Some(name)) => format!("{}/{}", shown(namespace), shown(name)),
        _ => shown(&pod.uid),
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
    text.map_or_else(dash, shown)
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
