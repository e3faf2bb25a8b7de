//! Names of pods by uid: a volume is unmounted long after the pod's last container went.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::observation::{BootNs, PodIdentity};

/// How long a pod can still be named.
const REMEMBER_NS: u64 = 24 * 3600 * 1_000_000_000;

/// The names of pods that were seen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodNames {
    known: BTreeMap<String, Known>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    namespace: String,
    name: String,
    seen: BootNs,
}

impl PodNames {
    /// Pods that are remembered: far more than a node runs in a day.
    pub const CAPACITY: usize = 4096;

    /// Remembers a pod.
    pub fn note(&mut self, at: BootNs, pod: &PodIdentity) {
        if let Some(known) = self.known.get_mut(&pod.uid) {
            known.seen = at;
            return;
        }
        self.insert(pod.uid.clone(), pod.namespace.clone(), pod.name.clone(), at);
    }

    /// Remembers what a pod is called that was there at a moment.
    pub fn insert(&mut self, uid: String, namespace: String, name: String, seen: BootNs) {
        if self.known.len() >= Self::CAPACITY && !self.known.contains_key(&uid) {
            self.forget_older_half();
        }
        self.known.insert(uid, Known { namespace, name, seen });
    }

    /// Namespace and name of a pod.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<(&str, &str)> {
        self.known.get(uid).map(|known| (known.namespace.as_str(), known.name.as_str()))
    }

    /// Forgets pods that were last seen a day ago.
    pub fn expire(&mut self, now: BootNs) {
        self.known.retain(|_, known| known.seen.saturating_add(REMEMBER_NS) > now);
    }

    /// Of those that were seen at the same time, any.
    fn forget_older_half(&mut self) {
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
    use super::*;

    fn pod(uid: &str) -> PodIdentity {
        PodIdentity {
            namespace: "cam".into(),
            name: format!("pod-{uid}"),
            uid: uid.into(),
            sandbox_id: None,
            container_name: None,
        }
    }

    #[test]
    fn a_pod_is_named_for_a_day_after_it_was_last_seen() {
        let mut pods = PodNames::default();
        pods.note(0, &pod("a"));
        pods.note(10, &pod("a"));
        pods.expire(REMEMBER_NS);
        assert_eq!(pods.get("a"), Some(("cam", "pod-a")));
        pods.expire(REMEMBER_NS + 10);
        assert_eq!(pods.get("a"), None);
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
