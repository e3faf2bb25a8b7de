//! Recordings: observations go to a file, and from a file to another core, which emits the same events again.
//!
//! ```text
//! daemon ─► Recorder ─► RecordQueue (bounded, a thread) ─► FILE, FILE.1       `run --record`
//!                                                       └► STATE/recorder/*   the flight recorder, always on
//!                                                              └► STATE/incidents/ID/*   kept when one opens
//! FILE or bundle ─► Reader ─► Core ─► events                              `replay`
//! ```
//!
//! Recordings hold observations, which are masked at their sources; nothing else of the node is recorded. No stage of
//! the pipeline depends on this module.

mod budgets;
pub mod bundle;
mod flight;
pub mod format;
mod incident_windows;
pub mod offline_state;
pub mod reader;
mod record_queue;
pub mod recorder;
pub mod replay;
mod rotating_file;
mod segments;
pub mod settings;

pub use rotating_file::create_private;

#[cfg(test)]
mod tests;
