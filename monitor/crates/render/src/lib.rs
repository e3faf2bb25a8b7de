//! Text for terminals: events, incidents, stories and the state of the node.
//!
//! Values enter, text leaves; nothing is read or written here. Stories, incidents and the state fit 80 columns; so do the
//! lines of events on a terminal, but for commands. Names, messages and paths come
//! from outside and may hold terminal escapes, so control characters are escaped.

use jiff::tz::TimeZone;
use kevtmon_event::Severity;
use kevtmon_types::escape::Escaped;

mod event;
pub use event::Transcript;
mod fold;
pub use fold::Fold;

pub mod doctor;
pub mod explain;
pub mod holders;
pub mod incident;
pub mod leaks;
mod paragraph;
pub mod state;
pub mod story;
pub mod time;
mod wrap;

/// How text is written.
#[derive(Debug, Clone)]
pub struct Pretty {
    /// Whether the output is a terminal that shows colours.
    pub colour: bool,
    pub zone: TimeZone,
}

impl Pretty {
    fn paint(&self, style: Style, text: &str) -> String {
        if self.colour { format!("\x1b[{}m{text}\x1b[0m", style.code()) } else { text.to_owned() }
    }
}

/// Graphic rendition of a word.
#[derive(Clone, Copy)]
enum Style {
    Dim,
    Bold,
    Cyan,
    Yellow,
    Red,
}

impl Style {
    /// Parameters of the SGR control sequence.
    fn code(self) -> &'static str {
        match self {
            Self::Dim => "2",
            Self::Bold => "1",
            Self::Cyan => "36",
            Self::Yellow => "33",
            Self::Red => "1;31",
        }
    }
}

fn severity_style(severity: Severity) -> Style {
    match severity {
        Severity::Debug | Severity::Info => Style::Dim,
        Severity::Notice => Style::Cyan,
        Severity::Warning => Style::Yellow,
        Severity::Critical => Style::Red,
    }
}

/// Text with control characters and hidden ones escaped.
pub fn escaped(text: &str) -> String {
    Escaped(text).to_string()
}

#[cfg(test)]
#[path = "../../history/src/test_support/mod.rs"]
mod test_support;
