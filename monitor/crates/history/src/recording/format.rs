//! The lines of a recording: their content and types.
//!
//! ```text
//! {"format":"kevtmon-recording","version":1, …, "state":{…}}     a part starts, with the complete state of the core
//! {"at":…,"fact":{"neighbor":{…}}}                               one observation per line, in the order
//! {"at":…,"fact":"tick"}                                         in which the core took them
//! ```
//!
//! Each part can be replayed on its own. Consecutive parts can be concatenated with `cat`, and with a bundle's header
//! before them they are a bundle. Where observations were discarded, a part ends, and the header of the next one
//! has the gap. What one account had too many of is left out, and `{"unrecorded":{"count":…}}` says how many.

use std::io;

use kevtmon_core::Saved;
use kevtmon_core::state::NodeState;
use kevtmon_event::Incident;
use kevtmon_observation::{BootNs, SourceStatus};
use kevtmon_types::build_info;
use kevtmon_types::settings::Settings;
use nix::sys::utsname::uname;
use serde::{Deserialize, Serialize};

/// `format` in the first line of a recording.
pub const RECORDING: &str = "kevtmon-recording";
/// `format` in the first line of a bundle.
pub const BUNDLE: &str = "kevtmon-bundle";
/// The version of both; another one is not read. Fields and facts can be added without another version, to the saved
/// state of the core, too, if they have a default.
pub const VERSION: u32 = 1;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Writer {
    /// Version of the program.
    pub kevtmon: String,
    /// Git revision of the program.
    pub revision: String,
    /// Release of the kernel.
    pub kernel: String,
    /// The configuration in effect.
    #[serde(skip_serializing_if = "serde_json::Value::is_null")]
    pub config: serde_json::Value,
}

impl Writer {
    /// This program on the running kernel, with a configuration.
    pub fn this_build(config: serde_json::Value) -> Self {
        let kernel = uname().map(|name| name.release().to_string_lossy().into_owned()).unwrap_or_default();
        Self {
            kevtmon: build_info::VERSION.to_owned(),
            revision: build_info::revision().to_owned(),
            kernel,
            config,
        }
    }
}

/// The first line of a part: all that a core starts with.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header<'a> {
    /// [`RECORDING`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    #[serde(flatten)]
    pub writer: Writer,
    /// When the part starts, RFC 3339.
    pub started: String,
    /// When the daemon started, boot time in nanoseconds: distinguishes its recordings from those of the next run.
    #[serde(default)]
    pub run: BootNs,
    /// Parts of this recording before this one.
    #[serde(default)]
    pub part: u64,
    /// What is missing between the previous part and this one.
    pub gap: Option<Gap>,
    /// Whether observations were left out of the previous part, which tells how many: whoever caused them had too many.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub after_incomplete: bool,
    /// Settings of the core.
    pub settings: Settings,
    /// State of the core.
    #[serde(default)]
    pub state: Saved<'a>,
}

impl Header<'_> {
    /// Whether this part continues where another one ended: then its state adds nothing.
    pub fn continues(&self, earlier: &Self) -> bool {
        (self.run, &self.settings.boot_id) == (earlier.run, &earlier.settings.boot_id)
            && self.part.checked_sub(1) == Some(earlier.part)
            && self.gap.is_none()
            && !self.after_incomplete
    }
}

/// Observations that are missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    pub discarded: u64,
    /// `queue-full`, `write-failed`.
    pub reason: String,
}

/// The first line of a bundle; the recording of its window follows.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BundleHeader {
    /// [`BUNDLE`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// Who packed it. The configuration is that of the daemon.
    #[serde(flatten)]
    pub writer: Writer,
    /// When it was packed, RFC 3339.
    pub created: String,
    /// The incident, in its newest state.
    pub incident: Incident,
    /// What the recording daemon could observe.
    pub doctor: Doctor,
    /// The model at the end of the window, as `kevtmon state --json` shows it; absent where nothing could be
    /// replayed.
    pub state: Option<Box<NodeState>>,
}

/// What the recording daemon could observe, and by which means. Another one may have packed the bundle.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doctor {
    /// Version of the daemon.
    pub kevtmon: String,
    pub revision: String,
    /// Release of the kernel that it ran on.
    pub kernel: String,
    /// Sources and hooks at the end of the window: whether each delivers, on which attach mode, why not on a better one.
    pub sources: Vec<SourceStatus>,
}

/// Appends a value and a newline.
/// Errors: never in practice: nothing that is written has maps with keys that are not strings.
pub fn write_line(value: &impl Serialize, out: &mut Vec<u8>) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.push(b'\n');
    Ok(())
}
