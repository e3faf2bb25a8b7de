//! One scrape of the daemon's metrics. Input: an address. Output: the requested series.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// A daemon that is alive answers within milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// All metrics, as text.
pub(super) fn get(address: SocketAddr) -> Result<String> {
    let answer = exchange(address).with_context(|| format!("cannot read http://{address}/metrics"))?;
    body(&answer).map(str::to_owned)
}

fn exchange(address: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // By 1.0 the answer ends with the connection and has no chunks.
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn body(answer: &str) -> Result<&str> {
    let status = answer.lines().next().unwrap_or_default();
    match answer.split_once("\r\n\r\n") {
        Some((_head, body)) if status.split_whitespace().nth(1) == Some("200") => Ok(body),
        _ => bail!("the daemon answered the question for metrics with {status:?}"),
    }
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

    #[test]
    fn only_a_good_answer_has_metrics() {
        assert_eq!(body("HTTP/1.0 200 OK\r\nx: y\r\n\r\nab 1\n").expect("metrics"), "ab 1\n");
        for answer in ["HTTP/1.0 404 Not Found\r\n\r\nno\n", "HTTP/1.0 200 OK\r\n", ""] {
            assert!(body(answer).is_err(), "{answer:?}");
        }
    }
}
