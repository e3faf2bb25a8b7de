//! docs/metrics.md lists what the daemon declares.

use std::path::Path;
use std::{env, fs};

use super::*;

const HEAD: &str = "| metric | type | labels | |\n|---|---|---|---|\n";

fn table(metrics: &Metrics) -> String {
    let mut rows: Vec<String> = metrics
        .descriptions()
        .iter()
        .map(|Description { name, kind, help, labels }| {
            let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
            format!("| `{name}` | {kind} | {} | {help} |\n", labels.join(", "))
        })
        .collect();
    rows.sort();
    rows.concat()
}

#[test]
fn the_manual_lists_every_metric_as_it_is_declared() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/metrics.md");
    let manual = fs::read_to_string(&path).unwrap();
    let (before, rest) = manual.split_once(HEAD).unwrap();
    let (listed, after) = rest.split_once("\n## ").unwrap();
    let declared = table(&metrics());
    if env::var_os("KEVTMON_BLESS").is_some() {
        fs::write(&path, format!("{before}{HEAD}{declared}\n## {after}")).unwrap();
    } else {
        assert_eq!(listed, declared, "docs/metrics.md is written again with KEVTMON_BLESS=1");
    }
}

#[test]
fn what_is_exported_is_declared_with_the_same_type_help_and_labels() {
    let metrics = used();
    let text = metrics.gather().unwrap();
    let declared = metrics.descriptions();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        let found =
            declared.iter().find(|declared| declared.name == name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(found.kind, kind, "{name}");
        assert!(text.contains(&format!("# HELP {name} {}\n", found.help)), "{name}");
        let series =
            text.lines().find(|line| line.split(['{', ' ']).next().unwrap().starts_with(name)).unwrap();
        for label in found.labels {
            assert!(series.contains(&format!("{label}=\"")), "{series} has no {label}");
        }
    }
}

#[test]
fn the_notes_of_the_manual_are_about_metrics_that_exist() {
    let manual = include_str!("../../../../../docs/metrics.md");
    let metrics = metrics();
    let words = manual.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let named = words.filter(|word| word.starts_with("kevtmon_"));
    let unknown: BTreeSet<&str> =
        named.filter(|word| !metrics.descriptions().iter().any(|declared| declared.name == *word)).collect();
    assert_eq!(unknown, BTreeSet::new());
}
