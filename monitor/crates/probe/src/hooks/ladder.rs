//! Selects the best rung of a hook that works. Pure: the caller attaches.

use kevtmon_observation::{SourceKind, SourceStatus};

use super::choice::Choice;
use super::{Hook, Mechanism, Program, Rung};

/// Why a rung that the configuration excludes is refused.
pub const SWITCHED_OFF: &str = "switched off";

/// Why every rung with programs is refused after starts that came to no good end.
pub const CRASH_LOOP: &str = "three or more starts in a row ended within a minute each, and not by a stop, so kernel programs are left out";

/// The rung that a hook is on, and why on none above it.
#[derive(Debug)]
pub struct HookStatus {
    pub hook: &'static Hook,
    /// Its rung; `None` if it observes nothing.
    pub rung: Option<&'static Rung>,
    /// The rungs above, best first, and why each was refused.
    refused: Vec<(&'static str, String)>,
    /// Programs that its rung does without, and why.
    lacks: Option<String>,
    choice: Choice,
}

impl HookStatus {
    /// Tries the rungs from the best one that the configuration allows downwards, until one works. What `attach` gives is what
    /// the rung does without.
    pub fn select(
        hook: &'static Hook,
        choice: Choice,
        mut attach: impl FnMut(&'static [Program]) -> Result<Option<String>, String>,
    ) -> Self {
        let mut status = Self { hook, rung: None, refused: Vec::new(), lacks: None, choice };
        for (index, rung) in hook.rungs.iter().enumerate() {
            let tried = match rung.mechanism {
                _ if !allowed(hook, choice, index) => Err(SWITCHED_OFF.to_owned()),
                Mechanism::Programs(programs) => attach(programs),
                // The netlink source is required: where it cannot be opened, the daemon ends.
                Mechanism::NeighborMessages => Ok(None),
            };
            match tried {
                Ok(lacks) => {
                    (status.rung, status.lacks) = (Some(rung), lacks);
                    break;
                }
                Err(reason) => status.refused.push((rung.name, reason)),
            }
        }
        status
    }

    /// The status that events and metrics show.
    #[must_use]
    pub fn source_status(&self) -> SourceStatus {
        SourceStatus {
            absent: false,
            vacant: false,
            source: self.hook.source(),
            kind: SourceKind::Hook,
            up: self.rung.is_some(),
            rung: self.rung.map(|rung| rung.name.to_owned()),
            reason: self.reason(),
            lacks: self.lacks.clone(),
        }
    }

    /// Why it is not on its best rung. The rungs are named where they were refused for different reasons.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        let (_, first) = self.refused.first()?;
        if self.refused.iter().all(|(_, reason)| reason == first) {
            return Some(first.clone());
        }
        let each: Vec<String> =
            self.refused.iter().map(|(rung, reason)| format!("{rung}: {reason}")).collect();
        Some(each.join("; "))
    }

    /// Whether the configuration allows kernel programs, and none of them works.
    #[must_use]
    pub fn lacks_programs(&self) -> bool {
        let on_programs = self.rung.is_some_and(|rung| matches!(rung.mechanism, Mechanism::Programs(_)));
        wants_programs(self.hook, self.choice) && !on_programs
    }

    /// Whether it depends on live neighbor messages.
    #[must_use]
    pub fn needs_neighbor_messages(&self) -> bool {
        self.rung.is_some_and(|rung| matches!(rung.mechanism, Mechanism::NeighborMessages))
    }
}

/// Whether the configuration allows a rung that takes programs.
pub fn wants_programs(hook: &Hook, choice: Choice) -> bool {
    let takes_programs = |rung: &Rung| matches!(rung.mechanism, Mechanism::Programs(_));
    hook.rungs.iter().enumerate().any(|(index, rung)| allowed(hook, choice, index) && takes_programs(rung))
}

/// Whether it allows one that takes programs and none of the kernel's types.
pub fn wants_untyped_programs(hook: &Hook, choice: Choice) -> bool {
    hook.rungs.iter().enumerate().any(|(index, rung)| match rung.mechanism {
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
        Choice::Rung(name) => {
            hook.rungs.iter().position(|rung| rung.name == name).is_some_and(|chosen| index >= chosen)
        }
    }
}
