//! All that a core knows and is in the middle of, as a value: written and read again it gives a core that says the
//! same from then on. So a recording can begin at any moment.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::held::Held;
use super::{Core, Resume, mount, neighbor, new_engine};
use crate::diagnose::{self, Engine, RestoreError};
use crate::event::Event;
use crate::node::containers::Containers;
use crate::node::mounts::BusyMounts;
use crate::node::namespaces::Namespaces;
use crate::node::pods::PodNames;
use crate::node::tasks::Tasks;
use crate::observation::{BootNs, Source, SourceStatus};
use crate::settings::Settings;

/// The state of a core, but for its settings; borrowed from one, or read. What is missing from it is as in a core
/// that has just begun.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Saved<'a> {
    seq: u64,
    realtime_offset_ns: i64,
    ready: bool,
    swept: BootNs,
    statuses: BTreeMap<String, SourceStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    resumed: Vec<Event>,
    held: Held<neighbor::Wait, neighbor::HeldChange>,
    busy_mounts: Cow<'a, BusyMounts>,
    holder_scans: mount::HolderScans,
    diagnoses: diagnose::Saved,
    namespaces: Cow<'a, Namespaces>,
    containers: Cow<'a, Containers>,
    pods: Cow<'a, PodNames>,
    tasks: Cow<'a, Tasks>,
}

impl From<Resume> for Saved<'_> {
    fn from(Resume { last_seq, incidents, pods }: Resume) -> Self {
        Self { seq: last_seq, resumed: incidents, pods: Cow::Owned(pods), ..Self::default() }
    }
}

impl Core {
    /// A core that goes on where another one was.
    ///
    /// # Errors
    /// When the state is that of another program.
    pub fn restore(settings: Settings, mut saved: Saved<'_>) -> Result<Self, RestoreError> {
        let mut engine = new_engine(&settings);
        engine.restore(std::mem::take(&mut saved.diagnoses))?;
        Ok(Self::with(settings, engine, saved))
    }

    pub(super) fn with(settings: Settings, engine: Engine, saved: Saved<'_>) -> Self {
        let mut core = Self {
            engine,
            settings,
            realtime_offset_ns: saved.realtime_offset_ns,
            seq: saved.seq,
            tasks: saved.tasks.into_owned(),
            namespaces: saved.namespaces.into_owned(),
            containers: saved.containers.into_owned(),
            statuses: saved.statuses,
            ready: saved.ready,
            pods: saved.pods.into_owned(),
            held: saved.held,
            busy_mounts: saved.busy_mounts.into_owned(),
            holder_scans: saved.holder_scans,
            resumed: saved.resumed,
            swept: saved.swept,
            source: Source::default(),
            out: VecDeque::new(),
        };
        let clock = core.clock();
        core.engine.set_clock(clock);
        core
    }

    /// All that it knows; between two observations nothing else is left in it.
    ///
    /// # Errors
    /// Never in practice: nothing that is saved has maps with keys that are not strings.
    pub fn save(&self) -> Result<Saved<'_>, serde_json::Error> {
        // In full, so that nothing that is added is forgotten here.
        let Self {
            settings: _,
            realtime_offset_ns,
            seq,
            tasks,
            namespaces,
            containers,
            statuses,
            ready,
            pods,
            held,
            busy_mounts,
            holder_scans,
            engine,
            resumed,
            swept,
            source: _,
            out: _,
        } = self;
        Ok(Saved {
            seq: *seq,
            realtime_offset_ns: *realtime_offset_ns,
            ready: *ready,
            swept: *swept,
            statuses: statuses.clone(),
            resumed: resumed.clone(),
            held: held.clone(),
            busy_mounts: Cow::Borrowed(busy_mounts),
            holder_scans: holder_scans.clone(),
            diagnoses: engine.save()?,
            namespaces: Cow::Borrowed(namespaces),
            containers: Cow::Borrowed(containers),
            pods: Cow::Borrowed(pods),
            tasks: Cow::Borrowed(tasks),
        })
    }

    /// What it was told when it was made, and since.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
}
