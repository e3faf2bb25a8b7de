//! Questions about what happened: from the memory of the running daemon, or from what it left on disk.
//!
//! ```text
//! word, filters ─► History (daemon's memory, its socket, a store) ─► records ─► story ─► cli
//! ```
//!
//! [`EventFilter`] says what is wanted, [`History`] finds it, [`record`] reads it leniently, [`story`] puts it
//! in order. Only [`remote`] and [`offline`] do I/O; nothing here prints.

pub mod blind;
pub mod filter;
pub mod history;
pub mod key;
pub mod moment;
pub mod record;
pub mod story;
pub mod subject;
pub mod verdict;
pub mod why;
pub mod wire;

pub use filter::{EventFilter, IncidentFilter, Order, Position};
pub use history::{Extent, Found, History, HistoryError, IncidentView, Page};
pub use record::Record;

/// Major version of the interface; another one is refused.
pub const API: u32 = 1;
/// Header that carries [`API`], in requests and answers.
pub const API_HEADER: &str = "kevtmon-api";
