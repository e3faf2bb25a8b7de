//! Where the host had the directories of one file system mounted. Volumes of several pods may be of one file system: exports of
//! one NFS or CephFS server share one, and so do the mounts of a claim that two pods use. A copy is of what the host had
//! mounted from the same directory of it, by the same source: copies inherit both.

use kevtmon_observation::{BootNs, HostPath, MountCopy, NsInum, OriginalMount};
use kevtmon_sources::procfs::mountinfo::is_below;

use super::inventory::{HostMount, is_in_pod, is_staged};

const MOUNT_POINTS_MAX: usize = 256;
const OTHERS_MAX: usize = 16;

/// Where the host has or had one file system.
#[derive(Debug, Default)]
pub(super) struct MountPoints {
    known: Vec<MountPoint>,
    /// Copies with this unique id, or a lower one, may be of a place that was forgotten.
    forgot: Option<u64>,
}

#[derive(Debug)]
struct MountPoint {
    mount: HostMount,
    at: BootNs,
    /// Mounts with this unique id, or a lower one, were there then.
    bound: Option<u64>,
    /// Mounts with a higher unique id were made when it was gone.
    until: Option<u64>,
}

impl MountPoints {
    /// A place that an earlier run of the daemon knew; `bound`: the unique id of a copy that is one of it for certain.
    pub(super) fn remember(&mut self, mount: HostMount, bound: Option<u64>) {
        match self.known.iter_mut().find(|place| place.mount.is_at(&mount)) {
            Some(place) => place.bound = place.bound.max(bound),
            None => self.known.push(MountPoint { mount, at: 0, bound, until: None }),
        }
    }

    /// Takes in all places that the host has now. `is_crowded`: there are more.
    pub(super) fn update(&mut self, now: Vec<HostMount>, at: BootNs, bound: Option<u64>, is_crowded: bool) {
        for mount in now {
            let mut found = MountPoint { mount, at, bound, until: None };
            match self.known.iter_mut().find(|place| place.mount.is_at(&found.mount)) {
                Some(place) => {
                    // A kubelet may have removed it already.
                    let known = place.mount.volume_data.take();
                    found.mount.volume_data = found.mount.volume_data.or(known);
                    *place = found;
                }
                None => self.known.push(found),
            }
        }
        for place in self.known.iter_mut().filter(|place| place.at != at) {
            place.until = place.until.or(bound).or(Some(u64::MAX));
        }
        if is_crowded {
            self.forgot = self.forgot.max(bound.or(Some(u64::MAX)));
        }
        if self.known.len() > MOUNT_POINTS_MAX {
            self.known.sort_by_key(|place| std::cmp::Reverse(place.at));
            let forgotten = self.known.drain(MOUNT_POINTS_MAX..).filter_map(|place| place.until).max();
            self.forgot = self.forgot.max(forgotten);
        }
    }

    /// Control group of the container whose root directory it was at this path.
    pub(super) fn root_of(&self, path: &str) -> Option<String> {
        self.known
            .iter()
            .filter(|place| place.mount.path == path)
            .find_map(|place| place.mount.root_of.clone())
    }

    /// Of what the host had a copy is. `oldest`: the lowest unique id of the copies of this file system; `own`: the namespace
    /// of places whose namespace was not remembered. `None` where the host had no such directory of it.
    pub(super) fn original(
        &self,
        copy: &MountCopy,
        oldest: Option<u64>,
        own: NsInum,
    ) -> Option<OriginalMount> {
        let (root, source) = (copy.mount.root.as_str(), copy.mount.source.as_str());
        let may_be =
            |place: &&MountPoint| place.until.zip(oldest).is_none_or(|(until, oldest)| oldest <= until);
        let known: Vec<&MountPoint> = self.known.iter().filter(may_be).collect();
        let exact = |place: &&&MountPoint| place.mount.root == root && place.mount.source == source;
        let mut of: Vec<&MountPoint> = known.iter().filter(exact).copied().collect();
        let is_exact = !of.is_empty();
        if !is_exact {
            // A directory below one that was mounted, or the same by another name of the device.
            let above = |place: &&&MountPoint| is_below(root, &place.mount.root);
            let length = known.iter().filter(above).map(|place| place.mount.root.len()).max()?;
            let nearest = |place: &&&MountPoint| above(place) && place.mount.root.len() == length;
            of = known.iter().filter(nearest).copied().collect();
        }
        let by = copy.bind.as_ref().and_then(|bind| bind.on_host(&copy.mount.mountpoint));
        of.sort_by_key(|place| {
            let path = &place.mount.path;
            // Of several places the one that is a volume of a pod tells most, and then the one that was staged for pods.
            std::cmp::Reverse((by.as_ref() == Some(path), is_in_pod(path), is_staged(path), place.at))
        });
        let (first, others) = of.split_first()?;
        let mntns = |place: &MountPoint| if place.mount.mntns == 0 { own } else { place.mount.mntns };
        let was_there = oldest.zip(first.bound).is_some_and(|(oldest, bound)| oldest <= bound);
        let may_be_forgotten = self.forgot.is_some_and(|forgot| oldest.is_none_or(|oldest| oldest <= forgot));
        let others = others.iter().filter(|place| place.mount.path != first.mount.path);
        Some(OriginalMount {
            path: first.mount.path.clone(),
            mntns: mntns(first),
            seen: first.at,
            is_certain: is_exact && was_there && !may_be_forgotten,
            root_of: first.mount.root_of.clone(),
            volume_data: first.mount.volume_data.clone(),
            others: others
                .take(OTHERS_MAX)
                .map(|place| HostPath { path: place.mount.path.clone(), mntns: mntns(place) })
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_observation::{BindMount, CopyHolder, MountFacts, Propagation, VolumeData};

    use super::*;

    const A: &str = "/k/pods/5c948341-c030-4996-b888-f032577d97b0/volumes/kubernetes.io~nfs/a";
    const B: &str = "/k/pods/7b7a2f50-9d1c-4a3e-8f6d-2c5b1e0a9d84/volumes/kubernetes.io~nfs/b";

    fn host(root: &str, source: &str, path: &str) -> HostMount {
        let (device, fstype) = ("0:50".into(), "nfs4".into());
        let (root, path, source) = (root.into(), path.into(), source.into());
        HostMount { device, root, path, fstype, source, mntns: 1, root_of: None, volume_data: None }
    }

    fn copy(root: &str, source: &str) -> MountCopy {
        let mount = MountFacts {
            id: 7,
            parent: Some(1),
            unique: Some(50),
            mountpoint: "/mem".into(),
            root: root.into(),
            fstype: "nfs4".into(),
            source: source.into(),
            device: "0:50".into(),
            mntns: 9,
        };
        let holder =
            CopyHolder { tgid: 50, start_ns: 1, comm: "sleep".into(), uid: Some(0), ..CopyHolder::default() };
        let propagation = Propagation::Private;
        MountCopy { mount, propagation, holder, original: None, bind: None, without_process: false }
    }

    /// Path, certainty, other paths of the original of a copy with the unique id 50.
    fn of(places: &MountPoints, copy: &MountCopy) -> Option<(String, bool, Vec<String>)> {
        let original = places.original(copy, Some(50), 1)?;
        let others = original.others.into_iter().map(|other| other.path).collect();
        Some((original.path, original.is_certain, others))
    }

    fn seen(looks: &[&[HostMount]]) -> MountPoints {
        let mut places = MountPoints::default();
        for (at, now) in (1_u32..).zip(looks) {
            places.update(now.to_vec(), at.into(), Some(u64::from(at) * 100), false);
        }
        places
    }

    #[test]
    fn a_copy_is_of_the_same_directory_by_the_same_source() {
        let places = seen(&[&[host("/", "s:/a", A), host("/sub", "s:/a", B)]]);
        assert_eq!(of(&places, &copy("/", "s:/a")), Some((A.into(), true, vec![])));
        assert_eq!(of(&places, &copy("/sub", "s:/a")), Some((B.into(), true, vec![])));
        assert_eq!(of(&places, &copy("/sub/x", "s:/a")), Some((B.into(), false, vec![])));
        assert_eq!(of(&places, &copy("/other", "s:/a")), Some((A.into(), false, vec![])));
        assert_eq!(of(&seen(&[&[host("/sub", "s", B)]]), &copy("/", "s")), None, "that it never had");
        // Exports of one server, each the root of what is mounted.
        let exports = seen(&[&[host("/", "s:/a", A), host("/", "s:/b", B)]]);
        assert_eq!(of(&exports, &copy("/", "s:/b")), Some((B.into(), true, vec![])));
        assert!(of(&exports, &copy("/", "s:/c")).is_some_and(|(_, is_certain, _)| !is_certain));
    }

    #[test]
    fn of_several_places_all_are_told_and_that_of_the_runtime_first() {
        let both = [host("/", "s", A), host("/", "s", B)];
        let places = seen(&[&both]);
        assert_eq!(of(&places, &copy("/", "s")).map(|(_, _, others)| others.len()), Some(1));
        for path in [A, B] {
            let bind = BindMount { source: path.into(), destination: "/mem".into(), propagation: None };
            let copy = MountCopy { bind: Some(bind), ..copy("/", "s") };
            assert_eq!(of(&places, &copy).map(|(path, ..)| path).as_deref(), Some(path));
        }
    }

    #[test]
    fn what_was_written_beside_a_staged_volume_is_known_though_it_is_removed_before_the_mount() {
        let staged = "/k/plugins/kubernetes.io/csi/d/0a1b/globalmount";
        let data = VolumeData { driver: "d".into(), handle: "v1".into() };
        let with = HostMount { volume_data: Some(data.clone()), ..host("/", "s", staged) };
        let places = seen(&[&[with], &[host("/", "s", staged), host("/", "s", "/mnt/x")]]);
        let original = places.original(&copy("/", "s"), Some(50), 1).unwrap();
        assert_eq!((original.path.as_str(), original.volume_data), (staged, Some(data)));
    }

    #[test]
    fn a_place_that_was_gone_before_the_copy_was_made_is_none_of_it() {
        let (first, second) = ([host("/", "s", A)], [host("/", "s", B)]);
        let original =
            |looks| of(&seen(looks), &copy("/", "s")).map(|(path, _, others)| (path, others.len()));
        // The copy has the id 50, and the first look the bound 100.
        assert_eq!(original(&[&first, &second]).map(|(_, others)| others), Some(1));
        let mut places = MountPoints::default();
        places.update(first.to_vec(), 1, Some(10), false);
        places.update(second.to_vec(), 2, Some(20), false);
        places.update(second.to_vec(), 3, Some(100), false);
        assert_eq!(of(&places, &copy("/", "s")), Some((B.into(), true, vec![])));
    }

    #[test]
    fn what_there_was_no_room_for_makes_nothing_certain() {
        let mut places = MountPoints::default();
        places.update(vec![host("/", "s", A)], 1, Some(100), true);
        assert_eq!(of(&places, &copy("/", "s")), Some((A.into(), false, vec![])));
    }
}
