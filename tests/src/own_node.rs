//! A network namespace in the place of the host's: what it has no route to is no other test's matter.

use crate::daemon::{Launch, launch};
use crate::netns::{Netns, NetnsPath};
use crate::network::on_host;
use crate::pod::Pod;

/// The network of a node, in which a daemon takes what is there for the host's.
#[derive(Debug)]
pub struct OwnNode {
    netns: Netns,
}

impl OwnNode {
    /// One with nothing but its loopback, and so without any route.
    #[must_use]
    pub fn new() -> Self {
        Self { netns: Netns::new() }
    }

    /// Its network namespace.
    #[must_use]
    pub fn netns(&self) -> &NetnsPath {
        self.netns.path()
    }

    /// Runs `ip` in it; panics unless it succeeds.
    pub fn ip(&self, arguments: &str) {
        self.netns().run(&format!("ip {arguments}"));
    }

    /// Moves the host's end of a pod's pair here, and routes to the pod.
    pub fn take(&self, pod: &Pod) {
        on_host(|network| network.move_link(pod.host_end(), self.netns().path()));
        self.ip(&format!("link set {} up", pod.host_end()));
        self.route("add", pod);
    }

    /// Changes the route to a pod.
    pub fn route(&self, what: &str, pod: &Pod) {
        self.ip(&format!("route {what} {}/32 dev {} scope link", pod.address(), pod.host_end()));
    }

    /// A daemon in it.
    #[must_use]
    pub fn launch(&self) -> Launch {
        launch().through(&["nsenter", &format!("--net={}", self.netns().path().display())])
    }
}

impl Default for OwnNode {
    fn default() -> Self {
        Self::new()
    }
}
