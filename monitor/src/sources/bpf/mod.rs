//! The kernel programs: loaded, attached by the best rung that works, and read.
//!
//! In: the embedded object, the running kernel's type information. Out: tasks, neighbor changes, unmounts,
//! and what the ring could not carry. A hook that does not work is reported with its reason; the others go on.

use std::sync::Arc;

use thiserror::Error;

use crate::observation::{SourceKind, SourceStatus};

pub mod btf;
mod counters;
mod decode;
mod load;
mod ring;

pub use counters::{KernelCounters, LOSS_REASONS};
pub use decode::{DecodeError, record};
pub use load::{BpfSource, load};

/// Names of the hooks in configuration, events and metrics.
pub const NEIGHBOR: &str = "hook.neighbor";
/// See [`NEIGHBOR`].
pub const UMOUNT: &str = "hook.umount";

/// Why a hook that the configuration does not want is down.
pub const SWITCHED_OFF: &str = "switched off";

/// What to load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BpfConfig {
    /// Size of the ring in bytes, a power of two of pages.
    pub ring_bytes: u32,
    /// Whether to hook neighbor changes.
    pub neighbor: bool,
    /// Whether to hook umount(2).
    pub umount: bool,
    /// Whether the programs log.
    pub log: bool,
}

/// Why no program at all could be loaded.
#[derive(Debug, Error)]
pub enum BpfError {
    /// Built without the object.
    #[error("this binary was built without its kernel programs")]
    NoObject,
    /// The kernel has no type information.
    #[error("needs BTF at {path}, this kernel has none")]
    NoBtf {
        /// Where it was looked for.
        path: &'static str,
        /// What reading it said.
        #[source]
        source: std::io::Error,
    },
    /// The type information is not usable.
    #[error("type information at {path}")]
    Btf {
        /// Where it was read.
        path: &'static str,
        /// What is wrong.
        #[source]
        source: btf::BtfError,
    },
    /// aya could not parse it.
    #[error("type information at {path}")]
    AyaBtf {
        /// Where it was read.
        path: &'static str,
        /// What is wrong.
        #[source]
        source: aya::BtfError,
    },
    /// The kernel refused the object's maps.
    #[error("the kernel refused the programs' maps")]
    Load(#[source] Box<aya::EbpfError>),
    /// The object has no such map: it is not of this build.
    #[error("the embedded object has no map {0}")]
    NoMap(&'static str),
    /// A map could not be used.
    #[error("map {name}")]
    Map {
        /// Which.
        name: &'static str,
        /// Why.
        #[source]
        source: Box<aya::maps::MapError>,
    },
    /// The ring could not be watched.
    #[error("the ring cannot be polled")]
    Poll(#[source] std::io::Error),
}

fn status(source: &str, rung: Result<&str, String>) -> SourceStatus {
    match rung {
        Ok(rung) => SourceStatus { rung: Some(rung.into()), ..SourceStatus::up(SourceKind::Hook, source) },
        Err(reason) => SourceStatus::down(SourceKind::Hook, source, reason),
    }
}

/// Reads the kernel's counters; shared with whoever renders metrics.
pub type CounterReader = Arc<dyn Fn() -> KernelCounters + Send + Sync>;
