//! What the daemon cannot do or see well because of the namespaces in which it was started.

use kevtmon_observation::{NsInum, SourceKind, SourceStatus};
use kevtmon_sources::procfs::{Proc, cgroups};

/// What it means that the daemon runs in a mount namespace of its own that has copies of the host's mounts.
pub(super) fn own_mounts(mntns: NsInum) -> SourceStatus {
    let reason = format!(
        "kevtmon runs in a mount namespace of its own (mnt:[{mntns}]), which keeps copies of the node's mounts, so that \
         they may stay in use; start it in the host's mount namespace, or give its container no directory of the node \
         with other mounts below it"
    );
    tracing::warn!("{reason}");
    SourceStatus { reason: Some(reason), ..SourceStatus::up(SourceKind::Processes, "own-mounts") }
}

/// What it means that the daemon cannot see the control groups of the node.
pub(super) fn own_cgroups() -> Option<SourceStatus> {
    let reason = "kevtmon runs in a control group namespace of its own and sees no process of the initial one, so that no \
                  control group names a container, pod or unit; start it in the host's process namespace";
    if cgroups::are_all_visible() {
        return None;
    }
    tracing::warn!("{reason}");
    let up = SourceStatus::up(SourceKind::Processes, "own-cgroups");
    Some(SourceStatus { reason: Some(reason.to_owned()), ..up })
}

/// What it means that the daemon reaches no files of the node but those in its own root.
pub(super) fn node_root() -> Option<SourceStatus> {
    let status = Proc::default().without_node_root(std::process::id())?;
    tracing::warn!("{}", status.reason.as_deref().unwrap_or_default());
    Some(status)
}
