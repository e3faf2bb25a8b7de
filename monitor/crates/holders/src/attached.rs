//! What was known of mounts of the host while they were mounted: their file systems, and the copies in other namespaces that an
//! unmount there reaches. Once they are detached, no table shows any of it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kevtmon_observation::{DetachedMount, MeantMount, NsInum};
use kevtmon_types::lock::lock;
use serde::{Deserialize, Serialize};

/// So long a mount is remembered that the host has no longer: whoever wants to know of it asks sooner.
const REMEMBERED: Duration = Duration::from_secs(180);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AttachedMount {
    pub(super) mount: MeantMount,
    /// `major:minor`.
    pub(super) device: String,
    pub(super) fstype: String,
    pub(super) copies: Vec<AttachedCopy>,
    /// Whether the mounts of all namespaces were read, so that it had no other copies.
    pub(super) is_all: bool,
}

/// A copy of it in another mount namespace, that goes with it as a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AttachedCopy {
    pub(super) mount: MeantMount,
    pub(super) mntns: NsInum,
}

/// All of them. Whoever looks at the mounts of all namespaces tells, and whoever looks for users of detached mounts asks.
#[derive(Debug, Clone, Default)]
pub struct Attached(Arc<Mutex<Vec<(AttachedMount, Instant)>>>);

impl Attached {
    pub(super) fn update(&self, seen: Vec<AttachedMount>) {
        let now = Instant::now();
        let mut known = lock(&self.0);
        known.retain(|(mount, at)| {
            now.saturating_duration_since(*at) < REMEMBERED
                && !seen.iter().any(|seen| is_same(seen.mount, mount.mount))
        });
        known.extend(seen.into_iter().map(|mount| (mount, now)));
        known.shrink_to_fit();
    }

    /// What is known of these mounts, in their order.
    pub(super) fn of(&self, mounts: &[DetachedMount]) -> Vec<Option<AttachedMount>> {
        let known = lock(&self.0);
        let find = |wanted: &DetachedMount| {
            let found = known.iter().rev().find(|(mount, _)| is_same(mount.mount, wanted.meant));
            found.map(|(mount, _)| mount.clone())
        };
        mounts.iter().map(find).collect()
    }
}

fn is_same(one: MeantMount, other: MeantMount) -> bool {
    one.id == other.id && one.unique.zip(other.unique).is_none_or(|(one, other)| one == other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(id: u64, unique: Option<u64>, device: &str) -> AttachedMount {
        let mount = MeantMount { id, unique };
        let (device, fstype) = (device.into(), "tmpfs".into());
        AttachedMount { mount, device, fstype, copies: Vec::new(), is_all: true }
    }

    #[test]
    fn a_mount_that_is_gone_is_remembered_until_another_one_has_its_id() {
        let attached = Attached::default();
        let device = |id, unique| {
            let meant = MeantMount { id, unique };
            let found = attached.of(&[DetachedMount { meant, path: "/v".into() }]);
            found[0].as_ref().map(|mount| mount.device.clone())
        };
        attached.update(vec![mount(7, Some(70), "0:50"), mount(8, None, "0:51")]);
        attached.update(vec![mount(7, Some(71), "0:52")]);
        assert_eq!(device(7, Some(70)), Some("0:50".into()));
        assert_eq!(device(7, Some(71)), Some("0:52".into()));
        assert_eq!(device(7, Some(72)), None);
        assert_eq!(device(8, Some(80)), Some("0:51".into()), "as far as its ids tell");
        attached.update(vec![mount(8, None, "0:53")]);
        assert_eq!(device(8, None), Some("0:53".into()));
    }
}
