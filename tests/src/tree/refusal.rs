//! A refused unmount in a random tree, and whether an event says what is true about it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::call::{Truth, mount_of, umount};
use super::holder::Holder;
use super::{Tree, relative};
use crate::event::Event;

/// A line of the mount table of this thread's namespace.
#[derive(Debug, Clone)]
struct Line {
    id: u64,
    device: String,
    point: String,
}

fn table() -> Vec<Line> {
    let text = std::fs::read_to_string("/proc/thread-self/mountinfo").expect("a mount table");
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let id = fields[0].parse().expect("an id");
        Line { id, device: fields[2].to_owned(), point: fields[4].to_owned() }
    };
    text.lines().map(line).collect()
}

/// A refused unmount, and what is true about it.
#[derive(Debug)]
pub struct Refused {
    /// By whom, and of what.
    pub truth: Truth,
    line: Line,
    holders: BTreeSet<u64>,
    /// What was done, for whoever reads of a failure.
    pub text: String,
    /// Whether something has changed there since.
    is_changed: bool,
    /// Where it was.
    pub at: PathBuf,
}

impl Tree<'_> {
    /// Makes one unmount, of a mount that is held, by a random path.
    pub fn refuse(&mut self, group: Option<&Path>) -> Option<Refused> {
        let base = self.base.clone();
        let at = self.directory();
        if at == base {
            return None;
        }
        self.mount(&at);
        let holder = Holder::at(&at);
        let mut roots = vec![PathBuf::from("/"), PathBuf::from("/"), base.clone()];
        roots.extend(at.ancestors().skip(1).filter(|above| above.starts_with(&base)).map(Path::to_owned));
        let root = self.random.pick(&roots).clone();
        let mut places = self.directories.clone();
        places.retain(|place| place.is_dir() && place.starts_with(&root) && !place.starts_with(&at));
        places.push(root.clone());
        let cwd = self.random.pick(&places).clone();
        let path = match self.random.below(3) {
            0 => relative(&at, &cwd),
            1 => relative(&at, &cwd).replacen("../", ".././", 1) + "/",
            _ => self.spell(&at, &root, 3),
        };
        // Sometimes what is above is covered meanwhile, so the path leads to another mount or to none.
        if self.random.one_in(6) && at.parent().is_some_and(|above| above != base) {
            let above = at.parent().expect("a directory above").to_owned();
            self.mount(&above);
            std::fs::create_dir_all(&at).expect("a directory can be made");
            if self.random.one_in(2) {
                self.mount(&at);
            }
        }
        let truth = umount(&path, &root, &cwd, group);
        let text = format!("{path:?} from {} below {}: {truth:?}", cwd.display(), root.display());
        let line = table().into_iter().find(|line| line.id == truth.mount);
        self.holders.push(holder);
        let pids = self.holders.iter().map(Holder::pid);
        let holders = pids.filter(|pid| mount_of(&format!("/proc/{pid}/cwd")) == truth.mount);
        let holders = holders.map(u64::from).collect();
        let refused = truth.errno == libc::EBUSY;
        let is_changed = false;
        refused.then(|| Refused { truth, line: line.expect("a mount"), holders, text, is_changed, at })
    }

    /// Changes something about what was refused.
    pub fn change_about(&mut self, refused: &mut Refused) {
        refused.is_changed = true;
        refused.text += "; then ";
        refused.text += self.change(&refused.at.clone());
    }

    /// Ends whoever is in a mount, and unmounts it at a place where it can be seen; `None` if it can be seen at none.
    pub fn release(&mut self, refused: &Refused) -> Option<Truth> {
        let at = refused.line.point.as_str();
        if mount_of(at) != refused.truth.mount {
            return None;
        }
        self.holders.retain(|holder| mount_of(&format!("/proc/{}/cwd", holder.pid())) != refused.truth.mount);
        Some(umount(at, Path::new("/"), Path::new("/"), None))
    }
}

impl Refused {
    /// Whether an event says which mount it was, if that could be found out; panics if it says something false.
    ///
    /// # Panics
    /// See above.
    #[must_use]
    pub fn is_told_by(&self, event: &Event) -> Option<bool> {
        let Self { truth, line, holders, text, .. } = self;
        assert_eq!(truth.mount, line.id);
        let verdict = event.text("/holders_verdict");
        if !event.has("/mount/device") {
            assert_eq!(event.get("/holders_complete"), Some(&false.into()), "{text}: {event}");
            if verdict == "skipped" {
                return None;
            }
            assert!(matches!(verdict, "incomplete" | "not-a-mount"), "{text}: {event}");
            assert!(event.has("/holders_unreadable/0/reason"), "{text}: {event}");
            // What has changed before it was looked at may be told by no path.
            return (!self.is_changed).then_some(false);
        }
        let listed = event.list("/holders").iter().filter(|holder| holder["access"] == "cwd");
        let listed: BTreeSet<u64> = listed.filter_map(|holder| holder["pid"].as_u64()).collect();
        if !self.is_changed {
            assert_eq!(event.text("/mount/path"), line.point, "{text}: {event}");
            assert_eq!(event.text("/mount/device"), line.device, "{text}: {event}");
            assert_eq!(listed, *holders, "{text}: {event}");
        } else if event.has("/mount/confidence") {
            assert!(event.text("/message").contains("what is likely "), "{text}: {event}");
            event.expect("/holders_complete", false);
        } else {
            assert!(is_of(event, truth), "{text}: {event}");
            assert!(listed.is_subset(holders), "{text}: {event}");
        }
        Some(true)
    }

    /// To be sent to another process.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let Self { truth, line, holders, text, is_changed, at } = self;
        json!({
            "pid": truth.pid, "mount": truth.mount, "unique": truth.unique, "device": line.device,
            "point": line.point, "holders": holders, "text": text, "is_changed": is_changed, "at": at,
        })
    }

    /// What another process has sent; `None` if it is something else.
    #[must_use]
    pub fn of_json(value: &Value) -> Option<Self> {
        let text = |key: &str| Some(value[key].as_str()?.to_owned());
        let (mount, unique) = (value["mount"].as_u64()?, value["unique"].as_u64()?);
        let pid = value["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok())?;
        Some(Self {
            truth: Truth { pid, mount, unique, errno: libc::EBUSY },
            line: Line { id: mount, device: text("device")?, point: text("point")? },
            holders: value["holders"].as_array()?.iter().filter_map(Value::as_u64).collect(),
            text: text("text")?,
            is_changed: value["is_changed"].as_bool()?,
            at: text("at")?.into(),
        })
    }
}

/// Whether an event is about the mount that a call meant.
#[must_use]
pub fn is_of(event: &Event, truth: &Truth) -> bool {
    let unique = event.number("/mount/identity/unique").filter(|_| truth.unique != 0);
    match unique {
        Some(unique) => unique == truth.unique,
        None => event.number("/mount/identity/mount_id") == Some(truth.mount),
    }
}
