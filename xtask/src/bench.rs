//! `cargo xtask bench`: what kevtmon costs and how fast it is, measured side by side in one run.

mod replay;
mod store;

use std::path::Path;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use crate::build;
use crate::setup::Privilege;
use crate::test::{E2E, install_end_to_end_prerequisites};
use crate::workspace;

#[derive(Args)]
pub(crate) struct Options {
    /// Which one; all of them when not given
    name: Option<Name>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Memory and time that 250 containers need, and how many are missed when 50 a second come and go
    Churn,
    /// How much slower starting 2,000 programs becomes, none of them a CNI plugin
    Exec,
    /// What three processes of an unprivileged user at full speed cost, and what they hide of others
    Flood,
    /// How fast the holders of a mount are named among 100 to 10,000 processes, beside fuser, lsof and lsfd
    Holders,
    /// Processor time and memory on a node with 20 containers where nothing happens, and after a storm
    Idle,
    /// Kernel time stamp to JSON line, at 1,000 neighbor deletions a second
    Latency,
    /// How much slower adding and deleting 100,000 neighbors becomes, beside `ip monitor neigh`; and how soon the model is right
    Neighbors,
    /// How fast the core replays a recording, and whether its memory stays flat
    Replay,
    /// How long it takes to be ready, and to read everything again after a loss, with 10 to 1,000 network namespaces
    Start,
    /// Events per second that the event store takes, and how fast queries are with a million of them
    Store,
    /// How much longer system calls take that no mount refuses: removals, renames, reads of sysctls, and one that no hook looks at
    Syscalls,
}

/// Those that need root, in the order in which they run.
const OF_ROOT: &str = "idle churn exec flood holders latency neighbors start syscalls";

pub(crate) fn bench(options: &Options) -> Result<()> {
    let wanted = |name| options.name.is_none_or(|given| given == name);
    if wanted(Name::Store) {
        store::store()?;
    }
    if options.name == Some(Name::Store) {
        return Ok(());
    }
    let daemon = build::release()?;
    if wanted(Name::Replay) {
        replay::replay(&daemon)?;
    }
    if options.name == Some(Name::Replay) {
        return Ok(());
    }
    if Privilege::of_this_user() != Privilege::Root {
        bail!("the other benchmarks make network namespaces, which needs root");
    }
    for name in OF_ROOT.split(' ').filter(|name| Name::from_str(name, false).is_ok_and(wanted)) {
        in_harness(name, &daemon)?;
    }
    Ok(())
}

/// Runs a benchmark that is made of what the end-to-end tests are made of.
fn in_harness(name: &str, daemon: &Path) -> Result<()> {
    install_end_to_end_prerequisites(Privilege::Root)?;
    let mut bench = workspace::cargo("bench");
    bench.args(["--package", E2E, "--bench", name]).env("KEVTMON_BIN", daemon);
    workspace::check(&mut bench)
}
