//! Changes of network interfaces.

use std::collections::BTreeSet;
use std::sync::Mutex;

use kevtmon_event::{Event, Kind};
use prometheus::IntCounterVec;

use super::registrar::Registrar;
use super::{FamilyMetrics, MetricsError, lock};

/// How many kinds of links get a label of their own; the rest is `other`.
pub(super) const MAX_LINK_KINDS: usize = 32;

pub(super) struct LinkMetrics {
    changes: IntCounterVec,
    kinds: Mutex<BTreeSet<String>>,
}

impl LinkMetrics {
    pub(super) fn register(registrar: &Registrar) -> Result<Self, MetricsError> {
        let changes = registrar.counters(
            "kevtmon_link_changes_total",
            "Changes of network interfaces.",
            &["link_kind", "change"],
        )?;
        Ok(Self { changes, kinds: Mutex::default() })
    }

    /// Modules name link kinds, so the node could invent any number of them.
    fn bounded(&self, kind: Option<&str>) -> String {
        let kind = kind.unwrap_or("none");
        let mut known = lock(&self.kinds);
        if !known.contains(kind) && known.len() >= MAX_LINK_KINDS {
            return "other".to_owned();
        }
        known.insert(kind.to_owned());
        kind.to_owned()
    }
}

impl FamilyMetrics for LinkMetrics {
    fn event(&self, event: &Event) {
        let Some(link) = &event.link else { return };
        let kind = self.bounded(link.kind.as_deref());
        let count = |change: &str| self.changes.with_label_values(&[kind.as_str(), change]).inc();
        match event.kind {
            Kind::LinkCreated => count("created"),
            Kind::LinkMoved => count("moved"),
            Kind::LinkDeleted => count("deleted"),
            Kind::LinkChanged | Kind::LinkProxyArp => link.change.iter().for_each(|change| count(change)),
            _ => {}
        }
    }
}
