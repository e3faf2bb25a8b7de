//! kevtmon names who broke a node's network or mounts, the moment it happens.
//!
//! ```text
//! sources ─► Observation ─► core + node model ─► Event ─► sinks
//!    ▲                          │
//!    └──────── Request ◄────────┘
//! ```
//!
//! Modules in the order of the pipeline; `ARCHITECTURE.md` has the map and the invariants.

pub mod sources;

pub mod observation;

pub mod core;
pub mod node;

pub mod event;

pub mod redact;
