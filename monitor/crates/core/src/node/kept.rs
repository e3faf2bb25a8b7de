//! What is kept over a restart besides events.

use super::gateways::KnownEntry;
use super::rbd::LastUser;

/// What the next run is to know of this one, besides its events.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Kept {
    /// Gateways, as they were known last.
    pub gateways: Vec<KnownEntry>,
    /// Which pods used RBD images that are mapped.
    pub rbd_users: Vec<LastUser>,
}
