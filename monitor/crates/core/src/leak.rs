//! Mounts that are left in other namespaces than the host's, joined with whose they were and who has them. Of those that were
//! neither a container's nor a kubelet's, only those with a block device are told: nobody waits for others.
//!
//! A file system that a living container of its pod has mounted is in use, and so is that of a container that lives: nobody's
//! copy of it is told then.

use std::collections::{BTreeMap, BTreeSet};

use kevtmon_event::volume;
use kevtmon_event::{
    Actor, ActorSource, Confidence, Container, ContainerPart, LeakedMount, Pod, Shared, StagedVolume,
    UserNamespace, Volume,
};
use kevtmon_observation::cgroup;
use kevtmon_observation::{BootNs, CopyHolder, MountCopies, MountCopy, NsInum, OriginalMount, VolumeData};
pub use on_demand::{LeftMounts, left_mounts};

use super::Core;
use crate::diagnose::{Leak, Leaks, ModelChange};
use crate::node::container_path::{self, ContainerMount};
use crate::node::containers::Containers;
use crate::node::kubelet::Kubelets;
use crate::node::own_mounts::RuntimeDirectories;
use crate::node::owner::{Names, owner};

impl Core {
    pub(super) fn mount_copies(&mut self, at: BootNs, found: MountCopies) {
        let (kernel, is_partial) = (found.kernel.clone(), found.is_partial);
        let runtimes = Runtimes { directories: &self.runtime_directories, containers: &self.containers };
        let leaks = judge(found, &self.node(), &self.kubelets, &runtimes);
        self.diagnose(at, &ModelChange::MountCopies(&Leaks { leaks, is_partial, kernel }));
    }
}

mod on_demand;

/// What runtimes tell of where they mount. The text of a path proves nothing: FUSE lets a user mount on a directory of his
/// own, in the namespace of the host, whatever its path looks like.
struct Runtimes<'a> {
    directories: &'a RuntimeDirectories,
    containers: &'a Containers,
}

impl Runtimes<'_> {
    /// Whether a runtime mounts at a path what its text tells.
    fn prove(&self, path: &str, told: &ContainerMount) -> bool {
        match &told.id {
            Some(id) => self.directories.id_at(path).or_else(|| self.owner(path)).as_ref() == Some(id),
            None => self.directories.contains(path) || self.owner(path).is_some(),
        }
    }

    fn owner(&self, path: &str) -> Option<String> {
        Some(self.directories.owner(self.containers, path)?.id.clone())
    }
}

/// What a file system was when the host had it mounted.
#[derive(Debug, Clone)]
struct Origin {
    path: String,
    is_certain: bool,
    of: Of,
    /// Pods of volumes that it may have been as well.
    other_pods: BTreeSet<String>,
}

#[derive(Debug, Clone)]
enum Of {
    Volume(Volume),
    /// For all pods of the node that use it.
    Staged(StagedVolume),
    Container {
        part: ContainerPart,
        id: Option<String>,
        cgroup: Option<String>,
        /// Whether more than the text of the path tells so.
        is_proven: bool,
    },
    /// For nobody in particular.
    Host,
}

/// Images that are replaced by newer ones while programs go on with what they have.
const IMAGES: [&str; 4] = ["squashfs", "erofs", "iso9660", "cramfs"];

/// Which of these copies are left of mounts of the host.
fn judge(found: MountCopies, names: &impl Names, kubelets: &Kubelets, runtimes: &Runtimes<'_>) -> Vec<Leak> {
    let mut of_device: BTreeMap<String, Vec<MountCopy>> = BTreeMap::new();
    for copy in found.copies {
        of_device.entry(copy.mount.device.clone()).or_default().push(copy);
    }
    let mut leaks = Vec::new();
    for copies in of_device.into_values() {
        let origins = origins(&copies, kubelets, Some(runtimes));
        let is_told = |origin: &Option<Origin>| {
            origin.as_ref().is_some_and(|origin| !is_in_use(&copies, origin, names))
        };
        let told: Vec<bool> = origins.iter().map(is_told).collect();
        let copies = copies.into_iter().zip(origins).zip(told).filter(|(_, is_told)| *is_told);
        leaks.extend(copies.map(|((copy, origin), _)| leak(copy, origin.as_ref(), names)));
    }
    leaks
}

/// What each of these copies of one file system was.
fn origins(
    copies: &[MountCopy],
    kubelets: &Kubelets,
    runtimes: Option<&Runtimes<'_>>,
) -> Vec<Option<Origin>> {
    copies.iter().map(|copy| origin(copy, copies, kubelets, runtimes)).collect()
}

/// What a copy was. Of the other copies of its file system, those of the same directory tell as well.
fn origin(
    copy: &MountCopy,
    copies: &[MountCopy],
    kubelets: &Kubelets,
    runtimes: Option<&Runtimes<'_>>,
) -> Option<Origin> {
    let alike = || [copy].into_iter().chain(copies.iter().filter(|other| is_alike(other, copy)));
    let seen = alike().filter_map(|copy| copy.original.as_ref());
    // The first of the surest: its own before those of others.
    if let Some(original) = seen.min_by_key(|original| !original.is_certain) {
        let origin = of_original(original, kubelets, runtimes)?;
        let is_told = |origin: &Origin| !matches!(origin.of, Of::Host) || is_told_of_host(copy);
        return Some(origin).filter(is_told);
    }
    let host: NsInum = kubelets.host_namespaces().next().unwrap_or_default();
    alike().find_map(|copy| {
        // A look reads one namespace after the other: only who asks sees that nothing changed meanwhile.
        if runtimes.is_none() && copy.is_where_the_host_had_it() {
            let path = copy.mount.mountpoint.clone();
            let of = of_kubelet(kubelets, (0, host), &path, None)?;
            return Some(Origin { path, is_certain: false, of, other_pods: BTreeSet::new() });
        }
        let path = copy.bind.as_ref()?.on_host(&copy.mount.mountpoint)?;
        let volume = of_kubelet(kubelets, (0, host), &path, None);
        // What a runtime within a container mounts is below a volume of that container, and never was on the host.
        let container = || of_container(&path, None, runtimes).filter(|_| !path.contains("/_data/"));
        let of = volume.or_else(container)?;
        Some(Origin { path, is_certain: false, of, other_pods: BTreeSet::new() })
    })
}

/// Whether somebody may wait for a mount that was for nobody in particular: its device stays in use, and its holder was not given
/// this very directory.
fn is_told_of_host(copy: &MountCopy) -> bool {
    let is_given = copy.bind.as_ref().is_some_and(|bind| bind.destination == copy.mount.mountpoint);
    !copy.mount.device.starts_with("0:") && !IMAGES.contains(&copy.mount.fstype.as_str()) && !is_given
}

/// Whether both are of one directory of a file system, by one source.
fn is_alike(one: &MountCopy, other: &MountCopy) -> bool {
    let (one, other) = (&one.mount, &other.mount);
    one.device == other.device && one.root == other.root && one.source == other.source
}

fn of_original(
    original: &OriginalMount,
    kubelets: &Kubelets,
    runtimes: Option<&Runtimes<'_>>,
) -> Option<Origin> {
    let path = original.path.clone();
    let data = original.volume_data.as_ref();
    let volume = of_kubelet(kubelets, (original.seen, original.mntns), &path, data);
    let container = || of_container(&path, original.root_of.clone(), runtimes);
    let host = || kubelets.is_host(original.mntns).then_some(Of::Host);
    let of = volume.or_else(container).or_else(host)?;
    let mut is_certain = original.is_certain;
    let mut other_pods = BTreeSet::new();
    for other in &original.others {
        // The namespace of a kubelet may show the same mount below another directory.
        let known = kubelets.volume(original.seen, other.mntns, &other.path);
        let volume = known.or_else(|| volume::of_path(&other.path));
        is_certain &= match &of {
            Of::Volume(of) => match &volume {
                Some(volume) => volume.pod_uid == of.pod_uid && volume.name == of.name,
                // What is staged for all pods on the node is the volume, too.
                None => other.path.contains("/plugins/"),
            },
            // What all its pods had is the volume, too.
            Of::Staged(of) => match kubelets.staged(original.seen, other.mntns, &other.path) {
                Some(staged) => (&staged.plugin, &staged.name) == (&of.plugin, &of.name),
                None => volume.is_some(),
            },
            Of::Container { id, .. } => {
                let told = container_path::of_path(&other.path).and_then(|told| told.id);
                volume.is_none() && (told.is_none() || told == *id)
            }
            Of::Host => true,
        };
        other_pods.extend(volume.map(|volume| volume.pod_uid));
    }
    Some(Origin { path, is_certain, of, other_pods })
}

/// What a kubelet has mounted at a path, in this namespace at this time.
fn of_kubelet(
    kubelets: &Kubelets,
    (at, mntns): (BootNs, NsInum),
    path: &str,
    data: Option<&VolumeData>,
) -> Option<Of> {
    let volume = kubelets.volume(at, mntns, path).map(Of::Volume);
    volume.or_else(|| kubelets.staged(at, mntns, path).map(|staged| Of::Staged(staged.with(data))))
}

/// `root_of`: control group of the container whose root directory it was.
fn of_container(path: &str, root_of: Option<String>, runtimes: Option<&Runtimes<'_>>) -> Option<Of> {
    let of_group = root_of.as_deref().and_then(|path| cgroup::identify(path).container_id);
    let told = container_path::of_path(path);
    let part = told.as_ref().map(|told| told.part).or(of_group.is_some().then_some(ContainerPart::Root))?;
    let by_runtime = told.as_ref().zip(runtimes).is_some_and(|(told, runtimes)| runtimes.prove(path, told));
    let is_proven = of_group.is_some() || by_runtime;
    let of_path = told.and_then(|ContainerMount { id, .. }| id);
    // Layers have ids of their own.
    let of_layer = || runtimes.filter(|_| by_runtime)?.owner(path);
    let id = of_group.or(of_path).or_else(of_layer);
    Some(Of::Container { part, id, cgroup: root_of, is_proven })
}

fn is_in_use(copies: &[MountCopy], origin: &Origin, names: &impl Names) -> bool {
    // Whoever may make namespaces of his own can have anything as his root there.
    let is_root = |copy: &MountCopy| copy.mount.mountpoint == "/" && !copy.holder.in_userns;
    let mut owners = copies.iter().map(|copy| (copy, owner(names, copy.holder.cgroup.as_deref())));
    match &origin.of {
        Of::Volume(volume) => owners.any(|(_, owner)| {
            Pod::confirmed(owner.pod.as_ref())
                .is_some_and(|pod| pod.uid == volume.pod_uid || origin.other_pods.contains(&pod.uid))
        }),
        Of::Staged(_) | Of::Host => owners.any(|(copy, owner)| {
            Pod::confirmed(owner.pod.as_ref()).is_some_and(|pod| origin.other_pods.contains(&pod.uid))
                || matches!(origin.of, Of::Host) && is_root(copy)
        }),
        Of::Container { id, cgroup, .. } => {
            let is_it = |container: &Container| Some(&container.id) == id.as_ref();
            let pod_uid = pod_uid(names, id.as_deref(), cgroup.as_deref());
            // Containers of a pod share memory and sandbox, and may outlive the one that they have it from.
            let is_of_pod = |pod: &Pod| {
                pod_uid.as_ref() == Some(&pod.uid) || id.is_some() && pod.sandbox_id.as_ref() == id.as_ref()
            };
            let has_it = owners.any(|(copy, owner)| {
                owner.container.as_ref().is_some_and(|known| is_it(known) || is_root(copy))
                    || Pod::confirmed(owner.pod.as_ref()).is_some_and(is_of_pod)
            });
            has_it || id.as_deref().is_some_and(|id| is_live(names, id))
        }
    }
}

/// The pod of a container, or of a control group of one.
fn pod_uid(names: &impl Names, id: Option<&str>, cgroup: Option<&str>) -> Option<String> {
    let known = id.and_then(|id| names.container(id)).and_then(|known| known.pod);
    let by_runtime = Pod::confirmed(known.as_ref()).map(|pod| pod.uid.clone());
    by_runtime.or_else(|| cgroup::identify(cgroup?).pod_uid)
}

fn is_live(names: &impl Names, id: &str) -> bool {
    let known = names.container(id).filter(|known| known.is_present);
    let state = known.and_then(|known| known.container.state);
    matches!(state.as_deref(), Some("running" | "paused" | "restarting"))
}

fn leak(copy: MountCopy, origin: Option<&Origin>, names: &impl Names) -> Leak {
    let MountCopy { mount, propagation, holder, bind, without_process, .. } = copy;
    let staged = match origin.map(|origin| &origin.of) {
        Some(Of::Staged(staged)) => Some(staged.clone()),
        _ => None,
    };
    let (volume, part, container, pod) = match origin.map(|origin| &origin.of) {
        None | Some(Of::Staged(_) | Of::Host) => (None, None, None, None),
        Some(Of::Volume(volume)) => {
            (Some(volume.clone()), None, None, Some(names.pod(volume.pod_uid.clone())))
        }
        Some(Of::Container { part, is_proven: false, .. }) => (None, Some(*part), None, None),
        Some(Of::Container { part, id, cgroup, is_proven: true }) => {
            let known = id.as_deref().and_then(|id| names.container(id));
            let by_group = cgroup.as_deref().and_then(|path| owner(names, Some(path)).container);
            let (container, pod) = known.map_or((None, None), |known| (Some(known.container), known.pod));
            let container = container.or(by_group).or(id.clone().map(Container::of_id));
            (None, Some(*part), container, pod)
        }
    };
    let mntns = mount.mntns;
    let (pid, init) = (holder.tgid, holder.init);
    let is_certain = origin.is_some_and(|origin| {
        origin.is_certain && !matches!(origin.of, Of::Container { is_proven: false, .. })
    });
    let confidence = if is_certain { Confidence::Certain } else { Confidence::Likely };
    let identity = mount.identity().unwrap_or_else(|| kevtmon_observation::MountIdentity {
        unique: mount.unique,
        mount_id: 0,
        parent_id: 0,
        device: mount.device.clone(),
        root: mount.root.clone(),
        mount_point: mount.mountpoint.clone(),
    });
    let mount = LeakedMount {
        path: origin.map(|origin| origin.path.clone()),
        confidence,
        identity,
        mntns,
        pid,
        init,
        fstype: mount.fstype,
        source: mount.source,
        propagation,
        volume,
        staged,
        part,
        container,
        pod,
        bind,
        without_process,
    };
    Leak { holder: Shared::new(actor(holder, mntns, names)), mount }
}

fn actor(holder: CopyHolder, mntns: NsInum, names: &impl Names) -> Actor {
    let owner = owner(names, holder.cgroup.as_deref());
    Actor {
        source: ActorSource::Proc,
        confidence: Confidence::Certain,
        pid: holder.tgid,
        tid: holder.tgid,
        uid: holder.uid,
        euid: None,
        comm: holder.comm,
        exe: holder.exe,
        cmdline: None,
        start_time_ns: holder.start_ns.to_string(),
        cgroup: holder.cgroup,
        unit: owner.unit,
        netns: None,
        mntns: Some(mntns),
        userns: holder.in_userns.then_some(UserNamespace::Other),
        ancestors: Vec::new(),
        container: owner.container,
        pod: owner.pod,
        join: owner.join,
    }
}
