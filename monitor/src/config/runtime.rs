//! Which container runtimes to watch: `auto`, `none`, or sockets by name.

use std::fmt;
use std::str::FromStr;

use kevtmon_sources::runtime::{RuntimeKind, RuntimeSocket};
use kevtmon_types::settings::settings;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use thiserror::Error as ThisError;

settings! { "runtime":
    /// Container runtimes: "auto", "none", or a list such as ["docker=/run/docker.sock", "cri=/run/crio/crio.sock"].
    SOCKETS: Runtimes = "sockets", default Runtimes::Auto;
}

/// A value that names no runtime.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum RuntimeSpecError {
    #[error("{given:?} is not valid: expected {}", choices())]
    Unknown { given: String },
    #[error("{given:?} is not valid: the socket must be an absolute path, as in {example}")]
    RelativePath {
        given: String,
        /// What would be valid.
        example: String,
    },
    #[error("auto and none cannot be combined with other runtimes")]
    Combined,
}

/// One value of `--runtime`.
impl FromStr for Runtimes {
    type Err = RuntimeSpecError;

    fn from_str(given: &str) -> Result<Self, Self::Err> {
        let unknown = || RuntimeSpecError::Unknown { given: given.to_owned() };
        match given.split_once('=') {
            None if given == "auto" => Ok(Self::Auto),
            None if given == "none" => Ok(Self::Sockets(Vec::new())),
            None => Err(unknown()),
            Some((name, path)) => {
                let kind: RuntimeKind = name.parse().map_err(|_| unknown())?;
                if path.starts_with('/') {
                    return Ok(Self::Sockets(vec![RuntimeSocket { kind, path: path.into() }]));
                }
                Err(RuntimeSpecError::RelativePath { given: given.to_owned(), example: example(kind) })
            }
        }
    }
}

/// The help of `--runtime`.
pub(super) fn help() -> String {
    format!("Container runtime: {}; may be repeated [default: auto]", choices())
}

/// What `--runtime` takes: `auto, none, docker=PATH or cri=PATH`.
fn choices() -> String {
    let sockets = RuntimeKind::NAMES.iter().map(|name| format!("{name}=PATH"));
    format!("auto, none, {}", sockets.collect::<Vec<_>>().join(" or "))
}

/// `docker=/run/docker.sock`.
fn example(kind: RuntimeKind) -> String {
    let place = kind.places().first().and_then(|paths| paths.first());
    format!("{}={}", kind.name(), place.unwrap_or(&"PATH"))
}

/// The runtimes to watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Runtimes {
    /// Whatever is found at the usual places.
    Auto,
    /// These sockets; none when empty.
    Sockets(Vec<RuntimeSocket>),
}

impl Runtimes {
    /// Combines the values; none at all means [`Self::Auto`].
    pub fn of(values: &[Self]) -> Result<Self, RuntimeSpecError> {
        match values {
            [] => Ok(Self::Auto),
            [one] => Ok(one.clone()),
            several => {
                let mut all: Vec<RuntimeSocket> = Vec::new();
                for value in several {
                    match value {
                        // One that is named twice is watched once.
                        Self::Sockets(named) if named.iter().any(|socket| all.contains(socket)) => {}
                        Self::Sockets(named) if !named.is_empty() => all.extend_from_slice(named),
                        Self::Sockets(_) | Self::Auto => return Err(RuntimeSpecError::Combined),
                    }
                }
                Ok(Self::Sockets(all))
            }
        }
    }
}

impl Serialize for Runtimes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => to.serialize_str("auto"),
            Self::Sockets(sockets) if sockets.is_empty() => to.serialize_str("none"),
            Self::Sockets(sockets) => to.collect_seq(sockets.iter().map(ToString::to_string)),
        }
    }
}

impl<'de> Deserialize<'de> for Runtimes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(RuntimesVisitor)
    }
}

struct RuntimesVisitor;

impl<'de> Visitor<'de> for RuntimesVisitor {
    type Value = Runtimes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(r#""auto", "none" or a list such as ["docker=/run/docker.sock"]"#)
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Runtimes, E> {
        word.parse().map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Runtimes, A::Error> {
        let mut values = Vec::new();
        while let Some(word) = list.next_element::<String>()? {
            values.push(word.parse().map_err(A::Error::custom)?);
        }
        match values[..] {
            // An empty list in a file was written on purpose.
            [] => Ok(Runtimes::Sockets(Vec::new())),
            _ => Runtimes::of(&values).map_err(A::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Result<Runtimes, RuntimeSpecError> {
        let values: Result<Vec<Runtimes>, _> = words.iter().map(|word| word.parse()).collect();
        Runtimes::of(&values?)
    }

    fn docker(path: &str) -> RuntimeSocket {
        RuntimeSocket { kind: RuntimeKind::Docker, path: path.into() }
    }

    #[test]
    fn values_become_a_choice() {
        assert_eq!(of(&[]), Ok(Runtimes::Auto));
        assert_eq!(of(&["auto"]), Ok(Runtimes::Auto));
        assert_eq!(of(&["none"]), Ok(Runtimes::Sockets(vec![])));
        let both = Runtimes::Sockets(vec![docker("/a"), docker("/b")]);
        assert_eq!(of(&["docker=/a", "docker=/b", "docker=/a"]), Ok(both), "each once");
        let socket = RuntimeSocket { kind: RuntimeKind::Cri, path: "/run/crio/crio.sock".into() };
        assert_eq!(of(&["cri=/run/crio/crio.sock"]), Ok(Runtimes::Sockets(vec![socket])));
    }

    #[test]
    fn contradictions_and_unknown_runtimes_are_refused() {
        assert_eq!(of(&["none", "docker=/a"]), Err(RuntimeSpecError::Combined));
        assert!(of(&["cri"]).is_err());
        let relative = of(&["docker=a"]).unwrap_err().to_string();
        assert!(relative.ends_with("an absolute path, as in docker=/run/docker.sock"), "{relative}");
        assert_eq!(of(&["lxd=/a"]), Err(RuntimeSpecError::Unknown { given: "lxd=/a".into() }));
    }
}
