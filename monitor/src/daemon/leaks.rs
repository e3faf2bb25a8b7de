//! Follows mounts that are left in other namespaces, with what the previous run of the daemon knew of them: nobody else has
//! seen what the host had before.

use std::sync::Arc;

use super::Daemon;
use crate::event::{Confidence, Event, LeakedMount};
use crate::holders::leaks::{self, Remembered};

impl Daemon {
    /// `previous`: the incidents that the run before left open.
    pub(super) fn follow_leaks(&mut self, previous: &[Event]) {
        let known = previous.iter().filter_map(|event| event.leaks.as_ref()).flatten().filter_map(remembered);
        let (readers, tx) = (self.readers.clone(), self.observations.clone());
        self.leaks = Some(leaks::start(readers, tx, Arc::clone(&self.metrics), known.collect()));
    }

    /// Has such mounts looked for soon.
    pub(super) fn look_for_leaks(&self) {
        leaks::look_soon(self.leaks.as_ref());
    }
}

fn remembered(leak: &LeakedMount) -> Option<Remembered> {
    Some(Remembered {
        device: leak.identity.device.clone(),
        fstype: leak.fstype.clone(),
        path: leak.path.clone()?,
        container: leak.container.as_ref().map(|container| container.id.clone()),
        unique: leak.identity.unique.filter(|_| leak.confidence == Confidence::Certain),
    })
}
