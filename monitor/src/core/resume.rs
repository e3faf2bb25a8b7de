//! What a core knows, as observations that give another core the same knowledge, and what it is in the middle
//! of. So a recording can begin at any moment and still replay to the same events.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{Core, Resume, Settings, mount, neighbor};
use crate::observation::{BootNs, Fact, Observation};

/// Tasks that a recording begins with; hours' worth, since most tasks are referred to once and end.
const TASKS: usize = 512;

/// What the core is in the middle of: changes that wait for a name, and mounts that were refused.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pending {
    pub(super) held: VecDeque<neighbor::Held>,
    pub(super) mounts: mount::BusyMounts,
}

impl Pending {
    /// Whether nothing is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Core {
    /// A core that goes on where another one was, with a model rebuilt from observations. Nothing is said of them.
    #[must_use]
    pub fn restore(
        settings: Settings,
        mut resume: Resume,
        model: impl IntoIterator<Item = Observation>,
    ) -> Self {
        // Not before the model is there: its parts would count as answers to what is pending.
        let pending = std::mem::take(&mut resume.pending);
        let mut core = Self::new(settings, resume);
        core.silent = true;
        for observation in model {
            core.observe(observation);
        }
        core.silent = false;
        core.held = pending.held;
        core.mounts = pending.mounts;
        core
    }

    /// What does not follow from the model.
    #[must_use]
    pub fn resume(&self) -> Resume {
        let pending = Pending { held: self.held.clone(), mounts: self.mounts.clone() };
        Resume { last_seq: self.seq, pending, incidents: self.incident_events() }
    }

    /// What it was told when it was made, and since.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The model as observations for [`Self::restore`]; `now` is when they are made.
    pub fn model(&self, now: BootNs) -> impl Iterator<Item = Observation> {
        let seen = move |fact| Observation { at: now, fact };
        let clock = seen(Fact::Clock { realtime_offset_ns: self.realtime_offset_ns });
        std::iter::once(clock)
            .chain(self.namespaces.observations(now))
            .chain(self.containers.observations(now))
            .chain(self.tasks.observations(now, TASKS))
            .chain(self.statuses.values().map(move |status| seen(Fact::Source(status.clone()))))
    }
}
