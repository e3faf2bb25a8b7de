//! FUSE file systems of the host that nobody serves any more.

use kevtmon_event::{MountServer, Shared};
use kevtmon_observation::{BootNs, FileServer, FuseMount, FuseServer, Holder, ServerState, SignalSent};

use super::Core;
use super::held::mount_server;
use crate::diagnose::{ModelChange, UnservedMount};

impl Core {
    pub(super) fn fuse_mounts(&mut self, at: BootNs, found: Vec<FuseMount>) {
        self.fuse_mounts.known = found;
        let unserved: Vec<_> =
            self.fuse_mounts.unserved().map(|mount| self.unserved_mount(at, mount)).collect();
        self.diagnose(at, &ModelChange::FuseMounts(&unserved));
    }

    pub(super) fn signal_sent(&mut self, at: BootNs, sent: &SignalSent) {
        let sender = sent.sender.as_ref().map(|task| Shared::new(self.actor(task, false)));
        self.fuse_mounts.signalled(at, sent, sender);
    }

    /// The FUSE servers that are known, by process and its start.
    pub fn fuse_servers(&self) -> impl Iterator<Item = (u32, BootNs)> {
        self.fuse_mounts.servers()
    }

    fn unserved_mount(&self, at: BootNs, mount: &FuseMount) -> UnservedMount {
        let host = self.kubelets.is_host(mount.mntns).then_some(mount.mntns);
        let volume = |path: &String| Some((path.clone(), self.kubelets.volume(at, host?, path)?));
        // What shows the host's directories as a whole, as containers that monitor it do, or those of a kubelet, as the container
        // of a driver does, is no use of a volume.
        let is_shown = |seen: &str, path: &String| match seen.strip_suffix(path.as_str()) {
            Some("") => self.kubelets.has_below_root(mount.mntns, path),
            Some(_) => true,
            None => false,
        };
        let is_use = |holder: &&Holder| {
            let is_view = |seen: &String| mount.paths.iter().any(|path| is_shown(seen, path));
            holder.mntns != Some(mount.mntns) && !holder.path.as_ref().is_some_and(is_view)
        };
        let holders = mount.mounts.iter().filter(is_use);
        UnservedMount {
            device: mount.device.clone(),
            fstype: mount.fstype.clone(),
            source: mount.source.clone(),
            path: mount.paths.first().cloned().unwrap_or_default(),
            mntns: mount.mntns,
            volumes: mount.paths.iter().filter_map(volume).collect(),
            servers: mount.servers.iter().map(|server| self.former_server(mount, server)).collect(),
            // That the servers end later is not why.
            end: self.fuse_mounts.end_of(&mount.servers).filter(|_| !mount.cut_off).cloned(),
            cut_off: mount.cut_off,
            holders: holders
                .map(|holder| self.mount_holder(at, holder.clone()))
                .filter(|holder| holder.container.is_some())
                .collect(),
            remounted: mount.remounted,
        }
    }

    fn former_server(&self, mount: &FuseMount, server: &FuseServer) -> MountServer {
        let owner = self.node().owner(server.cgroup.as_deref());
        let FuseServer { tgid, comm, uid, cgroup, is_certain, .. } = server.clone();
        let has_ended = || self.fuse_mounts.end_of(std::slice::from_ref(server)).is_some();
        let state = if mount.cut_off && !has_ended() { ServerState::Running } else { ServerState::Ended };
        mount_server(FileServer { tgid, comm, state, waits_for: None, is_certain, uid, cgroup }, owner)
    }
}
