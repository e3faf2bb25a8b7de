//! Who holds a mount, joined with containers and pods: by the model of the core, or on demand by a copy of it.

use kevtmon_event::{Confidence, Join, MountHolder, MountServer, Pod, Serves, Unreadable, Volume};
use kevtmon_observation::{
    BlockDevice, BootNs, FileServer, Holder, HolderReport, KubeletFacts, MountFacts, MountIdentity, Verdict,
};
use kevtmon_types::is_zero::is_zero;
use kevtmon_types::settings::Cmdline;
use serde::{Deserialize, Serialize};

use super::join::runtimes;
use super::state::NodeState;
use crate::node::kubelet::Kubelets;
use crate::node::owner::{CgroupOwner, Described, Names, owner};
use crate::node::view::RuntimeAvailability;

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
        init: holder.init,
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
        possible: holder.possible,
        loop_device: holder.loop_device,
        source: holder.source,
    }
}

/// A file server in the public schema, with the owner of its control group.
pub(super) fn mount_server(server: FileServer, owner: CgroupOwner) -> MountServer {
    MountServer {
        pid: server.tgid,
        uid: server.uid,
        comm: server.comm,
        state: server.state,
        waits_for: server.waits_for,
        unit: owner.unit,
        container: owner.container,
        pod: owner.pod,
        confidence: if server.is_certain { Confidence::Certain } else { Confidence::Likely },
    }
}

/// The volume that a holder is the file server of; `pod`: of a uid.
pub(super) fn serves(
    kubelets: &Kubelets,
    at: BootNs,
    holder: &Holder,
    pod: impl FnOnce(&str) -> Pod,
) -> Option<Serves> {
    let mountpoint = holder.serves.clone()?;
    // No number of a namespace is 0: one that could not be read is nobody's.
    let volume = kubelets.volume(at, holder.mntns.unwrap_or(0), &mountpoint)?;
    let confidence = if holder.serves_for_certain { Confidence::Certain } else { Confidence::Likely };
    Some(Serves { mountpoint, pod: pod(&volume.pod_uid), confidence: Some(confidence) })
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
            Verdict::NotAMount => "nothing was mounted there at the time of the scan",
            Verdict::Skipped => "its holders were not scanned in time",
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
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// Whose mount namespace it is.
    pub view: View,
    /// The path, from the root of the mount namespace, without links where it was found.
    pub path: String,
    /// Whether there is anything at the path; absent where that is not known.
    pub exists: Option<bool>,
    /// Whether it is no mount point: then it lies on `mount`, and the holders are those of what lies below it.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub below: bool,
    pub mount: Option<HeldMount>,
    /// The block device whose node the path is: the holders are those of the device, too.
    pub device: Option<BlockDevice>,
    /// The pod whose volume the path leads to.
    pub pod: Option<Pod>,
    pub holders: Vec<MountHolder>,
    /// Holders that are not listed.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub holders_omitted: u32,
    /// Whether these are all.
    pub holders_complete: bool,
    /// What could not be looked into.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub holders_unreadable: Vec<Unreadable>,
    pub holders_verdict: Verdict,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HeldMount {
    pub path: String,
    pub fstype: String,
    pub source: String,
    /// `major:minor`.
    pub device: String,
    /// Mount namespace, inode number.
    pub mntns: u32,
    pub identity: Option<MountIdentity>,
    /// The pod volume that the path leads to.
    pub volume: Option<Volume>,
    /// Mount points of file systems mounted below it, or below the path.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub child_mounts: Vec<String>,
    /// No process was found that serves this FUSE file system.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub unserved: bool,
    /// Processes that serve this FUSE file system.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub servers: Vec<MountServer>,
}

impl Held {
    /// What a scan on demand found. `node`: the model of the node, for the names of containers and pods.
    pub fn new(report: HolderReport, view: View, known: Known<'_>, cmdline: Cmdline) -> Self {
        let unreadable = unreadable(Some(&report), report.complete, report.verdict);
        let HolderReport { path, mount, device, child_mounts, unserved, servers, complete, verdict, .. } =
            report;
        let is_resolved = mount.is_some() || verdict == Verdict::NotAMount && complete;
        let below = mount.as_ref().is_some_and(|mount| mount.mountpoint != path);
        let mut kubelets = Kubelets::default();
        kubelets.replace(0, known.kubelets.cloned().unwrap_or_default());
        let join = |holder: Holder| {
            let owner = owner(&known, holder.cgroup.as_deref());
            let serves = serves(&kubelets, 0, &holder, |uid| known.pod(uid.to_owned()));
            mount_holder(holder, owner, serves, cmdline)
        };
        let volume = mount.as_ref().and_then(|mount| kubelets.volume(0, mount.mntns, &path));
        let pod = volume.as_ref().map(|volume| known.pod(volume.pod_uid.clone()));
        let server = |server: FileServer| {
            let owner = owner(&known, server.cgroup.as_deref());
            mount_server(server, owner)
        };
        let servers = servers.into_iter().map(server).collect();
        Self {
            view,
            path,
            exists: is_resolved.then_some(mount.is_some()),
            below,
            mount: mount.map(|mount| HeldMount {
                volume,
                unserved,
                servers,
                ..HeldMount::new(mount, child_mounts)
            }),
            device: device.map(|device| *device),
            pod,
            holders: report.holders.into_iter().map(join).collect(),
            holders_omitted: report.holders_omitted,
            holders_complete: complete,
            holders_unreadable: unreadable,
            holders_verdict: verdict,
        }
    }

    /// Whether anything holds it: a process, a copy of it, what is mounted below it, or the kernel.
    pub fn is_held(&self) -> bool {
        let has_children = |mount: &HeldMount| !mount.child_mounts.is_empty();
        !self.holders.is_empty()
            || self.mount.as_ref().is_some_and(has_children)
            || self.device.as_ref().is_some_and(BlockDevice::is_used)
    }

    /// Whether something that was found refuses an unmount, whatever could not be looked at.
    pub fn is_explained(&self) -> bool {
        matches!(self.holders_verdict, Verdict::Processes | Verdict::ChildMount | Verdict::Kernel)
    }

    /// Whether containers or pods are known by their ids only.
    pub fn lacks_names(&self) -> bool {
        let is_nameless = |holder: &MountHolder| {
            let pods = holder.pod.iter().chain(holder.serves.iter().map(|serves| &serves.pod));
            holder.container.as_ref().is_some_and(|container| container.name.is_none())
                || pods.into_iter().any(|pod| pod.name.is_none())
        };
        self.pod.as_ref().is_some_and(|pod| pod.name.is_none()) || self.holders.iter().any(is_nameless)
    }
}

impl HeldMount {
    fn new(facts: MountFacts, child_mounts: Vec<String>) -> Self {
        Self {
            identity: facts.identity(),
            path: facts.mountpoint,
            fstype: facts.fstype,
            source: facts.source,
            device: facts.device,
            mntns: facts.mntns,
            child_mounts,
            ..Self::default()
        }
    }
}

/// What is known of the node.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known<'a> {
    /// Its model, if that could be had.
    pub node: Option<&'a NodeState>,
    /// Its kubelets; without them nothing is a volume of a pod.
    pub kubelets: Option<&'a KubeletFacts>,
}

impl Names for Known<'_> {
    fn container(&self, id: &str) -> Option<Described> {
        let known = self.node?.containers.iter().find(|known| known.container.id == id)?;
        Some(Described { container: known.container.clone(), pod: known.pod.clone(), is_present: true })
    }

    fn pod(&self, uid: String) -> Pod {
        let mut pods = self.node.into_iter().flat_map(|node| &node.pods).map(|known| &known.pod);
        let known = pods.find(|pod| pod.uid == uid).cloned();
        known.unwrap_or(Pod { uid, ..Pod::default() })
    }

    fn runtimes(&self) -> RuntimeAvailability {
        self.node.map_or(RuntimeAvailability::None, |node| runtimes(node.sources.iter(), node.ready))
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_event::Container;
    use kevtmon_observation::{Access, KubeletNamespace};

    use super::*;
    use crate::test_support::node_state::{alone, state};

    const UID: &str = "5c948341-c030-4996-b888-f032577d97b0";

    fn holder(cgroup: &str, serves: Option<&str>) -> Holder {
        Holder {
            tgid: 7,
            comm: "x".into(),
            cmdline: Some("x --y".into()),
            exe: None,
            access: Access::Cwd,
            path: None,
            fd: None,
            tid: None,
            start_ns: None,
            uid: Some(0),
            init: false,
            cgroup: Some(cgroup.into()),
            mntns: Some(1),
            serves: serves.map(str::to_owned),
            serves_for_certain: false,
            possible: false,
            mount: None,
            loop_device: None,
            source: None,
        }
    }

    fn report(path: &str, mountpoint: Option<&str>) -> HolderReport {
        let mount = mountpoint.map(|mountpoint| MountFacts {
            id: 2,
            parent: Some(1),
            unique: None,
            mountpoint: mountpoint.into(),
            root: "/".into(),
            fstype: "ext4".into(),
            source: "d".into(),
            device: "8:1".into(),
            mntns: 1,
        });
        let verdict = if mount.is_some() { Verdict::None } else { Verdict::NotAMount };
        HolderReport { mount, complete: true, verdict, ..HolderReport::skipped(0, path) }
    }

    fn held(report: HolderReport, known: Known<'_>) -> Held {
        Held::new(report, View::Init, known, Cmdline::Host)
    }

    #[test]
    fn a_container_has_its_name_and_pod_where_the_model_is_at_hand() {
        let id = "e".repeat(64);
        let cgroup = format!("/kubepods/pod{UID}/{id}");
        let report = || HolderReport { holders: vec![holder(&cgroup, None)], ..report("/v", Some("/v")) };
        let without = held(report(), Known::default());
        assert!(without.lacks_names() && without.is_held());
        assert_eq!(without.holders[0].container.as_ref().unwrap().id, id);
        let pod = without.holders[0].pod.clone().unwrap();
        assert_eq!((pod.uid.as_str(), pod.name), (UID, None));

        let mut node = state();
        let mut known = alone(Container { name: Some("web".into()), ..Container::of_id(id) });
        let pod = Pod { uid: UID.into(), claimed: true, ..node.pods[0].pod.clone() };
        known.pod = Some(pod);
        node.containers = vec![known];
        let named = held(report(), Known { node: Some(&node), kubelets: None });
        assert!(!named.lacks_names());
        let [holder] = &named.holders[..] else { panic!("{named:?}") };
        assert_eq!(holder.container.as_ref().unwrap().name.as_deref(), Some("web"));
        assert!(!holder.pod.as_ref().unwrap().claimed, "its control group confirms it");
        assert_eq!(holder.cmdline, None, "that of a container");
    }

    #[test]
    fn a_path_is_a_volume_only_below_the_root_of_a_kubelet_that_is_known() {
        let path = format!("/k/pods/{UID}/volumes/kubernetes.io~rbd/data");
        let holder = || holder("/system.slice/x.service", Some(&path));
        let report = || HolderReport { holders: vec![holder()], ..report(&path, Some(&path)) };
        let namespace = KubeletNamespace { mntns: 1, roots: vec!["/k".into()], of_kubelet: false, pid: None };
        let kubelets = KubeletFacts { namespaces: vec![namespace] };
        let told = held(report(), Known { node: None, kubelets: Some(&kubelets) });
        assert_eq!(told.mount.unwrap().volume.unwrap().name, "data");
        assert_eq!(told.pod.unwrap().uid, UID);
        let serves = told.holders[0].serves.clone().unwrap();
        assert_eq!((serves.pod.uid.as_str(), serves.confidence), (UID, Some(Confidence::Likely)));
        assert_eq!(told.holders[0].cmdline.as_deref(), Some("x --y"));
        let unknown = held(report(), Known::default());
        assert_eq!((unknown.mount.unwrap().volume, unknown.pod), (None, None));
        assert_eq!(unknown.holders[0].serves, None);
    }

    #[test]
    fn a_path_that_could_not_be_looked_up_is_not_said_to_be_missing() {
        let missing = held(report("/x", None), Known::default());
        assert_eq!((missing.exists, missing.is_held(), missing.below), (Some(false), false, false));
        let mut unresolved = report("/x", None);
        unresolved.blind_spot(None, "the path cannot be resolved");
        assert_eq!(held(unresolved, Known::default()).exists, None);
        let below = held(report("/x/y", Some("/x")), Known::default());
        assert_eq!((below.exists, below.below), (Some(true), true));
        let above = HolderReport { child_mounts: vec!["/x/z".into()], ..report("/x", Some("/x")) };
        assert!(held(above, Known::default()).is_held());
    }
}
