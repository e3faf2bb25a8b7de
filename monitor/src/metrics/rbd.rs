//! Ceph RBD images. A series is there as long as its image is mapped.

use std::collections::BTreeSet;
use std::sync::Mutex;

use prometheus::IntGaugeVec;

use super::registrar::Registrar;
use super::{FamilyMetrics, MetricsError, lock};
use crate::observation::{Fact, Observation, RbdImage};

/// Labels: pool, namespace in it, image.
type Labels = [String; 3];
const LABELS: [&str; 3] = ["pool", "rados_namespace", "image"];

pub(super) struct RbdMetrics {
    mapped: Series,
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
    pub(super) fn register(registrar: &Registrar<'_>) -> Result<Self, MetricsError> {
        Ok(Self {
            mapped: Series::new(registrar.gauges(
                "kevtmon_rbd_image_mapped",
                "1 for each Ceph RBD image that the kernel of this node has mapped.",
                &LABELS,
            )?),
        })
    }
}

fn labels(image: &RbdImage) -> Labels {
    [image.pool.clone(), image.namespace.clone().unwrap_or_default(), image.image.clone()]
}

impl FamilyMetrics for RbdMetrics {
    fn observation(&self, observation: &Observation) {
        if let Fact::RbdImages(found) = &observation.fact {
            let mut now: BTreeSet<Labels> = found.images.iter().map(labels).collect();
            // What could not be read may still be mapped: it stays until that is known.
            if !found.unread.is_empty() || found.omitted > 0 {
                now.extend(lock(&self.mapped.shown).iter().cloned());
            }
            self.mapped.show(now);
        }
    }
}
