//! What the configuration says of a hook: `auto`, one of its rungs, or `off`.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde::de::{DeserializeSeed, Deserializer, Error, Visitor};
use thiserror::Error as ThisError;

use super::{HOOKS, Hook};

const AUTO: &str = "auto";
const OFF: &str = "off";

/// Which rung of a hook is tried first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Choice {
    /// The best.
    #[default]
    Auto,
    /// This one; those above it are not tried.
    Rung(&'static str),
    /// None.
    Off,
}

impl Choice {
    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => AUTO,
            Self::Rung(name) => name,
            Self::Off => OFF,
        }
    }
}

/// A value that a hook does not take.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
#[error("{given:?} is not valid: expected {}", crate::names::one_of(.valid))]
pub struct UnknownChoice {
    /// What was given.
    pub given: String,
    /// What the hook takes.
    pub valid: Vec<&'static str>,
}

impl Hook {
    /// Every valid value.
    #[must_use]
    pub fn choices(&self) -> Vec<&'static str> {
        let rungs = self.rungs.iter().map(|rung| rung.name);
        std::iter::once(AUTO).chain(rungs).chain(std::iter::once(OFF)).collect()
    }

    /// Reads a value.
    ///
    /// # Errors
    /// When the hook has no such rung.
    pub fn choice(&self, text: &str) -> Result<Choice, UnknownChoice> {
        match text {
            AUTO => Ok(Choice::Auto),
            OFF => Ok(Choice::Off),
            _ => match self.rungs.iter().find(|rung| rung.name == text) {
                Some(rung) => Ok(Choice::Rung(rung.name)),
                None => Err(UnknownChoice { given: text.to_owned(), valid: self.choices() }),
            },
        }
    }

    /// What its setting means, for the configuration file.
    #[must_use]
    pub fn explanation(&self) -> String {
        let rungs: Vec<String> = self
            .rungs
            .iter()
            .map(|rung| match rung.note {
                Some(note) => format!("{} ({note})", rung.name),
                None => rung.name.to_owned(),
            })
            .collect();
        format!(
            "How {} are observed: {AUTO} (the best way that the kernel supports), {} or {OFF}.",
            self.observes,
            rungs.join(", ")
        )
    }
}

/// The choice for every hook: `auto` for those that are not in the map.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HookChoices(BTreeMap<&'static str, Choice>);

impl HookChoices {
    /// Every hook on its best rung.
    pub const AUTO: Self = Self(BTreeMap::new());

    /// The choice for one hook.
    #[must_use]
    pub fn of(&self, hook: &Hook) -> Choice {
        self.0.get(hook.name).copied().unwrap_or_default()
    }

    /// Sets it.
    pub fn set(&mut self, hook: &'static Hook, choice: Choice) {
        match choice {
            Choice::Auto => self.0.remove(hook.name),
            _ => self.0.insert(hook.name, choice),
        };
    }
}

/// By the name of the hook, each that there is.
impl Serialize for HookChoices {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(HOOKS.iter().map(|hook| (hook.name, self.of(hook).name())))
    }
}

/// Reads the choice for one hook from a configuration file.
pub struct ChoiceSeed(pub &'static Hook);

impl<'de> DeserializeSeed<'de> for ChoiceSeed {
    type Value = Choice;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Choice, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for ChoiceSeed {
    type Value = Choice;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::names::one_of(&self.0.choices()))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Choice, E> {
        self.0.choice(text).map_err(E::custom)
    }
}
