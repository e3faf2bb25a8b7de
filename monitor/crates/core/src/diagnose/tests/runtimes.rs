//! A node without a container runtime.

use kevtmon_observation::*;

use super::harness::*;

/// A runtime whose socket is not there; `vacant`: and never was.
pub(in crate::diagnose) fn no_runtime(vacant: bool) -> Fact {
    let down = SourceStatus::down(SourceKind::Runtime, "docker", "there is no socket");
    Fact::Source(SourceStatus { vacant, ..down })
}

impl TestNode {
    /// All sources report, where nobody has named a runtime and none is found; then a second passes.
    pub(in crate::diagnose) fn start_without_runtime(&mut self) {
        for netns in self.tables.keys().copied().collect::<Vec<_>>() {
            self.observe_netns(netns);
        }
        self.observe(no_runtime(true));
        self.observe(up("netlink"));
        self.run_until(S);
    }
}
