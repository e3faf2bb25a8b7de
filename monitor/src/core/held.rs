//! Who holds a mount, joined with containers and pods: by the model of the core, or on demand by a copy of it.

use serde::{Deserialize, Serialize};

use super::join::runtimes;
use super::state::NodeState;
use crate::event::{Join, MountHolder, Pod, Serves, Unreadable};
use crate::node::owner::{CgroupOwner, Described, Names, owner};
use crate::node::view::RuntimeAvailability;
use crate::observation::{Holder, HolderReport, MountFacts, MountIdentity, Verdict};
use crate::settings::Cmdline;

/// A holder in the public schema, with the owner of its control group.
pub(super) fn mount_holder(
    holder: Holder,
    owner: CgroupOwner,
    serves: Option<Serves>,
    cmdline: Cmdline,
) -> MountHolder {
    MountHolder {
        pid: holder.tgid,
        uid: holder.uid,
        comm: holder.comm,
        cmdline: shown_cmdline(cmdline, holder.cmdline.as_deref(), owner.join),
        exe: holder.exe,
        access: holder.access,
        path: holder.path,
        fd: holder.fd,
        tid: holder.tid,
        unit: owner.unit,
        mntns: holder.mntns,
        container: owner.container,
        pod: owner.pod,
        serves,
    }
}

/// A command line, if those of such processes are shown.
pub(super) fn shown_cmdline(setting: Cmdline, cmdline: Option<&str>, join: Join) -> Option<String> {
    let shown = match setting {
        Cmdline::Off => false,
        Cmdline::Host => join == Join::Host,
        Cmdline::All => true,
    };
    cmdline.filter(|_| shown).map(str::to_owned)
}

/// What could not be looked into. A list of holders that is incomplete always has a reason.
pub(super) fn unreadable(report: Option<&HolderReport>, complete: bool, verdict: Verdict) -> Vec<Unreadable> {
    let spots = report.map_or(&[][..], |report| &report.blind_spots);
    let mut unreadable: Vec<Unreadable> = spots
        .iter()
        .map(|spot| Unreadable { pid: spot.tgid, comm: spot.comm.clone(), reason: spot.reason.clone() })
        .collect();
    if !complete && unreadable.is_empty() {
        let reason = match verdict {
            Verdict::NotAMount => "nothing was mounted there any more when its holders were looked for",
            Verdict::Skipped => "its holders were not looked for in time",
            _ => "the processes of the node could not be listed",
        };
        unreadable.push(Unreadable { pid: None, comm: None, reason: reason.to_owned() });
    }
    unreadable
}

/// Whose mount namespace a path is looked up in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum View {
    /// That of process 1.
    Init,
    /// That which the kernel started with.
    Kernel,
    /// That of whoever asks.
    Caller,
}

/// Who holds a path, as told to whoever asks; the fields that `mount.busy` has, too, are as there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// Whose mount namespace it is.
    pub view: View,
    /// The path, from the root of the mount namespace, without links where it was found.
    pub path: String,
    /// Whether there is anything at the path; absent where that is not known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exists: Option<bool>,
    /// Whether it is no mount point: then it lies on `mount`, and the holders are those of what lies below it.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub below: bool,
    /// The mount.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mount: Option<HeldMount>,
    /// Who holds it.
    pub holders: Vec<MountHolder>,
    /// Holders that are not listed.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub holders_omitted: u32,
    /// Whether these are all.
    pub holders_complete: bool,
    /// What could not be looked into.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub holders_unreadable: Vec<Unreadable>,
    /// The conclusion.
    pub holders_verdict: Verdict,
}

/// The mount that is held.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeldMount {
    /// Where it is mounted.
    pub path: String,
    /// File system type.
    pub fstype: String,
    /// Mount source.
    pub source: String,
    /// `major:minor`.
    pub device: String,
    /// Mount namespace, inode number.
    pub mntns: u32,
    /// Which mount it is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub identity: Option<MountIdentity>,
    /// Mount points of file systems mounted below it, or below the path.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub child_mounts: Vec<String>,
    /// No process was found that serves this FUSE file system.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub unserved: bool,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Held {
    /// What a scan on demand found. `node`: the model of the node, for the names of containers and pods.
    #[must_use]
    pub fn new(report: HolderReport, view: View, node: Option<&NodeState>, cmdline: Cmdline) -> Self {
        let unreadable = unreadable(Some(&report), report.complete, report.verdict);
        let HolderReport { path, mount, child_mounts, unserved, complete, verdict, .. } = report;
        let is_resolved = mount.is_some() || verdict == Verdict::NotAMount && complete;
        let below = mount.as_ref().is_some_and(|mount| mount.mountpoint != path);
        let known = Known(node);
        let join = |holder: Holder| {
            let owner = owner(&known, holder.cgroup.as_deref());
            mount_holder(holder, owner, None, cmdline)
        };
        Self {
            view,
            path,
            exists: is_resolved.then_some(mount.is_some()),
            below,
            mount: mount.map(|mount| HeldMount::new(mount, child_mounts, unserved)),
            holders: report.holders.into_iter().map(join).collect(),
            holders_omitted: report.holders_omitted,
            holders_complete: complete,
            holders_unreadable: unreadable,
            holders_verdict: verdict,
        }
    }

    /// Whether anything holds it: a process, a copy of it, or what is mounted below it.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let has_children = |mount: &HeldMount| !mount.child_mounts.is_empty();
        !self.holders.is_empty() || self.mount.as_ref().is_some_and(has_children)
    }

    /// Whether containers or pods are known by their ids only.
    #[must_use]
    pub fn lacks_names(&self) -> bool {
        let is_nameless = |holder: &MountHolder| {
            holder.container.as_ref().is_some_and(|container| container.name.is_none())
                || holder.pod.as_ref().is_some_and(|pod| pod.name.is_none())
        };
        self.holders.iter().any(is_nameless)
    }
}

impl HeldMount {
    fn new(facts: MountFacts, child_mounts: Vec<String>, unserved: bool) -> Self {
        Self {
            identity: facts.identity(),
            path: facts.mountpoint,
            fstype: facts.fstype,
            source: facts.source,
            device: facts.device,
            mntns: facts.mntns,
            child_mounts,
            unserved,
        }
    }
}

/// The model of the node, if it could be had.
struct Known<'a>(Option<&'a NodeState>);

impl Names for Known<'_> {
    fn container(&self, id: &str) -> Option<Described> {
        let known = self.0?.containers.iter().find(|known| known.container.id == id)?;
        Some(Described { container: known.container.clone(), pod: known.pod.clone(), is_present: true })
    }

    fn pod(&self, uid: String) -> Pod {
        let mut pods = self.0.into_iter().flat_map(|node| &node.pods).map(|known| &known.pod);
        let known = pods.find(|pod| pod.uid == uid).cloned();
        known.unwrap_or(Pod {
            namespace: None,
            name: None,
            uid,
            claimed: false,
            sandbox_id: None,
            ip: Vec::new(),
            labels: None,
        })
    }

    fn runtimes(&self) -> RuntimeAvailability {
        self.0.map_or(RuntimeAvailability::None, |node| runtimes(node.sources.iter(), node.ready))
    }
}
