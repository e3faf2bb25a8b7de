//! The unmounts that wait, by mount: of one mount only the first awaits an answer. What each operation costs does not
//! depend on how many wait.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Answer, QueuedUmount};
use crate::node::mounts::{Account, BusyId, MountKey};
use crate::observation::BootNs;

/// Unmounts in order of arrival.
#[derive(Clone, Default)]
pub(super) struct UmountQueue {
    by_mount: BTreeMap<BusyId, VecDeque<Waiting>>,
    /// The mounts of those that await an answer, by its id.
    awaited: BTreeMap<u64, BusyId>,
    deadlines: BTreeSet<(BootNs, u64)>,
    arrived: u64,
    len: usize,
    /// Per account, how many wait and how many of them await an answer.
    charged: BTreeMap<Account, (usize, usize)>,
}

#[derive(Clone)]
struct Waiting {
    /// Rises with each arrival.
    arrived: u64,
    umount: QueuedUmount,
}

impl UmountQueue {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether something waits for a mount.
    pub(super) fn has(&self, mount: BusyId) -> bool {
        self.by_mount.contains_key(&mount)
    }

    /// What waits for a mount, the first at the beginning.
    pub(super) fn of(&self, mount: BusyId) -> impl Iterator<Item = &QueuedUmount> {
        self.by_mount.get(&mount).into_iter().flatten().map(|waiting| &waiting.umount)
    }

    /// The same, to be changed in what has no part in their order.
    pub(super) fn of_mut(&mut self, mount: BusyId) -> impl Iterator<Item = &mut QueuedUmount> {
        self.by_mount.get_mut(&mount).into_iter().flatten().map(|waiting| &mut waiting.umount)
    }

    /// How many an account has that wait.
    pub(super) fn charged_to(&self, account: &Account) -> usize {
        self.charged.get(account).map_or(0, |(waiting, _)| *waiting)
    }

    /// How many an account has that await an answer.
    pub(super) fn awaited_by(&self, account: &Account) -> usize {
        self.charged.get(account).map_or(0, |(_, awaiting)| *awaiting)
    }

    /// Adds an unmount behind the others of its mount.
    pub(super) fn push(&mut self, umount: QueuedUmount) {
        self.arrived += 1;
        let arrived = self.arrived;
        self.register(&umount);
        self.by_mount.entry(umount.mount).or_default().push_back(Waiting { arrived, umount });
    }

    /// Puts an unmount before the others of its mount.
    pub(super) fn push_first(&mut self, umount: QueuedUmount) {
        self.register(&umount);
        let all = self.by_mount.entry(umount.mount).or_default();
        let arrived = all.front().map_or(self.arrived, |first| first.arrived);
        all.push_front(Waiting { arrived, umount });
    }

    /// Removes the first unmount of a mount, unless it awaits an answer.
    pub(super) fn pop_ready(&mut self, mount: BusyId) -> Option<QueuedUmount> {
        let is_ready = self.of(mount).next()?.awaits.is_none();
        is_ready.then(|| self.remove(mount, 0)).flatten()
    }

    /// The unmount that awaits this answer.
    pub(super) fn awaiting(&self, id: u64) -> Option<&QueuedUmount> {
        let mount = *self.awaited.get(&id)?;
        self.of(mount).find(|umount| umount.awaits.is_some_and(|awaits| awaits.id == id))
    }

    /// Removes the unmount that awaits this answer.
    pub(super) fn take_answered(&mut self, id: u64, answers: &[Answer]) -> Option<QueuedUmount> {
        let mount = *self.awaited.get(&id)?;
        let place = self.of(mount).position(|umount| {
            umount.awaits.is_some_and(|awaits| awaits.id == id && answers.contains(&awaits.answer))
        })?;
        self.remove(mount, place)
    }

    /// Removes an unmount whose answer is overdue.
    pub(super) fn take_overdue(&mut self, now: BootNs) -> Option<QueuedUmount> {
        let (_, id) = *self.deadlines.first().filter(|(deadline, _)| *deadline <= now)?;
        let mount = *self.awaited.get(&id)?;
        let place = self.of(mount).position(|umount| umount.awaits.is_some_and(|awaits| awaits.id == id))?;
        self.remove(mount, place)
    }

    /// Removes the last unmount of a mount that meets a condition.
    pub(super) fn take_last(
        &mut self,
        mount: BusyId,
        is_wanted: impl Fn(&QueuedUmount) -> bool,
    ) -> Option<QueuedUmount> {
        let place = self.by_mount.get(&mount)?.iter().rposition(|waiting| is_wanted(&waiting.umount))?;
        self.remove(mount, place)
    }

    /// Removes all of a mount.
    pub(super) fn take_all(&mut self, mount: BusyId) -> Vec<QueuedUmount> {
        let all = self.by_mount.remove(&mount).unwrap_or_default();
        all.iter().for_each(|waiting| self.forget(&waiting.umount));
        all.into_iter().map(|waiting| waiting.umount).collect()
    }

    /// What was said of one mount by this path was about another one.
    pub(super) fn move_path(&mut self, from: BusyId, key: &MountKey, to: BusyId) {
        let Some(all) = self.by_mount.remove(&from) else { return };
        let (moved, rest): (VecDeque<Waiting>, VecDeque<Waiting>) =
            all.into_iter().partition(|waiting| waiting.umount.key == *key);
        if !rest.is_empty() {
            self.by_mount.insert(from, rest);
        }
        if moved.is_empty() {
            return;
        }
        let others = self.by_mount.entry(to).or_default();
        for mut waiting in moved {
            waiting.umount.mount = to;
            if let Some(awaits) = waiting.umount.awaits {
                self.awaited.insert(awaits.id, to);
            }
            others.push_back(waiting);
        }
        // Who awaits an answer stays the first.
        others.make_contiguous().sort_by_key(|waiting| (waiting.umount.awaits.is_none(), waiting.arrived));
    }

    pub(super) fn deadline(&self) -> Option<BootNs> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    fn remove(&mut self, mount: BusyId, place: usize) -> Option<QueuedUmount> {
        let all = self.by_mount.get_mut(&mount)?;
        let umount = all.remove(place)?.umount;
        if all.is_empty() {
            self.by_mount.remove(&mount);
        }
        self.forget(&umount);
        Some(umount)
    }

    fn register(&mut self, umount: &QueuedUmount) {
        self.len += 1;
        let (waiting, awaiting) = self.charged.entry(umount.account.clone()).or_default();
        *waiting += 1;
        if let Some(awaits) = umount.awaits {
            *awaiting += 1;
            self.awaited.insert(awaits.id, umount.mount);
            self.deadlines.insert((awaits.deadline, awaits.id));
        }
    }

    fn forget(&mut self, umount: &QueuedUmount) {
        self.len -= 1;
        if let Some((waiting, awaiting)) = self.charged.get_mut(&umount.account) {
            *waiting -= 1;
            *awaiting -= usize::from(umount.awaits.is_some());
            if *waiting == 0 {
                self.charged.remove(&umount.account);
            }
        }
        if let Some(awaits) = umount.awaits {
            self.awaited.remove(&awaits.id);
            self.deadlines.remove(&(awaits.deadline, awaits.id));
        }
    }

    fn in_order(&self) -> Vec<&QueuedUmount> {
        let mut all: Vec<&Waiting> = self.by_mount.values().flatten().collect();
        all.sort_by_key(|waiting| waiting.arrived);
        all.into_iter().map(|waiting| &waiting.umount).collect()
    }
}

impl fmt::Debug for UmountQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.in_order()).finish()
    }
}

impl PartialEq for UmountQueue {
    fn eq(&self, other: &Self) -> bool {
        self.in_order() == other.in_order()
    }
}

impl Serialize for UmountQueue {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.in_order())
    }
}

impl<'de> Deserialize<'de> for UmountQueue {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut queue = Self::default();
        for umount in Vec::<QueuedUmount>::deserialize(from)? {
            queue.push(umount);
        }
        Ok(queue)
    }
}
