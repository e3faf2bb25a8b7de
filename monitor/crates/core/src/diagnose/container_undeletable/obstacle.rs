//! What could not be removed though nothing holds it: by the words of the runtime, and as a look at it shows.

use kevtmon_event::{Advice, form};
use kevtmon_observation::{FileFlag, Obstacle, RefusedRemoval, RemovalError};
use kevtmon_types::escape::name;
use serde::{Deserialize, Serialize};

use crate::diagnose::advice::advice;

/// A refusal of which the runtime tells. Its last attempt ended with it, whatever was in use before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Obstructed {
    pub(super) refused: RefusedRemoval,
    /// Absent until it was looked for.
    found: Option<Obstacle>,
    pub(super) is_cleared: bool,
}

impl Obstructed {
    pub(super) fn of(refused: &RefusedRemoval) -> Self {
        Self { refused: refused.clone(), found: None, is_cleared: false }
    }

    /// Whether a look can show what it is.
    pub(super) fn can_be_found(&self) -> bool {
        self.refused.error != RemovalError::Io
    }

    /// Whether a look is still to show what it is.
    pub(super) fn is_awaited(&self) -> bool {
        self.found.is_none() && self.can_be_found()
    }

    /// It was looked at; returns whether it is different now.
    pub(super) fn set(&mut self, found: &Obstacle) -> bool {
        let before = self.clone();
        match (&self.found, found) {
            (Some(_), Obstacle::Unknown) => {}
            (Some(Obstacle::Flag { .. } | Obstacle::ReadOnly | Obstacle::Swap), Obstacle::None) => {
                self.is_cleared = true
            }
            (_, found) => (self.found, self.is_cleared) = (Some(found.clone()), false),
        }
        *self != before
    }

    pub(super) fn reason(&self) -> String {
        let path = name(&self.refused.path);
        match (&self.found, self.refused.error) {
            _ if self.is_cleared => "what likely blocked it is gone".to_owned(),
            (Some(Obstacle::Flag { flag, path, is_directory }), _) => {
                let what = if *is_directory { "directory" } else { "file" };
                format!("no holder: {what} {} is {}", name(path), flag.name())
            }
            (Some(Obstacle::ReadOnly), _) => {
                format!("the file system of {path} is mounted read-only")
            }
            (Some(Obstacle::Swap), _) => format!("the kernel swaps to file {path}"),
            (_, RemovalError::NotPermitted) => format!("removing {path} is not permitted"),
            (_, RemovalError::ReadOnly) => format!("the file system of {path} was read-only"),
            (_, RemovalError::Io) => format!("I/O error at {path}"),
        }
    }

    pub(super) fn ruled_out(&self) -> Option<String> {
        let error = self.refused.error.name();
        matches!(self.found, Some(Obstacle::Flag { .. }))
            .then(|| format!("no process, mount or device holds it: that gives EBUSY, and not {error}"))
    }

    pub(super) fn advice(&self) -> Option<Advice> {
        let Some(Obstacle::Flag { flag, path, .. }) = &self.found else { return None };
        let option = match flag {
            FileFlag::Immutable => "-i",
            FileFlag::AppendOnly => "-a",
        };
        let text = format!("make it removable, unless it is {} on purpose", flag.name());
        (!self.is_cleared).then(|| advice(form::CLEAR_FLAG, &text, &["chattr", option, path]))
    }
}
