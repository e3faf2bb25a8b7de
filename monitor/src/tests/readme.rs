//! The first screen of README.md against what kevtmon says and knows.

use crate::diagnose;
use crate::settings::Thresholds;

const README: &str = include_str!("../../../README.md");
/// Recordings of real failures, replayed by the tests.
const GOLDEN: [&str; 2] = [
    include_str!("../../../tests/fixtures/volume-busy.golden"),
    include_str!("../../../tests/fixtures/stale-cni-del.golden"),
];
/// What `cargo xtask demo` prints, with what umount(8) says.
const DEMO: &str = include_str!("../../../docs/demo.md");
/// The plugin that stands for calico.
const CALICO: &str = include_str!("../../../tests/src/by_name.rs");
/// Lines and columns of a small terminal.
const SCREEN: (usize, usize) = (24, 80);

/// Who says what in the first example, each in one line.
fn said() -> Vec<(String, String)> {
    let (example, _) = README.split_once("```text\n").unwrap().1.split_once("```").unwrap();
    let mut said: Vec<(String, String)> = Vec::new();
    for line in example.lines() {
        match (line.split_once("  "), said.last_mut()) {
            (Some(("", more)), Some((_, text))) => text.extend([" ", more.trim()]),
            (Some((who, text)), _) => said.push((who.to_owned(), text.trim().to_owned())),
            (None, _) => unreachable!("{line}"),
        }
    }
    said
}

#[test]
fn the_first_screen_fits_a_terminal_and_has_both_commands() {
    let screen: Vec<&str> = README.lines().take(SCREEN.0).collect();
    for line in &screen {
        assert!(line.starts_with('|') || line.chars().count() <= SCREEN.1, "{line}");
    }
    for command in ["$ cargo xtask run ", "$ cargo xtask test "] {
        assert!(screen.iter().any(|line| line.starts_with(command)), "{command}");
    }
}

#[test]
fn what_the_first_example_quotes_was_said() {
    let quotes = said();
    let who: Vec<&str> = quotes.iter().map(|(who, _)| who.as_str()).collect();
    assert_eq!(who, ["kubelet", "kevtmon", "calico", "kevtmon"]);
    for (who, text) in &quotes {
        let is_real = match who.as_str() {
            "kevtmon" => GOLDEN.iter().any(|golden| golden.contains(&format!("\"message\":\"{text}\""))),
            "kubelet" => DEMO.contains(text.split_once('…').unwrap().1),
            _ => CALICO.contains(text.as_str()),
        };
        assert!(is_real, "{who}: {text}");
    }
}

#[test]
fn every_kind_of_incident_has_its_symptom() {
    let (table, _) = README.split_once("| you see |").unwrap().1.split_once("\n\n").unwrap();
    for kind in diagnose::all(&Thresholds::default()).iter().map(|diagnosis| diagnosis.kind()) {
        assert_eq!(table.matches(&format!("`{kind}`")).count(), 1, "{kind}");
    }
}
