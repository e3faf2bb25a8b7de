//! What the model knows of a container or a pod at this moment, whether anything happened to it or not.

use kevtmon_core::state::{ContainerStatus, NetnsStatus, NodeState, PodStatus};
use kevtmon_event::wording::{pod_label, short_id};
use kevtmon_types::escape::name;

use super::key::{Family, Key};
use super::subject::{Subject, SubjectKind};

/// Containers of a pod that are told.
const SHOWN: usize = 8;

/// A line for each fact; none of a subject that is neither, or that is gone.
pub fn told(state: &NodeState, subject: &Subject) -> Vec<String> {
    let is_it = |family, value: &str| {
        let key = Key::new(family, value);
        subject.lookups.iter().any(|lookup| lookup.matches(&key))
    };
    match subject.kind {
        SubjectKind::Container => {
            let own = state.containers.iter().filter(|known| is_it(Family::Container, &known.container.id));
            own.flat_map(|known| [Some(container(known)), owner(known)]).flatten().collect()
        }
        SubjectKind::Pod => {
            let own = state.pods.iter().filter(|known| is_it(Family::Uid, &known.pod.uid));
            own.flat_map(|known| {
                [network(state, known)].into_iter().flatten().chain(containers(state, known))
            })
            .collect()
        }
        _ => Vec::new(),
    }
}

/// How it is, by whose word, and where it is found.
fn container(known: &ContainerStatus) -> String {
    let container = &known.container;
    let state = container.state.as_deref().unwrap_or("in an unknown state");
    let runtime = container.runtime.as_deref();
    let word = match (known.stale, runtime) {
        // Its own word, or what its files say.
        (true, Some(runtime)) => format!(", as was known last: {runtime} does not answer"),
        (true, None) => ", as was known last".to_owned(),
        (false, Some(runtime)) => format!(", as {runtime} says"),
        (false, None) => String::new(),
    };
    let exit = container.exit_code.filter(|_| state == "exited");
    let facts = [
        exit.map(|code| format!("exit code {code}")),
        container.image.as_deref().map(|image| format!("image {}", name(image))),
        container.pid.map(|pid| format!("pid {pid}")),
        known.netns.map(|netns| format!("net:[{netns}]")),
    ];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    let facts = if facts.is_empty() { String::new() } else { format!("; {}", facts.join(", ")) };
    format!("{}{word}{facts}", name(state))
}

fn owner(known: &ContainerStatus) -> Option<String> {
    let pod = known.pod.as_ref()?;
    let label = pod_label(pod);
    Some(match (pod.claimed, known.sandbox) {
        (true, _) => format!("claims to be of pod {label}, which nothing confirms"),
        (false, true) => format!("sandbox of pod {label}"),
        (false, false) => format!("of pod {label}"),
    })
}

fn network(state: &NodeState, known: &PodStatus) -> Option<String> {
    let is_it = |namespace: &&NetnsStatus| Some(namespace.netns) == known.netns;
    let is_stale = state.namespaces.iter().find(is_it).is_some_and(|namespace| namespace.stale);
    let list = |words: Vec<String>, one: &str, several: &str| {
        let what = if words.len() == 1 { one } else { several };
        (!words.is_empty()).then(|| format!("{what} {}", words.join(", ")))
    };
    let facts = [
        known.netns.map(|netns| format!("net:[{netns}]")),
        list(known.pod.ip.iter().map(ToString::to_string).collect(), "address", "addresses"),
        list(known.gateways.iter().map(ToString::to_string).collect(), "gateway", "gateways"),
        list(
            known.host_links.iter().map(|link| name(link).into_owned()).collect(),
            "host interface",
            "host interfaces",
        ),
    ];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    let word = if is_stale { "; as was read last, and may have changed since" } else { "" };
    (!facts.is_empty()).then(|| format!("{}{word}", facts.join(", ")))
}

fn containers(state: &NodeState, known: &PodStatus) -> Vec<String> {
    let own = state.containers.iter().filter(|own| known.containers.contains(&own.container.id));
    let line = |own: &ContainerStatus| {
        let short = short_id(&own.container.id);
        let label = own.container.name.as_deref().map_or_else(
            || format!("container {short}"),
            |called| format!("container {} ({short})", name(called)),
        );
        let role = if own.sandbox { ", its sandbox" } else { "" };
        format!("{label}{role}: {}", container(own))
    };
    let mut lines: Vec<String> = own.map(line).collect();
    let more = lines.len().saturating_sub(SHOWN);
    if more > 0 {
        lines.truncate(SHOWN);
        lines.push(format!("and {more} more containers"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use kevtmon_event::{Container, Pod};

    use super::*;
    use crate::query::subject::candidates;
    use crate::test_support::node_state::{alone, state};

    fn told_of(state: &NodeState, word: &str) -> Vec<String> {
        let [subject] = &candidates(word, Some(state), &[])[..] else { panic!("{word}") };
        told(state, subject)
    }

    fn known(id: char, state: &str) -> ContainerStatus {
        let container = Container {
            name: Some(format!("web-{id}")),
            runtime: Some("docker".into()),
            image: Some("nginx:1".into()),
            state: Some(state.into()),
            ..Container::of_id(String::from(id).repeat(64))
        };
        alone(container)
    }

    #[test]
    fn a_container_is_told_with_its_runtime_and_where_it_is_found() {
        let mut state = state();
        let mut runs = known('e', "running");
        (runs.container.pid, runs.netns, runs.pod) = (Some(812), Some(71), Some(state.pods[0].pod.clone()));
        let mut over = known('f', "exited");
        (over.container.exit_code, over.stale) = (Some(137), true);
        state.containers = vec![runs, over];
        assert_eq!(
            told_of(&state, "eeeeeeeeeeee"),
            ["running, as docker says; image nginx:1, pid 812, net:[71]", "of pod a/web"]
        );
        let expected = ["exited, as was known last: docker does not answer; exit code 137, image nginx:1"];
        assert_eq!(told_of(&state, "web-f"), expected);
        state.containers[0].sandbox = true;
        assert_eq!(told_of(&state, "web-e")[1], "sandbox of pod a/web");
        state.containers[0].pod = state.containers[0].pod.take().map(|pod| Pod { claimed: true, ..pod });
        assert_eq!(told_of(&state, "web-e")[1], "claims to be of pod a/web, which nothing confirms");
    }

    #[test]
    fn a_pod_is_told_with_its_network_and_its_own_containers() {
        let mut state = state();
        state.pods[0].host_links = vec!["cali-a".into()];
        state.pods[0].containers = vec!["e".repeat(64)];
        state.containers =
            vec![ContainerStatus { sandbox: true, ..known('e', "running") }, known('f', "running")];
        let container = "container web-e (eeeeeeeeeeee), its sandbox: running, as docker says; image nginx:1";
        assert_eq!(
            told_of(&state, "a/web"),
            ["net:[71], address 10.0.0.1, host interface cali-a", container]
        );
        assert_eq!(told_of(&state, "b/web"), ["net:[72], address 10.0.0.2"]);
        assert!(told_of(&state, "cali-a").is_empty(), "it is none");
        state.namespaces.iter_mut().find(|namespace| namespace.netns == 72).unwrap().stale = true;
        assert_eq!(
            told_of(&state, "b/web"),
            ["net:[72], address 10.0.0.2; as was read last, and may have changed since"]
        );
    }

    #[test]
    fn of_a_pod_with_many_containers_few_are_told() {
        let mut state = state();
        let many: Vec<ContainerStatus> = "0123456789ab".chars().map(|id| known(id, "running")).collect();
        state.pods[0].containers = many.iter().map(|known| known.container.id.clone()).collect();
        state.containers = many;
        let told = told_of(&state, "a/web");
        assert_eq!(
            (told.len(), told.last().map(String::as_str)),
            (1 + SHOWN + 1, Some("and 4 more containers"))
        );
    }
}
