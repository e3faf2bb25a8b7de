//! Ceph RBD images. A series is there as long as its image is mapped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use prometheus::IntGaugeVec;

use super::registrar::Registrar;
use super::{FamilyMetrics, MetricsError, lock};
use crate::observation::{Access, Fact, Observation, RbdImage, RbdImages, RbdUse, RbdUses};

/// Labels: pool, namespace in it, image.
type Labels = [String; 3];
const LABELS: [&str; 3] = ["pool", "rados_namespace", "image"];

pub(super) struct RbdMetrics {
    mapped: Series,
    mounted: Series,
    /// By number: what names an image.
    known: Mutex<BTreeMap<u32, Labels>>,
}

/// A gauge whose series come and go.
struct Series {
    gauge: IntGaugeVec,
    shown: Mutex<BTreeSet<Labels>>,
}

impl Series {
    fn new(gauge: IntGaugeVec) -> Self {
        Self { gauge, shown: Mutex::default() }
    }

    /// Shows these with 1, and no others.
    fn show(&self, now: BTreeSet<Labels>) {
        let mut shown = lock(&self.shown);
        for gone in shown.difference(&now) {
            // It is there: it was set when it was remembered.
            let _ = self.gauge.remove_label_values(&gone.each_ref().map(String::as_str));
        }
        for labels in &now {
            self.gauge.with_label_values(&labels.each_ref().map(String::as_str)).set(1);
        }
        *shown = now;
    }
}

impl RbdMetrics {
    pub(super) fn register(registrar: &Registrar) -> Result<Self, MetricsError> {
        Ok(Self {
            mapped: Series::new(registrar.gauges(
                "kevtmon_rbd_image_mapped",
                "1 for each Ceph RBD image that the kernel of this node has mapped.",
                &LABELS,
            )?),
            mounted: Series::new(registrar.gauges(
                "kevtmon_rbd_image_mounted",
                "1 for each Ceph RBD image that is mapped and of which a file system is mounted, in any mount namespace.",
                &LABELS,
            )?),
            known: Mutex::default(),
        })
    }

    fn images(&self, found: &RbdImages) {
        let mut known = lock(&self.known);
        // What could not be read may still be mapped: it stays until that is known.
        let keeps = |number: &u32| found.omitted > 0 || found.unread.contains(number);
        known.retain(|number, _| keeps(number));
        known.extend(found.images.iter().map(|image| (image.number, labels(image))));
        let now: BTreeSet<Labels> = known.values().cloned().collect();
        let mounted = lock(&self.mounted.shown).intersection(&now).cloned().collect();
        self.mapped.show(now);
        self.mounted.show(mounted);
    }

    fn uses(&self, found: &RbdUses) {
        let known = lock(&self.known);
        let is_mounted = |used: &&RbdUse| used.holders.iter().any(|holder| holder.access == Access::Mount);
        let mounted =
            found.uses.iter().filter(is_mounted).filter_map(|used| known.get(&used.number).cloned());
        self.mounted.show(mounted.collect());
    }
}

fn labels(image: &RbdImage) -> Labels {
    [image.pool.clone(), image.namespace.clone().unwrap_or_default(), image.image.clone()]
}

impl FamilyMetrics for RbdMetrics {
    fn observation(&self, observation: &Observation) {
        match &observation.fact {
            Fact::RbdImages(found) => self.images(found),
            Fact::RbdUses(found) => self.uses(found),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use prometheus::{Registry, TextEncoder};

    use super::*;
    use crate::observation::{Holder, Source};

    fn image(number: u32, name: &str) -> RbdImage {
        RbdImage { number, pool: "kube".into(), image: name.into(), ..RbdImage::default() }
    }

    fn images(images: &[RbdImage], unread: &[u32]) -> Fact {
        Fact::RbdImages(RbdImages { images: images.to_vec(), unread: unread.to_vec(), omitted: 0 })
    }

    fn mounted(numbers: &[u32]) -> Fact {
        let holder = Holder::of_kernel(Access::Mount, "/mnt".into());
        let used = |number: &u32| RbdUse {
            number: *number,
            holders: vec![holder.clone()],
            omitted: 0,
            devices: Vec::new(),
            swap: false,
        };
        Fact::RbdUses(RbdUses { uses: numbers.iter().map(used).collect(), ..RbdUses::default() })
    }

    #[test]
    fn an_image_has_a_series_as_long_as_it_is_mapped_and_another_while_it_is_mounted() {
        let registry = Registry::new();
        let metrics =
            RbdMetrics::register(&Registrar { registry: registry.clone(), descriptions: RefCell::default() })
                .unwrap();
        let shown = |fact| {
            metrics.observation(&Observation { at: 0, source: Source::Daemon, fact });
            let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            lines.map(|line| line.replace("kevtmon_rbd_image_", "")).collect::<Vec<_>>()
        };
        let line = |what: &str, image: &str| {
            format!("{what}{{image=\"{image}\",pool=\"kube\",rados_namespace=\"\"}} 1")
        };
        let (a, b) = (image(0, "a"), image(1, "b"));
        assert_eq!(shown(images(&[], &[])), Vec::<String>::new());
        assert_eq!(shown(images(&[a.clone(), b], &[])), [line("mapped", "a"), line("mapped", "b")]);
        let all = [line("mapped", "a"), line("mapped", "b"), line("mounted", "b")];
        assert_eq!(shown(mounted(&[1])), all);
        assert_eq!(shown(images(std::slice::from_ref(&a), &[1])), all, "what cannot be read may be mapped");
        assert_eq!(shown(images(&[a], &[])), [line("mapped", "a")]);
        assert_eq!(shown(mounted(&[0])), [line("mapped", "a"), line("mounted", "a")]);
        assert_eq!(shown(mounted(&[])), [line("mapped", "a")]);
    }
}
