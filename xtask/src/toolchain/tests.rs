//! Detection against machines that consist of a temporary directory and canned answers.

use std::collections::HashMap;

use tempfile::TempDir;

use super::*;

/// A machine: files below a directory, and what its programs print. A program without a canned answer fails.
struct Machine {
    root: TempDir,
    answers: HashMap<String, String>,
}

impl Machine {
    fn new() -> Self {
        Self { root: TempDir::new().expect("temporary directory"), answers: HashMap::new() }
    }

    fn file(self, path: &str) -> Self {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().expect("has a parent")).expect("create directory");
        fs::write(path, "").expect("write file");
        self
    }

    /// `{root}` in the answer stands for the machine's directory.
    fn answers(mut self, question: &str, answer: &str) -> Self {
        let answer = answer.replace("{root}", &self.root.path().display().to_string());
        self.answers.insert(question.to_owned(), answer);
        self
    }

    fn debian() -> Self {
        Self::new()
            .file("usr/bin/rustc")
            .file("usr/bin/cargo")
            .answers(
                "usr/bin/rustc --version",
                "rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)\n",
            )
            .answers(
                "usr/bin/rustc --print target-libdir --target bpfel-unknown-none",
                "{root}/rustlib/bpfel\n",
            )
    }

    fn rustup(self, toolchain: &str, version: &str) -> Self {
        self.file("cargo/bin/rustup")
            .answers(&format!("cargo/bin/rustup run {toolchain} rustc --version"), version)
            .answers(
                &format!("cargo/bin/rustup run {toolchain} rustc --print sysroot"),
                &format!("{{root}}/toolchains/{toolchain}\n"),
            )
    }

    fn probe<T>(&self, ask: impl FnOnce(&Probe<'_>) -> T) -> T {
        let root = self.root.path();
        let output = |program: &Path, arguments: &[&str]| {
            let program = program.strip_prefix(root).expect("only this machine's programs are asked");
            self.answers.get(&format!("{} {}", program.display(), arguments.join(" "))).cloned()
        };
        ask(&Probe {
            search: vec![root.join("usr/bin"), root.join("cargo/bin")],
            system: root.join("usr/bin"),
            output: &output,
        })
    }

    fn compiler(&self) -> Result<Compiler, String> {
        self.probe(|probe| probe.compiler())
    }

    fn linker(&self) -> Result<PathBuf, String> {
        self.probe(|probe| probe.linker())
    }
}

#[test]
fn the_distributions_compiler_is_taken_when_it_has_a_core_for_the_kernel() {
    let machine = Machine::debian().file("rustlib/bpfel/libcore-8056e5e5b270ef4d.rlib");
    let bin = machine.root.path().join("usr/bin");
    assert_eq!(
        machine.compiler(),
        Ok(Compiler::System { rustc: bin.join("rustc"), cargo: bin.join("cargo") })
    );
}

#[test]
fn the_distributions_compiler_is_preferred_to_a_nightly() {
    let machine = Machine::debian()
        .file("rustlib/bpfel/libcore-1.rlib")
        .rustup("nightly", "rustc 1.97.0-nightly (x 2026-05-19)")
        .file("toolchains/nightly/lib/rustlib/src/rust/library/core/src/lib.rs");
    assert!(matches!(machine.compiler(), Ok(Compiler::System { .. })));
}

#[test]
fn a_distribution_compiler_without_core_is_refused_with_the_reason() {
    let machine = Machine::debian().file("rustlib/bpfel/libstd-1.rlib");
    let reason = machine.compiler().unwrap_err();
    assert!(reason.contains("rustc has no core for bpfel-unknown-none; rustup is not installed"), "{reason}");
}

#[test]
fn a_distribution_compiler_older_than_the_workspace_wants_is_refused() {
    let machine = Machine::debian()
        .file("rustlib/bpfel/libcore-1.rlib")
        .answers("usr/bin/rustc --version", "rustc 1.85.0 (4d91de4e4 2025-02-17)");
    let reason = machine.compiler().unwrap_err();
    assert!(reason.contains("usr/bin/rustc is older than 1."), "{reason}");
}

#[test]
fn a_nightly_with_rust_src_is_taken() {
    let machine = Machine::new()
        .rustup("nightly", "rustc 1.97.0-nightly (e50aa6fba 2026-05-19)")
        .file("toolchains/nightly/lib/rustlib/src/rust/library/core/src/lib.rs");
    let rustup = machine.root.path().join("cargo/bin/rustup");
    assert_eq!(machine.compiler(), Ok(Compiler::Nightly { rustup, toolchain: "nightly".to_owned() }));
}

#[test]
fn the_nightly_that_the_linker_is_known_to_read_is_preferred() {
    let machine = Machine::new()
        .rustup("nightly", "rustc 2.1.0-nightly (x)")
        .file("toolchains/nightly/lib/rustlib/src/rust/library/core/src/lib.rs")
        .rustup(NIGHTLY, "rustc 1.97.0-nightly (x)")
        .file(&format!("toolchains/{NIGHTLY}/lib/rustlib/src/rust/library/core/src/lib.rs"));
    assert!(matches!(machine.compiler(), Ok(Compiler::Nightly { toolchain, .. }) if toolchain == NIGHTLY));
}

#[test]
fn a_nightly_without_rust_src_is_refused_with_the_reason() {
    let machine = Machine::new().rustup("nightly", "rustc 1.97.0-nightly (e50aa6fba 2026-05-19)");
    let reason = machine.compiler().unwrap_err();
    assert!(reason.ends_with("nightly has no rust-src"), "{reason}");
}

#[test]
fn the_linker_is_found_beside_cargo_when_the_path_does_not_have_it() {
    let machine = Machine::new()
        .file("cargo/bin/bpf-linker")
        .answers("cargo/bin/bpf-linker --version", "bpf-linker 0.13.0\n");
    assert_eq!(machine.linker(), Ok(machine.root.path().join("cargo/bin/bpf-linker")));
}

#[test]
fn an_old_linker_does_not_hide_a_good_one_behind_it() {
    let machine = Machine::new()
        .file("usr/bin/bpf-linker")
        .answers("usr/bin/bpf-linker --version", "bpf-linker 0.9.15")
        .file("cargo/bin/bpf-linker")
        .answers("cargo/bin/bpf-linker --version", "bpf-linker 0.14.1");
    assert_eq!(machine.linker(), Ok(machine.root.path().join("cargo/bin/bpf-linker")));
}

#[test]
fn an_old_or_broken_linker_is_refused_with_the_reason() {
    let old = Machine::new()
        .file("usr/bin/bpf-linker")
        .answers("usr/bin/bpf-linker --version", "bpf-linker 0.9.15");
    assert!(old.linker().unwrap_err().ends_with("bpf-linker is older than 0.13.0"));
    let broken = Machine::new().file("usr/bin/bpf-linker");
    assert!(broken.linker().unwrap_err().ends_with("bpf-linker does not start"));
    assert_eq!(Machine::new().linker().unwrap_err(), "bpf-linker is not installed");
}

#[test]
fn versions_are_compared_as_numbers() {
    assert!(number("0.13.0") > number("0.9.15"));
    assert_eq!(number("1.97.0-nightly"), Some([1, 97, 0]));
    assert_eq!(number("1.92"), Some([1, 92, 0]));
    assert_eq!(version("bpf-linker"), None);
}

#[test]
fn each_compiler_gets_the_cargo_that_belongs_to_it() {
    let arguments = |compiler: Compiler| -> Vec<String> {
        let cargo = compiler.cargo("build");
        cargo.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect()
    };
    let system = Compiler::System { rustc: "/usr/bin/rustc".into(), cargo: "/usr/bin/cargo".into() };
    assert_eq!(arguments(system), ["build"]);
    let nightly = Compiler::Nightly { rustup: "/x/rustup".into(), toolchain: "nightly".to_owned() };
    assert_eq!(arguments(nightly), ["run", "nightly", "cargo", "build", "-Z", "build-std=core"]);
}
