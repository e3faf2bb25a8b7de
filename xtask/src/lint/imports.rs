//! Which module of the daemon may import which. Each stands below all that it imports, so no two import each other, and
//! a change affects only modules below. `monitor/ARCHITECTURE.md` shows the same table.

use super::files::File;
use super::rules::Finding;

/// Modules that every other may import, in their order: each may import those before it.
const GROUND_FLOOR: [&str; 16] = [
    "names",
    "pairs",
    "build_info",
    "error_chain",
    "escape",
    "is_zero",
    "kernel_release",
    "namespace",
    "clock",
    "redact",
    "regular_file",
    "allocator",
    "shares",
    "bucket",
    "capabilities",
    "position",
];

/// Every other module, and what it may import besides the ground floor. A part of a module that has a row of its own
/// is held apart from the rest of it.
const TABLE: [(&str, &[&str]); 22] = [
    ("settings", &[]),
    ("observation", &["settings"]),
    ("event", &["settings", "observation"]),
    ("node", &["settings", "observation", "event"]),
    ("diagnose", &["settings", "observation", "event", "node"]),
    ("core", &["settings", "observation", "event", "node", "diagnose"]),
    ("metrics", &["settings", "observation", "event", "diagnose"]),
    ("queue", &[]),
    ("http", &["queue"]),
    ("web_config", &["http"]),
    ("sources", &["settings", "observation", "node", "metrics"]),
    ("holders", &["settings", "observation", "node", "metrics", "sources"]),
    ("query", &["settings", "observation", "event", "node", "diagnose", "core"]),
    ("store", &["settings", "observation", "event", "node", "query"]),
    ("render", &["settings", "observation", "event", "core", "query"]),
    ("recording", &["settings", "observation", "event", "diagnose", "core", "metrics", "queue"]),
    (
        "sinks",
        &[
            "settings",
            "observation",
            "event",
            "core",
            "metrics",
            "queue",
            "sources",
            "query",
            "store",
            "render",
            "http",
            "web_config",
        ],
    ),
    ("config", &["settings", "event", "diagnose", "sources", "holders", "store", "recording", "sinks"]),
    ("privilege", &["sources"]),
    ("self_test", &[]),
    (
        "daemon",
        &[
            "settings",
            "observation",
            "event",
            "core",
            "metrics",
            "sources",
            "holders",
            "query",
            "store",
            "recording",
            "sinks",
            "config",
            "privilege",
            "web_config",
        ],
    ),
    (
        "cli",
        &[
            "settings",
            "observation",
            "event",
            "core",
            "sources",
            "holders",
            "query",
            "store",
            "render",
            "recording",
            "sinks",
            "config",
            "privilege",
            "self_test",
            "daemon",
            "web_config",
        ],
    ),
];

/// The program, which imports its command line.
const PROGRAM: &str = "main";

/// The imports of the daemon's modules that the table does not allow.
pub(super) fn check(file: &File) -> Vec<Finding> {
    let Some(module) = &file.module else { return Vec::new() };
    // The root declares the modules.
    if !file.is_of_daemon() || module.is_empty() {
        return Vec::new();
    }
    if row(module).is_none() {
        let unknown = format!("module `{}` is not in the table of imports", module.join("::"));
        return vec![Finding::new(file, 1, unknown)];
    }
    let live = file.source.paths.iter().filter(|found| !found.in_test);
    let mut findings: Vec<Finding> = live
        .filter_map(|found| {
            let target = imported(&found.what, &found.module)?;
            let complaint = complaint(&found.module, &target)?;
            Some(Finding::new(file, found.line, complaint))
        })
        .collect();
    findings.dedup();
    findings
}

/// The module, with an item in it, that a path imports; `None` for what is of another crate or was imported before.
fn imported(path: &[String], module: &[String]) -> Option<Vec<String>> {
    match path.first()?.as_str() {
        // That of `pub(crate)` stands alone.
        "crate" | "kevtmon" => (path.len() > 1).then(|| path[1..].to_vec()),
        // A part of this module that has a row of its own.
        _ => {
            let inside = [module, path].concat();
            (row(&inside)?.len() > row(module)?.len()).then_some(inside)
        }
    }
}

fn complaint(module: &[String], target: &[String]) -> Option<String> {
    let own = row(module)?;
    let Some(other) = row(target) else {
        return Some(format!("`{}` is not in the table of imports", target.join("::")));
    };
    (!may_import(own, other)).then(|| format!("`{own}` may not import `{other}`"))
}

fn may_import(own: &str, other: &str) -> bool {
    let floor = |name: &str| GROUND_FLOOR.iter().position(|module| *module == name);
    match (floor(own), floor(other)) {
        _ if own == other => true,
        (Some(own), Some(other)) => other < own,
        (Some(_), None) => false,
        (None, Some(_)) => true,
        (None, None) if own == PROGRAM => other == "cli",
        (None, None) => TABLE.iter().any(|(module, may)| *module == own && may.contains(&other)),
    }
}

/// The row of a module or of an item in it, by its name.
fn row(path: &[String]) -> Option<&'static str> {
    let path = path.join("::");
    let names = GROUND_FLOOR.iter().chain(TABLE.iter().map(|(name, _)| name)).chain([&PROGRAM]).copied();
    let fits =
        |name: &&str| path.strip_prefix(*name).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
    names.filter(fits).max_by_key(|name| name.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        check(&File::new(path, text).expect("Rust")).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_architecture_shows_this_table() {
        let names = |names: &[&str]| match names {
            [] => "-".to_owned(),
            names => format!("`{}`", names.join("`, `")),
        };
        let rows: String =
            TABLE.iter().map(|(module, may)| format!("| `{module}` | {} |\n", names(may))).collect();
        let table = format!("| module | may import |\n|---|---|\n{rows}| `{PROGRAM}` | `cli` |\n");
        let path = crate::workspace::root().join("monitor/ARCHITECTURE.md");
        let text = std::fs::read_to_string(path).expect("the page");
        assert!(
            text.contains(&names(&GROUND_FLOOR)),
            "monitor/ARCHITECTURE.md must contain {}",
            names(&GROUND_FLOOR)
        );
        assert!(text.contains(&table), "monitor/ARCHITECTURE.md must contain\n{table}");
    }

    #[test]
    fn every_row_stands_below_what_it_may_import() {
        for (index, (module, may)) in TABLE.iter().enumerate() {
            for other in *may {
                let above = TABLE[..index].iter().any(|(above, _)| above == other);
                assert!(above, "{module} imports {other}, which has no row above");
            }
        }
    }

    #[test]
    fn an_import_that_the_table_allows_is_fine() {
        let text = "use crate::event::{Event, wording::who};\nuse super::join::x;\nuse std::fmt;";
        assert_eq!(findings("monitor/src/core/link.rs", text), [""; 0]);
        assert_eq!(findings("monitor/src/core/link.rs", "pub(crate) mod a;"), [""; 0]);
        assert_eq!(findings("monitor/src/main.rs", "use kevtmon::cli::{self, Cli};"), [""; 0]);
    }

    #[test]
    fn an_import_that_it_does_not_allow_is_found_however_it_is_written() {
        for text in [
            "use crate::core::Core;",
            "use crate::{clock, core::Core};",
            "fn f(core: &crate::core::Core) {}",
            "use super::super::core::Core;",
            "fn f() { format!(\"{}\", crate::core::NAME) }",
        ] {
            let found = findings("monitor/src/node/links.rs", text);
            assert_eq!(found, ["monitor/src/node/links.rs:1: `node` may not import `core`"], "{text}");
        }
    }

    #[test]
    fn queries_know_neither_store_nor_socket() {
        assert_eq!(findings("monitor/src/query/story.rs", "use crate::store::Archive;").len(), 1);
        assert_eq!(findings("monitor/src/query/why.rs", "use crate::cli::client::remote::Remote;").len(), 1);
        assert_eq!(findings("monitor/src/cli/client/offline.rs", "use crate::store::Archive;"), [""; 0]);
    }

    #[test]
    fn test_code_imports_what_it_wants() {
        let text =
            "#[cfg(test)]\nuse crate::core::Core;\n#[cfg(test)]\nmod tests { use crate::daemon::run; }";
        assert_eq!(findings("monitor/src/node/links.rs", text), [""; 0]);
        assert_eq!(findings("monitor/src/node/tests/links.rs", "use crate::core::Core;"), [""; 0]);
    }

    #[test]
    fn a_module_that_is_not_in_the_table_is_found() {
        assert_eq!(
            findings("monitor/src/helpers.rs", ""),
            ["monitor/src/helpers.rs:1: module `helpers` is not in the table of imports"]
        );
        let found = findings("monitor/src/core/mod.rs", "use crate::helpers::help;");
        assert_eq!(found, ["monitor/src/core/mod.rs:1: `helpers::help` is not in the table of imports"]);
    }
}
