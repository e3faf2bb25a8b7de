//! Names of pods by uid: a volume is unmounted long after the pod's last container went.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::observation::{BootNs, PodIdentity};

/// How long a pod can still be named.
const REMEMBER_NS: u64 = 24 * 3600 * 1_000_000_000;
/// Pods that are remembered: far more than a node runs in a day.
const CAPACITY: usize = 4096;

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
    /// Remembers a pod.
    pub fn note(&mut self, at: BootNs, pod: &PodIdentity) {
        if let Some(known) = self.known.get_mut(&pod.uid) {
            known.seen = at;
            return;
        }
        if self.known.len() >= CAPACITY {
            self.forget_older_half();
        }
        let known = Known { namespace: pod.namespace.clone(), name: pod.name.clone(), seen: at };
        self.known.insert(pod.uid.clone(), known);
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

    fn forget_older_half(&mut self) {
        let mut seen: Vec<BootNs> = self.known.values().map(|known| known.seen).collect();
        seen.sort_unstable();
        let median = seen[seen.len() / 2];
        self.known.retain(|_, known| known.seen > median);
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
        assert!(pods.known.len() <= CAPACITY);
        assert!(pods.get("9999").is_some() && pods.get("0").is_none());
    }
}
