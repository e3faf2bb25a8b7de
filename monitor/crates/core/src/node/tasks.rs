//! Details of tasks. The kernel programs send them before the first record that refers to them, and again once those of
//! [`RESEND_AFTER`] others were sent. A reference in a record resolves when the record comes, unless the ring had no room
//! for the details; what waits for something else keeps its own copy.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use kevtmon_observation::{Ancestor, BootNs, NsInum, RESEND_AFTER, TaskFacts, TaskKey, TaskPlace, TaskRef};
use kevtmon_types::is_zero::is_zero;
use serde::{Deserialize, Serialize, Serializer};

/// Whatever was used more recently than a task that a record refers to was sent after it, or up to as many tasks before
/// it; and records of several CPUs may change places.
const KEPT: usize = 2 * RESEND_AFTER + 128;
/// At this number the least recently used tasks are removed, down to `KEPT`.
const CAPACITY: usize = KEPT + KEPT / 4;

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(from = "SavedTasks<'static>")]
pub struct Tasks {
    known: BTreeMap<(TaskKey, TaskPlace), Box<KnownTask>>,
    uses: Cell<u64>,
}

#[derive(Debug, Clone, PartialEq)]
struct KnownTask {
    facts: TaskFacts,
    used: Cell<u64>,
}

/// Serialized form, in which values shared by many tasks are stored once.
#[derive(Debug, Serialize, Deserialize)]
struct SavedTasks<'a> {
    ancestors: Vec<Cow<'a, Ancestor>>,
    texts: Vec<Cow<'a, str>>,
    /// In order of use.
    tasks: Vec<SavedTask<'a>>,
}

/// A task with indexes of shared values: tgid, start time, exec id, uid, executable, command line, network and mount
/// namespace, cgroup, ancestors, ids of the control groups where they are known, root directory.
#[derive(Debug, Serialize, Deserialize)]
struct SavedTask<'a>(
    u32,
    BootNs,
    u32,
    u32,
    Option<usize>,
    Option<Cow<'a, str>>,
    NsInum,
    NsInum,
    Option<usize>,
    Vec<usize>,
    Option<(u32, u32)>,
    #[serde(default, skip_serializing_if = "is_zero")] u32,
);

impl<'a> From<&'a Tasks> for SavedTasks<'a> {
    fn from(tasks: &'a Tasks) -> Self {
        let mut known: Vec<&KnownTask> = tasks.known.values().map(Box::as_ref).collect();
        known.sort_unstable_by_key(|known| known.used.get());
        let (mut ancestors, mut texts) = (Interner::default(), Interner::default());
        let row = |KnownTask { facts, .. }: &'a KnownTask| {
            let TaskFacts { key, place, uid, exe, cmdline, netns, mntns, cgroup, ancestors: line } = facts;
            let groups = (*place != TaskPlace::default()).then_some((place.cgroup_v1, place.cgroup_v2));
            let exe = exe.as_deref().map(|exe| texts.index(exe));
            let cgroup = cgroup.as_deref().map(|cgroup| texts.index(cgroup));
            let cmdline = cmdline.as_deref().map(Cow::from);
            let line = line.iter().map(|ancestor| ancestors.index(ancestor)).collect();
            SavedTask(
                key.tgid, key.start_ns, key.exec_id, *uid, exe, cmdline, *netns, *mntns, cgroup, line,
                groups, place.root,
            )
        };
        let tasks = known.into_iter().map(row).collect();
        Self {
            ancestors: ancestors.all.into_iter().map(Cow::Borrowed).collect(),
            texts: texts.all.into_iter().map(Cow::Borrowed).collect(),
            tasks,
        }
    }
}

impl Serialize for Tasks {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        SavedTasks::from(self).serialize(to)
    }
}

impl From<SavedTasks<'_>> for Tasks {
    fn from(SavedTasks { ancestors, texts, tasks: rows }: SavedTasks<'_>) -> Self {
        let mut tasks = Self::default();
        let text = |index: Option<usize>| Some(texts.get(index?)?.clone().into_owned());
        let ancestor = |index: usize| Some(ancestors.get(index)?.clone().into_owned());
        for SavedTask(tgid, start_ns, exec_id, uid, exe, cmdline, netns, mntns, cgroup, line, groups, root) in
            rows
        {
            tasks.insert(TaskFacts {
                key: TaskKey { tgid, start_ns, exec_id },
                place: groups.map_or_else(TaskPlace::default, |(cgroup_v1, cgroup_v2)| TaskPlace {
                    mntns,
                    root,
                    cgroup_v1,
                    cgroup_v2,
                }),
                uid,
                exe: text(exe),
                cmdline: cmdline.map(Cow::into_owned),
                netns,
                mntns,
                cgroup: text(cgroup),
                ancestors: line.into_iter().filter_map(ancestor).collect(),
            });
        }
        tasks
    }
}

/// Distinct values with their indexes.
struct Interner<'a, T: ?Sized> {
    all: Vec<&'a T>,
    indexes: HashMap<&'a T, usize>,
}

impl<T: ?Sized> Default for Interner<'_, T> {
    fn default() -> Self {
        Self { all: Vec::new(), indexes: HashMap::new() }
    }
}

impl<'a, T: ?Sized + Eq + Hash> Interner<'a, T> {
    fn index(&mut self, value: &'a T) -> usize {
        *self.indexes.entry(value).or_insert_with(|| {
            self.all.push(value);
            self.all.len() - 1
        })
    }
}

impl Tasks {
    pub fn insert(&mut self, facts: TaskFacts) {
        if self.known.len() >= CAPACITY {
            self.remove_least_recently_used();
        }
        let used = Cell::new(self.next_use());
        self.known.insert((facts.key, facts.place), Box::new(KnownTask { facts, used }));
    }

    /// Details of a task where it acted; marks them as used.
    pub fn get(&self, task: &TaskRef) -> Option<&TaskFacts> {
        let known = self.known.get(&(task.key, task.place()))?;
        known.used.set(self.next_use());
        Some(&known.facts)
    }

    /// The details of a task for something that waits, while others come and go.
    pub fn copy(&self, task: &TaskRef) -> Option<Box<TaskFacts>> {
        self.get(task).cloned().map(Box::new)
    }

    /// Takes such a copy back.
    pub fn restore(&mut self, copy: &TaskFacts) {
        if !self.known.contains_key(&(copy.key, copy.place)) {
            self.insert(copy.clone());
        }
    }

    /// The path of the control group with these ids, if a task in it is known.
    pub fn cgroup(&self, cgroup_v1: u32, cgroup_v2: u32) -> Option<&str> {
        let mut inside = self.known.values().map(|known| &known.facts).filter(|facts| {
            (facts.place.cgroup_v1, facts.place.cgroup_v2) == (cgroup_v1, cgroup_v2)
                && (cgroup_v1, cgroup_v2) != (0, 0)
        });
        inside.find_map(|facts| facts.cgroup.as_deref())
    }

    fn next_use(&self) -> u64 {
        self.uses.set(self.uses.get() + 1);
        self.uses.get()
    }

    fn remove_least_recently_used(&mut self) {
        let mut uses: Vec<u64> = self.known.values().map(|known| known.used.get()).collect();
        uses.sort_unstable();
        let Some(oldest) = uses.len().checked_sub(KEPT).and_then(|first| uses.get(first)) else { return };
        self.known.retain(|_, known| known.used.get() >= *oldest);
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_observation::TaskContext;
    #[cfg(target_env = "gnu")]
    use kevtmon_testing::{alone::alone, heap::assert_stays};

    use super::*;

    fn acting(facts: &TaskFacts) -> TaskRef {
        let context = TaskContext { place: facts.place, ..TaskContext::default() };
        TaskRef { key: facts.key, tid: facts.key.tgid, comm: String::new(), context: Some(context) }
    }

    fn task(tgid: u32) -> TaskFacts {
        TaskFacts {
            key: TaskKey { tgid, start_ns: 1, exec_id: 1 },
            netns: 1,
            mntns: 1,
            ..TaskFacts::default()
        }
    }

    #[test]
    fn a_task_that_is_used_outlives_a_flood_of_others() {
        let mut tasks = Tasks::default();
        tasks.insert(task(1));
        for tgid in 2..10_000 {
            tasks.insert(task(tgid));
            assert!(tasks.get(&acting(&task(1))).is_some());
        }
        assert!(tasks.known.len() <= CAPACITY);
        assert!(tasks.get(&acting(&task(2))).is_none());
        assert!(tasks.get(&acting(&task(9_000))).is_some(), "as many as the kernel remembers");
    }

    #[test]
    fn what_is_written_reads_back_whole_and_in_the_order_of_use() {
        let mut tasks = Tasks::default();
        for tgid in 1..=3 {
            let ancestor = |tgid| Ancestor { tgid, start_ns: 1, comm: "a".into(), ..Ancestor::default() };
            tasks.insert(TaskFacts {
                exe: Some("/bin/sh".into()),
                cmdline: Some(format!("sh {tgid}")),
                cgroup: (tgid > 1).then(|| "/bin/sh".into()),
                ancestors: vec![ancestor(tgid), ancestor(1)],
                ..task(tgid)
            });
        }
        assert!(tasks.get(&acting(&task(1))).is_some());
        let json = serde_json::to_string(&tasks).unwrap();
        let back: Tasks = serde_json::from_str(&json).unwrap();
        assert_eq!(serde_json::to_string(&back).unwrap(), json);
        for tgid in 1..=3 {
            assert_eq!(back.get(&acting(&task(tgid))), tasks.get(&acting(&task(tgid))));
        }
        assert_eq!(json.matches("/bin/sh").count(), 1, "{json}");
        let places: Vec<_> = (1..=3).map(|tgid| json.find(&format!("sh {tgid}"))).collect();
        assert!(places[1] < places[2] && places[2] < places[0], "{json}");
    }

    #[test]
    fn a_task_that_moves_keeps_the_details_of_each_place() {
        let place = |cgroup_v2| TaskPlace { mntns: 1, root: 0, cgroup_v1: 7, cgroup_v2 };
        let facts = |cgroup_v2, path: &str| TaskFacts {
            place: place(cgroup_v2),
            cgroup: Some(path.into()),
            ..task(1)
        };
        let mut tasks = Tasks::default();
        tasks.insert(facts(1, "/system.slice"));
        tasks.insert(facts(2, "/kubepods/x"));
        let json = serde_json::to_string(&tasks).unwrap();
        for tasks in [&tasks, &serde_json::from_str(&json).unwrap()] {
            let cgroup = |place| tasks.get(&acting(&facts(place, ""))).and_then(|facts| facts.cgroup.clone());
            assert_eq!(cgroup(1).as_deref(), Some("/system.slice"));
            assert_eq!(cgroup(2).as_deref(), Some("/kubepods/x"));
            assert_eq!(cgroup(3), None);
        }
    }

    #[test]
    fn a_task_that_changes_its_root_keeps_the_executable_of_each() {
        let facts = |root, exe: &str| TaskFacts {
            place: TaskPlace { mntns: 1, root, ..TaskPlace::default() },
            exe: Some(exe.into()),
            ..task(1)
        };
        let mut tasks = Tasks::default();
        tasks.insert(facts(1, "/mnt/bin/sh"));
        tasks.insert(facts(2, "/bin/sh"));
        let json = serde_json::to_string(&tasks).unwrap();
        for tasks in [&tasks, &serde_json::from_str(&json).unwrap()] {
            let exe = |root| tasks.get(&acting(&facts(root, ""))).and_then(|facts| facts.exe.clone());
            assert_eq!(exe(1).as_deref(), Some("/mnt/bin/sh"));
            assert_eq!(exe(2).as_deref(), Some("/bin/sh"));
            assert_eq!(exe(3), None);
        }
    }

    #[cfg(target_env = "gnu")]
    #[test]
    fn tasks_that_come_and_go_take_no_more_memory_than_those_that_are_kept() {
        alone(module_path!(), "tasks_that_come_and_go_take_no_more_memory_than_those_that_are_kept", || {
            let mut tasks = Tasks::default();
            assert_stays(CAPACITY as u64, |tgid| {
                tasks.insert(TaskFacts { exe: Some("/bin/ip".into()), ..task(u32::try_from(tgid).unwrap()) });
            });
        });
    }
}
