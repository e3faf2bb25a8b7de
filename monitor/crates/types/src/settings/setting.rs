//! A setting of the configuration file, described once: where it stands, what it means, what is valid, and its
//! default. Each description stands beside the code that reads it; `config` iterates over all of them to parse
//! a file, to check it and to print it.

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::Value;

use crate::names::one_of;

/// Values that a setting accepts, of those of its type.
#[derive(Debug, Clone, Copy)]
pub enum Valid {
    /// All values of its type.
    Any,
    /// Numbers from the first to the second.
    Range(u64, u64),
    /// Powers of two from the first to the second.
    PowerOfTwo(u64, u64),
    OneOf(&'static [&'static str]),
    /// Texts that the function accepts, and their description.
    Text(&'static str, fn(&str) -> bool),
}

impl Valid {
    /// As in "expected a number from 1 to 100"; `None` where the type is enough.
    pub fn expected(self) -> Option<String> {
        match self {
            Self::Any => None,
            Self::Range(least, most) => Some(format!("a number from {least} to {most}")),
            Self::PowerOfTwo(least, most) => Some(format!("a power of two from {least} to {most}")),
            Self::OneOf(names) => Some(one_of(names)),
            Self::Text(expected, _) => Some(expected.to_owned()),
        }
    }

    fn accepts(self, value: &Value) -> bool {
        let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
        match self {
            Self::Any => true,
            Self::Range(least, most) => number.is_some_and(|number| (least..=most).contains(&number)),
            Self::PowerOfTwo(least, most) => {
                number.is_some_and(|number| number.is_power_of_two() && (least..=most).contains(&number))
            }
            Self::OneOf(names) => value.as_str().is_some_and(|name| names.contains(&name)),
            Self::Text(_, accepts) => value.as_str().is_some_and(accepts),
        }
    }

    /// Errors: what is wrong with a value, and what would be valid.
    pub fn check(self, value: &Value) -> Result<(), String> {
        match self.expected() {
            // A text of a form of its own, such as a URL, may hold a secret: it is not repeated.
            Some(expected) if !self.accepts(value) && matches!(self, Self::Text(..)) => {
                Err(format!("not valid: expected {expected}"))
            }
            Some(expected) if !self.accepts(value) => Err(invalid(value, &expected)),
            _ => Ok(()),
        }
    }
}

/// Reports that a value is not valid, and what would be.
pub fn invalid(value: &Value, expected: &str) -> String {
    let given = match value {
        Value::Array(_) => "an array".to_owned(),
        Value::Table(_) => "a table".to_owned(),
        scalar => scalar.to_string(),
    };
    format!("{given} is not valid: expected {expected}")
}

/// A setting whose value has the type `T`. Declare it with [`settings!`].
#[derive(Debug)]
pub struct Setting<T: 'static> {
    /// Table of the file that it stands in; empty for the top level.
    pub table: &'static str,
    /// Its key in that table.
    pub key: &'static str,
    /// What it means, in full sentences.
    pub doc: &'static str,
    /// Valid values, of those of its type.
    pub valid: Valid,
    pub default: fn() -> T,
}

/// The part of a [`Setting`] that does not depend on its type.
pub trait Description: Debug + Sync {
    /// Table of the file that it stands in; empty for the top level.
    fn table(&self) -> &'static str;

    /// Its key in that table.
    fn key(&self) -> &'static str;

    /// Its key, with its table where there is one.
    fn name(&self) -> String {
        match self.table() {
            "" => self.key().to_owned(),
            table => format!("{table}.{}", self.key()),
        }
    }

    /// What it means, in full sentences.
    fn doc(&self) -> Cow<'static, str>;

    /// Its valid values, as in "expected a number from 1 to 100"; `None` where its type or its meaning is enough.
    fn valid(&self) -> Option<String>;

    fn default(&self) -> Arc<dyn Stored>;

    /// Reads its value from a file.
    /// Errors: what is wrong, and what would be valid.
    fn parse(&self, value: Value) -> Result<Arc<dyn Stored>, String>;
}

impl<T: Stored + DeserializeOwned> Description for Setting<T> {
    fn table(&self) -> &'static str {
        self.table
    }

    fn key(&self) -> &'static str {
        self.key
    }

    fn doc(&self) -> Cow<'static, str> {
        Cow::Borrowed(self.doc)
    }

    fn valid(&self) -> Option<String> {
        self.valid.expected()
    }

    fn default(&self) -> Arc<dyn Stored> {
        Arc::new((self.default)())
    }

    fn parse(&self, value: Value) -> Result<Arc<dyn Stored>, String> {
        self.valid.check(&value)?;
        match T::deserialize(value) {
            Ok(value) => Ok(Arc::new(value)),
            // serde quotes with backticks.
            Err(error) => Err(error.message().replace('`', "\"")),
        }
    }
}

/// A value of any setting.
pub trait Stored: Any + Debug + Send + Sync {
    /// As a file has it.
    fn to_toml(&self) -> Value;

    /// Whether another one is the same.
    fn equals(&self, other: &dyn Stored) -> bool;
}

impl<T: Any + Debug + Send + Sync + PartialEq + Serialize> Stored for T {
    fn to_toml(&self) -> Value {
        let lossy = || match (self as &dyn Any).downcast_ref::<PathBuf>() {
            Some(path) => path.to_string_lossy().into_owned(),
            None => format!("{self:?}"),
        };
        Value::try_from(self).unwrap_or_else(|_| Value::String(lossy()))
    }

    fn equals(&self, other: &dyn Stored) -> bool {
        (other as &dyn Any).downcast_ref::<T>() == Some(self)
    }
}

/// What is set: by a file, the environment or arguments. All else has its default.
#[derive(Debug, Clone, Default)]
pub struct Values(BTreeMap<(&'static str, &'static str), Arc<dyn Stored>>);

impl Values {
    /// The value of a setting.
    pub fn get<T: Stored + DeserializeOwned + Clone>(&self, setting: &Setting<T>) -> T {
        self.find(setting).unwrap_or_else(setting.default)
    }

    /// The value of a setting if it is set.
    pub fn find<T: Stored + Clone>(&self, setting: &dyn Description) -> Option<T> {
        let value = self.0.get(&(setting.table(), setting.key()))?;
        (value.as_ref() as &dyn Any).downcast_ref::<T>().cloned()
    }

    /// The value of a setting, whatever its type.
    pub fn stored(&self, setting: &dyn Description) -> Arc<dyn Stored> {
        self.0.get(&(setting.table(), setting.key())).cloned().unwrap_or_else(|| setting.default())
    }

    /// Sets it, in place of what was set before.
    pub fn set<T: Stored>(&mut self, setting: &Setting<T>, value: T) {
        self.0.insert((setting.table, setting.key), Arc::new(value));
    }

    /// Sets what [`Description::parse`] of this setting gave.
    pub fn store(&mut self, setting: &dyn Description, value: Arc<dyn Stored>) {
        self.0.insert((setting.table(), setting.key()), value);
    }

    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets everything that is set in `other`.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}

/// Declares the settings of a module and `SETTINGS`, the list of them in the order of the file. The doc comment
/// is their documentation in the file.
///
/// ```ignore
/// settings! { "store":
///     /// Maximum size of the store in MiB, including its log.
///     MAX_MIB: u64 = "max_mib", default 64, valid Valid::Range(8, 1 << 20);
/// }
/// ```
#[macro_export]
macro_rules! settings {
    ($table:literal: $(
        $(#[doc = $doc:literal])+
        $name:ident: $type:ty = $key:literal, default $default:expr $(, valid $valid:expr)?;
    )+) => {
        $(
            $(#[doc = $doc])+
            pub static $name: $crate::settings::Setting<$type> = $crate::settings::Setting {
                table: $table,
                key: $key,
                doc: concat!($($doc),+),
                valid: $crate::valid_or_any!($($valid)?),
                default: || $default,
            };
        )+

        /// Every setting that is declared here, in the order of the file.
        pub static SETTINGS: &[&dyn $crate::settings::Description] = &[$(&$name),+];
    };
}
pub use settings;

#[macro_export]
macro_rules! valid_or_any {
    () => {
        $crate::settings::Valid::Any
    };
    ($valid:expr) => {
        $valid
    };
}
pub use valid_or_any;
