//! What was over the budgets of sources: the programs count it, and one observation sums it up for each source, while it
//! goes on and when it has ended.

use std::collections::BTreeMap;

use aya::maps::{Array, HashMap, MapData};
use kevtmon_ebpf::Counter;
use kevtmon_ebpf::lanes::{NO_GROUP, SourceBudget, SourceKey, counter, lane, shared};
use kevtmon_metrics::KernelMetric;
use kevtmon_observation::{BootNs, BudgetClass, Throttled};
use kevtmon_types::clock::SECOND;
use zerocopy::FromBytes as _;

use super::hooks::{Count, Records};

/// A source that was over its budget is reported when it has paused, or so long after it began;
const FIRST_NS: u64 = SECOND;
/// and as often while it goes on.
const AGAIN_NS: u64 = 10 * SECOND;
/// Without a record for so long, it has paused.
const PAUSE_NS: u64 = SECOND;
/// A source is forgotten when its burst has been whole for so long.
const FORGOTTEN_NS: u64 = 60 * SECOND;

/// What the programs count of every source.
pub(super) const RECORDS: Records = Records {
    kinds: &[],
    counts: &[
        over(counter::NAMESPACE, &[BudgetClass::Namespace.name()]),
        over(counter::OWNER, &[BudgetClass::Owner.name()]),
        over(counter::UNKNOWN, &[BudgetClass::Unknown.name()]),
        over(counter::UMOUNT, &[BudgetClass::Umount.name()]),
        over(counter::REMOVE, &[BudgetClass::Remove.name()]),
        over(counter::EXEC, &[BudgetClass::Exec.name()]),
        over(counter::GATEWAY_SET, &[BudgetClass::GatewaySet.name()]),
        over(counter::LINK, &[BudgetClass::Link.name()]),
    ],
    losses: &[],
};

const fn over(counter: Counter, labels: &'static [&'static str]) -> Count {
    Count { counter, metric: KernelMetric::Throttled, labels }
}

/// Keys and values in the form that maps take.
type KeyBytes = [u8; size_of::<SourceKey>()];
type BudgetBytes = [u8; size_of::<SourceBudget>()];

/// Of a budget that many share.
const fn key_of_shared(index: u32) -> SourceKey {
    SourceKey { lane: lane::UNKNOWN, namespace: index, uid: 0, cgroup_v1: 0, cgroup_v2: 0 }
}

/// The sources and their budgets in the kernel.
pub(super) struct Budgets {
    /// Unprivileged users, and all others.
    sources: [HashMap<MapData, KeyBytes, BudgetBytes>; 2],
    /// How many control groups the programs tell apart, by `SourceKey::place`.
    groups: HashMap<MapData, u64, u64>,
    shared: Array<MapData, BudgetBytes>,
    told: BTreeMap<SourceKey, Reported>,
    swept: BootNs,
}

/// What was reported of a source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Reported {
    count: u64,
    until: BootNs,
    /// Where what is not reported yet began.
    open: Option<BootNs>,
}

impl Budgets {
    pub(super) fn new(
        sources: [HashMap<MapData, KeyBytes, BudgetBytes>; 2],
        groups: HashMap<MapData, u64, u64>,
        shared: Array<MapData, BudgetBytes>,
    ) -> Self {
        Self { sources, groups, shared, told: BTreeMap::new(), swept: 0 }
    }

    /// Whether something was counted that is not reported.
    pub(super) fn is_open(&self) -> bool {
        self.told.values().any(|told| told.open.is_some())
    }

    /// What is to be reported now; with `all`, what is counted so far.
    pub(super) fn take_due(&mut self, now: BootNs, all: bool) -> Vec<Throttled> {
        let mut due = Vec::new();
        let shared = (0..shared::COUNT)
            .filter_map(|index| Some((key_of_shared(index), self.shared.get(&index, 0).ok()?)));
        let read = self
            .sources
            .iter()
            .flat_map(HashMap::iter)
            .flatten()
            .filter_map(|(key, bytes)| Some((SourceKey::read_from_bytes(&key).ok()?, bytes)));
        for (key, bytes) in read.chain(shared) {
            let Ok(budget) = SourceBudget::read_from_bytes(&bytes) else { continue };
            if budget.throttled > 0 {
                due.extend(self.told.entry(key).or_default().take_due(&key, &budget, now, all));
            }
        }
        due
    }

    /// Removes the sources that have not written for long, at most once in that time.
    pub(super) fn sweep(&mut self, now: BootNs) {
        if now < self.swept.saturating_add(FORGOTTEN_NS) {
            return;
        }
        self.swept = now;
        let unused = |bytes: &BudgetBytes| {
            SourceBudget::read_from_bytes(bytes)
                .is_ok_and(|it| it.empty_ns.saturating_add(FORGOTTEN_NS) < now)
        };
        for sources in &mut self.sources {
            let all = sources.iter().flatten();
            let gone: Vec<KeyBytes> = all.filter(|(_, bytes)| unused(bytes)).map(|(key, _)| key).collect();
            for bytes in gone {
                let Ok(key) = SourceKey::read_from_bytes(&bytes) else { continue };
                if self.told.get(&key).is_none_or(|told| told.open.is_none()) {
                    // One that writes at this moment has nothing but its whole burst to lose.
                    let _ = sources.remove(&bytes);
                    self.told.remove(&key);
                }
            }
        }
        self.count_groups();
    }

    /// Counts the control groups that are left. One that is added meanwhile may be missed until the next time.
    fn count_groups(&mut self) {
        let keys = self.sources.iter().flat_map(HashMap::keys).flatten();
        let left = groups_by_place(keys.filter_map(|key| SourceKey::read_from_bytes(&key).ok()));
        let places: Vec<u64> = self.groups.keys().flatten().collect();
        for place in places {
            // Fails only for a place that the programs have no room for, and count again then.
            let _ = match left.get(&place) {
                Some(count) => self.groups.insert(place, count, 0),
                None => self.groups.remove(&place),
            };
        }
    }
}

impl Reported {
    fn take_due(
        &mut self,
        key: &SourceKey,
        budget: &SourceBudget,
        now: BootNs,
        all: bool,
    ) -> Option<Throttled> {
        let count = budget.throttled.checked_sub(self.count).filter(|count| *count > 0)?;
        let from = *self.open.get_or_insert(budget.since_ns.max(self.until));
        let is_first = self.until < budget.since_ns;
        let paused = now.saturating_sub(budget.last_ns) >= PAUSE_NS;
        let waited = now.saturating_sub(from) >= if is_first { FIRST_NS } else { AGAIN_NS };
        if !(paused || waited || all) {
            return None;
        }
        *self = Self { count: budget.throttled, until: budget.last_ns, open: None };
        Some(throttled(key, budget, count, from))
    }
}

fn groups_by_place(keys: impl Iterator<Item = SourceKey>) -> BTreeMap<u64, u64> {
    let mut groups = BTreeMap::new();
    for key in keys.filter(SourceKey::is_group) {
        *groups.entry(key.place()).or_default() += 1;
    }
    groups
}

fn throttled(key: &SourceKey, budget: &SourceBudget, count: u64, from: BootNs) -> Throttled {
    let lane = match key.lane {
        lane::NAMESPACE => BudgetClass::Namespace,
        lane::OWNER => BudgetClass::Owner,
        lane::UMOUNT_OF_USER | lane::UMOUNT_ON_HOST | lane::UMOUNT_IN_MNTNS | lane::UMOUNT_IN_USERNS => {
            BudgetClass::Umount
        }
        lane::REMOVE_OF_USER | lane::REMOVE_ON_HOST | lane::REMOVE_IN_MNTNS | lane::REMOVE_IN_USERNS => {
            BudgetClass::Remove
        }
        lane::EXEC => BudgetClass::Exec,
        lane::GATEWAY_SET => BudgetClass::GatewaySet,
        lane::LINK => BudgetClass::Link,
        _ => BudgetClass::Unknown,
    };
    Throttled {
        lane,
        netns: matches!(lane, BudgetClass::Namespace | BudgetClass::GatewaySet | BudgetClass::Link)
            .then_some(key.namespace),
        // Root of another user namespace that root made is not root.
        uid: matches!(
            key.lane,
            lane::OWNER
                | lane::UMOUNT_OF_USER
                | lane::UMOUNT_ON_HOST
                | lane::UMOUNT_IN_MNTNS
                | lane::REMOVE_OF_USER
                | lane::REMOVE_ON_HOST
                | lane::REMOVE_IN_MNTNS
        )
        .then_some(key.uid),
        cgroup_v1: key.cgroup_v1,
        cgroup_v2: if key.cgroup_v2 == NO_GROUP { 0 } else { key.cgroup_v2 },
        last_tgid: Some(budget.last_tgid).filter(|tgid| *tgid != 0),
        count,
        from,
        until: budget.last_ns.max(from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: SourceKey =
        SourceKey { lane: lane::OWNER, namespace: 0, uid: 1000, cgroup_v1: 0, cgroup_v2: 0 };
    const S: u64 = SECOND;

    fn budget(throttled: u64, since_ns: u64, last_ns: u64) -> SourceBudget {
        SourceBudget { empty_ns: 0, throttled, since_ns, last_ns, last_tgid: 7, reserved: 0 }
    }

    #[test]
    fn a_flood_is_reported_after_a_second_then_every_ten_and_at_its_end_and_the_counts_add_up() {
        let mut told = Reported::default();
        let mut seen = Vec::new();
        for tenth in 1..=260 {
            let now = 100 * S + tenth * S / 10;
            // 25 seconds, ten records in each tenth.
            let last = now.min(125 * S);
            let so_far = budget((last - 100 * S) / (S / 100), 100 * S, last);
            seen.extend(
                told.take_due(&KEY, &so_far, now, false)
                    .map(|it| (now / (S / 10), it.count, it.from, it.until)),
            );
        }
        assert_eq!(
            seen,
            [
                (1010, 100, 100 * S, 101 * S),
                (1110, 1000, 101 * S, 111 * S),
                (1210, 1000, 111 * S, 121 * S),
                (1260, 400, 121 * S, 125 * S),
            ]
        );
        assert_eq!(told.take_due(&KEY, &budget(2500, 100 * S, 125 * S), 200 * S, true), None);
        // The next one has a beginning of its own.
        let next = told.take_due(&KEY, &budget(2501, 300 * S, 300 * S), 300 * S, true).unwrap();
        assert_eq!((next.count, next.from, next.uid, next.netns), (1, 300 * S, Some(1000), None));
    }

    #[test]
    fn control_groups_are_counted_by_their_lane_and_namespace() {
        let key = |lane, namespace, cgroup_v1, uid| SourceKey { lane, namespace, uid, cgroup_v1, ..KEY };
        let groups = groups_by_place(
            [
                key(lane::NAMESPACE, 7, 1, 0),
                key(lane::NAMESPACE, 7, 2, 0),
                key(lane::NAMESPACE, 7, 0, 0),
                key(lane::NAMESPACE, 8, 1, 0),
                key(lane::UMOUNT_ON_HOST, 7, 1, 0),
                key(lane::UMOUNT_OF_USER, 7, 1, 9),
            ]
            .into_iter(),
        );
        assert_eq!(groups.values().copied().collect::<Vec<_>>(), [2, 1, 1]);
        assert_eq!(groups[&key(lane::NAMESPACE, 7, 0, 0).place()], 2);
    }

    #[test]
    fn what_is_short_is_one_report() {
        let mut told = Reported::default();
        let short = budget(9, 50 * S, 50 * S + 1);
        assert_eq!(told.take_due(&KEY, &short, 50 * S + 2, false), None);
        assert!(told.open.is_some());
        assert_eq!(told.take_due(&KEY, &short, 51 * S + 1, false).unwrap().count, 9);
    }
}
