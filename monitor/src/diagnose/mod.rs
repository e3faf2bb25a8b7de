//! What is wrong now, since when, and why: events and the model go in, incidents come out.
//!
//! Each kind of incident is one file and one line in [`all`]. A diagnosis sees events, changes of the model
//! and time; it says [`Findings`]. What becomes of them, under which id and how often it is told, is the
//! engine's business. Neither does I/O or reads a clock: what only I/O can tell is asked for.

use std::fmt::Debug;

use serde_json::Value;

use crate::event::{Event, WallClock};
use crate::node::mounts::MountKey;
use crate::node::view::NodeView;
use crate::observation::{BootNs, HolderReport, NsInum};
use crate::settings::{Threshold, Thresholds};

mod advice;
mod engine;
mod finding;
mod gateway_neighbor_lost;
mod identity;
mod incidents;
mod timers;
mod volume_busy;

pub use engine::{Engine, IncidentChange, RestoreError, SCAN_ID, Saved};
pub use finding::{Count, Finding, Findings, IncidentKey, IncidentObjects, Repeat, Report};
pub use incidents::{Incidents, OpenIncident};

/// Every kind, in the order of [`all`].
pub const KINDS: [&str; 2] = [gateway_neighbor_lost::KIND, volume_busy::KIND];

/// The thresholds of all diagnoses, in the order of the configuration file.
pub fn thresholds() -> impl Iterator<Item = &'static Threshold> {
    [gateway_neighbor_lost::THRESHOLDS, volume_busy::THRESHOLDS].into_iter().flatten().copied()
}

/// Trouble that one diagnosis follows at once; and incidents that are open at once.
pub(crate) const CAPACITY: usize = 1024;

/// What an earlier run left open gets no worse before the node was looked at; this long after it is thought of
/// again.
pub(crate) const STARTUP_GRACE: BootNs = 5_000_000_000;

/// The diagnoses, causes before their effects: a later one sees what an earlier one found in the same event.
#[must_use]
pub fn all(thresholds: &Thresholds) -> Vec<Box<dyn Diagnosis>> {
    vec![
        Box::new(gateway_neighbor_lost::GatewayNeighborLost::new(thresholds)),
        Box::new(volume_busy::VolumeBusy::new(thresholds)),
    ]
}

/// Finds one kind of incident.
pub trait Diagnosis: Debug + Send {
    /// The kind, as users filter and alert on it.
    fn kind(&self) -> &'static str;

    /// An event was told. The model shows it already.
    fn event(&mut self, context: &Context<'_>, event: &Event, findings: &mut Findings);

    /// The model was read anew, or something happened that is no event.
    fn change(&mut self, _seen: &Context<'_>, _change: &ModelChange<'_>, _findings: &mut Findings) {}

    /// Time has passed.
    fn tick(&mut self, _seen: &Context<'_>, _findings: &mut Findings) {}

    /// When it wants the next tick.
    fn deadline(&self) -> Option<BootNs> {
        None
    }

    /// An incident of this kind was open when an earlier run ended: goes on with it, and gives its subject.
    /// `event` is the newest one of the incident.
    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<String>;

    /// All that it remembers, but for its thresholds.
    ///
    /// # Errors
    /// Never in practice: nothing that is saved has maps with keys that are not strings.
    fn save(&self) -> Result<Value, serde_json::Error>;

    /// Goes on where another one was.
    ///
    /// # Errors
    /// When it does not understand what that one saved.
    fn restore(&mut self, saved: Value) -> Result<(), serde_json::Error>;
}

/// What a diagnosis can look at.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// Time; never goes back.
    pub now: BootNs,
    /// To read the times of events.
    pub clock: WallClock,
    /// The model.
    pub node: &'a NodeView<'a>,
    /// What is open.
    pub incidents: &'a Incidents,
    /// Since when every source delivers; `None` during the start.
    pub ready: Option<BootNs>,
}

/// What a diagnosis hears of besides events.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ModelChange<'a> {
    /// A network namespace was read.
    Netns(NsInum),
    /// A network namespace is gone.
    NetnsGone(NsInum),
    /// A container appeared, changed or went.
    Container(&'a str),
    /// All containers of a runtime were listed.
    Runtime,
    /// Every source has delivered what it has.
    Ready,
    /// An unmount was refused once more, and no event tells of it.
    Refused(&'a MountKey),
    /// A scan that a diagnosis asked for is done.
    Holders(&'a HolderReport),
}

#[cfg(test)]
mod stage;
#[cfg(test)]
mod tests;
