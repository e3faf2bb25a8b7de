//! Creates collectors and registers them; the metrics are declared in the other files.

use std::cell::RefCell;

use prometheus::core::Collector;
use prometheus::{
    Counter, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

use super::MetricsError;

/// A metric as it was declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Description {
    pub name: &'static str,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// What it counts or measures.
    pub help: &'static str,
    /// Names of its labels.
    pub labels: &'static [&'static str],
}

/// Makes collectors of one registry.
#[derive(Default)]
pub(super) struct Registrar {
    pub(super) registry: Registry,
    /// All that were made so far.
    pub(super) descriptions: RefCell<Vec<Description>>,
}

impl Registrar {
    fn register<C: Collector + Clone + 'static>(
        &self,
        description: Description,
        collector: C,
    ) -> Result<C, MetricsError> {
        self.registry.register(Box::new(collector.clone()))?;
        self.descriptions.borrow_mut().push(description);
        Ok(collector)
    }

    pub(super) fn histogram(
        &self,
        name: &'static str,
        help: &'static str,
        buckets: &[f64],
    ) -> Result<Histogram, MetricsError> {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        let description = Description { name, kind: "histogram", help, labels: &[] };
        self.register(description, Histogram::with_opts(options)?)
    }

    pub(super) fn histograms(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
        buckets: &[f64],
    ) -> Result<HistogramVec, MetricsError> {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        let description = Description { name, kind: "histogram", help, labels };
        self.register(description, HistogramVec::new(options, labels)?)
    }
}

macro_rules! collectors {
    (with labels: $($method:ident $type:ident $kind:literal),+; without: $($single:ident $single_type:ident $single_kind:literal),+;) => {
        impl Registrar {
            $(pub(super) fn $method(
                &self,
                name: &'static str,
                help: &'static str,
                labels: &'static [&'static str],
            ) -> Result<$type, MetricsError> {
                let collector = $type::new(Opts::new(name, help), labels)?;
                self.register(Description { name, kind: $kind, help, labels }, collector)
            })+

            $(pub(super) fn $single(&self, name: &'static str, help: &'static str) -> Result<$single_type, MetricsError> {
                let description = Description { name, kind: $single_kind, help, labels: &[] };
                self.register(description, $single_type::new(name, help)?)
            })+
        }
    };
}

collectors! {
    with labels: counters IntCounterVec "counter", gauges IntGaugeVec "gauge", float_gauges GaugeVec "gauge";
    without: counter IntCounter "counter", float_counter Counter "counter", gauge IntGauge "gauge", float_gauge Gauge "gauge";
}
