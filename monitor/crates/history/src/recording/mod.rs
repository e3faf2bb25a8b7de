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

use std::path::Path;

pub use rotating_file::create_private;

/// Whether a path relative to the state directory is that of something which the flight recorder makes.
pub fn is_own(name: &Path) -> bool {
    let parts: Vec<&str> = name.iter().filter_map(|part| part.to_str()).collect();
    match parts[..] {
        [segments::DIRECTORY | incident_windows::DIRECTORY] => true,
        [segments::DIRECTORY, file] => segments::is_own(file),
        [incident_windows::DIRECTORY, name] => incident_windows::is_own(name),
        [incident_windows::DIRECTORY, window, file] => {
            incident_windows::is_window(window) && incident_windows::is_own_in_window(file)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
