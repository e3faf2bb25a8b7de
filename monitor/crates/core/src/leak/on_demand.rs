//! The same on demand, without a model: what a daemon has told of a mount is believed, if there is one.

use std::collections::{BTreeMap, BTreeSet};

use kevtmon_event::{LeakedMount, Unreadable};
use kevtmon_observation::{MountCopies, MountCopy};
use serde::Serialize;

use super::{is_alike, is_in_use, leak, origins};
use crate::diagnose::Leak;
use crate::held::Known;
use crate::node::kubelet::Kubelets;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LeftMounts {
    pub leaks: Vec<Leak>,
    pub complete: bool,
    /// What could not be looked into.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<Unreadable>,
}

/// What is left of mounts that the host had. `told`: what a daemon has said of such mounts.
pub fn left_mounts(found: MountCopies, known: Known<'_>, told: &[LeakedMount]) -> Vec<Leak> {
    let mut kubelets = Kubelets::default();
    kubelets.replace(0, known.kubelets.cloned().unwrap_or_default());
    let told: BTreeMap<u64, &LeakedMount> =
        told.iter().filter_map(|leak| Some((leak.identity.unique?, leak))).collect();
    let mut of_device: BTreeMap<String, Vec<MountCopy>> = BTreeMap::new();
    for copy in found.copies {
        of_device.entry(copy.mount.device.clone()).or_default().push(copy);
    }
    let mut leaks = Vec::new();
    for copies in of_device.into_values() {
        let origins = origins(&copies, &kubelets, None);
        let said = |copy: &MountCopy| {
            // One mount tells of all that are of the same directory.
            let alike = copies.iter().filter(|other| is_alike(other, copy));
            let mut uniques = [copy].into_iter().chain(alike).filter_map(|copy| copy.mount.unique);
            uniques.find_map(|unique| told.get(&unique).copied())
        };
        let is_unknown = !is_shared(&copies);
        for (copy, origin) in copies.iter().zip(&origins) {
            let told = said(copy);
            let is_used = origin.as_ref().is_some_and(|origin| is_in_use(&copies, origin, &known));
            if told.is_none() && (is_used || origin.is_none() && is_unknown) {
                continue;
            }
            leaks.push(with(leak(copy.clone(), origin.as_ref(), &known), told));
        }
    }
    leaks
}

fn with(mut leak: Leak, told: Option<&LeakedMount>) -> Leak {
    if let Some(told) = told {
        let mount = &mut leak.mount;
        (mount.path, mount.confidence) = (told.path.clone(), told.confidence);
        (mount.volume, mount.staged, mount.part) = (told.volume.clone(), told.staged.clone(), told.part);
        (mount.container, mount.pod) = (told.container.clone(), told.pod.clone());
    }
    leak
}

/// Whether somebody has a file system that have nothing else in common, so that they have it from the host or from one
/// another. Users can mount what they like in namespaces of their own, and a container in its own.
fn is_shared(copies: &[MountCopy]) -> bool {
    let groups: BTreeSet<Option<&str>> = copies
        .iter()
        .filter(|copy| !copy.holder.in_userns)
        .map(|copy| copy.holder.cgroup.as_deref())
        .collect();
    let namespaces: BTreeSet<u32> = copies.iter().map(|copy| copy.mount.mntns).collect();
    groups.len() > 1 && namespaces.len() > 1
}
