//! The signals that the daemon handles.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::DaemonError;

pub(super) struct Signals {
    pub(super) terminate: Signal,
    pub(super) interrupt: Signal,
    pub(super) hangup: Signal,
}

impl Signals {
    pub(super) fn new() -> Result<Self, DaemonError> {
        let new =
            |kind| signal(kind).map_err(|source| DaemonError::Start { what: "signal handling", source });
        Ok(Self {
            terminate: new(SignalKind::terminate())?,
            interrupt: new(SignalKind::interrupt())?,
            hangup: new(SignalKind::hangup())?,
        })
    }
}
