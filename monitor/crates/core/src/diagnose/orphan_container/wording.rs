//! What is said of a container without its sandbox, and what to do.

use kevtmon_event::wording::{container_label, short_id, target_label};
use kevtmon_event::{Advice, Target};
use kevtmon_types::escape::name;

use super::kubelet::KubeletImpact;
use crate::diagnose::advice::{advice, remove};
use crate::node::view::NodeView;

/// Which kubelets do not start.
const RANGE: &str = "kubelets of about 1.18 to 1.23";

pub(super) fn summary(target: &Target, sandbox: &str, impact: &KubeletImpact) -> String {
    let owner = target_label(target).unwrap_or_else(|| "a container".to_owned());
    let label = match (&target.container, target.confirmed_pod()) {
        (Some(container), Some(_)) => format!("container {} of {owner}", container_label(container)),
        // Its own label, with what it claims.
        _ => owner,
    };
    let sandbox = short_id(sandbox);
    let consequence = match impact {
        KubeletImpact::Unlisted => String::new(),
        KubeletImpact::Remembered => {
            "; the sandbox has a checkpoint: a kubelet can start and clean up".to_owned()
        }
        KubeletImpact::Fatal(version) => {
            format!(": kubelet {} cannot start while it is there, as {RANGE}", name(version))
        }
        KubeletImpact::Harmless(version) => format!("; kubelet {} can start", name(version)),
        KubeletImpact::Unknown => format!(
            ": {RANGE} cannot start while it is there, others can; the version of the kubelet is unknown"
        ),
        KubeletImpact::Elsewhere { version, runtime } => {
            let version = version.as_ref().map_or_else(String::new, |version| format!(" {}", name(version)));
            let runtime = match runtime.as_deref() {
                None => "Docker".to_owned(),
                Some("") => "another one".to_owned(),
                Some(path) => format!("that at {}", name(path)),
            };
            format!(
                ": {RANGE} cannot start while it is there if they work with its runtime; by its command line \
                 kubelet{version} works with {runtime}"
            )
        }
        KubeletImpact::Unread(version) => {
            let version = version.as_deref().map_or_else(
                || "; the version of the kubelet is unknown".to_owned(),
                |version| format!(", kubelet {} among them", name(version)),
            );
            format!(
                ": without a checkpoint of that {RANGE} cannot start while it is there{version}; whether there is one \
                 could not be read"
            )
        }
    };
    format!("{label} is still there without its sandbox {sandbox}{consequence}")
}

pub(super) fn advice_for(node: &NodeView<'_>, target: &Target, is_live: bool) -> Vec<Advice> {
    let words = target.container.as_ref().and_then(|container| remove(node, container, is_live));
    let text = match is_live {
        true => "end and remove the container: nothing of it is left but its volumes",
        false => "remove the container: nothing of it is left but its volumes",
    };
    words.into_iter().map(|(form, words)| advice(form, text, &words)).collect()
}
