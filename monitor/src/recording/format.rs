//! The lines of a recording: what stands in them, and how they are told apart.
//!
//! ```text
//! {"format":"kevtmon-recording","version":2, …, "state":{…}}     a part begins, with all that the core knows
//! {"at":…,"fact":{"neighbor":{…}}}                               one observation a line, in the order
//! {"at":…,"fact":"tick"}                                         in which the core took them
//! ```
//!
//! Each part can be replayed alone. Parts that follow one another can be put together with `cat`, and with a
//! bundle's line before them they are a bundle. Where observations could not be kept, a part ends, and the header
//! of the next one tells the gap.

use std::io;

use nix::sys::utsname::uname;
use serde::{Deserialize, Serialize};

use crate::build_info;
use crate::core::state::State;
use crate::core::{Core, Saved};
use crate::event::Incident;
use crate::observation::{BootNs, SourceStatus};
use crate::settings::Settings;

/// What the first line of a recording says it is.
pub const RECORDING: &str = "kevtmon-recording";
/// What the first line of a bundle says it is.
pub const BUNDLE: &str = "kevtmon-bundle";
/// The version of both that is written, and the only one that is read. Fields and facts can be added without
/// another version, to what is saved of a core too if there is a default for them.
pub const VERSION: u32 = 2;

/// Who wrote it.
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
    #[must_use]
    pub fn this_build(config: serde_json::Value) -> Self {
        let kernel = uname().map(|name| name.release().to_string_lossy().into_owned()).unwrap_or_default();
        Self {
            kevtmon: build_info::VERSION.to_owned(),
            revision: build_info::REVISION.to_owned(),
            kernel,
            config,
        }
    }
}

/// The first line of a part: all that a core begins with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header<'a> {
    /// [`RECORDING`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// Who wrote it.
    #[serde(flatten)]
    pub writer: Writer,
    /// When the part begins, RFC 3339.
    pub started: String,
    /// When the daemon started, boot time in nanoseconds: tells its recordings from those of the next one.
    #[serde(default)]
    pub run: BootNs,
    /// Parts of this recording before this one.
    #[serde(default)]
    pub part: u64,
    /// What is missing between the part before and this one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gap: Option<Gap>,
    /// What the core was told.
    pub settings: Settings,
    /// What the core goes on from.
    #[serde(default)]
    pub state: Saved<'a>,
}

impl Header<'_> {
    /// Whether this part goes on where another one ended: then its state tells nothing new.
    #[must_use]
    pub fn continues(&self, earlier: &Self) -> bool {
        (self.run, &self.settings.boot_id) == (earlier.run, &earlier.settings.boot_id)
            && self.part.checked_sub(1) == Some(earlier.part)
            && self.gap.is_none()
    }
}

/// Observations that are missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// How many.
    pub discarded: u64,
    /// `queue-full`, `write-failed`.
    pub reason: String,
}

/// The first line of a bundle; the recording of its window follows.
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
    /// What it is about, as last told.
    pub incident: Incident,
    /// What the daemon that recorded could see.
    #[serde(default)]
    pub doctor: Doctor,
    /// The model at the end of the window, as `kevtmon state --json` shows it; absent where nothing could be
    /// replayed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub state: Option<Box<State>>,
}

/// What the daemon that recorded could see, and with what. The bundle may be packed by another one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Doctor {
    /// Version of the daemon.
    pub kevtmon: String,
    /// Its git revision.
    pub revision: String,
    /// Release of the kernel that it ran on.
    pub kernel: String,
    /// Sources and hooks at the end of the window: whether each delivers, on which rung, why not on a better one.
    pub sources: Vec<SourceStatus>,
}

/// Appends a value and a newline.
///
/// # Errors
/// Never in practice: nothing that is written has maps with keys that are not strings.
pub fn write_line(value: &impl Serialize, out: &mut Vec<u8>) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.push(b'\n');
    Ok(())
}

/// Which part of which recording begins, and after what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) run: BootNs,
    pub(super) part: u64,
    pub(super) gap: Option<Gap>,
    /// RFC 3339.
    pub(super) started: String,
}

/// Appends the line that a part begins with, in which is all that the core knows now.
pub(super) fn write_beginning(
    writer: &Writer,
    place: Place,
    core: &Core,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let header = Header {
        format: RECORDING.to_owned(),
        version: VERSION,
        writer: writer.clone(),
        started: place.started,
        run: place.run,
        part: place.part,
        gap: place.gap,
        settings: core.settings().clone(),
        state: core.save()?,
    };
    write_line(&header, out)
}
