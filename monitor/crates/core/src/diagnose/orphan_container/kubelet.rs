//! What a container without its sandbox means for a kubelet that starts.

use kevtmon_event::Severity;
use kevtmon_observation::{ComponentFacts, ContainerFacts};

use crate::node::view::NodeView;

/// Versions that end at their start when they find one: since the map of containers is built from the runtime's list, until
/// the error became a message (kubernetes/kubernetes#108325, in 1.23 since 1.23.14 by #113354). Major, minor, patch.
const FATAL: std::ops::Range<(u32, u32, u32)> = (1, 18, 0)..(1, 23, 14);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KubeletImpact {
    /// A checkpoint stands in for the sandbox.
    Remembered,
    /// The kubelet, of this version, does not start.
    Fatal(String),
    /// The kubelet, of this version, does not mind.
    Harmless(String),
    /// That depends on the kubelet, whose version is not known.
    Unknown,
    /// Whether there is a checkpoint could not be read; the version, if it is known and one that would not start without.
    Unread(Option<String>),
    /// The kubelet would not start or is of an unknown version, and works with another runtime than that of the container.
    Elsewhere {
        version: Option<String>,
        /// The socket of its runtime; `None` where that is dockershim.
        runtime: Option<String>,
    },
    /// No kubelet lists the container: it was not made by one that has sandboxes.
    Unlisted,
}

impl KubeletImpact {
    /// For this kubelet, if one is known.
    pub(super) fn of(
        node: &NodeView<'_>,
        facts: &ContainerFacts,
        checkpoint: Option<bool>,
        kubelet: Option<&ComponentFacts>,
    ) -> Self {
        if !is_listed(facts) {
            return Self::Unlisted;
        }
        let version = kubelet.and_then(|kubelet| kubelet.version.clone());
        let is_fatal = version.as_deref().and_then(release).map(|version| FATAL.contains(&version));
        let elsewhere = kubelet.filter(|kubelet| !works_with(node, kubelet, facts, is_fatal));
        match (has_checkpoints(facts), checkpoint, is_fatal, version, elsewhere) {
            (true, Some(true), ..) => Self::Remembered,
            (_, _, Some(false), Some(version), _) => Self::Harmless(version),
            (_, _, _, version, Some(kubelet)) => {
                Self::Elsewhere { version, runtime: kubelet.remote_runtime.clone() }
            }
            (true, None, _, version, None) => Self::Unread(version),
            (_, _, Some(true), Some(version), None) => Self::Fatal(version),
            _ => Self::Unknown,
        }
    }

    /// Whether it may be why a kubelet ended.
    pub(super) fn may_end(&self) -> bool {
        match self {
            Self::Fatal(_) | Self::Unknown | Self::Unread(_) => true,
            Self::Remembered | Self::Harmless(_) | Self::Elsewhere { .. } | Self::Unlisted => false,
        }
    }

    pub(super) fn severity(&self) -> Severity {
        match self {
            Self::Fatal(_) => Severity::Critical,
            Self::Unknown | Self::Unread(_) | Self::Elsewhere { .. } => Severity::Warning,
            Self::Remembered | Self::Harmless(_) | Self::Unlisted => Severity::Info,
        }
    }
}

/// Whether a kubelet works with the runtime of a container, as its command line tells.
fn works_with(
    node: &NodeView<'_>,
    kubelet: &ComponentFacts,
    facts: &ContainerFacts,
    is_fatal: Option<bool>,
) -> bool {
    match &kubelet.remote_runtime {
        // Those that would not start have dockershim then; of others the way to their runtime is not known.
        None => is_fatal.is_none() || has_checkpoints(facts),
        Some(path) => node.containers.sources(&facts.id).iter().any(|source| {
            let socket = source.split_once(':').map(|(_, socket)| socket);
            socket.is_some_and(|socket| in_run(socket) == in_run(path))
        }),
    }
}

/// `/var/run` is a link to `/run`.
fn in_run(path: &str) -> &str {
    path.strip_prefix("/var").filter(|rest| rest.starts_with("/run/")).unwrap_or(path)
}

/// Whether dockershim or cri-dockerd made it, which keep checkpoints.
pub(super) fn has_checkpoints(facts: &ContainerFacts) -> bool {
    facts.runtime == "docker"
}

/// Whether a kubelet lists it. dockershim lists what has its labels, among them that of the hash, and a name of its form; what is
/// known by one of these alone is of a time before, or nobody's but who started it.
fn is_listed(facts: &ContainerFacts) -> bool {
    let fields = facts.name.split('_').count();
    let has_name = facts.name.starts_with("k8s_") && (6..=7).contains(&fields);
    !has_checkpoints(facts) || has_name && facts.incarnation.spec_hash.is_some()
}

/// The kubelet that was started last, whether it runs or not.
pub(super) fn last<'a>(node: &NodeView<'a>) -> Option<&'a ComponentFacts> {
    node.components.named("kubelet").max_by_key(|kubelet| kubelet.started_ns)
}

/// Of a version such as `v1.20.2-gke.5`; a build that was not given one calls itself `v0.0.0`.
fn release(version: &str) -> Option<(u32, u32, u32)> {
    // Some builds write `20+`.
    let mut parts = version.strip_prefix('v').unwrap_or(version).split(['.', '-', '+']);
    let (major, minor) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let patch = parts.next().and_then(|patch| patch.parse().ok()).unwrap_or(0);
    (major > 0).then_some((major, minor, patch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_read_from_every_form_of_a_version() {
        for (text, expected) in [
            ("v1.20.2", Some((1, 20, 2))),
            ("1.9.11", Some((1, 9, 11))),
            ("v1.23.17-eks-0a21954", Some((1, 23, 17))),
            ("v1.18+", Some((1, 18, 0))),
            ("v1.20.2-gke.5", Some((1, 20, 2))),
            ("v0.0.0-master+$Format:%h$", None),
            ("unknown", None),
        ] {
            assert_eq!(release(text), expected, "{text}");
        }
    }
}
