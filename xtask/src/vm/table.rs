//! The table of `docs/kernels.md`: the attach modes that the tests printed on each kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context as _, Result, bail};

use super::kernels::numbers;
use crate::workspace;

const FILE: &str = "docs/kernels.md";
const BEGIN: &str = "<!-- attach modes -->";
const END: &str = "<!-- end of attach modes -->";

/// Attach modes by series of kernels, by hook and condition: `umount | without BTF`.
type Rows = BTreeMap<String, BTreeMap<String, String>>;

/// Compares what was printed on kernels of these series with the columns of the table, or writes it there with `KEVTMON_BLESS=1`.
/// Cells of which nothing was printed stay as they are.
pub(super) fn check(printed: &[(String, Vec<String>)]) -> Result<()> {
    let path = workspace::root().join(FILE);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {FILE}"))?;
    let (head, rest) = text.split_once(BEGIN).with_context(|| format!("{FILE} has no {BEGIN}"))?;
    let (table, tail) = rest.split_once(END).with_context(|| format!("{FILE} has no {END}"))?;
    let mut rows = read(table);
    if std::env::var_os("KEVTMON_BLESS").is_some() {
        for (row, series, attach_mode) in cells(printed) {
            rows.entry(row.to_owned()).or_default().insert(series.to_owned(), attach_mode.to_owned());
        }
        let text = format!("{head}{BEGIN}\n\n{}\n{END}{tail}", written(&rows));
        return fs::write(&path, text).with_context(|| format!("cannot write {FILE}"));
    }
    let differences = differences(&rows, printed);
    if !differences.is_empty() {
        bail!("{FILE} is written again with KEVTMON_BLESS=1; it differs:\n{}", differences.join("\n"));
    }
    Ok(())
}

/// Row, column and content of the cells that were printed.
fn cells(printed: &[(String, Vec<String>)]) -> impl Iterator<Item = (&str, &str, &str)> {
    printed.iter().flat_map(|(series, lines)| {
        let split = lines.iter().filter_map(|line| line.rsplit_once(" | "));
        split.map(move |(row, attach_mode)| (row, series.as_str(), attach_mode))
    })
}

/// A kernel without a column is not compared: Debian may have had a newer one since.
fn differences(rows: &Rows, printed: &[(String, Vec<String>)]) -> Vec<String> {
    let known: BTreeSet<&str> = rows.values().flat_map(BTreeMap::keys).map(String::as_str).collect();
    let of_known = cells(printed).filter(|(_, series, _)| known.contains(series));
    of_known
        .filter_map(|(row, series, attach_mode)| {
            let cell = rows.get(row).and_then(|row| row.get(series)).map_or("", String::as_str);
            (cell != attach_mode).then(|| format!("{series}: {row} | {attach_mode}, and not {cell:?}"))
        })
        .collect()
}

/// The first line has the series of kernels.
fn read(table: &str) -> Rows {
    let mut lines = table.lines().filter_map(|line| {
        let row = line.strip_prefix('|')?.strip_suffix('|')?;
        Some(row.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>())
    });
    let head = lines.next().unwrap_or_default();
    lines
        .skip(1)
        .filter_map(|row| {
            let [hook, condition, attach_modes @ ..] = &row[..] else { return None };
            let filled = head.iter().skip(2).zip(attach_modes).filter(|(_, cell)| !cell.is_empty());
            let columns = filled.map(|(series, cell)| (series.clone(), cell.clone()));
            Some((format!("{hook} | {condition}"), columns.collect::<BTreeMap<_, _>>()))
        })
        .collect()
}

/// With a column for each series, in their order.
fn written(rows: &Rows) -> String {
    let mut series: Vec<&str> = rows.values().flat_map(BTreeMap::keys).map(String::as_str).collect();
    series.sort_by_key(|series| numbers(series));
    series.dedup();
    let line = |cells: &[&str]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(&[&["hook", "condition"], &series[..]].concat());
    text += &format!("|{}\n", "---|".repeat(series.len() + 2));
    for (row, columns) in rows {
        let cells = series.iter().map(|series| columns.get(*series).map_or("", String::as_str));
        text += &line(&[&[row.as_str()], &cells.collect::<Vec<_>>()[..]].concat());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
| hook | condition | 5.10 | 6.1 | 6.1 arm64 | 6.12 |
|---|---|---|---|---|---|
| neighbor |  | tp_btf | tp_btf | tp_btf | tp_btf |
| umount |  | tracepoint | tracepoint | tracepoint, without path_umount | tracepoint |
| umount | without BTF |  | helpers | helpers | helpers |
";

    fn printed(series: &str, lines: &[&str]) -> Vec<(String, Vec<String>)> {
        vec![(series.to_owned(), lines.iter().map(|&line| line.to_owned()).collect())]
    }

    #[test]
    fn a_table_is_written_as_it_was_read() {
        assert_eq!(written(&read(TABLE)), TABLE);
        assert_eq!(written(&Rows::new()), "| hook | condition |\n|---|---|\n");
        let page = fs::read_to_string(workspace::root().join(FILE)).expect("a page");
        let (_, rest) = page.split_once(BEGIN).expect("where the table begins");
        let (table, _) = rest.split_once(END).expect("where it ends");
        assert_eq!(table.trim(), written(&read(table)).trim());
    }

    #[test]
    fn only_the_cells_of_kernels_with_a_column_are_compared() {
        let rows = read(TABLE);
        let found = |series, line| differences(&rows, &printed(series, &[line]));
        assert_eq!(found("6.1", "umount |  | tracepoint"), [""; 0]);
        assert_eq!(
            found("6.1", "umount | without BTF | none"),
            ["6.1: umount | without BTF | none, and not \"helpers\""]
        );
        assert_eq!(found("5.10", "umount | without BTF | helpers").len(), 1);
        assert_eq!(found("6.1 arm64", "umount |  | tracepoint").len(), 1, "another architecture");
        assert_eq!(found("6.1", "exec |  | tp_btf").len(), 1, "a new row");
        assert_eq!(found("7.2", "umount |  | none"), [""; 0]);
    }
}
