//! Keeps the kernel programs informed of the namespaces that the model knows.

use kevtmon_observation::{Fact, NsInum};
use kevtmon_sources::cni::BIN_DIRS;

use super::Daemon;

/// Which namespaces an observation may change for the programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Touched {
    Nothing,
    One(NsInum),
    /// Any that is known to the programs, or was a container's.
    All,
}

impl Touched {
    pub(super) fn by(fact: &Fact) -> Self {
        match fact {
            Fact::Netns(snapshot) => Self::One(snapshot.netns),
            Fact::NetnsGone { netns } => Self::One(*netns),
            Fact::Route(route) | Fact::RouteGone(route) => Self::One(route.netns),
            Fact::Container(container) => container.netns.map_or(Self::Nothing, Self::One),
            Fact::ContainerGone { .. } | Fact::RuntimeSnapshot { .. } => Self::All,
            _ => Self::Nothing,
        }
    }
}

impl Daemon {
    /// Tells the programs where CNI plugins are, and who calls them.
    pub(super) fn update_plugins(&mut self) {
        if let Some(plugins) = &mut self.plugins {
            let directories = self.config.get(&BIN_DIRS);
            plugins.set(
                directories.paths().chain(self.core.cni_dirs()),
                self.core.host_mount_namespaces(),
                self.core.components_running(),
            );
            plugins.follow(self.core.fuse_servers());
        }
    }

    /// Brings the programs up to date with the model.
    pub(super) fn update_lanes(&mut self, touched: Touched) {
        let Some(lanes) = &mut self.lanes else { return };
        let all = match touched {
            Touched::Nothing => return,
            Touched::One(netns) => vec![netns],
            Touched::All => lanes.namespaces().chain(self.core.container_namespaces()).collect(),
        };
        for netns in all {
            lanes.set(netns, self.core.known_netns(netns).as_ref());
        }
    }
}
