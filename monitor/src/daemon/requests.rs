//! What the core wants to know: each request goes to the source that can answer it, and nothing is waited for.

use kevtmon_holders::rbd as rbd_uses;
use kevtmon_holders::{
    DetachedRequest, PresenceRequest, ScanRequest, StillHeldRequest, fuse_mounts,
    look_for_device_users_and_send, obstacle,
};
use kevtmon_observation::{BootNs, Fact, NsInum, Request};
use kevtmon_sources::runtime::{checkpoint, still_runs};
use kevtmon_sources::{cni, components, netlink, nfs_mounts, observed_now, pod_remains};

use super::Daemon;

impl Daemon {
    pub(super) fn handle_request(&mut self, request: Request) {
        match request {
            Request::Netns { netns } => self.read_netns(netns),
            Request::ProcessState { tgid, started_ns } => self.process_state(tgid, started_ns),
            Request::CniNetns { id, path, within } => {
                cni::find_netns_and_send(&self.readers, &self.observations, id, path, within);
            }
            Request::FuseMounts => fuse_mounts::look_soon(self.fuse_mounts.as_ref()),
            Request::MountCopies => self.look_for_leaks(),
            Request::RbdUses { images } => rbd_uses::follow(self.rbd_uses.as_ref(), images),
            Request::Component { tgid } => components::look_at(self.components.as_ref(), tgid),
            Request::Container { id } => drop(self.wanted_containers.send(id)),
            Request::Kubelet => self.kubelets.look_and_send(&self.readers, &self.observations),
            Request::PodProcesses { pods } => pod_remains::list_processes(self.pods_wanted.as_ref(), pods),
            Request::PodMounts { pods } => pod_remains::list_mounts(self.pods_wanted.as_ref(), pods),
            Request::Obstacle { container, refused } => {
                obstacle::look_and_send(&self.readers, &self.observations, container, refused);
            }
            Request::DeviceUsers { id, mntns, tgid, path, origin, fstype } => {
                let request = ScanRequest {
                    id,
                    mntns,
                    tgid,
                    path,
                    origin: Some(origin),
                    follow: true,
                    on_demand: true,
                    ..ScanRequest::default()
                };
                look_for_device_users_and_send(&self.readers, &self.observations, request, fstype);
            }
            Request::VethPeers { links } => {
                self.scanner.find_veth_peers_and_send(&self.readers, &self.observations, links);
            }
            Request::PodRoutes { id, addresses } => {
                netlink::look_up_pod_routes_and_send(&self.observations, id, addresses);
            }
            Request::NfsMounts { servers } => nfs_mounts::send(&self.readers, &self.observations, servers),
            Request::SandboxCheckpoints { sandboxes } => {
                checkpoint::look_and_send(&self.readers, &self.observations, sandboxes);
            }
            Request::MountPresence { id, mntns, tgid, identity, share } => {
                let request = PresenceRequest { id, mntns, tgid, identity, at: None };
                self.answer(self.scanner.presence(request, share));
            }
            Request::MountAt { id, mntns, tgid, path, origin, follow, identity, share } => {
                let at = ScanRequest {
                    id,
                    mntns,
                    tgid,
                    path,
                    origin,
                    follow,
                    mount_only: true,
                    ..ScanRequest::default()
                };
                let request = PresenceRequest { id, mntns, tgid, identity, at: Some(Box::new(at)) };
                self.answer(self.scanner.presence(request, share));
            }
            Request::DetachedUsers { id, mounts, share } => {
                self.answer(self.scanner.detached(DetachedRequest::new(id, mounts), share));
            }
            Request::StillHeld { id, mount, holders, is_attached, share } => {
                let request = StillHeldRequest { id, mount: *mount, holders, is_attached };
                self.answer(self.scanner.still_held(request, share));
            }
            Request::Holders { id, mntns, tgid, path, origin, follow, mount_only, share } => {
                let request = ScanRequest {
                    id,
                    mntns,
                    tgid,
                    path,
                    origin,
                    follow,
                    mount_only,
                    ..ScanRequest::default()
                };
                self.answer(self.scanner.request(request, share));
            }
        }
    }

    /// With a full queue the pending event is emitted at its deadline, without the names that are missing.
    fn read_netns(&self, netns: NsInum) {
        if self.netns.try_send(netns).is_err() {
            tracing::warn!(netns, "namespace queue is full; the request is discarded");
        }
    }

    fn process_state(&mut self, tgid: u32, started_ns: Option<BootNs>) {
        match (still_runs::at_once(tgid, started_ns), started_ns) {
            (None, Some(started_ns)) => {
                still_runs::look_and_send(&self.readers, &self.observations, tgid, started_ns);
            }
            (Some(state), _) => self.replies.push_back(observed_now(Fact::ProcessState(state))),
            (None, None) => {}
        }
    }

    /// The answer to a request for which there is no place, if there is one.
    fn answer(&mut self, answer: Option<Fact>) {
        self.replies.extend(answer.map(observed_now));
    }
}
