//! The tenant of an event, so that nobody's events displace those of others: in queues, in memory, in the store.

use std::sync::Arc;

/// The tenant of an event; not part of the schema.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenant {
    /// How much it matters.
    pub priority: Priority,
    /// Container, user or unit of whoever caused it.
    pub name: Arc<str>,
}

/// Whom an event is about. Where not everything can be kept, a share counts the more the later it stands here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    #[default]
    Daemon,
    /// A gateway, a container or a pod; an incident.
    Known,
    Node,
    /// A namespace of which nothing is known, or which a user made.
    Foreign,
}

impl Priority {
    pub const ALL: [Self; 4] = [Self::Daemon, Self::Known, Self::Node, Self::Foreign];

    /// Places of a queue that must be free for each that it has already.
    pub fn price(self) -> usize {
        match self {
            Self::Daemon | Self::Known | Self::Node => 1,
            Self::Foreign => 4,
        }
    }

    /// What a byte of such an event counts, compared with others.
    pub fn weight(self) -> u64 {
        match self {
            Self::Daemon | Self::Known => 1,
            Self::Node => 2,
            Self::Foreign => 8,
        }
    }
}

impl Tenant {
    /// What so many bytes of it count.
    pub fn cost(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(self.priority.weight())
    }
}
