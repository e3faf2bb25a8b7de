//! The house rules that no compiler checks, for one source file at a time. They see text, not syntax: a rule errs
//! towards silence in comments and tests.

use std::fmt;

/// A file longer than this holds more than one idea.
const MOST_LINES: usize = 500;

/// Code that gets time and facts as input, so that a recording replays to the same answer.
const PURE: [&str; 4] =
    ["monitor/src/node/", "monitor/src/diagnose/", "monitor/src/core/", "monitor/src/core.rs"];

/// The one place that names metrics.
const METRICS: &str = "monitor/src/metrics.rs";

/// A broken rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    path: String,
    line: usize,
    rule: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.rule)
    }
}

/// What is broken in the source file at `path`, relative to the workspace root.
pub(crate) fn check(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut broken = |line: usize, rule: &str| {
        findings.push(Finding { path: path.to_owned(), line, rule: rule.to_owned() })
    };

    let lines = text.lines().count();
    if lines > MOST_LINES {
        broken(MOST_LINES + 1, &format!("{lines} lines; a file has at most {MOST_LINES}"));
    }
    let in_tests = is_test(path);
    let tests_begin = if in_tests { 0 } else { first_line_of_tests(text) };
    let pure = PURE.iter().any(|pure| path.starts_with(pure));
    let names_no_metrics = path.starts_with("monitor") && path != METRICS;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("//") {
            continue;
        }
        if ["todo", "unimplemented"].iter().any(|name| calls_macro(line, name)) {
            broken(index + 1, "unfinished code; what is not built yet is left out");
        }
        if index >= tests_begin {
            continue;
        }
        if pure && let Some(what) = impurity(line) {
            broken(
                index + 1,
                &format!("{what}: the core, the node model and the diagnoses do no I/O and read no clock"),
            );
        }
        if names_no_metrics && names_metric(line) {
            broken(index + 1, &format!("a metric is named outside {METRICS}"));
        }
    }
    findings
}

fn is_test(path: &str) -> bool {
    path.split('/').any(|part| part == "tests" || part == "tests.rs")
}

/// Index of the line where the file's tests begin: they stand last.
fn first_line_of_tests(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let begins =
        |pair: &[&str]| pair == ["#[cfg(test)]", "mod tests {"] || pair == ["#[cfg(test)]", "mod tests;"];
    lines.windows(2).position(begins).unwrap_or(lines.len())
}

fn calls_macro(line: &str, name: &str) -> bool {
    occurrences(line, name).any(|(before, after)| {
        !before.ends_with(|last: char| last.is_alphanumeric() || last == '_') && after.starts_with('!')
    })
}

/// What a line of pure code may not reach for.
fn impurity(line: &str) -> Option<&'static str> {
    if line.contains("::now(") {
        return Some("reads a clock");
    }
    if line.contains("std::fs") || of_group(line, "std::{").any(|name| name == "fs") {
        return Some("reaches the file system");
    }
    let only_addresses = |rest: &str| {
        let names = rest.strip_prefix("::").unwrap_or_default();
        let end = names.find(['}', ';', ' ', ',', '>', ')']).unwrap_or(names.len());
        let end = if names.starts_with('{') { names.find('}').unwrap_or(names.len()) } else { end };
        let mut names = identifiers(&names[..end]).peekable();
        names.peek().is_some()
            && names
                .all(|name| matches!(name, "IpAddr" | "Ipv4Addr" | "Ipv6Addr" | "AddrParseError" | "self"))
    };
    let network = occurrences(line, "std::net").any(|(_before, rest)| !only_addresses(rest))
        || of_group(line, "std::{").any(|name| name == "net");
    network.then_some("reaches the network")
}

/// The crates of the workspace share the prefix of the metrics.
fn names_metric(line: &str) -> bool {
    const PREFIX: &str = concat!("kevtmon", "_");
    occurrences(line, PREFIX).any(|(before, rest)| {
        !before.ends_with(|last: char| last.is_alphanumeric() || last == '_')
            && !matches!(identifiers(rest).next(), None | Some("ebpf" | "tests"))
    })
}

/// The names inside the braces that `opening` begins.
fn of_group<'a>(line: &'a str, opening: &str) -> impl Iterator<Item = &'a str> {
    let inside = line.split_once(opening).map_or("", |(_before, after)| after);
    identifiers(inside)
}

fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').filter(|name| !name.is_empty())
}

fn occurrences<'a>(line: &'a str, needle: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    line.match_indices(needle).map(|(at, found)| (&line[..at], &line[at + found.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<String> {
        check(path, text).iter().map(ToString::to_string).collect()
    }

    fn is_clean(path: &str, text: &str) {
        assert_eq!(rules(path, text), Vec::<String>::new(), "{text}");
    }

    #[test]
    fn unfinished_code_is_found_even_in_tests() {
        let text = format!("fn a() {{\n    {}!()\n}}", "todo");
        assert_eq!(
            rules("tests/src/a.rs", &text)[0],
            "tests/src/a.rs:2: unfinished code; what is not built yet is left out"
        );
        assert_eq!(rules("xtask/src/a.rs", &format!("std::{}!(\"x\")", "unimplemented")).len(), 1);
        is_clean("monitor/src/a.rs", "let todo = !done; mastodo!();");
    }

    #[test]
    fn a_long_file_is_found() {
        is_clean("monitor/src/a.rs", &"x\n".repeat(500));
        let found = rules("monitor/src/a.rs", &"x\n".repeat(501));
        assert_eq!(found, ["monitor/src/a.rs:501: 501 lines; a file has at most 500"]);
    }

    #[test]
    fn pure_code_reads_no_clock_and_does_no_io() {
        for line in [
            "let t = SystemTime::now();",
            "let t = std::time::Instant::now();",
            "let t = jiff::Timestamp::now();",
            "use std::fs;",
            "use std::{collections::HashMap, fs};",
            "let x = std::fs::read(path);",
            "use std::net::TcpStream;",
            "use std::net::{IpAddr, UdpSocket};",
            "use std::{fmt, net};",
        ] {
            for path in ["monitor/src/core.rs", "monitor/src/node/mod.rs", "monitor/src/diagnose/neighbor.rs"]
            {
                assert_eq!(rules(path, line).len(), 1, "{path}: {line}");
            }
            is_clean("monitor/src/sources/netlink/mod.rs", line);
        }
    }

    #[test]
    fn addresses_are_data_and_no_network() {
        for line in [
            "use std::net::IpAddr;",
            "use std::net::{self, IpAddr, Ipv4Addr};",
            "fn of(address: std::net::IpAddr, x: u8) -> Option<std::net::Ipv6Addr> {",
            "// std::fs is out of reach here, as is Instant::now()",
        ] {
            is_clean("monitor/src/node/neighbors.rs", line);
        }
    }

    #[test]
    fn tests_of_pure_code_may_read_files() {
        is_clean("monitor/src/node/pods.rs", "fn a() {}\n\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}");
        is_clean("monitor/src/node/pods/tests.rs", "use std::fs;");
        assert_eq!(rules("monitor/src/node/pods.rs", "#[cfg(test)]\nuse std::fmt;\nuse std::fs;").len(), 1);
    }

    #[test]
    fn only_one_file_names_metrics() {
        let line = concat!("let name = \"kevtmon", "_events_total\";");
        assert_eq!(rules("monitor/src/sinks/prometheus.rs", line).len(), 1);
        is_clean("monitor/src/metrics.rs", line);
        is_clean("tests/src/metrics.rs", line);
        is_clean("monitor/src/sources/bpf/mod.rs", "use kevtmon_ebpf::neighbor::Record;");
    }
}
