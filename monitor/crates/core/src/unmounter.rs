//! Processes that unmount something and wait in the kernel.

use kevtmon_event::{ActorSource, Shared};
use kevtmon_observation::{BootNs, TaskRef, Unmounter};

use super::Core;
use crate::diagnose::{ModelChange, Waiting};

impl Core {
    pub(super) fn unmounters(&mut self, at: BootNs, unmounters: Vec<Unmounter>) {
        let waiting: Vec<Waiting> = unmounters.into_iter().map(|found| self.waiting(at, found)).collect();
        self.diagnose(at, &ModelChange::Unmounters(&waiting));
    }

    fn waiting(&mut self, at: BootNs, found: Unmounter) -> Waiting {
        self.tasks.restore(&found.task);
        let key = found.task.key;
        let call = found.call;
        let tid = call.as_ref().map_or(key.tgid, |call| call.tid);
        let task = TaskRef { key, tid, comm: found.comm, context: None };
        let mut actor = self.actor(&task, false);
        actor.source = ActorSource::Proc;
        let of_call = call.as_ref().and_then(|call| call.path.as_deref());
        let path = found.mount.as_ref().map(|mount| mount.mountpoint.as_str()).or(of_call);
        let volume = path.and_then(|path| self.kubelets.volume(at, found.task.mntns, path));
        let server = found.mount.as_ref().and_then(|mount| mount.server.as_ref());
        let server = server.and_then(|server| self.mount_servers(std::slice::from_ref(server)).pop());
        Waiting {
            since: call.as_ref().map_or(key.start_ns, |call| call.since),
            target: volume.map(|volume| Shared::new(self.node().target_of_pod(&volume.pod_uid))),
            actor: Shared::new(actor),
            waits_for: found.waits_for,
            server: server.map(Box::new),
            mount: found.mount,
            call,
        }
    }
}
