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

impl Description {
    fn counter(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Self {
        Self { name, kind: "counter", help, labels }
    }

    fn gauge(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Self {
        Self { name, kind: "gauge", help, labels }
    }

    fn histogram(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Self {
        Self { name, kind: "histogram", help, labels }
    }

    fn options(&self) -> Opts {
        Opts::new(self.name, self.help)
    }
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

    pub(super) fn counters(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> Result<IntCounterVec, MetricsError> {
        let description = Description::counter(name, help, labels);
        self.register(description, IntCounterVec::new(description.options(), labels)?)
    }

    pub(super) fn gauges(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> Result<IntGaugeVec, MetricsError> {
        let description = Description::gauge(name, help, labels);
        self.register(description, IntGaugeVec::new(description.options(), labels)?)
    }

    pub(super) fn counter(&self, name: &'static str, help: &'static str) -> Result<IntCounter, MetricsError> {
        self.register(Description::counter(name, help, &[]), IntCounter::new(name, help)?)
    }

    pub(super) fn gauge(&self, name: &'static str, help: &'static str) -> Result<IntGauge, MetricsError> {
        self.register(Description::gauge(name, help, &[]), IntGauge::new(name, help)?)
    }

    pub(super) fn float_gauge(&self, name: &'static str, help: &'static str) -> Result<Gauge, MetricsError> {
        self.register(Description::gauge(name, help, &[]), Gauge::new(name, help)?)
    }

    pub(super) fn float_gauges(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> Result<GaugeVec, MetricsError> {
        let description = Description::gauge(name, help, labels);
        self.register(description, GaugeVec::new(description.options(), labels)?)
    }

    pub(super) fn float_counter(
        &self,
        name: &'static str,
        help: &'static str,
    ) -> Result<Counter, MetricsError> {
        self.register(Description::counter(name, help, &[]), Counter::new(name, help)?)
    }

    pub(super) fn histogram(
        &self,
        name: &'static str,
        help: &'static str,
        buckets: &[f64],
    ) -> Result<Histogram, MetricsError> {
        let description = Description::histogram(name, help, &[]);
        let options = HistogramOpts::from(description.options()).buckets(buckets.to_vec());
        self.register(description, Histogram::with_opts(options)?)
    }

    pub(super) fn histograms(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
        buckets: &[f64],
    ) -> Result<HistogramVec, MetricsError> {
        let description = Description::histogram(name, help, labels);
        let options = HistogramOpts::from(description.options()).buckets(buckets.to_vec());
        self.register(description, HistogramVec::new(options, labels)?)
    }
}
