//! Settings with a fixed set of values, parsed from one list that error messages show, too.

/// Defines an enum whose variants have names, read from arguments and from the configuration file.
#[macro_export]
macro_rules! names {
    ($(#[$doc:meta])* $type:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $type { $($(#[$variant_doc])* $variant,)+ }

        impl $type {
            /// Every valid name.
            pub const NAMES: &'static [&'static str] = &[$($name),+];

            /// The name as it is parsed.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::names::UnknownName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($name => Ok(Self::$variant),)+
                    _ => Err($crate::names::UnknownName { given: text.to_owned(), valid: Self::NAMES }),
                }
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                $crate::names::deserialize(from, Self::NAMES)
            }
        }
    };
}
/// Defines an enum whose variants have names, which are those in JSON; what it derives, serde's traits among it, is given.
#[macro_export]
macro_rules! named {
    ($(#[$meta:meta])* $type:ident { $($(#[$variant_meta:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        pub enum $type { $($(#[$variant_meta])* #[serde(rename = $name)] $variant,)+ }

        impl $type {
            /// Each, in the order of the names.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];
            /// Every name.
            pub const NAMES: &'static [&'static str] = &[$($name),+];

            /// As in JSON and metric labels.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{Deserializer, Error, Visitor};
use thiserror::Error as ThisError;
pub use {named, names};

/// A name that is not valid.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
#[error("{given:?} is not valid: expected {}", one_of(.valid))]
pub struct UnknownName {
    pub given: String,
    pub valid: &'static [&'static str],
}

pub fn one_of(valid: &[&str]) -> String {
    format!("one of {}", valid.join(", "))
}

/// Deserializes a name; the error of any other value lists the valid names.
pub fn deserialize<'de, D, T>(from: D, valid: &'static [&'static str]) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err = UnknownName>,
{
    from.deserialize_str(NameVisitor { valid, _type: PhantomData })
}

struct NameVisitor<T> {
    valid: &'static [&'static str],
    _type: PhantomData<T>,
}

impl<T: FromStr<Err = UnknownName>> Visitor<'_> for NameVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&one_of(self.valid))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}
