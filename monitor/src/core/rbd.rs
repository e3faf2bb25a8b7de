//! Ceph RBD images that are mapped and unmapped.

use super::Core;
use crate::event::{Event, Kind, Rbd, Severity};
use crate::observation::{BootNs, RbdImage, RbdImages};

impl Core {
    pub(super) fn rbd_images(&mut self, at: BootNs, found: RbdImages) {
        let changes = self.rbd.replace(found);
        for image in &changes.unmapped {
            self.emit_rbd(at, Kind::RbdUnmapped, image, "unmapped from");
        }
        for image in &changes.mapped {
            self.emit_rbd(at, Kind::RbdMapped, image, "mapped as");
        }
    }

    fn emit_rbd(&mut self, at: BootNs, kind: Kind, image: &RbdImage, done: &str) {
        let rbd = Rbd::from(image);
        let message = format!("{} {done} {}", rbd.label(), rbd.device);
        let event = self.event(at, kind, Severity::Info, message);
        self.emit(Event { rbd: Some(Box::new(rbd)), ..event });
    }
}
