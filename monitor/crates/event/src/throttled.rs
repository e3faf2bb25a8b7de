//! What a source did beyond its budget.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Container, Details, Object, Pod, Role, Visitor};

/// What one source did beyond its budget, for `events.throttled`. It was counted; nothing else is kept of it.
/// Whose namespace it was is in `target`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Throttled {
    /// Whose budget it was: `namespace` (neighbor changes in one namespace, by one control group), `owner` (neighbor changes
    /// in all namespaces of one unprivileged user), `unknown` (all sources that are not told apart: neighbor changes in other
    /// user namespaces of root's that are no known container's, and sources beyond the first four thousand), `umount` (unmount attempts of one user; those of root by control group,
    /// and beyond what they may do together without one), `remove` (the same of names that could not be removed or renamed),
    /// `exec` (CNI plugins, and programs with the name of a kubelet or runtime, that were executed in one control group of
    /// root's), `gateway-set` (what set the neighbor entries of known gateways in one namespace),
    /// `events` (events of one kind, of one unprivileged account, or of the network of one container, which is `target` then:
    /// the daemon knew them, and counted them only),
    /// `namespaces` (readings of network namespaces that one user has too many of, or that have too many links, addresses or
    /// routes in them: what is in them is not watched).
    pub lane: String,
    /// The kind of the events, for `events`.
    pub kind: Option<String>,
    /// How many.
    pub count: u64,
    /// The first one, RFC 3339.
    #[schemars(extend("format" = "date-time"))]
    pub from: String,
    /// The last one, RFC 3339.
    #[schemars(extend("format" = "date-time"))]
    pub to: String,
    /// The network namespace, for `namespace` and `gateway-set`, and for `events` where it was the same; the last one for `namespaces`.
    pub netns: Option<u32>,
    /// The mount namespace, for `events` where it was the same.
    pub mntns: Option<u32>,
    /// The user in the initial user namespace, for `owner`, `umount` and `remove`, and for `events` where it was the same.
    pub uid: Option<u32>,
    /// The control group of the processes, where it is one and its path is known.
    pub cgroup: Option<String>,
    /// Its systemd unit.
    pub unit: Option<String>,
    /// Its container.
    pub container: Option<Container>,
    /// Its pod.
    pub pod: Option<Pod>,
    /// The process of the last one; others may have been by others.
    pub last_pid: Option<u32>,
}

impl Throttled {
    /// The lane of events that the daemon itself counted only.
    pub const EVENTS: &str = "events";
    /// The lane of namespaces that the model has no room for.
    pub const NAMESPACES: &str = "namespaces";
}

impl Object for Throttled {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.owner(Role::Actor, self.container.as_ref(), self.pod.as_ref());
    }

    fn describe(&self, details: &mut dyn Details) {
        let window = format!("{} to {}", details.clock(&self.from), details.clock(&self.to));
        details.line("over", &format!("{} in the lane {}, {window}", self.count, self.lane));
        if let Some(group) = self.unit.as_ref().or(self.cgroup.as_ref()) {
            details.line("by", group);
        }
    }
}
