//! Ceph RBD images that are mapped and unmapped.

use super::Core;
use crate::diagnose::ModelChange;
use crate::event::{Event, Kind, Rbd, Severity};
use crate::observation::{BootNs, CniExit, RbdExec, RbdImage, RbdImages, Request};

mod uses;

impl Core {
    pub(super) fn rbd_images(&mut self, at: BootNs, found: RbdImages) {
        let had_any = self.rbd.iter().next().is_some();
        let changes = self.rbd.replace(found);
        for image in &changes.unmapped {
            self.emit_rbd(at, Kind::RbdUnmapped, image, "unmapped from");
        }
        for image in &changes.mapped {
            self.emit_rbd(at, Kind::RbdMapped, image, "mapped as");
        }
        let images: Vec<RbdImage> = self.rbd.iter().cloned().collect();
        if self.rbd.is_whole() {
            let all: Vec<Rbd> = images.iter().map(Rbd::from).collect();
            self.diagnose(at, &ModelChange::RbdImages(&all));
        }
        if had_any || !images.is_empty() {
            self.request(Request::RbdUses { images });
        }
    }

    /// A call is no event. That an image is wanted is counted by the metrics alone.
    pub(super) fn rbd_exec(&mut self, at: BootNs, exec: RbdExec) {
        let actor = self.actor(&exec.actor, false);
        self.rbd_locks.started(at, exec, actor);
    }

    pub(super) fn rbd_exit(&mut self, at: BootNs, exit: CniExit) {
        if let Some(call) = self.rbd_locks.ended(&exit) {
            self.diagnose(at, &ModelChange::RbdLock(&call));
        }
    }

    fn emit_rbd(&mut self, at: BootNs, kind: Kind, image: &RbdImage, done: &str) {
        let rbd = Rbd::from(image);
        let message = format!("{} {done} {}", rbd.label(), image.path());
        let event = self.event(at, kind, Severity::Info, message);
        self.emit(Event { rbd: Some(Box::new(rbd)), ..event });
    }
}
