//! Creates collectors and registers them; the metrics are declared in the other files.

use prometheus::core::Collector;
use prometheus::{
    Counter, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

use super::MetricsError;

/// Makes collectors of one registry.
pub(super) struct Registrar<'a> {
    pub(super) registry: &'a Registry,
}

impl Registrar<'_> {
    fn register<C: Collector + Clone + 'static>(&self, collector: C) -> Result<C, MetricsError> {
        self.registry.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    pub(super) fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntCounterVec, MetricsError> {
        self.register(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    pub(super) fn gauges(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntGaugeVec, MetricsError> {
        self.register(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> Result<IntCounter, MetricsError> {
        self.register(IntCounter::new(name, help)?)
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, MetricsError> {
        self.register(IntGauge::new(name, help)?)
    }

    pub(super) fn float_gauge(&self, name: &str, help: &str) -> Result<Gauge, MetricsError> {
        self.register(Gauge::new(name, help)?)
    }

    pub(super) fn float_gauges(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<GaugeVec, MetricsError> {
        self.register(GaugeVec::new(Opts::new(name, help), labels)?)
    }

    pub(super) fn float_counter(&self, name: &str, help: &str) -> Result<Counter, MetricsError> {
        self.register(Counter::new(name, help)?)
    }

    pub(super) fn histogram(
        &self,
        name: &str,
        help: &str,
        buckets: &[f64],
    ) -> Result<Histogram, MetricsError> {
        self.register(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))?)
    }

    pub(super) fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> Result<HistogramVec, MetricsError> {
        self.register(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)?)
    }
}
