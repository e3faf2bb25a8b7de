//! Which module of the daemon may import which: only those that stand above it here. So no two modules import each
//! other, and a change is felt below it only. `monitor/ARCHITECTURE.md` shows the same table.

use super::files::File;
use super::rules::Finding;

/// The modules in their order. A part of a module that has a row of its own is held apart from the rest of it.
const ORDER: [(&str, &[&str]); 9] = [
    (
        "ground floor",
        &["names", "pairs", "build_info", "error_chain", "namespace", "clock", "redact", "allocator"],
    ),
    ("vocabulary", &["settings", "observation", "event"]),
    ("model", &["node"]),
    ("diagnoses", &["diagnose"]),
    ("core", &["core"]),
    (
        "stages",
        &["metrics", "queue", "sources", "holders", "query", "store", "render", "recording", "http", "sinks"],
    ),
    ("configuration", &["config"]),
    ("daemon", &["privilege", "daemon"]),
    ("program", &["cli", "main"]),
];

/// The imports of the daemon's modules that go against the order.
pub(super) fn check(file: &File) -> Vec<Finding> {
    let Some(module) = &file.module else { return Vec::new() };
    // The root declares the modules.
    if !file.is_of_daemon() || module.is_empty() {
        return Vec::new();
    }
    if position(module).is_none() {
        let unknown = format!("module `{}` is not in the order of imports", module.join("::"));
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
        // A part of this module that has its own position.
        _ => {
            let inside = [module, path].concat();
            (position(&inside)?.1.len() > position(module)?.1.len()).then_some(inside)
        }
    }
}

fn complaint(module: &[String], target: &[String]) -> Option<String> {
    let (own, own_name) = position(module)?;
    let Some((other, other_name)) = position(target) else {
        return Some(format!("`{}` is not in the order of imports", target.join("::")));
    };
    (other > own).then(|| format!("`{own_name}` imports `{other_name}`, which stands below it"))
}

/// Where in the order a module or an item in it stands, and by which name.
fn position(path: &[String]) -> Option<(usize, &'static str)> {
    let path = path.join("::");
    let modules = ORDER.iter().flat_map(|(_floor, modules)| modules.iter()).enumerate();
    let fits =
        |name: &str| path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
    modules
        .map(|(index, name)| (index, *name))
        .filter(|(_index, name)| fits(name))
        .max_by_key(|(_, name)| name.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        check(&File::new(path, text).expect("Rust")).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_architecture_shows_this_order() {
        let row = |(floor, modules): &(&str, &[&str])| format!("| {floor} | `{}` |\n", modules.join("`, `"));
        let rows: String = ORDER.iter().map(row).collect();
        let table = format!("| floor | modules: each may import those before it |\n|---|---|\n{rows}");
        let path = crate::workspace::root().join("monitor/ARCHITECTURE.md");
        let text = std::fs::read_to_string(path).expect("the page");
        assert!(text.contains(&table), "monitor/ARCHITECTURE.md must contain\n{table}");
    }

    #[test]
    fn an_import_from_above_is_fine() {
        let text = "use crate::event::{Event, wording::who};\nuse super::join::x;\nuse std::fmt;";
        assert_eq!(findings("monitor/src/core/link.rs", text), [""; 0]);
        assert_eq!(findings("monitor/src/core/link.rs", "pub(crate) mod a;"), [""; 0]);
        assert_eq!(findings("monitor/src/main.rs", "use kevtmon::cli::{self, Cli};"), [""; 0]);
    }

    #[test]
    fn an_import_from_below_is_found_however_it_is_written() {
        for text in [
            "use crate::core::Core;",
            "use crate::{clock, core::Core};",
            "fn f(core: &crate::core::Core) {}",
            "use super::super::core::Core;",
            "fn f() { format!(\"{}\", crate::core::NAME) }",
        ] {
            let found = findings("monitor/src/node/links.rs", text);
            assert_eq!(
                found,
                ["monitor/src/node/links.rs:1: `node` imports `core`, which stands below it"],
                "{text}"
            );
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
    fn a_module_that_nobody_ordered_is_found() {
        assert_eq!(
            findings("monitor/src/helpers.rs", ""),
            ["monitor/src/helpers.rs:1: module `helpers` is not in the order of imports"]
        );
        let found = findings("monitor/src/core/mod.rs", "use crate::helpers::help;");
        assert_eq!(found, ["monitor/src/core/mod.rs:1: `helpers::help` is not in the order of imports"]);
    }
}
