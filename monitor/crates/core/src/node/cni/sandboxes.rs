//! Sandboxes by what runtimes tell of them and by what calls did to them.

use kevtmon_observation::{BootNs, CniPod};

use super::super::containers::is_live;
use super::super::incarnations;
use super::super::view::{NodeView, RuntimeAvailability};

impl<'a> NodeView<'a> {
    /// The newest sandbox of a pod that lives, and when it was made, as far as that is known.
    pub fn current_sandbox(&self, namespace: &str, name: &str) -> Option<(&'a str, BootNs)> {
        let of_runtimes = incarnations::current_sandbox(self.containers, namespace, name);
        let of_calls =
            self.cni.sandboxes().filter(|(_, known)| known.is_added && known.is_of(namespace, name));
        of_runtimes
            .map(|facts| facts.id.as_str())
            .into_iter()
            .chain(of_calls.map(|(id, _)| id))
            .filter(|id| self.is_sandbox_alive(id))
            .map(|id| (id, self.sandbox_made(id).unwrap_or(0)))
            .max_by_key(|(id, made)| (*made, *id))
    }

    /// Whether a sandbox is older than the current one of its pod, which lives; `None` where that is not known.
    pub fn is_stale(&self, id: &str, pod: &CniPod) -> Option<bool> {
        let all_known = self.runtimes == RuntimeAvailability::All;
        let Some((current, current_made)) = self.current_sandbox(&pod.namespace, &pod.name) else {
            return all_known.then_some(false);
        };
        if current == id {
            return Some(false);
        }
        match self.sandbox_made(id) {
            Some(made) => Some(made < current_made).filter(|_| made != current_made),
            // Its `ADD` was not seen, so that it is older than one whose was.
            None => {
                let is_added = self.cni.get(current).is_some_and(|known| known.added.is_some());
                (is_added || all_known && current_made > 0).then_some(true)
            }
        }
    }

    /// Whether a sandbox lives and has its network, as far as anything tells.
    pub fn is_sandbox_alive(&self, id: &str) -> bool {
        if self.cni.get(id).is_some_and(|known| known.is_deleted) {
            return false;
        }
        match self.containers.get(id) {
            Some(facts) => is_live(facts.state) && self.has_sandbox(id),
            None => {
                self.runtimes != RuntimeAvailability::All
                    && self.cni.get(id).is_some_and(|known| known.is_added)
            }
        }
    }

    /// Whether a runtime still has a sandbox, in any state.
    pub fn has_sandbox(&self, id: &str) -> bool {
        self.containers.is_present(id)
    }

    pub fn sandbox_made(&self, id: &str) -> Option<BootNs> {
        let of_runtime = || {
            let facts = self.containers.get(id)?;
            facts.started_ns.or_else(|| self.containers.started(id))
        };
        self.cni.get(id).and_then(|known| known.added).or_else(of_runtime)
    }
}
