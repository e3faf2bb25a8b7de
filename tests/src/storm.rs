//! Permanent neighbor entries that come and go, each with an address of its own.

use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::mount::Scratch;
use crate::pod::Pod;
use crate::process::Running;

/// Address of an entry.
#[must_use]
pub fn address(entry: u32) -> String {
    format!("10.77.{}.{}", entry / 250, entry % 250 + 1)
}

/// Lets these entries come and go, by one process.
pub fn storm(pod: &Pod, entries: Range<u32>) {
    pod.place().ip_batch(&lines(entries));
}

fn lines(entries: Range<u32>) -> String {
    let lines = entries.map(|entry| {
        let address = address(entry);
        let add = format!("neigh replace {address} lladdr 02:00:00:00:00:0f dev eth0 nud permanent");
        format!("{add}\nneigh del {address} dev eth0\n")
    });
    lines.collect()
}

/// A storm that lasts until it is dropped.
#[derive(Debug)]
pub struct Storm {
    _process: Running,
    _lines: Scratch,
}

impl Storm {
    /// Lets these entries come and go, again and again.
    #[must_use]
    pub fn of(pod: &Pod, entries: Range<u32>) -> Self {
        let scratch = Scratch::new();
        let file = scratch.path().join("lines");
        std::fs::write(&file, lines(entries)).expect("a file can be written");
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", pod.place().path().display()));
        // Ends with the first one that fails: the namespace or the file is gone.
        command.args(["sh", "-c", "while ip -batch \"$1\"; do :; done", "sh"]).arg(&file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { _process: Running::spawn(command.process_group(0)), _lines: scratch }
    }
}
