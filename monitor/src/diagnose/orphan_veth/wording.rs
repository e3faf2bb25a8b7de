//! What is said of a veth device whose pod is gone.

use super::VethEnd;
use crate::diagnose::advice::advice;
use crate::escape::name;
use crate::event::wording::{pod_label, process_phrase};
use crate::event::{Advice, MountHolder, Pod, form};
use crate::node::view::NodeView;
use crate::observation::{Access, LinkFacts};

/// What keeps the namespace that a summary names.
const NAMED_MAX: usize = 2;

pub(super) fn summary(node: &NodeView<'_>, link: &LinkFacts, pod: Option<&Pod>, end: &VethEnd) -> String {
    let ifname = name(&link.ifname);
    let mut text = match pod {
        Some(pod) => {
            format!("veth {ifname} of pod {} is still on this node: its pod is gone", pod_label(pod))
        }
        None => format!("veth {ifname} is still on this node: no pod that runs here has it"),
    };
    match end.netns {
        Some(netns) if netns == node.host_netns => {
            text.push_str(", and both of its ends are in the network namespace of the host");
            return text;
        }
        Some(netns) => {
            let of = end.name.as_ref().map_or_else(String::new, |of| format!("{} ", name(of)));
            text.push_str(&format!(", its other end is in network namespace {of}net:[{netns}]"));
        }
        None => {
            text.push_str(", and its other end was not found");
            return text;
        }
    }
    let (named, rest) = end.keepers.split_at(end.keepers.len().min(NAMED_MAX));
    let mut keepers: Vec<String> = named.iter().map(keeper).collect();
    if !rest.is_empty() {
        keepers.push(format!("{} more", rest.len()));
    }
    text.push_str(&match keepers.is_empty() {
        true => ", held by nothing that was found".to_owned(),
        false => format!(", held by {}", keepers.join(" and ")),
    });
    text
}

fn keeper(of: &MountHolder) -> String {
    let path = name(of.path.as_deref().unwrap_or_default());
    if of.pid == 0 {
        return format!("the mount {path}");
    }
    let process = process_phrase(of.uid, &of.comm, of.pid, of.container.as_ref(), of.pod.as_ref());
    match of.access {
        Access::Mount => format!("the mount {path} in the mount namespace of {process}"),
        Access::Fd => format!("{process} with an open file"),
        _ => format!("{process} as its network namespace"),
    }
}

pub(super) fn ruled_out(end: &VethEnd) -> Vec<String> {
    match end.netns {
        Some(_) if end.complete => {
            vec!["no container of any runtime is in that network namespace".to_owned()]
        }
        _ => Vec::new(),
    }
}

pub(super) fn steps(link: &LinkFacts) -> Vec<Advice> {
    let command = ["ip", "-details", "link", "show", "dev", &link.ifname];
    vec![advice(form::SHOW_LINK, "see the device and the id of the namespace of its other end", &command)]
}
