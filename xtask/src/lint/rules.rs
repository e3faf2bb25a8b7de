//! The house rules that look at one file at a time.

use std::fmt;

use super::files::File;

/// The one module that names metrics.
const METRICS: [&str; 2] = ["monitor/src/metrics.rs", "monitor/src/metrics/"];

/// Where /proc is read: both take its place as an argument, so that tests can give another.
const READS_PROC: [&str; 2] = ["sources", "holders"];

/// Names that need their comment to be understood, and the standard terms to use instead.
const RETIRED_NAMES: [(&str, &str); 13] = [
    ("Aside", "Quarantined"),
    ("Desk", "Output"),
    ("House", "Registrar"),
    ("Left", "PreviousRun"),
    ("Reel", "SegmentWriter"),
    ("Tape", "RecordQueue"),
    ("Told", "SharedEvent"),
    ("Weather", "StormDetector"),
    ("govern", "apply_to"),
    ("grown_up", "past_grace_period"),
    ("knock", "probe_listener"),
    ("remains", "offline_state"),
    ("strangers", "unclaimed"),
];

/// A broken rule.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    path: String,
    line: usize,
    complaint: String,
}

impl Finding {
    pub(super) fn new(file: &File, line: usize, complaint: impl Into<String>) -> Self {
        Self { path: file.path.clone(), line, complaint: complaint.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.complaint)
    }
}

/// What is unfinished, or names something in the wrong place.
pub(super) fn check(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let unfinished =
        file.source.macros.iter().filter(|found| ["todo", "unimplemented"].contains(&&*found.what));
    findings.extend(
        unfinished.map(|found| {
            Finding::new(file, found.line, "unfinished code; what is not built yet is left out")
        }),
    );
    findings.extend(retired_names(file));
    if !file.in_test {
        findings.extend(metrics_named_elsewhere(file));
    }
    findings
}

/// String literals that begin with /proc, outside the modules that read it.
pub(super) fn proc_paths(file: &File) -> Vec<Finding> {
    let reads_proc = |module: &Vec<String>| module.first().is_some_and(|name| READS_PROC.contains(&&**name));
    if !file.is_of_daemon() || file.module.as_ref().is_none_or(reads_proc) {
        return Vec::new();
    }
    let paths = file.source.strings.iter().filter(|found| !found.in_test && found.what.starts_with("/proc"));
    paths
        .map(|found| {
            let complaint = format!("{:?}: only {} read /proc", found.what, READS_PROC.join(" and "));
            Finding::new(file, found.line, complaint)
        })
        .collect()
}

fn retired_names(file: &File) -> Vec<Finding> {
    let names = file.source.names.iter();
    names
        .filter_map(|found| {
            let (name, now) = RETIRED_NAMES.iter().find(|(name, _)| *name == found.what)?;
            Some(Finding::new(file, found.line, format!("`{name}` is called `{now}`")))
        })
        .collect()
}

/// The crates of the workspace share the prefix of the metrics.
fn metrics_named_elsewhere(file: &File) -> Vec<Finding> {
    const PREFIX: &str = concat!("kevtmon", "_");
    if !file.path.starts_with("monitor") || METRICS.iter().any(|module| file.path.starts_with(module)) {
        return Vec::new();
    }
    let names_metric = |text: &str| {
        text.match_indices(PREFIX).any(|(at, _)| {
            let rest = &text[at + PREFIX.len()..];
            let end =
                rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(rest.len());
            !text[..at].ends_with(|last: char| last.is_alphanumeric() || last == '_')
                && !matches!(&rest[..end], "" | "ebpf" | "tests")
        })
    };
    let strings = file.source.strings.iter().filter(|found| !found.in_test && names_metric(&found.what));
    strings
        .map(|found| Finding::new(file, found.line, "a metric is named outside monitor/src/metrics"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File::new(path, text).expect("Rust")
    }

    fn findings(path: &str, text: &str) -> Vec<String> {
        check(&file(path, text)).iter().map(ToString::to_string).collect()
    }

    #[track_caller]
    fn is_clean(path: &str, text: &str) {
        assert_eq!(findings(path, text), Vec::<String>::new(), "{text}");
    }

    #[test]
    fn unfinished_code_is_found_even_in_tests() {
        let text = format!("fn a() {{\n    {}!()\n}}", "todo");
        assert_eq!(
            findings("tests/src/a.rs", &text),
            ["tests/src/a.rs:2: unfinished code; what is not built yet is left out"]
        );
        assert_eq!(
            findings("xtask/src/a.rs", &format!("fn a() {{ std::{}!(\"x\") }}", "unimplemented")).len(),
            1
        );
        is_clean("monitor/src/a.rs", "fn a() { let todo = !done; mastodo!(); }");
    }

    #[test]
    fn a_retired_name_does_not_come_back() {
        assert_eq!(
            findings("monitor/src/sinks/a.rs", "use crate::event::Told;"),
            ["monitor/src/sinks/a.rs:1: `Told` is called `SharedEvent`"]
        );
        is_clean("monitor/src/sinks/a.rs", "/// What remains.\nfn f() { told.remaining() }");
    }

    #[test]
    fn only_one_module_names_metrics() {
        let line = concat!("const A: &str = \"kevtmon", "_events_total\";");
        assert_eq!(findings("monitor/src/sinks/prometheus.rs", line).len(), 1);
        is_clean("monitor/src/metrics.rs", line);
        is_clean("monitor/src/metrics/neighbor.rs", line);
        is_clean("tests/src/metrics.rs", line);
        is_clean("monitor/src/sinks/tests/prometheus.rs", line);
        is_clean("monitor/src/sources/bpf/mod.rs", "use kevtmon_ebpf::neighbor::Record;");
    }

    #[test]
    fn proc_is_named_only_where_it_is_read() {
        let text = "//! /proc/self\nfn f() {\n    read(format!(\"/proc/{pid}/stat\"))\n}\n\
                    #[cfg(test)]\nmod tests { const A: &str = \"/proc\"; }";
        let found = |path| proc_paths(&file(path, text)).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            found("monitor/src/store/mod.rs"),
            ["monitor/src/store/mod.rs:3: \"/proc/{pid}/stat\": only sources and holders read /proc"]
        );
        for path in
            ["monitor/src/holders/mod.rs", "monitor/src/sources/procfs/mod.rs", "tests/src/process.rs"]
        {
            assert_eq!(found(path), Vec::<String>::new(), "{path}");
        }
    }
}
