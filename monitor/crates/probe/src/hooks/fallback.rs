//! Selects the best attach mode of a hook that works. Pure: the caller attaches.

use kevtmon_observation::{SourceKind, SourceStatus};

use super::choice::Choice;
use super::{AttachMode, Hook, Mechanism, Program};

/// Why a attach mode that the configuration excludes is refused.
pub const SWITCHED_OFF: &str = "switched off";

/// Why every attach mode with programs is refused after starts that came to no good end.
pub const CRASH_LOOP: &str = "three or more starts in a row ended within a minute each, and not by a stop, so kernel programs are left out";

/// The attach mode that a hook is on, and why on none above it.
#[derive(Debug)]
pub struct HookStatus {
    pub hook: &'static Hook,
    /// Its attach mode; `None` if it observes nothing.
    pub attach_mode: Option<&'static AttachMode>,
    /// The attach modes above, best first, and why each was refused.
    refused: Vec<(&'static str, String)>,
    /// Programs that its attach mode does without, and why.
    lacks: Option<String>,
    choice: Choice,
}

impl HookStatus {
    /// Tries the attach modes from the best one that the configuration allows downwards, until one works. What `attach` gives is what
    /// the attach mode does without.
    pub fn select(
        hook: &'static Hook,
        choice: Choice,
        mut attach: impl FnMut(&'static [Program]) -> Result<Option<String>, String>,
    ) -> Self {
        let mut status = Self { hook, attach_mode: None, refused: Vec::new(), lacks: None, choice };
        for (index, attach_mode) in hook.attach_modes.iter().enumerate() {
            let tried = match attach_mode.mechanism {
                _ if !allowed(hook, choice, index) => Err(SWITCHED_OFF.to_owned()),
                Mechanism::Programs(programs) => attach(programs),
                // The netlink source is required: where it cannot be opened, the daemon ends.
                Mechanism::NeighborMessages => Ok(None),
            };
            match tried {
                Ok(lacks) => {
                    (status.attach_mode, status.lacks) = (Some(attach_mode), lacks);
                    break;
                }
                Err(reason) => status.refused.push((attach_mode.name, reason)),
            }
        }
        status
    }

    /// The status that events and metrics show.
    pub fn source_status(&self) -> SourceStatus {
        SourceStatus {
            absent: false,
            vacant: false,
            source: self.hook.source(),
            kind: SourceKind::Hook,
            up: self.attach_mode.is_some(),
            attach_mode: self.attach_mode.map(|attach_mode| attach_mode.name.to_owned()),
            reason: self.reason(),
            lacks: self.lacks.clone(),
        }
    }

    /// Why it is not on its best attach mode. The attach modes are named where they were refused for different reasons.
    pub fn reason(&self) -> Option<String> {
        let (_, first) = self.refused.first()?;
        if self.refused.iter().all(|(_, reason)| reason == first) {
            return Some(first.clone());
        }
        let each: Vec<String> =
            self.refused.iter().map(|(attach_mode, reason)| format!("{attach_mode}: {reason}")).collect();
        Some(each.join("; "))
    }

    /// Whether the configuration allows kernel programs, and none of them works.
    pub fn lacks_programs(&self) -> bool {
        let on_programs = self
            .attach_mode
            .is_some_and(|attach_mode| matches!(attach_mode.mechanism, Mechanism::Programs(_)));
        wants_programs(self.hook, self.choice) && !on_programs
    }

    /// Whether it depends on live neighbor messages.
    pub fn needs_neighbor_messages(&self) -> bool {
        self.attach_mode
            .is_some_and(|attach_mode| matches!(attach_mode.mechanism, Mechanism::NeighborMessages))
    }
}

/// Whether the configuration allows a attach mode that takes programs.
pub fn wants_programs(hook: &Hook, choice: Choice) -> bool {
    let takes_programs = |attach_mode: &AttachMode| matches!(attach_mode.mechanism, Mechanism::Programs(_));
    hook.attach_modes
        .iter()
        .enumerate()
        .any(|(index, attach_mode)| allowed(hook, choice, index) && takes_programs(attach_mode))
}

/// Whether it allows one that takes programs and none of the kernel's types.
pub fn wants_untyped_programs(hook: &Hook, choice: Choice) -> bool {
    hook.attach_modes.iter().enumerate().any(|(index, attach_mode)| match attach_mode.mechanism {
        Mechanism::Programs(programs) => {
            allowed(hook, choice, index) && programs.iter().all(|program| !program.attach.needs_types())
        }
        Mechanism::NeighborMessages => false,
    })
}

fn allowed(hook: &Hook, choice: Choice, index: usize) -> bool {
    match choice {
        Choice::Auto => true,
        Choice::Off => false,
        Choice::AttachMode(name) => hook
            .attach_modes
            .iter()
            .position(|attach_mode| attach_mode.name == name)
            .is_some_and(|chosen| index >= chosen),
    }
}
