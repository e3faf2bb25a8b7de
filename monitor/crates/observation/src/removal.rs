//! What a runtime could not remove of a container though nothing holds it.

use kevtmon_types::names::names;
use serde::{Deserialize, Serialize};

names! {
    /// Why the kernel refused it. What is in use is refused with another error.
    RemovalError {
        NotPermitted = "EPERM",
        ReadOnly = "EROFS",
        Io = "EIO",
    }
}

/// What could not be removed, as the runtime says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRemoval {
    /// In the mount namespace of the runtime.
    pub path: Box<str>,
    pub error: RemovalError,
}

names! {
    /// What chattr(1) sets of a file, and only root can clear.
    FileFlag {
        Immutable = "immutable",
        AppendOnly = "append-only",
    }
}

/// What refuses a removal, as the file and its directory showed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Obstacle {
    /// Neither could be looked at.
    Unknown,
    /// Nothing of the following.
    None,
    Flag {
        flag: FileFlag,
        /// The file, or its directory.
        path: Box<str>,
        is_directory: bool,
    },
    /// The file system is mounted read-only.
    ReadOnly,
    /// The kernel swaps to the file.
    Swap,
}

/// Reply to [`Request::Obstacle`](super::Request::Obstacle).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundObstacle {
    /// Id of the container.
    pub container: String,
    pub refused: RefusedRemoval,
    pub found: Obstacle,
}
