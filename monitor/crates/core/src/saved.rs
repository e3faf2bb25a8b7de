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

/// The state of a core without its settings; borrowed from a core, or deserialized. What is left out is as in a
/// new core.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Saved<'a> {
    seq: u64,
    realtime_offset_ns: i64,
    ready: bool,
    last_expiry: BootNs,
    previously_alive: Option<BootNs>,
    statuses: BTreeMap<String, SourceStatus>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    degraded: BTreeSet<String>,
    #[serde(skip_serializing_if = "VecDeque::is_empty")]
    ended_netns: VecDeque<(BootNs, NsInum)>,
    link_acts: Cow<'a, LinkActs>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    to_resume: Vec<Event>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    previous_entries: Vec<KnownEntry>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    episodes: Vec<(String, u32)>,
    pending_neighbors: Pending<neighbor::Awaited, neighbor::PendingChange>,
    busy_mounts: Cow<'a, BusyMounts>,
    holder_scans: mount::HolderScans,
    diagnoses: diagnose::Saved,
    folding: Folding,
    quota: NamespaceQuota,
    namespaces: Cow<'a, Namespaces>,
    #[serde(skip_serializing_if = "has_no_fuse")]
    fuse_mounts: Cow<'a, FuseMounts>,
    host_sysctls: Cow<'a, HostSysctls>,
    containers: Cow<'a, Containers>,
    runtime_directories: Cow<'a, RuntimeDirectories>,
    components: Cow<'a, Components>,
    pods: Cow<'a, PodNames>,
    kubelets: Cow<'a, Kubelets>,
    pods_on_node: Cow<'a, PodsOnNode>,
    #[serde(skip_serializing_if = "is_new")]
    ipam: Cow<'a, Ipam>,
    rbd: Cow<'a, MappedImages>,
    rbd_locks: Cow<'a, LockCalls>,
    rbd_asked: Cow<'a, AskedImages>,
    #[serde(skip_serializing_if = "has_no_calls")]
    rbd_calls: Cow<'a, MapCalls>,
    quotes: Cow<'a, Quotes>,
    cni: Cow<'a, CniCalls>,
    kubelet_lookup: kubelet::KubeletLookup,
    tasks: Cow<'a, Tasks>,
}

fn has_no_calls(calls: &MapCalls) -> bool {
    *calls == MapCalls::default()
}

fn has_no_fuse(mounts: &FuseMounts) -> bool {
    mounts.is_new()
}

fn is_new(ipam: &Ipam) -> bool {
    *ipam == Ipam::default()
}

impl From<Resume> for Saved<'_> {
    fn from(Resume { last_seq, incidents, episodes, pods, kept }: Resume) -> Self {
        Self {
            seq: last_seq,
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
        engine.resume_episodes(saved.episodes);
        let mut core = Self {
            engine,
            settings,
            realtime_offset_ns: saved.realtime_offset_ns,
            seq: saved.seq,
            tasks: saved.tasks.into_owned(),
            namespaces: saved.namespaces.into_owned(),
            fuse_mounts: saved.fuse_mounts.into_owned(),
            host_sysctls: saved.host_sysctls.into_owned(),
            containers: saved.containers.into_owned(),
            runtime_directories: saved.runtime_directories.into_owned(),
            components: saved.components.into_owned(),
            statuses: saved.statuses,
            degraded: saved.degraded,
            ready: saved.ready,
            pods: saved.pods.into_owned(),
            kubelets: saved.kubelets.into_owned(),
            pods_on_node: saved.pods_on_node.into_owned(),
            ipam: saved.ipam.into_owned(),
            rbd: saved.rbd.into_owned(),
            rbd_locks: saved.rbd_locks.into_owned(),
            rbd_asked: saved.rbd_asked.into_owned(),
            rbd_calls: saved.rbd_calls.into_owned(),
            quotes: saved.quotes.into_owned(),
            cni: saved.cni.into_owned(),
            kubelet_lookup: saved.kubelet_lookup,
            pending_neighbors: saved.pending_neighbors,
            busy_mounts: saved.busy_mounts.into_owned(),
            holder_scans: saved.holder_scans,
            to_resume: saved.to_resume,
            previous_entries: saved.previous_entries,
            folding: saved.folding,
            quota: saved.quota,
            folded: Vec::new(),
            accounts: Accounts::default(),
            last_expiry: saved.last_expiry,
            ended_netns: saved.ended_netns,
            link_acts: saved.link_acts.into_owned(),
            previously_alive: saved.previously_alive,
            source: Source::default(),
            is_resync: false,
            output: VecDeque::new(),
        };
        let clock = core.clock();
        core.engine.set_clock(clock);
        core
    }

    /// The state between two observations, after all output was taken.
    ///
    /// # Errors
    /// Never in practice: all saved maps have string keys or are written as lists of pairs.
    #[expect(clippy::too_many_lines, reason = "a field a line")]
    pub fn save(&self) -> Result<Saved<'_>, serde_json::Error> {
        // Destructured in full, so that a new field cannot be forgotten here.
        let Self {
            settings: _,
            realtime_offset_ns,
            seq,
            tasks,
            namespaces,
            fuse_mounts,
            host_sysctls,
            containers,
            runtime_directories,
            components,
            statuses,
            degraded,
            ready,
            pods,
            kubelets,
            pods_on_node,
            ipam,
            rbd,
            rbd_locks,
            rbd_asked,
            rbd_calls,
            quotes,
            cni,
            kubelet_lookup,
            pending_neighbors,
            busy_mounts,
            holder_scans,
            engine,
            folding,
            quota,
            folded: _,
            accounts: _,
            to_resume,
            previous_entries,
            last_expiry,
            ended_netns,
            link_acts,
            previously_alive,
            source: _,
            is_resync: _,
            output: _,
        } = self;
        Ok(Saved {
            seq: *seq,
            realtime_offset_ns: *realtime_offset_ns,
            ready: *ready,
            last_expiry: *last_expiry,
            ended_netns: ended_netns.clone(),
            link_acts: Cow::Borrowed(link_acts),
            previously_alive: *previously_alive,
            statuses: statuses.clone(),
            degraded: degraded.clone(),
            to_resume: to_resume.clone(),
            previous_entries: previous_entries.clone(),
            // The engine has them.
            episodes: Vec::new(),
            pending_neighbors: pending_neighbors.clone(),
            busy_mounts: Cow::Borrowed(busy_mounts),
            holder_scans: holder_scans.clone(),
            diagnoses: engine.save()?,
            folding: folding.clone(),
            quota: quota.clone(),
            namespaces: Cow::Borrowed(namespaces),
            fuse_mounts: Cow::Borrowed(fuse_mounts),
            host_sysctls: Cow::Borrowed(host_sysctls),
            containers: Cow::Borrowed(containers),
            runtime_directories: Cow::Borrowed(runtime_directories),
            components: Cow::Borrowed(components),
            pods: Cow::Borrowed(pods),
            kubelets: Cow::Borrowed(kubelets),
            pods_on_node: Cow::Borrowed(pods_on_node),
            ipam: Cow::Borrowed(ipam),
            rbd: Cow::Borrowed(rbd),
            rbd_locks: Cow::Borrowed(rbd_locks),
            rbd_asked: Cow::Borrowed(rbd_asked),
            rbd_calls: Cow::Borrowed(rbd_calls),
            quotes: Cow::Borrowed(quotes),
            cni: Cow::Borrowed(cni),
            kubelet_lookup: kubelet_lookup.clone(),
            tasks: Cow::Borrowed(tasks),
        })
    }

    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
}
