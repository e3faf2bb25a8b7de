//! The Ceph RBD images that the kernel has mapped.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::observation::{RbdImage, RbdImages};

/// All of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MappedImages {
    /// By number; `None` where one is there of which nothing could be read yet.
    images: BTreeMap<u32, Option<RbdImage>>,
    /// Whether any look was made.
    was_read: bool,
    /// Whether all that are mapped are among them, at the last look.
    is_whole: bool,
    /// By number: the uid of the pod that was last seen to use it.
    pods: BTreeMap<u32, String>,
}

/// How the images differ from those before.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Those that came. At the first look there is none: all may have been there for long.
    pub mapped: Vec<RbdImage>,
    /// Those that went.
    pub unmapped: Vec<RbdImage>,
}

impl MappedImages {
    /// Replaces what was known.
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
        changes
    }

    /// The images, by number.
    pub fn iter(&self) -> impl Iterator<Item = &RbdImage> {
        self.images.values().flatten()
    }

    /// An image by its number.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&RbdImage> {
        self.images.get(&number)?.as_ref()
    }

    /// Whether all that are mapped are known: what is not among them is not mapped.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Whether an image of this name is mapped, or a snapshot of it; `None` where that is not known.
    #[must_use]
    pub fn has(&self, pool: &str, namespace: Option<&str>, image: &str) -> Option<bool> {
        let is_it = |mapped: &RbdImage| {
            (mapped.pool.as_str(), mapped.namespace.as_deref(), mapped.image.as_str())
                == (pool, namespace, image)
        };
        let is_mapped = self.iter().any(is_it);
        (is_mapped || self.is_whole).then_some(is_mapped)
    }

    /// A pod was seen to use an image.
    pub fn note_pod(&mut self, number: u32, uid: &str) {
        if self.get(number).is_some() {
            self.pods.insert(number, uid.to_owned());
        }
    }

    /// The pod that was last seen to use an image, by uid.
    #[must_use]
    pub fn last_pod(&self, number: u32) -> Option<&str> {
        self.pods.get(&number).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(number: u32, image: &str) -> RbdImage {
        let device = format!("252:{}", number * 16);
        RbdImage { number, device, pool: "kube".into(), image: image.into(), ..RbdImage::default() }
    }

    fn found(images: &[RbdImage], unread: &[u32]) -> RbdImages {
        RbdImages { images: images.to_vec(), unread: unread.to_vec(), omitted: 0 }
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
        assert_eq!(images.get(0), Some(&image(0, "a")));
        assert_eq!(images.replace(found(&[image(0, "a"), image(1, "b")], &[])), Changes::default());
        assert_eq!(images.replace(found(&[], &[])), changes(&[], &[image(0, "a"), image(1, "b")]));
    }

    #[test]
    fn a_client_that_has_another_address_is_no_other_mapping() {
        let mut images = MappedImages::default();
        let with = |address: &str| RbdImage { client_addr: Some(address.into()), ..image(0, "a") };
        images.replace(found(&[with("10.0.0.1:0/7")], &[]));
        assert_eq!(images.replace(found(&[with("10.0.0.1:0/8")], &[])), Changes::default());
        assert_eq!(images.get(0), Some(&with("10.0.0.1:0/8")));
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
    fn what_there_was_no_room_for_did_not_go() {
        let mut images = MappedImages::default();
        images.replace(found(&[image(0, "a"), image(5, "b")], &[]));
        let full = RbdImages { omitted: 1, ..found(&[image(0, "a"), image(3, "c")], &[]) };
        assert_eq!(images.replace(full), changes(&[image(3, "c")], &[]));
        assert!(!images.is_whole());
        let numbers: Vec<u32> = images.iter().map(|image| image.number).collect();
        assert_eq!(numbers, [0, 3, 5]);
    }
}
