//! docs/events.md against the schema; the links of all documents, and how long they are to read.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use kevtmon_event::Kind;
use kevtmon_testing::schema::errors;
use serde_json::Value;

/// What is read of a README, and of a cell of a table.
const README_LINES: usize = 200;
const README_BYTES: usize = 15 * 1024;
const CELL: usize = 200;

const EVENTS: &str = include_str!("../../../docs/events.md");

/// First cells of the table of kinds.
fn cells() -> Vec<&'static str> {
    let (_, rows) = EVENTS.split_once("| kind |").unwrap();
    let table = rows.split("\n\n").next().unwrap();
    table
        .trim_end()
        .lines()
        .skip(2)
        .map(|row| row.split(" | ").next().unwrap().trim_start_matches("| "))
        .collect()
}

/// What is quoted in a cell; `.exited` after `container.created` is `container.exited`.
fn quoted(cell: &str) -> Vec<String> {
    let words: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
    let family = words[0].split('.').next().unwrap();
    let whole = |word: &&str| match word.starts_with('.') {
        true => format!("{family}{word}"),
        false => (*word).to_owned(),
    };
    words.iter().map(whole).collect()
}

#[test]
fn every_kind_of_event_is_described_once() {
    let mut described: Vec<String> = cells().into_iter().flat_map(quoted).collect();
    described.sort_unstable();
    let mut kinds: Vec<String> = Kind::ALL.iter().map(|kind| kind.name().to_owned()).collect();
    kinds.sort_unstable();
    assert_eq!(described, kinds);
}

#[test]
fn the_example_keeps_the_schema() {
    let (example, _) = EVENTS.split_once("```json\n").unwrap().1.split_once("```").unwrap();
    let example: Value = serde_json::from_str(example).unwrap();
    assert_eq!(errors(&example), Vec::<String>::new());
}

/// The documents that link to each other.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let manual = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let of_root = ["README.md", "SECURITY.md", "monitor/ARCHITECTURE.md"].map(|name| root.join(name));
    manual.filter(|path| path.extension().is_some_and(|is| is == "md")).chain(of_root).collect()
}

/// Its lines outside of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        is_code ^= line.trim_start().starts_with("```");
        !is_code
    })
}

/// The anchors of its headings, as they are made for a link.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let kept = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn every_link_between_documents_leads_to_a_file_and_a_heading() {
    let mut followed = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let links = prose(&text).flat_map(|line| line.split("](").skip(1));
        for link in links.map(|rest| rest.split(')').next().unwrap()).filter(|link| !link.contains("://")) {
            let (file, heading) =
                link.split_once('#').map_or((link, None), |(file, heading)| (file, Some(heading)));
            let target = match file {
                "" => document.clone(),
                file => document.with_file_name(file),
            };
            assert!(target.exists(), "{} links to {link}", document.display());
            if let Some(heading) = heading {
                let known = anchors(&fs::read_to_string(&target).unwrap());
                assert!(known.contains(heading), "{} links to {link}, of {known:?}", document.display());
            }
            followed += 1;
        }
    }
    assert!(followed > 40, "{followed}");
}

#[test]
fn the_readme_is_short() {
    let readme = include_str!("../../../README.md");
    let (lines, bytes) = (readme.lines().count(), readme.len());
    assert!(lines <= README_LINES && bytes <= README_BYTES, "{lines} lines, {bytes} bytes");
}

/// The cells of a row; `\|` is no border.
fn row(line: &str) -> Vec<String> {
    line.replace(r"\|", "\0").split('|').map(|cell| cell.trim().replace('\0', r"\|")).collect()
}

#[test]
fn the_cells_of_tables_are_short() {
    let mut long = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let rows = prose(&text).filter(|line| line.trim_start().starts_with('|'));
        for cell in rows.flat_map(row).filter(|cell| cell.chars().count() > CELL) {
            let name = document.file_name().unwrap().to_string_lossy();
            long.push(format!("{name}: {} characters: {cell:.40}…", cell.chars().count()));
        }
    }
    assert!(long.is_empty(), "sections or lists instead of:\n{}", long.join("\n"));
}
