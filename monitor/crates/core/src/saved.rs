//! The complete state of a core as a serializable value. A core restored from it emits the same output for the same
//! observations, so a recording can begin at any observation.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kevtmon_event::Event;
use kevtmon_observation::{BootNs, NsInum, Source, SourceStatus};
use kevtmon_types::settings::Settings;
use serde::{Deserialize, Serialize};

use super::fold::Folding;
use super::pending::Pending;
use super::{Core, Resume, kubelet, mount, neighbor, new_engine};
use crate::diagnose::{self, Engine, RestoreError};
use crate::node::cni::CniCalls;
use crate::node::components::Components;
use crate::node::containers::Containers;
use crate::node::fuse_mounts::FuseMounts;
use crate::node::gateways::KnownEntry;
use crate::node::host_sysctls::HostSysctls;
use crate::node::ipam::Ipam;
use crate::node::kubelet::Kubelets;
use crate::node::link_acts::LinkActs;
use crate::node::mounts::BusyMounts;
use crate::node::namespaces::{NamespaceQuota, Namespaces};
use crate::node::own_mounts::RuntimeDirectories;
use crate::node::pod_remains::PodsOnNode;
use crate::node::pods::PodNames;
use crate::node::quotes::Quotes;
use crate::node::rbd::MappedImages;
use crate::node::rbd_asked::AskedImages;
use crate::node::rbd_calls::MapCalls;
use crate::node::rbd_locks::LockCalls;
use crate::node::tasks::Tasks;
use crate::node::tenant::Accounts;

/// Passes on the fields that a core and its saved state share: those copied, cloned, and borrowed. Since both are
/// built from them, a new field cannot be forgotten.
macro_rules! shared_fields {
    ($build:ident) => {
        $build! {
            [seq realtime_offset_ns ready last_expiry clock_set_until previously_alive]
            [
                statuses degraded ended_netns to_resume previous_entries pending_neighbors holder_scans folding
                quota kubelet_lookup
            ]
            [
                link_acts busy_mounts namespaces fuse_mounts host_sysctls containers runtime_directories
                components pods kubelets pods_on_node ipam rbd rbd_locks rbd_asked rbd_calls quotes cni tasks
            ]
        }
    };
}

/// The state of a core without its settings; borrowed from a core, or deserialized. What is left out is as in a
/// new core.
#[serde_with::apply(_ => #[serde(skip_serializing_if = "is_new")])]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Saved<'a> {
    seq: u64,
    realtime_offset_ns: i64,
    ready: bool,
    last_expiry: BootNs,
    clock_set_until: Option<BootNs>,
    previously_alive: Option<BootNs>,
    statuses: BTreeMap<String, SourceStatus>,
    degraded: BTreeSet<String>,
    ended_netns: VecDeque<(BootNs, NsInum)>,
    link_acts: Cow<'a, LinkActs>,
    to_resume: Vec<Event>,
    previous_entries: Vec<KnownEntry>,
    episodes: Vec<(String, u32)>,
    pending_neighbors: Pending<neighbor::Awaited, neighbor::PendingChange>,
    busy_mounts: Cow<'a, BusyMounts>,
    holder_scans: mount::HolderScans,
    diagnoses: diagnose::Saved,
    folding: Folding,
    quota: NamespaceQuota,
    namespaces: Cow<'a, Namespaces>,
    fuse_mounts: Cow<'a, FuseMounts>,
    host_sysctls: Cow<'a, HostSysctls>,
    containers: Cow<'a, Containers>,
    runtime_directories: Cow<'a, RuntimeDirectories>,
    components: Cow<'a, Components>,
    pods: Cow<'a, PodNames>,
    kubelets: Cow<'a, Kubelets>,
    pods_on_node: Cow<'a, PodsOnNode>,
    ipam: Cow<'a, Ipam>,
    rbd: Cow<'a, MappedImages>,
    rbd_locks: Cow<'a, LockCalls>,
    rbd_asked: Cow<'a, AskedImages>,
    rbd_calls: Cow<'a, MapCalls>,
    quotes: Cow<'a, Quotes>,
    cni: Cow<'a, CniCalls>,
    kubelet_lookup: kubelet::KubeletLookup,
    tasks: Cow<'a, Tasks>,
}

pub(crate) fn is_new<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl From<Resume> for Saved<'_> {
    fn from(resume: Resume) -> Self {
        let Resume { last_seq, incidents, episodes, pods, kept, realtime_offset_ns } = resume;
        Self {
            seq: last_seq,
            realtime_offset_ns,
            to_resume: incidents,
            episodes,
            pods: Cow::Owned(pods),
            previous_entries: kept.gateways,
            rbd: Cow::Owned(MappedImages::after(kept.rbd_users)),
            ..Self::default()
        }
    }
}

impl Core {
    /// Restores a core from its saved state.
    ///
    /// # Errors
    /// When a diagnosis cannot read its saved state.
    pub fn restore(settings: Settings, mut saved: Saved<'_>) -> Result<Self, RestoreError> {
        let mut engine = new_engine(&settings);
        engine.restore(std::mem::take(&mut saved.diagnoses))?;
        Ok(Self::with_state(settings, engine, saved))
    }

    pub(super) fn with_state(settings: Settings, mut engine: Engine, saved: Saved<'_>) -> Self {
        macro_rules! core {
            ([$($copied:ident)*] [$($cloned:ident)*] [$($borrowed:ident)*]) => {
                Self {
                    engine,
                    settings,
                    $($copied: saved.$copied,)*
                    $($cloned: saved.$cloned,)*
                    $($borrowed: saved.$borrowed.into_owned(),)*
                    folded: Vec::new(),
                    accounts: Accounts::default(),
                    source: Source::default(),
                    is_resync: false,
                    output: VecDeque::new(),
                }
            };
        }
        engine.resume_episodes(saved.episodes);
        let mut core = shared_fields!(core);
        let clock = core.clock();
        core.engine.set_clock(clock);
        core
    }

    /// The state between two observations, after all output was taken.
    ///
    /// # Errors
    /// Never in practice: all saved maps have string keys or are written as lists of pairs.
    pub fn save(&self) -> Result<Saved<'_>, serde_json::Error> {
        macro_rules! saved {
            ([$($copied:ident)*] [$($cloned:ident)*] [$($borrowed:ident)*]) => {
                Saved {
                    // The engine has them.
                    episodes: Vec::new(),
                    diagnoses: self.engine.save()?,
                    $($copied: self.$copied,)*
                    $($cloned: self.$cloned.clone(),)*
                    $($borrowed: Cow::Borrowed(&self.$borrowed),)*
                }
            };
        }
        Ok(shared_fields!(saved))
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }
}
