//! The Ceph RBD images that are mapped.

use std::collections::BTreeMap;

use kevtmon_observation::{RbdImage, RbdImages, RbdNumber};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MappedImages {
    /// By number; `None` where one is there of which nothing could be read yet.
    images: BTreeMap<RbdNumber, Option<RbdImage>>,
    was_read: bool,
    /// Whether all that are mapped are among them, at the last look.
    pub is_whole: bool,
    /// By number: the uid of the pod that was last seen to use it.
    pods: BTreeMap<RbdNumber, String>,
    /// What an earlier run saw of images that were not found yet.
    previous: Vec<LastUser>,
}

/// An image that is mapped, and the pod that was last seen to use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastUser {
    pub image: RbdImage,
    /// Uid of the pod.
    pub pod: String,
}

/// How the images differ from those before.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Those that came. At the first look there is none: all may have been there for long.
    pub mapped: Vec<RbdImage>,
    pub unmapped: Vec<RbdImage>,
}

impl MappedImages {
    /// Before the first look, with what an earlier run saw.
    pub fn after(previous: Vec<LastUser>) -> Self {
        Self { previous, ..Self::default() }
    }

    /// Who was last seen to use which, for the next run.
    pub fn last_users(&self) -> Vec<LastUser> {
        let user = |(number, pod): (&RbdNumber, &String)| {
            Some(LastUser { image: self.get(*number)?.clone(), pod: pod.clone() })
        };
        self.pods.iter().filter_map(user).chain(self.previous.iter().cloned()).collect()
    }

    pub fn replace(&mut self, found: RbdImages) -> Changes {
        let mut changes = Changes::default();
        let mut before = std::mem::take(&mut self.images);
        let is_first = !std::mem::replace(&mut self.was_read, true);
        for number in found.unread {
            self.images.insert(number, before.remove(&number).flatten());
        }
        // What there was no room for may still be there.
        let beyond = (found.omitted > 0).then(|| found.images.last().map(|last| last.number)).flatten();
        for image in found.images {
            match before.remove(&image.number) {
                Some(Some(old)) if old.is_same(&image) => {}
                Some(Some(old)) => {
                    changes.unmapped.push(old);
                    changes.mapped.push(image.clone());
                }
                // It was there before it could be read.
                Some(None) => {}
                None if is_first => {}
                None => changes.mapped.push(image.clone()),
            }
            for LastUser { pod, .. } in self.previous.extract_if(.., |known| known.image.is_same(&image)) {
                self.pods.entry(image.number).or_insert(pod);
            }
            self.images.insert(image.number, Some(image));
        }
        if let Some(beyond) = beyond {
            self.images.extend(before.split_off(&beyond));
        }
        changes.unmapped.extend(before.into_values().flatten());
        self.is_whole = found.omitted == 0 && self.images.values().all(Option::is_some);
        for image in &changes.unmapped {
            self.pods.remove(&image.number);
        }
        if self.is_whole {
            // What was not found by now is mapped no longer.
            self.previous.clear();
        }
        changes
    }

    pub fn iter(&self) -> impl Iterator<Item = &RbdImage> {
        self.images.values().flatten()
    }

    pub fn get(&self, number: RbdNumber) -> Option<&RbdImage> {
        self.images.get(&number)?.as_ref()
    }

    /// Whether an image of this name is mapped, or a snapshot of it; `None` where that is not known.
    pub fn has(&self, pool: &str, namespace: Option<&str>, image: &str) -> Option<bool> {
        let is_it = |mapped: &RbdImage| {
            (mapped.pool.as_str(), mapped.namespace.as_deref(), mapped.image.as_str())
                == (pool, namespace, image)
        };
        let is_mapped = self.iter().any(is_it);
        (is_mapped || self.is_whole).then_some(is_mapped)
    }

    pub fn note_pod(&mut self, number: RbdNumber, uid: &str) {
        if self.get(number).is_some() {
            self.pods.insert(number, uid.to_owned());
        }
    }

    /// The pod that was last seen to use an image, by uid.
    pub fn last_pod(&self, number: RbdNumber) -> Option<&str> {
        self.pods.get(&number).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(number: u32, image: &str) -> RbdImage {
        let device = format!("252:{}", number * 16);
        RbdImage {
            number: number.into(),
            device,
            pool: "kube".into(),
            image: image.into(),
            ..RbdImage::default()
        }
    }

    fn found(images: &[RbdImage], unread: &[u32]) -> RbdImages {
        RbdImages {
            images: images.to_vec(),
            unread: unread.iter().map(|number| (*number).into()).collect(),
            omitted: 0,
        }
    }

    fn changes(mapped: &[RbdImage], unmapped: &[RbdImage]) -> Changes {
        Changes { mapped: mapped.to_vec(), unmapped: unmapped.to_vec() }
    }

    #[test]
    fn what_was_mapped_at_the_first_look_is_no_news() {
        let mut images = MappedImages::default();
        assert_eq!(images.replace(found(&[image(0, "a")], &[])), Changes::default());
        assert_eq!(
            images.replace(found(&[image(0, "a"), image(1, "b")], &[])),
            changes(&[image(1, "b")], &[])
        );
        assert_eq!(images.replace(found(&[image(1, "b")], &[])), changes(&[], &[image(0, "a")]));
        let (b, c) = (image(1, "b"), image(1, "c"));
        assert_eq!(
            images.replace(found(std::slice::from_ref(&c), &[])),
            changes(&[c], &[b]),
            "another one has the number"
        );
    }

    #[test]
    fn an_image_that_cannot_be_read_for_a_while_neither_goes_nor_comes() {
        let mut images = MappedImages::default();
        images.replace(found(&[image(0, "a")], &[1]));
        assert_eq!(images.replace(found(&[], &[0, 1])), Changes::default());
        assert_eq!(images.get(0.into()), Some(&image(0, "a")));
        assert_eq!(images.replace(found(&[image(0, "a"), image(1, "b")], &[])), Changes::default());
        assert_eq!(images.replace(found(&[], &[])), changes(&[], &[image(0, "a"), image(1, "b")]));
    }

    #[test]
    fn devices_of_the_same_number_are_two_where_their_drivers_differ() {
        let mut images = MappedImages::default();
        images.replace(found(&[], &[]));
        let (by_kernel, by_nbd) =
            (image(0, "a"), RbdImage { number: RbdNumber::Nbd(0), device: "43:0".into(), ..image(0, "b") });
        let both = [by_kernel.clone(), by_nbd.clone()];
        assert_eq!(images.replace(found(&both, &[])), changes(&both, &[]));
        assert_eq!(images.replace(found(&[by_kernel], &[])), changes(&[], &[by_nbd]));
    }

    #[test]
    fn a_client_that_has_another_address_is_no_other_mapping() {
        let mut images = MappedImages::default();
        let with = |address: &str| RbdImage { client_addr: Some(address.into()), ..image(0, "a") };
        images.replace(found(&[with("10.0.0.1:0/7")], &[]));
        assert_eq!(images.replace(found(&[with("10.0.0.1:0/8")], &[])), Changes::default());
        assert_eq!(images.get(0.into()), Some(&with("10.0.0.1:0/8")));
    }

    #[test]
    fn an_image_is_not_mapped_only_if_all_are_known_that_are() {
        let mut images = MappedImages::default();
        assert_eq!(images.has("kube", None, "a"), None, "no look was made");
        images.replace(found(&[image(0, "a")], &[]));
        assert_eq!(["a", "b"].map(|name| images.has("kube", None, name)), [Some(true), Some(false)]);
        assert_eq!([images.has("other", None, "a"), images.has("kube", Some("x"), "a")], [Some(false); 2]);
        images.replace(found(&[image(0, "a")], &[1]));
        assert_eq!(["a", "b"].map(|name| images.has("kube", None, name)), [Some(true), None]);
    }

    #[test]
    fn who_used_an_image_is_known_by_the_next_run_as_long_as_that_is_mapped() {
        let mut images = MappedImages::default();
        images.replace(found(&[image(0, "a"), image(1, "b"), image(2, "c")], &[]));
        for (number, pod) in [(0, "pod-a"), (1, "pod-b"), (2, "pod-c")] {
            images.note_pod(number.into(), pod);
        }
        let mut next = MappedImages::after(images.last_users());
        assert_eq!(next.last_users(), images.last_users(), "no look was made");
        next.replace(found(&[image(0, "a"), image(1, "other")], &[2]));
        assert_eq!([0, 1, 2].map(|number| next.last_pod(number.into())), [Some("pod-a"), None, None]);
        next.replace(found(&[image(0, "a"), image(2, "c")], &[]));
        assert_eq!([0, 2].map(|number| next.last_pod(number.into())), [Some("pod-a"), Some("pod-c")]);
        next.note_pod(0.into(), "pod-d");
        let users = next.last_users().into_iter().map(|user| user.pod).collect::<Vec<_>>();
        assert_eq!(users, ["pod-d", "pod-c"], "nothing is known of what is mapped no longer");
    }

    #[test]
    fn what_there_was_no_room_for_did_not_go() {
        let mut images = MappedImages::default();
        images.replace(found(&[image(0, "a"), image(5, "b")], &[]));
        let full = RbdImages { omitted: 1, ..found(&[image(0, "a"), image(3, "c")], &[]) };
        assert_eq!(images.replace(full), changes(&[image(3, "c")], &[]));
        assert!(!images.is_whole);
        let numbers: Vec<RbdNumber> = images.iter().map(|image| image.number).collect();
        assert_eq!(numbers, [0, 3, 5].map(RbdNumber::Kernel));
    }
}
