//! The Rust files of the workspace, read once for all house rules.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, anyhow, bail};

use super::source::Source;
use crate::workspace;

/// A file under the house rules.
#[derive(Debug)]
pub(super) struct File {
    /// Path from the workspace root.
    pub(super) path: String,
    /// The module that it is, below its crate; `None` for what is no module of a crate, such as a build script.
    pub(super) module: Option<Vec<String>>,
    pub(super) source: Source,
    /// Whether all of it is test code.
    pub(super) in_test: bool,
}

impl File {
    /// Reads one from its text.
    pub(super) fn new(path: &str, text: &str) -> Result<Self> {
        let module = module(path);
        let in_test = path.split('/').any(|part| part == "tests" || part == "tests.rs" || part == "benches");
        let source = Source::read(text, module.as_deref().unwrap_or_default(), in_test)
            .map_err(|error| anyhow!("{path}: {error}"))?;
        Ok(Self { path: path.to_owned(), module, source, in_test })
    }

    /// Whether it is a module of the daemon, and not a test.
    pub(super) fn is_of_daemon(&self) -> bool {
        self.path.starts_with("monitor/src/") && !self.in_test
    }
}

/// All of them, as git lists them.
pub(super) fn read_all() -> Result<Vec<File>> {
    let root = workspace::root();
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.rs"])
        .current_dir(&root)
        .output()
        .context("cannot start git")?;
    if !listed.status.success() {
        bail!("git ls-files failed: {}", String::from_utf8_lossy(&listed.stderr).trim());
    }
    let mut files = Vec::new();
    for path in String::from_utf8(listed.stdout)?.split_terminator('\0') {
        // Git still lists a file that was deleted in the work tree only.
        let Ok(text) = fs::read_to_string(root.join(path)) else { continue };
        files.push(File::new(path, &text)?);
    }
    find_test_modules(&mut files);
    Ok(files)
}

/// Marks the files of modules that another file declares for tests only.
fn find_test_modules(files: &mut [File]) {
    // A benchmark is a crate of its own.
    let declared: Vec<(String, Vec<String>)> = files
        .iter()
        .filter(|file| file.module.is_some())
        .flat_map(|file| {
            let of_crate = crate_directory(&file.path).to_owned();
            file.source.test_modules.iter().map(move |module| (of_crate.clone(), module.clone()))
        })
        .collect();
    for file in files {
        let Some(module) = &file.module else { continue };
        let of_crate = crate_directory(&file.path);
        file.in_test |= declared.iter().any(|(other, test)| other == of_crate && module.starts_with(test));
    }
}

/// `monitor` of `monitor/src/core/mod.rs`.
fn crate_directory(path: &str) -> &str {
    path.split('/').next().unwrap_or_default()
}

/// `core::join` of `monitor/src/core/join.rs`.
fn module(path: &str) -> Option<Vec<String>> {
    let (_, below) = path.split_once("/src/")?;
    let mut names: Vec<String> = below.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if names.last().is_some_and(|name| name == "mod" || name == "lib") {
        names.pop();
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_the_module_that_its_path_says() {
        let module = |path| module(path).map(|names| names.join("::"));
        assert_eq!(module("monitor/src/core/mod.rs").as_deref(), Some("core"));
        assert_eq!(module("monitor/src/core/join.rs").as_deref(), Some("core::join"));
        assert_eq!(module("monitor/src/lib.rs").as_deref(), Some(""));
        assert_eq!(module("monitor/build.rs"), None);
    }

    #[test]
    fn a_module_declared_for_tests_is_test_code_with_all_below_it() {
        let mut files = [
            File::new("monitor/src/sinks/mod.rs", "mod http;\n#[cfg(test)]\nmod sample;").expect("Rust"),
            File::new("monitor/src/sinks/sample.rs", "").expect("Rust"),
            File::new("monitor/src/sinks/sample/data.rs", "").expect("Rust"),
            File::new("monitor/src/sinks/http.rs", "").expect("Rust"),
            File::new("xtask/src/sinks/sample.rs", "").expect("Rust"),
            File::new("monitor/benches/store/main.rs", "mod sinks;").expect("Rust"),
        ];
        find_test_modules(&mut files);
        assert_eq!(files.map(|file| file.in_test), [false, true, true, false, false, true]);
    }
}
