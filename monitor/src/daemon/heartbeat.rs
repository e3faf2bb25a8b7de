//! What the daemon does every few seconds, whatever happens.

use kevtmon_core::Benign;
use kevtmon_metrics::IgnoredRefusals;
use kevtmon_observation::{Fact, Observation, Source};
use kevtmon_sources::observed_now;
use kevtmon_types::allocator::{self, StormDetector};
use kevtmon_types::clock::{boot_now, realtime_offset_ns};

use super::{CLOCK_STEP_NS, Daemon};

/// What a start or a storm leaves to be done, such as the first reconciliations and commits, is over after so many heartbeats:
/// half a minute.
const AFTERMATH: u32 = 6;
/// And what is remembered of it, removed containers for ten minutes, is forgotten after so many.
const FORGOTTEN: u32 = 126;

impl Daemon {
    /// What is due every few seconds.
    pub(super) fn heartbeat(&mut self) {
        let now = boot_now();
        let offset_ns = realtime_offset_ns();
        if offset_ns.abs_diff(self.offset_ns) > CLOCK_STEP_NS {
            self.offset_ns = offset_ns;
            self.observe(Observation {
                at: now,
                source: Source::Daemon,
                fact: Fact::Clock { realtime_offset_ns: offset_ns },
            });
        }
        self.observe(Observation { at: now, source: Source::Daemon, fact: Fact::Tick });
        self.keep_state();
        for status in self.sinks.stalled() {
            self.observe(observed_now(Fact::Source(status)));
        }
        self.metrics.incidents_discarded(self.core.incidents_discarded());
        let Benign { cgroup, nameless } = self.core.benign_refusals();
        let (repeated, missed) = (self.core.umounts_ignored(), self.core.umounts_missed());
        self.metrics.refusals_ignored(IgnoredRefusals { repeated, cgroup, nameless, missed });
        self.health.tick(now);
        self.service_manager.flush();
        self.starts.tick();
        self.leftovers.release(self.core.is_ready());
    }
}

/// What a start or a storm needed, and nothing does after it.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    pub(super) storm_detector: StormDetector,
    /// Whether what only the start needed was released.
    has_settled: bool,
    /// Heartbeats until what needed memory after that is over; 0 when it is.
    aftermath: u32,
}

impl Leftovers {
    /// Gives back what is due.
    fn release(&mut self, is_ready: bool) {
        let is_settled = is_ready && !std::mem::replace(&mut self.has_settled, true);
        let is_over = self.storm_detector.has_calmed() || is_settled;
        let is_aftermath_over = [FORGOTTEN - AFTERMATH + 1, 1].contains(&self.aftermath);
        self.aftermath = if is_over { FORGOTTEN } else { self.aftermath.saturating_sub(1) };
        if is_over || is_aftermath_over {
            allocator::release_free_memory();
        }
    }
}
