//! Network namespaces that a test makes, or that belong to a container.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::process::{Ran, attempt, run, run_with_input};
use crate::quiet;
use crate::reaper::Will;
use crate::unique;

/// A way into a network namespace.
#[derive(Debug, Clone)]
pub struct Place {
    path: PathBuf,
    handle: String,
}

impl Place {
    /// The namespace of a process.
    #[must_use]
    pub fn of_process(pid: u32) -> Self {
        Self { path: format!("/proc/{pid}/ns/net").into(), handle: pid.to_string() }
    }

    /// File that names the namespace.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What `ip link … netns` takes: a name or a process id.
    #[must_use]
    pub fn handle(&self) -> &str {
        &self.handle
    }

    /// Inode number, by which the daemon names it.
    #[must_use]
    pub fn inum(&self) -> u64 {
        std::fs::metadata(&self.path).expect("the namespace exists").ino()
    }

    /// Runs a command in it; panics unless it succeeds. The process becomes the command, so its id is the actor's.
    pub fn run(&self, line: &str) -> Ran {
        run(&format!("nsenter --net={} {line}", self.path.display()))
    }

    /// Runs a command in it, whatever comes of it.
    pub fn attempt(&self, line: &str) -> Ran {
        let net = format!("--net={}", self.path.display());
        let mut words = vec!["nsenter", &net];
        words.extend(line.split_whitespace());
        attempt(&words)
    }

    /// Runs one `ip` process in it that executes several lines.
    pub fn ip_batch(&self, lines: &str) -> Ran {
        run_with_input(&format!("nsenter --net={} ip -batch -", self.path.display()), lines)
    }
}

/// A named network namespace of a test.
#[derive(Debug)]
pub struct Netns {
    name: String,
    place: Place,
    will: Option<Will>,
    _shared: quiet::Shared,
}

impl Netns {
    /// Makes one, with its loopback up.
    #[must_use]
    pub fn new() -> Self {
        let shared = quiet::Shared::take();
        let name = unique::name("kvn");
        let will = Will::new(&format!("ip netns del {name} 2>/dev/null\n"));
        run(&format!("ip netns add {name}"));
        let place = Place { path: format!("/run/netns/{name}").into(), handle: name.clone() };
        place.run("ip link set lo up");
        Self { name, place, will: Some(will), _shared: shared }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The way in.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Deletes it now.
    pub fn delete(mut self) {
        run(&format!("ip netns del {}", self.name));
        if let Some(will) = self.will.take() {
            will.revoke();
        }
    }
}

impl Default for Netns {
    fn default() -> Self {
        Self::new()
    }
}
