//! The Ceph RBD images that somebody on this node has asked for of late, and those that were refused.

use std::collections::VecDeque;

use kevtmon_observation::{BootNs, ImageName, RbdExec, RbdRefusal};
use serde::{Deserialize, Serialize};

/// Somebody waits for an image this long after he has asked for it the last time.
pub const WANTED_NS: BootNs = 600 * 1_000_000_000;
/// What is logged of one refusal comes within this time.
const SAME_NS: BootNs = 5 * 1_000_000_000;
/// How often is told that refusals were left out.
const TELL_NS: BootNs = 60 * 1_000_000_000;
/// Images at most; the one that was asked for longest ago goes first.
const IMAGES_MAX: usize = 64;

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AskedImages {
    asked: VecDeque<(ImageName, BootNs)>,
    /// When a log told last that it was refused.
    refused: Vec<(ImageName, BootNs)>,
    /// Refusals of images for which there was no room, and that are not told yet.
    left_out: u64,
    /// When some were told last.
    told: Option<BootNs>,
}

impl AskedImages {
    /// Somebody has called `rbd`.
    pub fn note(&mut self, at: BootNs, exec: &RbdExec) {
        if !exec.asks() {
            return;
        }
        let name = exec.name();
        self.asked.retain(|(asked, _)| *asked != name);
        crate::bounded::push(&mut self.asked, IMAGES_MAX, (name, at));
    }

    /// The image that a log means: what it names in full, or the one that was asked for of late, if no other one is called so.
    pub fn meant(&self, now: BootNs, refusal: &RbdRefusal) -> Option<ImageName> {
        let RbdRefusal { pool, namespace, image, .. } = refusal;
        if let Some(pool) = pool {
            return Some(ImageName {
                pool: pool.clone(),
                namespace: namespace.clone(),
                image: image.clone(),
            });
        }
        let is_it = |asked: &&(ImageName, BootNs)| asked.0.image == *image && is_recent(asked, now);
        let mut found = self.asked.iter().filter(is_it);
        found.next().filter(|_| found.next().is_none()).map(|(name, _)| name.clone())
    }

    /// Whether an image was asked for of late.
    pub fn has(&self, now: BootNs, name: &ImageName) -> bool {
        self.asked.iter().any(|asked| asked.0 == *name && is_recent(asked, now))
    }

    /// A log tells that it was refused; whether that is another refusal than the one before. Of many images, those that are told
    /// last are none, but for those that were asked for: a log can be made to name any number.
    pub fn refuse(&mut self, at: BootNs, name: &ImageName) -> bool {
        if let Some((_, told)) = self.refused.iter_mut().find(|(refused, _)| refused == name) {
            let is_new = told.saturating_add(SAME_NS) < at;
            if is_new {
                *told = at;
            }
            return is_new;
        }
        let has_room = self.refused.len() < IMAGES_MAX || self.make_room(at, name);
        if has_room {
            self.refused.push((name.clone(), at));
        } else {
            self.left_out += 1;
        }
        has_room
    }

    /// Forgets a name that nobody has asked for, for one that somebody has. There is always one: no more are asked for.
    fn make_room(&mut self, now: BootNs, name: &ImageName) -> bool {
        let idle = self.refused.iter().position(|(refused, _)| !self.has(now, refused));
        let idle = idle.filter(|_| self.has(now, name));
        idle.map(|index| self.refused.remove(index)).is_some()
    }

    /// How many refusals were left out since the last time, once in a while.
    pub fn take_left_out(&mut self, now: BootNs) -> u64 {
        if self.left_out == 0 || self.told.is_some_and(|told| told.saturating_add(TELL_NS) > now) {
            return 0;
        }
        self.told = Some(now);
        std::mem::take(&mut self.left_out)
    }

    pub fn expire(&mut self, now: BootNs) {
        self.asked.retain(|asked| is_recent(asked, now));
        self.refused.retain(|refused| is_recent(refused, now));
    }
}

fn is_recent((_, at): &(ImageName, BootNs), now: BootNs) -> bool {
    at.saturating_add(WANTED_NS) > now
}

#[cfg(test)]
mod tests {
    use kevtmon_observation::{RbdCommand, TaskKey, TaskRef};
    use kevtmon_types::clock::SECOND as S;

    use super::*;

    fn exec(command: RbdCommand, pool: &str, image: &str) -> RbdExec {
        let key = TaskKey { tgid: 7, start_ns: 5, exec_id: 1 };
        RbdExec {
            actor: TaskRef { key, tid: 7, comm: "rbd".into(), context: None },
            command,
            pool: pool.into(),
            namespace: None,
            image: image.into(),
            snapshot: None,
            device: None,
            nbd: false,
            lock: None,
            shared: false,
        }
    }

    fn refusal(pool: Option<&str>, image: &str) -> RbdRefusal {
        let pool = pool.map(str::to_owned);
        RbdRefusal { pool, namespace: None, image: image.into(), held_by: None, vague: false }
    }

    fn found(asked: &AskedImages, now: BootNs, pool: Option<&str>, image: &str) -> Option<String> {
        asked.meant(now, &refusal(pool, image)).map(|name| format!("{}/{}", name.pool, name.image))
    }

    #[test]
    fn a_line_names_the_image_that_was_asked_for_and_none_where_two_are_called_so() {
        let mut asked = AskedImages::default();
        asked.note(0, &exec(RbdCommand::Map, "kube", "a"));
        asked.note(0, &exec(RbdCommand::Status, "kube", "b"));
        asked.note(0, &exec(RbdCommand::LockRemove, "kube", "c"));
        let mut snapshot = exec(RbdCommand::Map, "kube", "d");
        snapshot.snapshot = Some("nightly".into());
        asked.note(0, &snapshot);
        let shown = |pool, image| found(&asked, S, pool, image);
        assert_eq!(shown(None, "a").as_deref(), Some("kube/a"));
        assert_eq!(shown(Some("kube"), "b").as_deref(), Some("kube/b"));
        assert_eq!(shown(Some("other"), "e").as_deref(), Some("other/e"), "it is named in full");
        for image in ["c", "d", "e"] {
            assert_eq!(shown(None, image), None, "{image}");
        }
        asked.note(0, &exec(RbdCommand::Map, "other", "a"));
        assert_eq!(found(&asked, S, None, "a"), None);
        assert_eq!(found(&asked, S, Some("other"), "a").as_deref(), Some("other/a"));
    }

    #[test]
    fn an_image_is_wanted_for_ten_minutes_after_the_last_call() {
        let mut asked = AskedImages::default();
        let name = ImageName { pool: "kube".into(), namespace: None, image: "a".into() };
        asked.note(0, &exec(RbdCommand::Map, "kube", "a"));
        asked.note(100 * S, &exec(RbdCommand::LockAdd, "kube", "a"));
        assert!(asked.has(699 * S, &name));
        assert!(!asked.has(700 * S, &name));
        assert_eq!(found(&asked, 700 * S, None, "a"), None);
        asked.expire(700 * S);
        assert_eq!(asked, AskedImages::default());
    }

    #[test]
    fn what_is_logged_at_once_is_one_refusal() {
        let mut asked = AskedImages::default();
        let name = ImageName { pool: "kube".into(), namespace: None, image: "a".into() };
        let refused = [1, 2, 6, 7, 20].map(|at| asked.refuse(at * S, &name));
        assert_eq!(refused, [true, false, false, true, true]);
    }

    #[test]
    fn a_log_that_names_many_images_is_not_believed_all_of_them() {
        let mut asked = AskedImages::default();
        let name =
            |number: u64| ImageName { pool: "kube".into(), namespace: None, image: number.to_string() };
        let told = (0..100).filter(|number| asked.refuse(S, &name(*number))).count();
        assert_eq!(told, IMAGES_MAX);
        assert_eq!((asked.take_left_out(S), asked.take_left_out(S)), (100 - IMAGES_MAX as u64, 0));
        // Nor do they keep out what somebody waits for.
        asked.note(S, &exec(RbdCommand::Map, "kube", "99"));
        assert!(asked.refuse(S, &name(99)) && !asked.refuse(S, &name(98)));
        assert_eq!(
            (asked.refused.len(), asked.take_left_out(60 * S)),
            (IMAGES_MAX, 0),
            "told a minute ago at most"
        );
        assert_eq!(asked.take_left_out(61 * S), 1);
        asked.expire(601 * S);
        assert!(asked.refuse(601 * S, &name(99)));
    }

    #[test]
    fn whoever_asks_for_many_images_displaces_the_oldest() {
        let mut asked = AskedImages::default();
        for number in 0..100 {
            asked.note(number, &exec(RbdCommand::Map, "kube", &number.to_string()));
        }
        assert_eq!(asked.asked.len(), IMAGES_MAX);
        assert_eq!(found(&asked, S, None, "35"), None);
        assert!(found(&asked, S, None, "36").is_some());
    }
}
