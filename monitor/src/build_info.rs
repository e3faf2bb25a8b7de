//! What was built: version and revision, as `--version`, metrics and recordings show them.

/// Version of the program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Git revision of the sources it was built from.
pub const REVISION: &str = match option_env!("KEVTMON_GIT_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};
