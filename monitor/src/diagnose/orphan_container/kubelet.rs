//! What a container without its sandbox means for a kubelet that starts.

use crate::event::Severity;
use crate::node::view::NodeView;
use crate::observation::ContainerFacts;

/// Versions that end at their start when they find one: since the map of containers is built from the runtime's list, until
/// the error became a message (kubernetes/kubernetes#108325, in 1.23 since 1.23.14 by #113354). Major, minor, patch.
const FATAL: std::ops::Range<(u32, u32, u32)> = (1, 18, 0)..(1, 23, 14);

/// What it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
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
    /// No kubelet lists the container: it was not made by one that has sandboxes.
    Unlisted,
}

impl Fate {
    pub(super) fn of(node: &NodeView<'_>, facts: &ContainerFacts, checkpoint: Option<bool>) -> Self {
        if !is_listed(facts) {
            return Self::Unlisted;
        }
        let version = version(node);
        let is_fatal = version.as_deref().and_then(release).map(|version| FATAL.contains(&version));
        match (has_checkpoints(facts), checkpoint, is_fatal, version) {
            (true, Some(true), ..) => Self::Remembered,
            (_, _, Some(false), Some(version)) => Self::Harmless(version),
            (true, None, _, version) => Self::Unread(version),
            (_, _, Some(true), Some(version)) => Self::Fatal(version),
            _ => Self::Unknown,
        }
    }

    pub(super) fn severity(&self) -> Severity {
        match self {
            Self::Fatal(_) => Severity::Critical,
            Self::Unknown | Self::Unread(_) => Severity::Warning,
            Self::Remembered | Self::Harmless(_) | Self::Unlisted => Severity::Info,
        }
    }
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

/// Version of the kubelet that was started last, whether it runs or not.
pub(super) fn version(node: &NodeView<'_>) -> Option<String> {
    let last = node.components.named("kubelet").max_by_key(|kubelet| kubelet.started_ns);
    last?.version.clone()
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
