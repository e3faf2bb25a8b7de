//! kevtmon names the process that broke a node's network or mounts, the moment it happens.
//!
//! ```text
//! sources ─► Observation ─► core + node model ─► Event ─► sinks
//!    ▲                          │
//!    └──────── Request ◄────────┘
//! ```
//!
//! Modules in the order of the pipeline; `ARCHITECTURE.md` has the map and the invariants.

pub mod bucket;
pub mod build_info;
pub mod capabilities;
pub mod clock;
pub mod error_chain;
pub mod escape;
mod is_zero;
pub mod kernel_release;
mod names;
pub mod namespace;
mod pairs;
pub mod position;
pub mod redact;
mod regular_file;
pub mod shares;

pub mod event;
pub mod observation;
pub mod settings;

pub mod holders;
pub mod sources;

pub mod core;
pub mod diagnose;
pub mod node;

pub mod http;
pub mod metrics;
pub mod query;
pub mod queue;
pub mod render;
pub mod sinks;
pub mod store;
pub mod web_config;

pub mod recording;

pub mod allocator;
pub mod cli;
pub mod config;
pub mod daemon;
pub mod privilege;
pub mod self_test;

#[cfg(test)]
mod tests;
