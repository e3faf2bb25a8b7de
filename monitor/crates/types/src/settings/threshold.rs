//! When a finding is an incident, and how severe: numbers that each diagnosis declares beside the code that
//! reads them. They are the `[incidents]` table of the configuration file.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toml::Value;

use super::setting::{Description, Stored, Valid};

/// A threshold of a diagnosis. Declare it with [`thresholds!`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threshold {
    /// Its key in the file and in recordings; the unit is part of it.
    pub key: &'static str,
    /// What it means, in full sentences.
    pub doc: &'static str,
    pub default: u32,
    pub unit: Unit,
}

/// What a threshold counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Seconds,
    /// Attempts, pods and the like.
    Count,
    /// A share in percent.
    Percent,
}

impl Threshold {
    /// Table of the file that thresholds stand in.
    pub const TABLE: &'static str = "incidents";

    fn range(&self) -> Valid {
        match self.unit {
            Unit::Seconds | Unit::Count => Valid::Range(0, u32::MAX.into()),
            Unit::Percent => Valid::Range(1, 100),
        }
    }
}

impl Description for Threshold {
    fn table(&self) -> &'static str {
        Self::TABLE
    }

    fn key(&self) -> &'static str {
        self.key
    }

    fn doc(&self) -> Cow<'static, str> {
        Cow::Borrowed(self.doc)
    }

    fn valid(&self) -> Option<String> {
        match self.unit {
            Unit::Seconds => Some("a number of seconds".to_owned()),
            Unit::Count => None,
            Unit::Percent => self.range().expected(),
        }
    }

    fn default(&self) -> Arc<dyn Stored> {
        Arc::new(self.default)
    }

    fn parse(&self, value: Value) -> Result<Arc<dyn Stored>, String> {
        self.range().check(&value)?;
        let number = value.as_integer().and_then(|number| u32::try_from(number).ok());
        Ok(Arc::new(number.unwrap_or(self.default)))
    }
}

/// Values of thresholds by key. What is missing has its default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Thresholds(BTreeMap<String, u32>);

impl Thresholds {
    /// The value of a threshold.
    pub fn get(&self, threshold: &Threshold) -> u32 {
        self.0.get(threshold.key).copied().unwrap_or(threshold.default)
    }

    pub fn set(&mut self, threshold: &Threshold, value: u32) {
        self.0.insert(threshold.key.to_owned(), value);
    }
}

/// Declares the thresholds of a diagnosis and `THRESHOLDS`, the list of them in the order of the file. The doc
/// comment is their documentation in the file.
///
/// ```ignore
/// thresholds! {
///     /// A lost gateway is critical after this time.
///     GATEWAY_CRITICAL = "gateway_critical_seconds", default 60, Unit::Seconds;
/// }
/// ```
#[macro_export]
macro_rules! thresholds {
    ($($(#[doc = $doc:literal])+ $name:ident = $key:literal, default $default:expr, $unit:expr;)+) => {
        $(
            $(#[doc = $doc])+
            static $name: $crate::settings::Threshold = $crate::settings::Threshold {
                key: $key,
                doc: concat!($($doc),+),
                default: $default,
                unit: $unit,
            };
        )+

        /// Every threshold that is declared here, in the order of the file.
        pub(super) static THRESHOLDS: &[&$crate::settings::Threshold] = &[$(&$name),+];
    };
}
pub use thresholds;
