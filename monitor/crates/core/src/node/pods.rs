//! Names of pods by uid, kept because a volume may be unmounted long after the pod's last container was removed.

use std::collections::BTreeMap;

use kevtmon_observation::{BootNs, KubeletPod, PodIdentity};
use serde::{Deserialize, Serialize};

const RETENTION_NS: u64 = 24 * 3600 * 1_000_000_000;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodNames {
    known: BTreeMap<String, KnownPod>,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct KnownPod {
    namespace: String,
    name: String,
    seen: BootNs,
    /// When its grace period ends, if it was deleted.
    ends: Option<BootNs>,
}

impl PodNames {
    /// Limit of pods: far more than a node runs in a day.
    pub const CAPACITY: usize = 4096;

    /// Adds a pod, or updates when it was last observed. A claim leaves no name: it would be that of another pod's
    /// volumes.
    pub fn note(&mut self, at: BootNs, pod: &PodIdentity) {
        if !pod.is_confirmed() {
            return;
        }
        if let Some(known) = self.known.get_mut(&pod.uid) {
            known.seen = at;
            return;
        }
        self.insert(pod.uid.clone(), pod.namespace.clone(), pod.name.clone(), at);
    }

    /// Adds the name of a pod that existed at a time, or corrects it.
    pub fn insert(&mut self, uid: String, namespace: String, name: String, seen: BootNs) {
        if self.known.len() >= Self::CAPACITY && !self.known.contains_key(&uid) {
            self.remove_older_half();
        }
        let ends = self.ends(&uid);
        self.known.insert(uid, KnownPod { namespace, name, seen, ends });
    }

    /// Adds a pod as its kubelet tells it, and when its grace period ends where it was deleted; whether that is news.
    pub fn put(&mut self, at: BootNs, pod: KubeletPod, ends: Option<BootNs>) -> bool {
        self.insert(pod.uid.clone(), pod.namespace, pod.name, at);
        let Some(known) = self.known.get_mut(&pod.uid) else { return false };
        std::mem::replace(&mut known.ends, ends) != ends
    }

    /// When the grace period of a pod ends that was deleted.
    #[must_use]
    pub fn ends(&self, uid: &str) -> Option<BootNs> {
        self.known.get(uid)?.ends
    }

    pub fn get(&self, uid: &str) -> Option<(&str, &str)> {
        self.known.get(uid).map(|known| (known.namespace.as_str(), known.name.as_str()))
    }

    /// All pods: uid, namespace, name.
    pub fn all(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.known.iter().map(|(uid, known)| (uid.as_str(), known.namespace.as_str(), known.name.as_str()))
    }

    /// Removes pods that were last observed a day ago.
    pub fn expire(&mut self, now: BootNs) {
        self.known.retain(|_, known| known.seen.saturating_add(RETENTION_NS) > now);
    }

    /// Removes the half that was observed longest ago; ties are broken by uid.
    fn remove_older_half(&mut self) {
        let mut seen: Vec<(BootNs, &str)> =
            self.known.iter().map(|(uid, known)| (known.seen, uid.as_str())).collect();
        seen.sort_unstable();
        let old: Vec<String> = seen[..seen.len() / 2].iter().map(|(_, uid)| (*uid).to_owned()).collect();
        for uid in old {
            self.known.remove(&uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_observation::PodProof;

    use super::*;

    fn pod(uid: &str) -> PodIdentity {
        PodIdentity {
            namespace: "cam".into(),
            name: format!("pod-{uid}"),
            uid: uid.into(),
            proof: PodProof::Cgroup,
            ..PodIdentity::default()
        }
    }

    #[test]
    fn the_name_of_a_pod_is_kept_for_a_day_after_it_was_last_observed() {
        let mut pods = PodNames::default();
        pods.note(0, &pod("a"));
        pods.note(10, &pod("a"));
        pods.expire(RETENTION_NS);
        assert_eq!(pods.get("a"), Some(("cam", "pod-a")));
        pods.expire(RETENTION_NS + 10);
        assert_eq!(pods.get("a"), None);
    }

    #[test]
    fn a_claim_leaves_no_name() {
        let mut pods = PodNames::default();
        pods.note(0, &PodIdentity { proof: PodProof::Claimed, ..pod("a") });
        assert_eq!(pods.get("a"), None);
    }

    #[test]
    fn the_end_that_a_kubelet_tells_is_kept_until_it_tells_another_one() {
        let told = || KubeletPod { uid: "a".into(), namespace: "cam".into(), name: "b".into(), ends_s: None };
        let mut pods = PodNames::default();
        pods.note(0, &pod("a"));
        assert!(!pods.put(1, told(), None), "only its name is another one");
        assert_eq!(pods.get("a"), Some(("cam", "b")));
        assert!(pods.put(2, told(), Some(9)) && !pods.put(3, told(), Some(9)));
        pods.insert("a".into(), "cam".into(), "b".into(), 4);
        assert_eq!((pods.ends("a"), pods.ends("c")), (Some(9), None));
    }

    #[test]
    fn a_flood_of_pods_keeps_the_newest() {
        let mut pods = PodNames::default();
        for at in 0..10_000 {
            pods.note(at, &pod(&at.to_string()));
        }
        assert!(pods.known.len() <= PodNames::CAPACITY);
        assert!(pods.get("9999").is_some() && pods.get("0").is_none());
    }

    #[test]
    fn a_flood_at_one_moment_keeps_half_of_it() {
        let mut pods = PodNames::default();
        for uid in 0..=PodNames::CAPACITY {
            pods.note(7, &pod(&uid.to_string()));
        }
        assert_eq!(pods.known.len(), PodNames::CAPACITY / 2 + 1);
    }
}
