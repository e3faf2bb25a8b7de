//! Which container runtimes to listen to: `auto`, `none`, or sockets by name.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use thiserror::Error as ThisError;

/// One word of the choice, as `--runtime` takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuntimeSpec {
    /// Whatever is found at the usual places.
    Auto,
    /// None at all.
    None,
    /// A Docker Engine API socket.
    Docker(PathBuf),
}

/// A word that names no runtime.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum RuntimeSpecError {
    /// Neither a choice nor NAME=PATH.
    #[error("{given:?} is not valid: expected auto, none or docker=PATH")]
    Unknown {
        /// What was given.
        given: String,
    },
    /// Known, but not built in.
    #[error("cri is not supported by this build: expected auto, none or docker=PATH")]
    Cri,
    /// The socket is not an absolute path.
    #[error("{given:?} is not valid: the socket must be an absolute path, as in docker=/run/docker.sock")]
    RelativePath {
        /// What was given.
        given: String,
    },
    /// `auto` or `none` beside something else.
    #[error("auto and none stand alone, they cannot be combined with other runtimes")]
    Combined,
}

impl FromStr for RuntimeSpec {
    type Err = RuntimeSpecError;

    fn from_str(given: &str) -> Result<Self, Self::Err> {
        let unknown = || RuntimeSpecError::Unknown { given: given.to_owned() };
        match given.split_once('=') {
            None if given == "auto" => Ok(Self::Auto),
            None if given == "none" => Ok(Self::None),
            None if given == "cri" => Err(RuntimeSpecError::Cri),
            None => Err(unknown()),
            Some(("cri", _)) => Err(RuntimeSpecError::Cri),
            Some(("docker", path)) if path.starts_with('/') => Ok(Self::Docker(path.into())),
            Some(("docker", _)) => Err(RuntimeSpecError::RelativePath { given: given.to_owned() }),
            Some(_) => Err(unknown()),
        }
    }
}

/// The runtimes to listen to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Runtimes {
    /// Whatever is found at the usual places.
    Auto,
    /// These Docker Engine API sockets; none when empty.
    Docker(Vec<PathBuf>),
}

impl Runtimes {
    /// Puts the words together; no word at all means [`Self::Auto`].
    ///
    /// # Errors
    /// When `auto` or `none` does not stand alone.
    pub fn of(specs: &[RuntimeSpec]) -> Result<Self, RuntimeSpecError> {
        match specs {
            [] | [RuntimeSpec::Auto] => Ok(Self::Auto),
            [RuntimeSpec::None] => Ok(Self::Docker(Vec::new())),
            specs => specs
                .iter()
                .map(|spec| match spec {
                    RuntimeSpec::Docker(path) => Ok(path.clone()),
                    RuntimeSpec::Auto | RuntimeSpec::None => Err(RuntimeSpecError::Combined),
                })
                .collect::<Result<_, _>>()
                .map(Self::Docker),
        }
    }
}

impl Serialize for Runtimes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => to.serialize_str("auto"),
            Self::Docker(sockets) if sockets.is_empty() => to.serialize_str("none"),
            Self::Docker(sockets) => {
                to.collect_seq(sockets.iter().map(|socket| format!("docker={}", socket.display())))
            }
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
        word.parse().and_then(|spec| Runtimes::of(&[spec])).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Runtimes, A::Error> {
        let mut specs = Vec::new();
        while let Some(word) = list.next_element::<String>()? {
            specs.push(word.parse().map_err(A::Error::custom)?);
        }
        match specs[..] {
            // An empty list in a file was written on purpose.
            [] => Ok(Runtimes::Docker(Vec::new())),
            _ => Runtimes::of(&specs).map_err(A::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Result<Runtimes, RuntimeSpecError> {
        let specs: Result<Vec<RuntimeSpec>, _> = words.iter().map(|word| word.parse()).collect();
        Runtimes::of(&specs?)
    }

    #[test]
    fn words_become_a_choice() {
        assert_eq!(of(&[]), Ok(Runtimes::Auto));
        assert_eq!(of(&["auto"]), Ok(Runtimes::Auto));
        assert_eq!(of(&["none"]), Ok(Runtimes::Docker(vec![])));
        assert_eq!(of(&["docker=/a", "docker=/b"]), Ok(Runtimes::Docker(vec!["/a".into(), "/b".into()])));
    }

    #[test]
    fn contradictions_and_strangers_are_refused() {
        assert_eq!(of(&["none", "docker=/a"]), Err(RuntimeSpecError::Combined));
        assert_eq!(of(&["cri=/run/containerd/containerd.sock"]), Err(RuntimeSpecError::Cri));
        assert_eq!(of(&["docker=a"]), Err(RuntimeSpecError::RelativePath { given: "docker=a".into() }));
        assert_eq!(of(&["podman=/a"]), Err(RuntimeSpecError::Unknown { given: "podman=/a".into() }));
    }
}
