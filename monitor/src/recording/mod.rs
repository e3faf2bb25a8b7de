//! Recordings: observations go to a file, and from a file to another core, which says the same events again.
//!
//! ```text
//! daemon ─► Recorder ─► Tape (bounded, a thread) ─► FILE, FILE.1          `run --record`
//!                                                └► STATE/recorder/*      the flight recorder, always on
//!                                                       └► STATE/incidents/ID/*   frozen when one opens
//! FILE or bundle ─► Reader ─► Core ─► events                              `replay`
//! ```
//!
//! Recordings hold observations, which are masked at their sources; nothing else of the node enters. No module of
//! the pipeline knows of this one.

pub mod bundle;
mod file;
mod flight;
pub mod format;
pub mod reader;
pub mod recorder;
pub mod remains;
pub mod replay;
mod tape;
mod window;

pub use file::create_private;

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;
