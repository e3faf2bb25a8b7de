//! Queries about what happened: events, incidents, and the story of one subject. Pure.
//!
//! ```text
//! filters, subject ─► History (the daemon's memory, a store, or both) ─► records ─► story
//! ```
//!
//! [`EventFilter`] holds the conditions, every [`History`] answers them, [`record`] parses events leniently, [`why`]
//! collects what a [`story`] is made of, [`explain`] tells what lines of logs mean.

pub mod coverage;
pub mod current;
pub mod doctor;
pub mod down;
pub mod explain;
pub mod filter;
pub mod group;
pub mod history;
pub mod key;
pub mod live;
mod namespace;
pub mod record;
pub mod stale;
pub mod story;
pub mod subject;
pub mod time;
pub mod verdict;
pub mod why;
pub mod wire;

pub use filter::{EventFilter, IncidentFilter, Order, Position};
pub use history::{Extent, Found, History, HistoryError, IncidentView, Page};
pub use record::Record;

/// Major version of the interface; another one is refused.
pub const API: u32 = 1;
/// Header that carries [`API`], in requests and responses.
pub const API_HEADER: &str = "kevtmon-api";
