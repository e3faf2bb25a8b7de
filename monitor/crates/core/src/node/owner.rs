//! Whose a control group is: its path goes in; container, pod and unit come out, named as far as they are known.

use kevtmon_event::{Container, Join, Pod};
use kevtmon_observation::cgroup;

use super::view::RuntimeAvailability;

#[derive(Debug)]
pub struct CgroupOwner {
    pub container: Option<Container>,
    pub pod: Option<Pod>,
    pub unit: Option<String>,
    pub join: Join,
}

/// A container as a runtime describes it.
#[derive(Debug)]
pub struct Described {
    pub container: Container,
    /// The pod that its labels tell.
    pub pod: Option<Pod>,
    /// Whether it is not removed.
    pub is_present: bool,
}

/// What is known of containers and pods, by their ids.
pub trait Names {
    fn container(&self, id: &str) -> Option<Described>;

    /// A pod, with its name if that is known.
    fn pod(&self, uid: String) -> Pod;

    /// Which runtimes describe their containers.
    fn runtimes(&self) -> RuntimeAvailability;
}

pub fn owner(names: &impl Names, cgroup: Option<&str>) -> CgroupOwner {
    let Some(path) = cgroup else {
        return CgroupOwner { container: None, pod: None, unit: None, join: Join::Missed };
    };
    let identity = cgroup::identify(path);
    let Some(id) = identity.container_id else {
        return CgroupOwner { container: None, pod: None, unit: identity.unit, join: Join::Host };
    };
    let uid = identity.pod_uid;
    match names.container(&id) {
        Some(Described { container, pod, is_present }) => CgroupOwner {
            container: Some(container),
            pod: pod_in_cgroup(names, pod, uid),
            unit: identity.unit,
            // A process of it may outlive its removal, or its act be told after it.
            join: if is_present { Join::Ok } else { Join::Late },
        },
        None => CgroupOwner {
            container: Some(Container {
                runtime: identity.runtime.map(|runtime| runtime.name().to_owned()),
                ..Container::of_id(id)
            }),
            pod: uid.map(|uid| names.pod(uid)),
            unit: identity.unit,
            // Without a runtime the cgroup is the only information there is.
            join: if names.runtimes().is_any() { Join::Missed } else { Join::Ok },
        },
    }
}

/// The pod of a process of a container with these labels whose control group is below that of the pod with this uid. Root
/// made the group, so it outweighs labels.
fn pod_in_cgroup(names: &impl Names, labelled: Option<Pod>, uid: Option<String>) -> Option<Pod> {
    match uid {
        Some(uid) if labelled.as_ref().is_some_and(|pod| pod.uid == uid) => {
            labelled.map(|pod| Pod { claimed: false, ..pod })
        }
        Some(uid) if labelled.as_ref().is_none_or(|pod| pod.claimed) => Some(names.pod(uid)),
        _ => labelled,
    }
}
