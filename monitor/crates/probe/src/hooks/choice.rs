//! The value of a hook in the configuration: `auto`, one of its attach modes, or `off`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use kevtmon_types::names::one_of;
use kevtmon_types::settings::setting::invalid;
use kevtmon_types::settings::{Description, Stored, Values};
use serde::{Serialize, Serializer};
use toml::Value;

use super::{HOOKS, Hook};

const AUTO: &str = "auto";
const OFF: &str = "off";

/// Which attach mode of a hook is tried first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Choice {
    #[default]
    Auto,
    /// This one; those above it are not tried.
    AttachMode(&'static str),
    /// None.
    Off,
}

impl Choice {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => AUTO,
            Self::AttachMode(name) => name,
            Self::Off => OFF,
        }
    }
}

impl Serialize for Choice {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

impl Hook {
    pub fn choices(&self) -> Vec<&'static str> {
        let attach_modes = self.attach_modes.iter().map(|attach_mode| attach_mode.name);
        std::iter::once(AUTO).chain(attach_modes).chain(std::iter::once(OFF)).collect()
    }

    /// The choice of that name; `None` if the hook has no such attach mode.
    pub fn choice(&self, name: &str) -> Option<Choice> {
        match name {
            AUTO => Some(Choice::Auto),
            OFF => Some(Choice::Off),
            _ => self
                .attach_modes
                .iter()
                .find(|attach_mode| attach_mode.name == name)
                .map(|attach_mode| Choice::AttachMode(attach_mode.name)),
        }
    }

    /// What its setting means, for `config default`.
    pub fn explanation(&self) -> String {
        let attach_modes: Vec<String> = self
            .attach_modes
            .iter()
            .map(|attach_mode| match attach_mode.note {
                Some(note) => format!("{} ({note})", attach_mode.name),
                None => attach_mode.name.to_owned(),
            })
            .collect();
        format!(
            "How {} are observed: {AUTO} (the best way that the kernel supports), {} or {OFF}.",
            self.observes,
            attach_modes.join(", ")
        )
    }
}

/// The choice for every hook: `auto` for those that are not in the map.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HookChoices(BTreeMap<&'static str, Choice>);

impl HookChoices {
    /// Every hook on its best attach mode.
    pub const AUTO: Self = Self(BTreeMap::new());

    pub fn from_values(values: &Values) -> Self {
        let mut choices = Self::default();
        for hook in HOOKS {
            choices.set(hook, values.find(*hook).unwrap_or_default());
        }
        choices
    }

    pub fn of(&self, hook: &Hook) -> Choice {
        self.0.get(hook.name).copied().unwrap_or_default()
    }

    pub fn set(&mut self, hook: &'static Hook, choice: Choice) {
        match choice {
            Choice::Auto => self.0.remove(hook.name),
            _ => self.0.insert(hook.name, choice),
        };
    }
}

impl Description for Hook {
    fn table(&self) -> &'static str {
        "hooks"
    }

    fn key(&self) -> &'static str {
        self.name
    }

    fn doc(&self) -> Cow<'static, str> {
        self.explanation().into()
    }

    fn valid(&self) -> Option<String> {
        None
    }

    fn default(&self) -> Arc<dyn Stored> {
        Arc::new(Choice::default())
    }

    fn parse(&self, value: Value) -> Result<Arc<dyn Stored>, String> {
        match value.as_str().and_then(|name| self.choice(name)) {
            Some(choice) => Ok(Arc::new(choice)),
            None => Err(invalid(&value, &one_of(&self.choices()))),
        }
    }
}
