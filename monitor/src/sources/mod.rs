//! The only modules that touch the kernel, /proc and sockets. Each turns one of them into observations.

use crate::clock::boot_now;
use crate::observation::{Fact, Observation, Source};

pub mod bpf;
pub mod netlink;
pub mod procfs;
pub mod runtime;

/// Where sources put observations. Bounded: a full queue makes the source wait, so that the kernel
/// buffers and counts what it cannot.
pub type Sender = tokio::sync::mpsc::Sender<Observation>;

/// A fact that the daemon itself or one of its helpers established now.
#[must_use]
pub fn seen(fact: Fact) -> Observation {
    seen_by(Source::Daemon, fact)
}

/// A fact that a source read now.
#[must_use]
pub fn seen_by(source: Source, fact: Fact) -> Observation {
    Observation { at: boot_now(), source, fact }
}
