//! Follows mounts that are left in other namespaces, with what the previous run of the daemon knew of them: nobody else has
//! seen what the host had before.

use std::sync::Arc;

use jiff::Timestamp;
use kevtmon_core::diagnose::FILE_SERVER_LOST;
use kevtmon_event::{Confidence, Event, LeakedMount};
use kevtmon_holders::fuse_mounts;
use kevtmon_holders::leaks::{self, Remembered};
use kevtmon_observation::{BootNs, FuseMount, VolumeData};
use kevtmon_types::clock::realtime_offset_ns;

use super::Daemon;

impl Daemon {
    /// `previous`: the incidents that the run before left open.
    pub(super) fn follow_leaks(&mut self, previous: &[Event]) {
        let offset = realtime_offset_ns();
        let known = previous.iter().flat_map(|event| of_event(event, offset));
        let (readers, tx) = (self.readers.clone(), self.observations.clone());
        let known = (known.collect(), self.scanner.attached());
        self.leaks = Some(leaks::start(readers, tx, Arc::clone(&self.metrics), known));
    }

    /// Follows FUSE file systems, those first that nobody served when the run before ended.
    pub(super) fn follow_fuse_mounts(&mut self, previous: &[Event]) {
        let unserved = previous.iter().filter_map(unserved).collect();
        self.fuse_mounts =
            Some(fuse_mounts::start(self.readers.clone(), unserved, self.observations.clone()));
    }

    /// Has such mounts looked for soon.
    pub(super) fn look_for_leaks(&self) {
        leaks::look_soon(self.leaks.as_ref());
    }
}

/// The file system of an incident about its server.
fn unserved(event: &Event) -> Option<FuseMount> {
    let is_lost = event.incident.as_ref().is_some_and(|incident| incident.kind == FILE_SERVER_LOST);
    let mount = event.mount.as_ref().filter(|_| is_lost)?;
    Some(FuseMount {
        device: mount.device.clone()?,
        fstype: mount.fstype.clone()?,
        source: mount.source.clone()?,
        mntns: mount.mntns,
        paths: vec![mount.path.clone()],
        unserved: true,
        ..FuseMount::default()
    })
}

/// `offset`: from the boot clock to that of the wall.
fn of_event(event: &Event, offset: i64) -> impl Iterator<Item = Remembered> {
    let time = event.time.parse::<Timestamp>().ok().map(Timestamp::as_nanosecond);
    // All of them were there when the event was told.
    let told = time.and_then(|time| BootNs::try_from(time - i128::from(offset)).ok()).unwrap_or_default();
    event.leaks.iter().flatten().filter_map(move |leak| remembered(leak, told))
}

fn remembered(leak: &LeakedMount, told: BootNs) -> Option<Remembered> {
    Some(Remembered {
        device: leak.identity.device.clone(),
        root: leak.identity.root.clone(),
        source: leak.source.clone(),
        fstype: leak.fstype.clone(),
        path: leak.path.clone()?,
        container: leak.container.as_ref().map(|container| container.id.clone()),
        volume_data: leak.staged.as_ref().and_then(|staged| {
            Some(VolumeData { driver: staged.plugin.clone(), handle: staged.handle.clone()? })
        }),
        unique: leak.identity.unique.filter(|_| leak.confidence == Confidence::Certain),
        told,
    })
}

#[cfg(test)]
mod tests {
    use kevtmon_observation::{MountIdentity, Propagation};

    use super::*;

    #[test]
    fn who_had_a_mount_when_it_was_told_had_it_then() {
        let identity = MountIdentity {
            unique: None,
            mount_id: 7,
            parent_id: 1,
            device: "0:50".into(),
            root: "/".into(),
            mount_point: "/mem".into(),
        };
        let leak = LeakedMount {
            path: Some("/v".into()),
            confidence: Confidence::Likely,
            identity,
            mntns: 9,
            pid: 50,
            init: false,
            fstype: "tmpfs".into(),
            source: "t".into(),
            propagation: Propagation::Private,
            volume: None,
            staged: None,
            part: None,
            container: None,
            pod: None,
            bind: None,
            without_process: false,
        };
        let event = Event {
            time: "1970-01-01T00:00:12.000000001Z".into(),
            leaks: Some(vec![leak]),
            ..kevtmon_testing::sample::deletion()
        };
        let told: Vec<BootNs> = of_event(&event, 2_000_000_000).map(|one| one.told).collect();
        assert_eq!(told, [10_000_000_001]);
    }
}
