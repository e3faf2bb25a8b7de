//! Which container took the place of which: the kubelet makes a container of a pod again under another id, and a pod of the
//! same name may be another one.

use kevtmon_observation::{ContainerFacts, PodIdentity};

use super::containers::{Containers, is_live};

/// The sandbox that a pod of this name has now: one that runs, else the newest that is left. Who only claims to be of the
/// pod is none.
pub fn current_sandbox<'a>(
    containers: &'a Containers,
    namespace: &str,
    name: &str,
) -> Option<&'a ContainerFacts> {
    let is_of_pod = |pod: &PodIdentity| pod.namespace == namespace && pod.name == name && pod.is_confirmed();
    containers
        .present()
        .filter(|facts| facts.sandbox && facts.pod.as_ref().is_some_and(is_of_pod))
        .max_by_key(|facts| (is_live(facts.state), age(facts), facts.id.as_str()))
}

/// The container that another one was made instead of: of the same pod, with the same name in it, the newest that is older and
/// has ended. A claim follows only claims, and what is confirmed only what is confirmed: else whoever makes an image could
/// speak of the containers of others.
pub fn predecessor<'a>(containers: &'a Containers, of: &ContainerFacts) -> Option<&'a ContainerFacts> {
    let pod = of.pod.as_ref().filter(|_| !of.sandbox)?;
    let name = pod.container_name.as_ref()?;
    let is_earlier = |facts: &ContainerFacts| {
        let is_same_pod = |other: &PodIdentity| {
            other.is_same_pod(pod)
                && other.container_name.as_ref() == Some(name)
                && other.is_confirmed() == pod.is_confirmed()
        };
        facts.id != of.id
            && !facts.sandbox
            && !is_live(facts.state)
            && facts.pod.as_ref().is_some_and(is_same_pod)
            && is_older(facts, of)
    };
    let earlier = containers.all().filter(|facts| is_earlier(facts));
    earlier.max_by_key(|facts| (facts.incarnation.attempt, facts.incarnation.created_s, facts.id.as_str()))
}

/// By the kubelet's count, which only rises within a pod, else by the time of its creation.
fn is_older(facts: &ContainerFacts, than: &ContainerFacts) -> bool {
    let (one, other) = (&facts.incarnation, &than.incarnation);
    match (one.attempt, other.attempt) {
        (Some(one), Some(other)) if one != other => one < other,
        _ => one.created_s.zip(other.created_s).is_some_and(|(one, other)| one < other),
    }
}

/// The attempts of pods of one name are counted for each pod again.
fn age(facts: &ContainerFacts) -> (Option<i64>, Option<u32>) {
    (facts.incarnation.created_s, facts.incarnation.attempt)
}

#[cfg(test)]
mod tests {
    use kevtmon_observation::{ContainerState, Incarnation, PodProof};

    use super::*;
    use crate::test_support::model::container;

    fn member(id: &str, uid: &str, created_s: i64, state: ContainerState) -> ContainerFacts {
        ContainerFacts {
            state,
            pod: Some(PodIdentity {
                namespace: "lijiaob".into(),
                name: "etcd1-0".into(),
                uid: uid.into(),
                sandbox_id: None,
                container_name: Some("etcd".into()),
                proof: PodProof::Cgroup,
                labels: None,
            }),
            incarnation: Incarnation { created_s: Some(created_s), ..Incarnation::default() },
            ..container(id)
        }
    }

    fn claim(facts: ContainerFacts) -> ContainerFacts {
        let pod = facts.pod.map(|pod| PodIdentity { proof: PodProof::Claimed, ..pod });
        ContainerFacts { pod, ..facts }
    }

    fn attempt(facts: ContainerFacts, attempt: u32) -> ContainerFacts {
        ContainerFacts { incarnation: Incarnation { attempt: Some(attempt), ..facts.incarnation }, ..facts }
    }

    fn containers(all: Vec<ContainerFacts>) -> Containers {
        let mut containers = Containers::default();
        for facts in all {
            containers.put(0, facts);
        }
        containers
    }

    fn predecessor_id(all: Vec<ContainerFacts>, of: ContainerFacts) -> Option<String> {
        predecessor(&containers(all), &of).map(|facts| facts.id.clone())
    }

    #[test]
    fn the_current_sandbox_of_a_name_is_the_one_that_runs_else_the_newest() {
        use ContainerState::{Exited, Running};
        let sandbox = |facts| ContainerFacts { sandbox: true, ..facts };
        let old = sandbox(attempt(member("old", "u-1", 5, Exited), 9));
        let new = sandbox(attempt(member("new", "u-2", 8, Exited), 0));
        let forged = sandbox(claim(member("forged", "u-2", 9, Running)));
        let current = |all: &[&ContainerFacts]| {
            let containers = containers(all.iter().copied().cloned().collect());
            current_sandbox(&containers, "lijiaob", "etcd1-0").map(|facts| facts.id.clone())
        };
        assert_eq!(current(&[&old, &new, &forged]).as_deref(), Some("new"));
        let old = ContainerFacts { state: Running, ..old };
        assert_eq!(current(&[&old, &new, &forged]).as_deref(), Some("old"));
        assert_eq!(current(&[&forged]), None);
    }

    #[test]
    fn a_container_follows_the_newest_ended_one_of_its_name_in_its_pod() {
        use ContainerState::{Exited, Running};
        let new = attempt(member("new", "u-1", 9, Running), 2);
        let first = attempt(member("first", "u-1", 3, Exited), 0);
        let second = attempt(member("second", "u-1", 5, Exited), 1);
        let later = attempt(member("later", "u-1", 9, Exited), 3);
        let other_pod = attempt(member("other", "u-2", 6, Exited), 1);
        let all = vec![first.clone(), second, later, other_pod, new.clone()];
        assert_eq!(predecessor_id(all, new.clone()).as_deref(), Some("second"));
        let live = ContainerFacts { state: Running, ..first };
        assert_eq!(predecessor_id(vec![live], new), None, "it has not ended");
    }

    #[test]
    fn without_attempts_the_older_one_is_that_created_before() {
        use ContainerState::{Exited, Running};
        let old = member("old", "u-1", 3, Exited);
        assert_eq!(
            predecessor_id(vec![old.clone()], member("new", "u-1", 4, Running)).as_deref(),
            Some("old")
        );
        assert_eq!(predecessor_id(vec![old], member("new", "u-1", 3, Running)), None);
    }

    #[test]
    fn a_claim_and_a_confirmed_container_do_not_follow_each_other() {
        use ContainerState::{Exited, Running};
        let (old, new) = (member("old", "u-1", 3, Exited), member("new", "u-1", 4, Running));
        assert_eq!(predecessor_id(vec![claim(old.clone())], new.clone()), None);
        assert_eq!(predecessor_id(vec![old.clone()], claim(new.clone())), None);
        assert_eq!(predecessor_id(vec![claim(old)], claim(new)).as_deref(), Some("old"));
    }
}
