//! What was built: version, revision and kernel programs, as the executable hands them over.

use std::sync::OnceLock;

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What only the executable knows.
#[derive(Debug)]
pub struct Build {
    /// Git revision of the sources it was built from.
    pub revision: &'static str,
    /// The ELF file of the kernel programs, at an aligned address; empty in a daemon that was built without them.
    pub programs: &'static [u8],
}

static BUILD: OnceLock<&'static Build> = OnceLock::new();

/// To be called once, before all else; what comes later is ignored.
pub fn set(build: &'static Build) {
    let _ = BUILD.set(build);
}

/// Git revision of the sources; `unknown` outside the executable.
pub fn revision() -> &'static str {
    BUILD.get().map_or("unknown", |build| build.revision)
}

/// The ELF file of the kernel programs; empty outside the executable.
pub fn programs() -> &'static [u8] {
    BUILD.get().map_or(&[], |build| build.programs)
}
