//! kevtmon names who broke a node's network or mounts, the moment it happens.
//!
//! ```text
//! sources ─► Observation ─► core + node model ─► Event ─► sinks
//!    ▲                          │
//!    └──────── Request ◄────────┘
//! ```
//!
//! Modules in the order of the pipeline; `ARCHITECTURE.md` has the map and the invariants.

pub mod observation;
pub mod redact;

pub mod holders;
pub mod sources;

pub mod core;
pub mod node;

pub mod event;

pub mod metrics;
pub mod sinks;

pub mod cli;
pub mod config;
pub mod daemon;
pub mod privilege;
