//! The pod of a container, as the kubelet leaves it in labels and in the name.
//!
//! In: labels and name. Out: a pod identity or none. Whoever makes an image chooses its labels, so they are a claim;
//! `pod_proof.rs` looks for what confirms it.

use std::collections::HashMap;

use kevtmon_observation::{Incarnation, PodIdentity, PodProof};

use crate::kubelet::PodLabels;

/// Name of the sandbox in `io.kubernetes.container.name`.
const SANDBOX: &str = "POD";

/// Annotations of a container, which are labels where the runtime is Docker.
const HASH: &str = "io.kubernetes.container.hash";
const RESTARTS: &str = "io.kubernetes.container.restartCount";

/// Longest name that Kubernetes allows (a DNS subdomain).
const MAX_NAME: usize = 253;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodMember {
    pub(super) pod: PodIdentity,
    pub(super) sandbox: bool,
}

/// Reads labels, else the name `k8s_CONTAINER_POD_NAMESPACE_UID_ATTEMPT`. `shared` is the container whose
/// network namespace this one shares, which for a pod's container is the sandbox. Only a sandbox has the labels of its pod.
pub(super) fn pod_member(
    id: &str,
    name: &str,
    labels: &HashMap<String, String>,
    shared: Option<&str>,
    wanted: &PodLabels,
) -> Option<PodMember> {
    let label = |key: &str| labels.get(key).map(String::as_str).filter(|value| is_name(value));
    let labelled = || {
        Some(Names {
            namespace: label("io.kubernetes.pod.namespace")?,
            pod: label("io.kubernetes.pod.name")?,
            uid: label("io.kubernetes.pod.uid")?,
            container: label("io.kubernetes.container.name"),
        })
    };
    let names = labelled().or_else(|| names_of(name))?;
    let sandbox = match label("io.kubernetes.docker.type") {
        Some(kind) => kind == "podsandbox",
        None => names.container == Some(SANDBOX),
    };
    let sandbox_id = if sandbox { Some(id) } else { shared.or_else(|| label("io.kubernetes.sandbox.id")) };
    Some(PodMember {
        sandbox,
        pod: PodIdentity {
            namespace: names.namespace.to_owned(),
            name: names.pod.to_owned(),
            uid: names.uid.to_owned(),
            sandbox_id: sandbox_id.filter(|id| super::is_container_id(id)).map(str::to_owned),
            container_name: names.container.map(str::to_owned),
            proof: PodProof::Claimed,
            labels: if sandbox { wanted.of(labels) } else { None },
        },
    })
}

/// Which attempt the name or the labels of a container of Docker tell, and the hash of its specification.
pub(super) fn incarnation(name: &str, labels: &HashMap<String, String>) -> Incarnation {
    let label = |key: &str| labels.get(&format!("annotation.{key}")).map(String::as_str);
    let attempt = label(RESTARTS).and_then(number).or_else(|| attempt_of(name));
    Incarnation { attempt, spec_hash: label(HASH).and_then(hash), ..Incarnation::default() }
}

/// The hash of the specification in the annotations of a container of the CRI.
pub(super) fn spec_hash(annotations: &HashMap<String, String>) -> Option<u64> {
    annotations.get(HASH).and_then(|value| hash(value))
}

/// The kubelet writes it in hexadecimal, and logs it in decimal.
fn hash(value: &str) -> Option<u64> {
    value.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u64::from_str_radix(value, 16).ok())?
}

fn number(value: &str) -> Option<u32> {
    value.bytes().all(|byte| byte.is_ascii_digit()).then(|| value.parse().ok())?
}

/// Before the CRI (1.5) the last field was random.
fn attempt_of(name: &str) -> Option<u32> {
    let mut fields = name.split('_');
    let container = fields.nth(1).filter(|container| !container.contains('.'))?;
    let attempt = fields.nth(3).filter(|_| !container.is_empty() && names_of(name).is_some())?;
    number(attempt)
}

struct Names<'a> {
    namespace: &'a str,
    pod: &'a str,
    uid: &'a str,
    container: Option<&'a str>,
}

/// Kubernetes names hold no underscore. A seventh field is random, after a conflict of names; before the
/// CRI (1.5) a hash followed the container's name behind a dot.
fn names_of(name: &str) -> Option<Names<'_>> {
    let fields: Vec<&str> = name.split('_').collect();
    let (["k8s", container, pod, namespace, uid, _attempt]
    | ["k8s", container, pod, namespace, uid, _attempt, _]) = fields[..]
    else {
        return None;
    };
    let container = container.split_once('.').map_or(container, |(name, _hash)| name);
    [container, pod, namespace, uid].into_iter().all(is_name).then_some(Names {
        namespace,
        pod,
        uid,
        container: Some(container),
    })
}

/// Whether it can be a name of Kubernetes, and is safe to show.
pub(crate) fn is_name(value: &str) -> bool {
    !value.is_empty() && value.len() <= MAX_NAME && value.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod_member(
        id: &str,
        name: &str,
        labels: &HashMap<String, String>,
        shared: Option<&str>,
    ) -> Option<PodMember> {
        super::pod_member(id, name, labels, shared, &PodLabels(vec!["app".into(), "tier".into()]))
    }

    #[test]
    fn of_labels_a_sandbox_has_those_that_are_allowed_and_a_container_none() {
        let mut all =
            labels(&[POD[0], POD[1], POD[2], ("container.name", "POD"), ("docker.type", "podsandbox")]);
        let planted = [("app", "etcd"), ("token", "hunter2"), ("tier", "a\u{1b}b")];
        all.extend(planted.map(|(key, value)| (key.to_owned(), value.to_owned())));
        let kept = |all: &HashMap<String, String>| pod_member(ID, "x", all, None).unwrap().pod.labels;
        assert_eq!(kept(&all).map(|kept| *kept), Some([("app".to_owned(), "etcd".to_owned())].into()));
        all.insert("app".into(), "x".repeat(64));
        assert_eq!(kept(&all), None, "it can be no value of a label");
        all.extend(
            [("app", "etcd"), ("io.kubernetes.docker.type", "container")]
                .map(|(key, value)| (key.into(), value.into())),
        );
        assert_eq!(kept(&all), None, "they may be of its image");
    }

    const ID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const SANDBOX_ID: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    fn labels(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(k, v)| (format!("io.kubernetes.{k}"), (*v).to_owned())).collect()
    }

    const POD: [(&str, &str); 3] =
        [("pod.name", "etcd1-0"), ("pod.namespace", "lijiaob"), ("pod.uid", "u-1")];

    #[test]
    fn labels_name_the_pod_and_its_sandbox() {
        let mut all = POD.to_vec();
        all.extend([("container.name", "etcd"), ("docker.type", "container"), ("sandbox.id", SANDBOX_ID)]);
        let member = pod_member(ID, "whatever", &labels(&all), None).unwrap();
        assert!(!member.sandbox);
        assert_eq!(
            member.pod,
            PodIdentity {
                namespace: "lijiaob".into(),
                name: "etcd1-0".into(),
                uid: "u-1".into(),
                sandbox_id: Some(SANDBOX_ID.into()),
                container_name: Some("etcd".into()),
                proof: PodProof::Claimed,
                labels: None,
            }
        );
    }

    #[test]
    fn a_sandbox_is_its_own_sandbox() {
        let mut all = POD.to_vec();
        all.extend([("container.name", "POD"), ("docker.type", "podsandbox")]);
        let member = pod_member(ID, "x", &labels(&all), None).unwrap();
        assert!(member.sandbox);
        assert_eq!(member.pod.sandbox_id.as_deref(), Some(ID));
    }

    #[test]
    fn without_labels_the_name_identifies_the_pod() {
        for (name, container) in [
            ("k8s_etcd_etcd1-0_lijiaob_u-1_3", "etcd"),
            ("k8s_etcd_etcd1-0_lijiaob_u-1_3_0a1b2c3d", "etcd"),
            ("k8s_etcd.f932fb66_etcd1-0_lijiaob_u-1_5f2a", "etcd"),
        ] {
            let member = pod_member(ID, name, &HashMap::new(), Some(SANDBOX_ID)).unwrap();
            assert_eq!((member.pod.namespace.as_str(), member.pod.name.as_str()), ("lijiaob", "etcd1-0"));
            assert_eq!(
                (member.pod.uid.as_str(), member.pod.container_name.as_deref()),
                ("u-1", Some(container))
            );
            assert_eq!(member.pod.sandbox_id.as_deref(), Some(SANDBOX_ID));
        }
        let sandbox = pod_member(ID, "k8s_POD.f932fb66_p_n_u_0", &HashMap::new(), None).unwrap();
        assert!(sandbox.sandbox);
    }

    #[test]
    fn what_is_no_pod_has_none() {
        for name in ["etcd", "k8s_etcd", "k8s_a_b_c_d", "k8s_a_b_c_d_e_f_g", "k8s__b_c_d_0", "k9s_a_b_c_d_0"]
        {
            assert_eq!(pod_member(ID, name, &HashMap::new(), None), None, "{name}");
        }
        assert_eq!(pod_member(ID, "x", &labels(&POD[..2]), None), None);
        let escape = labels(&[("pod.name", "a\u{1b}[2J"), ("pod.namespace", "n"), ("pod.uid", "u")]);
        assert_eq!(pod_member(ID, "x", &escape, None), None);
        let long = "x".repeat(MAX_NAME + 1);
        assert_eq!(pod_member(ID, "x", &labels(&[("pod.name", &long), POD[1], POD[2]]), None), None);
    }

    #[test]
    fn attempt_and_hash_are_read_from_labels_and_the_attempt_else_from_the_name() {
        let all: HashMap<String, String> = [(HASH, "5cf0cfcf"), (RESTARTS, "3")]
            .map(|(key, value)| (format!("annotation.{key}"), value.to_owned()))
            .into();
        let read = incarnation("k8s_etcd_etcd1-0_lijiaob_u-1_7", &all);
        assert_eq!((read.attempt, read.spec_hash), (Some(3), Some(1_559_285_711)));
        for (name, attempt) in [
            ("k8s_etcd_etcd1-0_lijiaob_u-1_7", Some(7)),
            ("k8s_POD_etcd1-0_lijiaob_u-1_2_0a1b2c3d", Some(2)),
            ("k8s_etcd.f932fb66_etcd1-0_lijiaob_u-1_5", None),
            ("k8s_etcd_etcd1-0_lijiaob_u-1_+7", None),
            ("web_7", None),
        ] {
            assert_eq!(incarnation(name, &HashMap::new()).attempt, attempt, "{name}");
        }
    }

    #[test]
    fn a_hash_that_is_none_is_left_out() {
        for value in ["", "+5", "0x5", "five", "11112222333344445"] {
            let annotations = HashMap::from([(HASH.to_owned(), value.to_owned())]);
            assert_eq!(spec_hash(&annotations), None, "{value:?}");
        }
    }

    #[test]
    fn a_sandbox_id_that_is_none_is_left_out() {
        let mut all = POD.to_vec();
        all.push(("sandbox.id", "../../etc"));
        assert_eq!(pod_member(ID, "x", &labels(&all), None).unwrap().pod.sandbox_id, None);
    }
}
