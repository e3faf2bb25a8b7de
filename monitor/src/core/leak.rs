//! Mounts that are left in other namespaces than the host's, joined with whose they were and who has them.
//!
//! A file system that a living container of its pod has mounted is in use, and so is that of a container that lives: nobody's
//! copy of it is told then.

use std::collections::BTreeMap;

pub use on_demand::{LeftMounts, left_mounts};

use super::Core;
use crate::diagnose::{Leak, Leaks, ModelChange};
use crate::event::{
    Actor, ActorSource, Confidence, Container, ContainerPart, LeakedMount, Pod, UserNamespace, Volume,
};
use crate::node::cgroup;
use crate::node::container_path::{self, ContainerMount};
use crate::node::containers::Containers;
use crate::node::kubelet::Kubelets;
use crate::node::own_mounts::RuntimeDirectories;
use crate::node::owner::{Names, owner};
use crate::observation::{BootNs, CopyHolder, MountCopies, MountCopy, NsInum};

impl Core {
    pub(super) fn mount_copies(&mut self, at: BootNs, found: MountCopies) {
        let kernel = found.kernel.clone();
        let runtimes = Runtimes { directories: &self.runtime_directories, containers: &self.containers };
        let leaks = judge(found, &self.node(), &self.kubelets, &runtimes);
        self.diagnose(at, &ModelChange::MountCopies(&Leaks { leaks, kernel }));
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
}

#[derive(Debug, Clone)]
enum Of {
    Volume(Volume),
    Container {
        part: ContainerPart,
        id: Option<String>,
        cgroup: Option<String>,
        /// Whether more than the text of the path tells so.
        is_proven: bool,
    },
}

/// Which of these copies are left of mounts of containers and of volumes of pods.
fn judge(found: MountCopies, names: &impl Names, kubelets: &Kubelets, runtimes: &Runtimes<'_>) -> Vec<Leak> {
    let mut of_device: BTreeMap<String, Vec<MountCopy>> = BTreeMap::new();
    for copy in found.copies {
        of_device.entry(copy.mount.device.clone()).or_default().push(copy);
    }
    let mut leaks = Vec::new();
    for copies in of_device.into_values() {
        let Some(origin) = origin(&copies, kubelets, Some(runtimes)) else { continue };
        if is_in_use(&copies, &origin, names) {
            continue;
        }
        leaks.extend(copies.into_iter().map(|copy| leak(copy, Some(&origin), names)));
    }
    leaks
}

fn origin(copies: &[MountCopy], kubelets: &Kubelets, runtimes: Option<&Runtimes<'_>>) -> Option<Origin> {
    let seen =
        copies.iter().filter_map(|copy| copy.original.as_ref()).max_by_key(|original| original.is_certain);
    if let Some(original) = seen {
        let (path, is_certain) = (original.path.clone(), original.is_certain);
        let volume = kubelets.volume(original.seen, original.mntns, &path).map(Of::Volume);
        let of = volume.or_else(|| of_container(&path, original.root_of.clone(), runtimes));
        return of.map(|of| Origin { path, is_certain, of });
    }
    let host: NsInum = kubelets.host_namespaces().next().unwrap_or_default();
    copies.iter().find_map(|copy| {
        let path = copy.bind.as_ref()?.on_host(&copy.mount.mountpoint)?;
        let volume = kubelets.volume(0, host, &path).map(Of::Volume);
        // What a runtime within a container mounts is below a volume of that container, and never was on the host.
        let container = || of_container(&path, None, runtimes).filter(|_| !path.contains("/_data/"));
        let of = volume.or_else(container)?;
        Some(Origin { path, is_certain: false, of })
    })
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
    let mut owners = copies.iter().map(|copy| (copy, owner(names, copy.holder.cgroup.as_deref())));
    match &origin.of {
        Of::Volume(volume) => owners.any(|(_, owner)| {
            Pod::confirmed(owner.pod.as_ref()).is_some_and(|pod| pod.uid == volume.pod_uid)
        }),
        Of::Container { id, cgroup, .. } => {
            let is_it = |container: &Container| Some(&container.id) == id.as_ref();
            let pod_uid = pod_uid(names, id.as_deref(), cgroup.as_deref());
            // Containers of a pod share memory and sandbox, and may outlive the one that they have it from.
            let is_of_pod = |pod: &Pod| {
                pod_uid.as_ref() == Some(&pod.uid) || id.is_some() && pod.sandbox_id.as_ref() == id.as_ref()
            };
            // Whoever may make namespaces of his own can have anything as his root there.
            let is_root = |copy: &MountCopy| copy.mount.mountpoint == "/" && !copy.holder.in_userns;
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

/// Whether its runtime tells that a container lives.
fn is_live(names: &impl Names, id: &str) -> bool {
    let known = names.container(id).filter(|known| known.is_present);
    let state = known.and_then(|known| known.container.state);
    matches!(state.as_deref(), Some("running" | "paused" | "restarting"))
}

fn leak(copy: MountCopy, origin: Option<&Origin>, names: &impl Names) -> Leak {
    let MountCopy { mount, propagation, holder, bind, without_process, .. } = copy;
    let (volume, part, container, pod) = match origin.map(|origin| &origin.of) {
        None => (None, None, None, None),
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
    let pid = holder.tgid;
    let is_certain = origin.is_some_and(|origin| {
        origin.is_certain && !matches!(origin.of, Of::Container { is_proven: false, .. })
    });
    let confidence = if is_certain { Confidence::Certain } else { Confidence::Likely };
    let identity = mount.identity().unwrap_or_else(|| crate::observation::MountIdentity {
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
        fstype: mount.fstype,
        source: mount.source,
        propagation,
        volume,
        part,
        container,
        pod,
        bind,
        without_process,
    };
    Leak { holder: Box::new(actor(holder, mntns, names)), mount }
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
