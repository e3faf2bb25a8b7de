//! The first screen of README.md against what kevtmon says and knows.

use serde_json::Value;

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

/// The sentences of the recordings.
fn messages() -> Vec<String> {
    let lines = GOLDEN.iter().flat_map(|golden| golden.lines().map(str::trim_start));
    let events = lines.filter(|line| line.starts_with('{'));
    let message = |line| serde_json::from_str::<Value>(line).unwrap()["message"].as_str().map(str::to_owned);
    events.filter_map(message).collect()
}

/// Whether it is this sentence, with `…` for what was left out.
fn shortens(text: &str, sentence: &str) -> bool {
    let mut parts = text.split('…').map(str::trim);
    let Some(mut left) = parts.next().and_then(|first| sentence.strip_prefix(first)) else { return false };
    let mut part = parts.next();
    while let Some(this) = part {
        part = parts.next();
        left = match (part, left.find(this)) {
            (Some(_), Some(at)) => left.get(at + this.len()..).unwrap_or_default(),
            (None, _) if left.ends_with(this) => "",
            _ => return false,
        };
    }
    left.is_empty()
}

#[test]
fn what_is_left_out_of_a_sentence_is_marked() {
    let sentence = "umount refused: held by nginx (pid 7) as its current directory";
    for text in [sentence, "umount refused: held by nginx …", "umount … held by … directory", "umount …"]
    {
        assert!(shortens(text, sentence), "{text}");
    }
    for text in [
        "umount refused", "held by nginx …", "umount … pid 8 …", "umount … nginx",
        "umount … held … refused …",
    ] {
        assert!(!shortens(text, sentence), "{text}");
    }
}

#[test]
fn the_first_screen_fits_a_terminal_and_has_the_commands() {
    let screen: Vec<&str> = README.lines().take(SCREEN.0).collect();
    for line in &screen {
        assert!(line.starts_with('|') || line.chars().count() <= SCREEN.1, "{line}");
    }
    for command in ["$ cargo xtask run ", "$ cargo xtask test ", "$ apt install "] {
        assert!(screen.iter().any(|line| line.starts_with(command)), "{command}");
    }
}

#[test]
fn what_the_first_example_quotes_was_said() {
    let (quotes, messages) = (said(), messages());
    let who: Vec<&str> = quotes.iter().map(|(who, _)| who.as_str()).collect();
    assert_eq!(who, ["kubelet", "kevtmon", "calico", "kevtmon"]);
    for (who, text) in &quotes {
        let is_real = match who.as_str() {
            "kevtmon" => messages.iter().any(|message| shortens(text, message)),
            "kubelet" => DEMO.contains(text.split_once('…').unwrap().1),
            _ => CALICO.contains(text.as_str()),
        };
        assert!(is_real, "{who}: {text}");
    }
}
