//! `state`: the model of this node, as it is or as it was recorded last, or the network of one pod.

use clap::Args;
use kevtmon_core::state::{NodeState, PodStatus};
use kevtmon_history::query::stale::Stale;
use serde::Serialize;

use super::{ClientArgs, Failure, Output};
use crate::cli::client::Source;
use crate::cli::exit;

/// The model, and why it may be otherwise by now.
#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    state: &'a NodeState,
    #[serde(skip_serializing_if = "Option::is_none")]
    stale: Option<Stale>,
    /// Why there may be pods that are not listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pods_incomplete: Option<String>,
}

/// Arguments of `state`.
#[derive(Debug, Default, Args)]
pub struct StateArgs {
    /// Show one pod (NAMESPACE/NAME, NAME or uid) as the path of its packets to the uplink of the node
    #[arg(value_name = "POD")]
    pub pod: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

impl StateArgs {
    pub(super) fn answer(&self, output: &mut Output<'_>) -> Result<u8, Failure> {
        let state = output.source.state()?;
        let Some(mut state) = state else {
            return Ok(output.nothing("no recorded state"));
        };
        let pods_incomplete = state.pods_incomplete();
        if let Some(word) = &self.pod {
            let known = state.pods.len();
            restrict(&mut state, word);
            if state.pods.is_empty() {
                return Ok(not_found(output, word, known, pods_incomplete.as_deref()));
            }
        }
        let stale = match output.source {
            Source::Files { .. } | Source::Nowhere => Some(Stale::without_daemon(Some(state.time.clone()))),
            Source::Daemon(_) => None,
        };
        if self.json {
            output.json(&Answer { state: &state, stale, pods_incomplete })?;
            return Ok(exit::OK);
        }
        let text = match self.pod {
            None => kevtmon_render::state::text(&state, stale.as_ref(), &output.pretty, &output.clock),
            Some(_) => {
                let head = kevtmon_render::state::head(&state, stale.as_ref(), &output.pretty, &output.clock);
                let paths = state
                    .pods
                    .iter()
                    .map(|pod| kevtmon_render::state::pod(&state, pod, &output.pretty, &output.clock));
                [head].into_iter().chain(paths).collect::<Vec<_>>().join("\n")
            }
        };
        output.out.write_all(text.as_bytes())?;
        Ok(exit::OK)
    }
}

/// That no pod of this name is known; whether there is one is known only where every runtime answers.
fn not_found(output: &mut Output<'_>, word: &str, known: usize, incomplete: Option<&str>) -> u8 {
    let Some(why) = incomplete else {
        output.remark(&format!("no pod of this node is called {word}; `kevtmon state` lists them"));
        return exit::FAILED;
    };
    let others = match known {
        0 => "and no pod is known otherwise".to_owned(),
        1 => "`kevtmon state` shows the one pod that is known".to_owned(),
        known => format!("`kevtmon state` lists the {known} pods that are known"),
    };
    output.remark(&format!("it is unknown whether a pod of this node is called {word}: {why}; {others}"));
    exit::QUERY
}

/// Leaves of the model what is of the pods of this name, and the network of the host.
fn restrict(state: &mut NodeState, word: &str) {
    let is_it = |pod: &PodStatus| {
        let (namespace, name) = (pod.pod.namespace.as_deref(), pod.pod.name.as_deref());
        pod.pod.uid == word
            || name == Some(word)
            || word.split_once('/').is_some_and(|(of, called)| (namespace, name) == (Some(of), Some(called)))
    };
    state.pods.retain(is_it);
    let netns: Vec<_> = state.pods.iter().filter_map(|pod| pod.netns).chain([state.host_netns]).collect();
    state.namespaces.retain(|namespace| netns.contains(&namespace.netns));
    let ids: Vec<_> = state.pods.iter().flat_map(|pod| pod.containers.iter().cloned()).collect();
    state.containers.retain(|container| ids.contains(&container.container.id));
    let is_of_one = |of: Option<&kevtmon_event::Target>| {
        let pod = of.and_then(kevtmon_event::Target::confirmed_pod);
        pod.is_some_and(|pod| state.pods.iter().any(|known| known.pod.uid == pod.uid))
    };
    state.suspected.retain(|suspected| is_of_one(suspected.target.as_ref()));
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_pod_is_named_by_its_name_with_or_without_namespace_or_by_its_uid() {
        for (word, uids) in [
            ("web", &["uid-a", "uid-b"][..]),
            ("a/web", &["uid-a"]),
            ("uid-b", &["uid-b"]),
            ("c/web", &[]),
            ("we", &[]),
        ] {
            let mut state = crate::test_support::node_state::state();
            restrict(&mut state, word);
            let found: Vec<&str> = state.pods.iter().map(|pod| pod.pod.uid.as_str()).collect();
            assert_eq!(found, uids, "{word}");
            let pods = state.pods.len();
            assert!(state.namespaces.len() <= pods + 1, "{word}");
        }
    }
}
