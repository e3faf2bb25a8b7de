//! What the workspace depends on: sources, licenses and known weaknesses, by `cargo deny`. `deny.toml` has the rules.

use anyhow::Result;

use crate::setup;
use crate::workspace;

/// The tool, and the version that is installed where there is none.
const TOOL: (&str, &str) = ("cargo-deny", "0.20.2");

/// Known weaknesses are in a database of their own, which is not everywhere in reach.
pub(super) fn check() -> Result<()> {
    setup::ensure_cargo_tool(TOOL, "dependencies are checked by cargo-deny, which takes minutes to compile")?;
    deny(&["--locked", "check", "bans", "licenses", "sources"])?;
    if let Err(error) = deny(&["fetch", "db"]) {
        eprintln!("xtask: skipped: known weaknesses: their database cannot be fetched: {error:#}");
        return Ok(());
    }
    deny(&["--locked", "check", "advisories"])
}

fn deny(arguments: &[&str]) -> Result<()> {
    workspace::check(workspace::cargo("deny").args(arguments))
}
