//! What only `cargo xtask test full` runs: each test is here for its time alone, and is no less required.

use anyhow::{Result, bail};

/// Names of tests, or of modules with all in them, and what takes long. What a module is the only one to prove of an incident kind,
/// of attribution, losses, privileges or hostile input stays in the gate.
const ONLY_IN_FULL: [(&str, &str); 16] = [
    ("covers::", "each of its tests waits for mounts to settle, one after the other"),
    ("file_servers::", "servers that answer late"),
    ("glusterfs::", "a volume server of its own"),
    ("hidden_types::", "several starts of the daemon for each test; also in virtual machines"),
    ("holders_random::", "random situations, a minute"),
    ("lineage::the_details_of_a_process_are_known_again", "thousands of processes"),
    ("mount_order::", "waits for mounts to settle"),
    ("nfs::", "a server that stops answering, for a minute"),
    ("package::", "installs, updates and removes the package in a Debian of its own"),
    ("paths::", "every path of a tree"),
    ("propagation::", "every way in which mounts propagate, a minute"),
    ("restless_holders::", "processes that never rest, while no other test runs"),
    ("scans::", "scans among thousands of descriptors, half a minute"),
    ("swapped::", "waits for mounts to settle"),
    ("ui::in_a_browser", "a browser: its package takes minutes to install"),
    ("unseen_holders::", "holders that only the kernel knows"),
];

/// Whether a test is only in `full`.
pub(super) fn has(test: &str) -> bool {
    ONLY_IN_FULL.iter().any(|(name, _)| test.starts_with(name))
}

/// An error if a name of the list is no test's.
pub(super) fn check(tests: &[String]) -> Result<()> {
    for (name, _) in ONLY_IN_FULL {
        if !tests.iter().any(|test| test.starts_with(name)) {
            bail!("no end-to-end test is called {name}: correct xtask/src/test/full.rs");
        }
    }
    Ok(())
}
