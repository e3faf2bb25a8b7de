//! Ceph RBD images that are mapped and unmapped.

use kevtmon_event::wording::actor_phrase;
use kevtmon_event::{Actor, Confidence, Event, Kind, Rbd, Severity, Shared};
use kevtmon_observation::{BootNs, CniExit, RbdCommand, RbdExec, RbdImage, RbdImages, Request};

use super::Core;
use crate::diagnose::ModelChange;

mod uses;

impl Core {
    pub(super) fn rbd_images(&mut self, at: BootNs, found: RbdImages) {
        let had_any = self.rbd.iter().next().is_some();
        let changes = self.rbd.replace(found);
        for image in &changes.unmapped {
            let actor = self.rbd_calls.take(at, RbdCommand::Unmap, image);
            self.emit_rbd(at, Kind::RbdUnmapped, image, "unmapped from", actor);
        }
        for image in &changes.mapped {
            let actor = self.rbd_calls.take(at, RbdCommand::Map, image);
            self.emit_rbd(at, Kind::RbdMapped, image, "mapped as", actor);
        }
        let images: Vec<RbdImage> = self.rbd.iter().cloned().collect();
        if self.rbd.is_whole {
            let all: Vec<Rbd> = images.iter().map(Rbd::from).collect();
            self.diagnose(at, &ModelChange::RbdImages(&all));
        }
        if had_any || !images.is_empty() {
            self.request(Request::RbdUses { images });
        }
    }

    /// A call is no event. That an image is wanted is counted by the metrics alone.
    pub(super) fn rbd_exec(&mut self, at: BootNs, exec: RbdExec) {
        self.rbd_asked.note(at, &exec);
        let actor = self.actor(&exec.actor, false);
        self.rbd_calls.started(at, &exec, &actor);
        self.rbd_locks.started(at, exec, actor);
    }

    pub(super) fn rbd_exit(&mut self, at: BootNs, exit: CniExit) {
        self.rbd_calls.ended(&exit);
        if let Some(call) = self.rbd_locks.ended(&exit) {
            self.diagnose(at, &ModelChange::RbdLock(&call));
        }
    }

    /// `caller`: who called a program that does this. That it was that one which did it, the kernel does not tell.
    fn emit_rbd(
        &mut self,
        at: BootNs,
        kind: Kind,
        image: &RbdImage,
        done: &str,
        caller: Option<Shared<Actor>>,
    ) {
        let rbd = Rbd::from(image);
        let likely = |actor: Shared<Actor>| Actor { confidence: Confidence::Likely, ..actor.into_inner() };
        let actor = caller.map(likely);
        let by = actor.as_ref().map(|actor| format!(", likely by {}", actor_phrase(actor)));
        let message = format!("{} {done} {}{}", rbd.label(), image.path(), by.unwrap_or_default());
        let event = self.event(at, kind, Severity::Info, message);
        self.emit(Event { rbd: Some(Box::new(rbd)), actor: actor.map(Shared::new), ..event });
    }
}
