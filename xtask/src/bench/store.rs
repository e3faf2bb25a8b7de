//! The event store: a storm through it, a fill, and questions to a million events.

use anyhow::Result;

use crate::build::DAEMON;
use crate::ebpf::ebpf;
use crate::workspace;

pub(super) fn store() -> Result<()> {
    ebpf()?;
    workspace::check(workspace::cargo("bench").args(["--package", DAEMON, "--bench", "store"]))
}
