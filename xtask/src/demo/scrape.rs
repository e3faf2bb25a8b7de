//! One scrape of the daemon's metrics. Input: an address. Output: the requested series.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use kevtmon_tests::http;

pub(super) fn get(address: SocketAddr) -> Result<String> {
    let answer = http::get(address, "/metrics");
    let answer = answer.with_context(|| format!("cannot read http://{address}/metrics"))?;
    ensure!(answer.status == 200, "the daemon answered the question for metrics with {}", answer.status);
    Ok(answer.body)
}

/// The lines of the `wanted` series; each must be there and not zero.
pub(super) fn changed<'a>(metrics: &'a str, wanted: &[&str]) -> Result<Vec<&'a str>> {
    wanted
        .iter()
        .map(|series| {
            metrics
                .lines()
                .find(|line| {
                    line.strip_prefix(series).is_some_and(|value| value.starts_with(' ') && value != " 0")
                })
                .with_context(|| format!("the metrics show nothing of {series}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = "# TYPE a_total counter\na_total{x=\"1\"} 3\na_total{x=\"2\"} 0\nab 1\n";

    #[test]
    fn a_series_is_shown_as_the_daemon_wrote_it() {
        assert_eq!(
            changed(METRICS, &["ab", "a_total{x=\"1\"}"]).expect("both"),
            ["ab 1", "a_total{x=\"1\"} 3"]
        );
    }

    #[test]
    fn a_series_that_is_zero_or_missing_is_an_error_that_names_it() {
        for series in ["a_total{x=\"2\"}", "a", "a_total{x=\"3\"}"] {
            let error = changed(METRICS, &[series]).unwrap_err();
            assert!(error.to_string().contains(series), "{error}");
        }
    }
}
