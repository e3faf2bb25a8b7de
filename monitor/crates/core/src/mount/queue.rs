//! The unmounts that wait, by mount: of one mount only the first awaits an answer. What each operation costs does not
//! depend on how many wait.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use kevtmon_observation::BootNs;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Answer, QueuedUmount};
use crate::node::mounts::{Account, BusyId, MountKey};

/// What waits at most. Of more than that, refused unmounts are only counted.
const MOST: Load = Load { number: 1024, texts: 2 << 20 };

#[derive(Clone, Default)]
pub(super) struct UmountQueue {
    by_mount: BTreeMap<BusyId, VecDeque<Waiting>>,
    /// The mounts of those that await an answer, by its id.
    awaited: BTreeMap<u64, BusyId>,
    deadlines: BTreeSet<(BootNs, u64)>,
    arrived: u64,
    waiting: Load,
    /// Per account, what waits and how many of them await an answer.
    tenants: BTreeMap<Account, (Load, usize)>,
}

#[derive(Clone)]
struct Waiting {
    /// Rises with each arrival.
    arrived: u64,
    /// Bytes of its texts when it came.
    texts: usize,
    umount: QueuedUmount,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Load {
    number: usize,
    /// Bytes of their texts, which whoever calls chooses.
    texts: usize,
}

impl Load {
    /// What is left of it beside another one.
    fn without(self, other: Self) -> Self {
        Self {
            number: self.number.saturating_sub(other.number),
            texts: self.texts.saturating_sub(other.texts),
        }
    }

    /// Whether another one has room in it.
    fn holds(self, other: Self) -> bool {
        other.number <= self.number && other.texts <= self.texts
    }

    /// With one more of so many bytes.
    fn and(self, texts: usize) -> Self {
        Self { number: self.number + 1, texts: self.texts + texts }
    }
}

impl UmountQueue {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.waiting.number
    }

    /// Whether one more may wait: as much of one account as is left free, of the host all.
    pub(super) fn has_room(&self, umount: &QueuedUmount) -> bool {
        // What succeeded is not to be missed.
        let times = if umount.is_refused() { 1 } else { 2 };
        let most = Load { number: times * MOST.number, texts: times * MOST.texts };
        let of_account = self.tenants.get(&umount.account).filter(|_| !umount.account.host);
        let of_account = of_account.map_or_else(Load::default, |(waiting, _)| *waiting);
        most.without(self.waiting).holds(of_account.and(umount.text_bytes()))
    }

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

    /// How many an account has that await an answer.
    pub(super) fn awaited_by(&self, account: &Account) -> usize {
        self.tenants.get(account).map_or(0, |(_, awaiting)| *awaiting)
    }

    pub(super) fn push(&mut self, umount: QueuedUmount) {
        self.arrived += 1;
        let arrived = self.arrived;
        let texts = umount.text_bytes();
        self.register(&umount, texts);
        self.by_mount.entry(umount.mount).or_default().push_back(Waiting { arrived, texts, umount });
    }

    pub(super) fn push_first(&mut self, umount: QueuedUmount) {
        let texts = umount.text_bytes();
        self.register(&umount, texts);
        let all = self.by_mount.entry(umount.mount).or_default();
        let arrived = all.front().map_or(self.arrived, |first| first.arrived);
        all.push_front(Waiting { arrived, texts, umount });
    }

    /// Removes the first unmount of a mount, unless it awaits an answer.
    pub(super) fn pop_ready(&mut self, mount: BusyId) -> Option<QueuedUmount> {
        let is_ready = self.of(mount).next()?.awaits.is_none();
        is_ready.then(|| self.remove(mount, 0)).flatten()
    }

    pub(super) fn awaiting(&self, id: u64) -> Option<&QueuedUmount> {
        let mount = *self.awaited.get(&id)?;
        self.of(mount).find(|umount| umount.awaits.is_some_and(|awaits| awaits.id == id))
    }

    pub(super) fn take_answered(&mut self, id: u64, answers: &[Answer]) -> Option<QueuedUmount> {
        let mount = *self.awaited.get(&id)?;
        let place = self.of(mount).position(|umount| {
            umount.awaits.is_some_and(|awaits| awaits.id == id && answers.contains(&awaits.answer))
        })?;
        self.remove(mount, place)
    }

    pub(super) fn take_overdue(&mut self, now: BootNs) -> Option<QueuedUmount> {
        let (_, id) = *self.deadlines.first().filter(|(deadline, _)| *deadline <= now)?;
        let mount = *self.awaited.get(&id)?;
        let place = self.of(mount).position(|umount| umount.awaits.is_some_and(|awaits| awaits.id == id))?;
        self.remove(mount, place)
    }

    pub(super) fn take_last(
        &mut self,
        mount: BusyId,
        is_wanted: impl Fn(&QueuedUmount) -> bool,
    ) -> Option<QueuedUmount> {
        let place = self.by_mount.get(&mount)?.iter().rposition(|waiting| is_wanted(&waiting.umount))?;
        self.remove(mount, place)
    }

    pub(super) fn take_all(&mut self, mount: BusyId) -> Vec<QueuedUmount> {
        let all = self.by_mount.remove(&mount).unwrap_or_default();
        all.iter().for_each(|waiting| self.forget(waiting));
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
        let waiting = all.remove(place)?;
        if all.is_empty() {
            self.by_mount.remove(&mount);
        }
        self.forget(&waiting);
        Some(waiting.umount)
    }

    fn register(&mut self, umount: &QueuedUmount, texts: usize) {
        self.waiting = self.waiting.and(texts);
        let (waiting, awaiting) = self.tenants.entry(umount.account.clone()).or_default();
        *waiting = waiting.and(texts);
        if let Some(awaits) = umount.awaits {
            *awaiting += 1;
            self.awaited.insert(awaits.id, umount.mount);
            self.deadlines.insert((awaits.deadline, awaits.id));
        }
    }

    fn forget(&mut self, Waiting { umount, texts, .. }: &Waiting) {
        let one = Load { number: 1, texts: *texts };
        self.waiting = self.waiting.without(one);
        if let Some((waiting, awaiting)) = self.tenants.get_mut(&umount.account) {
            *waiting = waiting.without(one);
            *awaiting -= usize::from(umount.awaits.is_some());
            if waiting.number == 0 {
                self.tenants.remove(&umount.account);
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
