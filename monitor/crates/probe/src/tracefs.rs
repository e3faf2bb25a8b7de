//! The file system that has the ids and formats of tracepoints.

use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::mount::MsFlags;

/// Where every tool expects it.
pub(super) const TRACEFS: &str = "/sys/kernel/tracing";

/// Where it was before 4.1, and still is if debugfs is mounted.
const IN_DEBUGFS: &str = "/sys/kernel/debug/tracing";

fn mounted() -> Option<&'static Path> {
    [TRACEFS, IN_DEBUGFS].map(Path::new).into_iter().find(|root| root.join("events/syscalls").exists())
}

/// Mounts it where it is not: some nodes do not do that at boot. It stays there.
pub(super) fn mount() -> Result<(), Errno> {
    if mounted().is_some() {
        return Ok(());
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    nix::mount::mount(Some("tracefs"), TRACEFS, Some("tracefs"), flags, None::<&str>)?;
    tracing::info!(path = TRACEFS, "mounted tracefs");
    Ok(())
}

/// The text that describes the fields of a tracepoint of system calls.
pub(super) fn format_of_syscall(event: &str) -> io::Result<String> {
    let root = mounted().unwrap_or(Path::new(TRACEFS));
    std::fs::read_to_string(root.join("events/syscalls").join(event).join("format"))
}
