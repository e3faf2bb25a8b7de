//! The kernel programs: loaded, attached by the best attach mode that works, and read.
//!
//! In: the embedded object, the running kernel's type information. Out: the facts that the hooks of [`hooks::HOOKS`]
//! observe, and how many records were lost. A hook that does not work is reported with its reason; the others go on.

use std::path::PathBuf;

use kevtmon_ebpf::lanes::Rate;
use thiserror::Error;

mod account;
mod attached;
pub mod btf;
mod budgets;
mod cgroup;
mod cni;
pub mod cost;
mod counters;
mod decode;
pub mod hooks;
pub mod iterators;
mod lanes;
mod lineage;
mod load;
mod mount_table;
mod object;
mod plugins;
mod questions;
mod rbd;
mod refusal;
mod ring;
mod runtime_client;
pub mod settings;
mod skipped;
mod syscall_context;
mod task;
mod tracefs;

pub use counters::{CountReader, loss_reasons};
#[cfg(test)]
use decode::record;
pub use decode::{DecodeError, Decoder};
use hooks::HookChoices;
use kevtmon_sources::procfs::readers::{Entry, entry};
pub use lanes::Lanes;
pub use load::{BpfSource, LoadedHooks, load, load_iterators};
pub use mount_table::MountTables;
pub use plugins::Plugins;

/// What readers of /proc do for the kernel programs.
pub fn jobs() -> impl Iterator<Item = Entry> {
    [entry::<lineage::Complete>()].into_iter()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BpfConfig {
    /// Size of the ring in bytes, a power of two of pages.
    pub ring_bytes: u32,
    /// How much an unprivileged user may write.
    pub user_rate: Rate,
    /// How much any other source may write.
    pub source_rate: Rate,
    /// Which attach modes are tried.
    pub hooks: HookChoices,
    /// Whether the kernel lists who may hold a mount, where it can.
    pub iterators: bool,
    /// File with the types of a kernel that has none of its own.
    pub types: Option<PathBuf>,
    /// Whether the programs log.
    pub log: bool,
    /// Why nothing is loaded whatever the rest says, if so. Attach modes without programs remain.
    pub withheld: Option<&'static str>,
}

/// Why no program at all could be loaded.
#[derive(Debug, Error)]
pub enum BpfError {
    #[error("this binary was built without its kernel programs")]
    NoObject,
    #[error("needs BTF at {path}, this kernel has none")]
    NoBtf {
        path: &'static str,
        #[source]
        source: std::io::Error,
    },
    /// The file may be that of another kernel.
    #[error("this kernel shows no BTF, and {} is not called {name}", .path.display())]
    OtherRelease { path: PathBuf, name: String },
    #[error("this kernel shows no BTF, and {} cannot be read", .path.display())]
    Types {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("type information at {}", .path.display())]
    Btf {
        path: PathBuf,
        #[source]
        source: btf::BtfError,
    },
    #[error("type information at {}", .path.display())]
    AyaBtf {
        path: PathBuf,
        #[source]
        source: aya::BtfError,
    },
    #[error("the kernel refused the programs' maps")]
    Load(#[source] Box<aya::EbpfError>),
    /// The object has no such map: it is not of this build.
    #[error("the embedded object has no map {0}")]
    NoMap(&'static str),
    #[error("cannot use map {name}")]
    Map {
        name: &'static str,
        #[source]
        source: Box<aya::maps::MapError>,
    },
    #[error("cannot poll the ring")]
    Poll(#[source] std::io::Error),
}

/// This program of tests is its own reader of /proc.
#[cfg(test)]
mod reader {
    #[test]
    fn proc_reader() {
        let jobs: Vec<_> = kevtmon_sources::jobs().chain(crate::jobs()).collect();
        if let Some(served) = kevtmon_sources::procfs::readers::serve_if_asked(std::env::args_os(), &jobs) {
            served.unwrap();
        }
    }
}
