//! A Prometheus of the tests' own, with the rules that users get, which scrapes the daemon under test.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::daemon::{Daemon, own_address};
use crate::delivered;
use crate::http;
use crate::mount::Scratch;
use crate::patience::wait_until;
use crate::process::Running;

/// A server that scrapes and evaluates as often as it can.
#[derive(Debug)]
pub struct Prometheus {
    _process: Running,
    address: SocketAddr,
    /// Dropped last: it holds its data.
    _scratch: Scratch,
}

impl Prometheus {
    /// Starts one and waits until it has scraped the daemon, which is the instance `node`.
    #[must_use]
    pub fn of(daemon: &Daemon, node: &str) -> Self {
        let scratch = Scratch::without_mounts();
        let (address, directory) = (own_address(), scratch.path());
        let rules = delivered::path("deploy/prometheus/kevtmon.rules.yaml");
        let config = serde_json::json!({
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [rules],
            "scrape_configs": [{"job_name": "kevtmon", "static_configs": [
                {"targets": [daemon.address().to_string()], "labels": {"instance": node}},
            ]}],
        });
        let file = directory.join("prometheus.yaml");
        // What is JSON is YAML.
        std::fs::write(&file, config.to_string()).expect("a file can be written");
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", directory.join("data").display()));
        command.arg(format!("--web.listen-address={address}")).arg("--log.level=error");
        let process = Running::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
        let server = Self { _process: process, address, _scratch: scratch };
        wait_until("Prometheus has scraped the daemon", || {
            let up = server.try_query("up{job=\"kevtmon\"} == 1")?.ok()?;
            (!up.is_empty()).then_some(())
        });
        server
    }

    /// The series that a query gives now, each with `metric` and `value`; an error is Prometheus' own.
    ///
    /// # Errors
    /// When Prometheus refuses the query.
    pub fn query(&self, query: &str) -> Result<Vec<Value>, String> {
        wait_until("Prometheus answers", || self.try_query(query))
    }

    fn try_query(&self, query: &str) -> Option<Result<Vec<Value>, String>> {
        let mut answer = self.get(&format!("/api/v1/query?query={}", encoded(query)))?;
        if answer["status"] != "success" {
            return Some(Err(answer["error"].to_string()));
        }
        match answer["data"]["result"].take() {
            Value::Array(series) => Some(Ok(series)),
            other => Some(Err(format!("no vector: {other}"))),
        }
    }

    /// All its rules, as its API shows them.
    #[must_use]
    pub fn rules(&self) -> Vec<Value> {
        let answer = wait_until("Prometheus answers", || self.get("/api/v1/rules"));
        let groups = delivered::list(&answer["data"], "groups").iter();
        groups.flat_map(|group| delivered::list(group, "rules")).cloned().collect()
    }

    /// The alerts that fire.
    #[must_use]
    pub fn firing(&self) -> Vec<Value> {
        let answer = wait_until("Prometheus answers", || self.get("/api/v1/alerts"));
        let alerts = delivered::list(&answer["data"], "alerts").iter();
        alerts.filter(|alert| alert["state"] == "firing").cloned().collect()
    }

    fn get(&self, path: &str) -> Option<Value> {
        serde_json::from_str(&http::get(self.address, path)?.body).ok()
    }
}

/// The value of a series.
#[must_use]
pub fn value(series: &Value) -> f64 {
    let text = series["value"][1].as_str().unwrap_or_else(|| panic!("no value: {series}"));
    text.parse().unwrap_or_else(|_| panic!("no number: {series}"))
}

fn encoded(query: &str) -> String {
    query.bytes().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "%{byte:02x}");
        text
    })
}
