//! The configuration file as it is written: TOML text enters, settings leave, each absent or valid.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use thiserror::Error as ThisError;

use super::Format;
use super::runtime::Runtimes;
use crate::event::Severity;
use crate::settings::{Cmdline, Thresholds};
use crate::sources::bpf::hooks::{ChoiceSeed, HOOKS, Hook, HookChoices};

/// Largest ring buffer, in KiB: its pages are mapped twice and count as resident memory.
const MAX_RING_KIB: u32 = 2048;
/// Smallest ring buffer that survives a burst, in KiB.
const MIN_RING_KIB: u32 = 64;
/// Least and most that the flight recorder reaches back.
const MINUTES: (u32, u32) = (1, 24 * 60);
/// Least and most space of the flight recorder: a model and its changes must fit several times.
const RECORDER_MIB: (u32, u32) = (4, 1024);
/// Below this likeness a suggestion would only mislead (Jaro-Winkler, 0 to 1).
const LIKENESS: f64 = 0.75;
/// Least bytes of the event store, in MiB: a storm needs some of it for the log.
const MIN_STORE_MIB: u64 = 8;
/// Most bytes of the event store, in MiB: a tebibyte.
const MAX_STORE_MIB: u64 = 1 << 20;
/// Longest time that events are kept, in days: ten years.
const MAX_STORE_DAYS: u64 = 3650;

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct File {
    pub(super) node_name: Option<NodeName>,
    pub(super) socket: Option<PathBuf>,
    pub(super) state_dir: Option<PathBuf>,
    pub(super) cmdline: Option<Cmdline>,
    pub(super) require_ebpf: Option<bool>,
    pub(super) output: Output,
    pub(super) metrics: Metrics,
    pub(super) runtime: Runtime,
    pub(super) hooks: Hooks,
    pub(super) store: Store,
    pub(super) recorder: Recorder,
    pub(super) incidents: Thresholds,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct Output {
    pub(super) format: Option<Format>,
    pub(super) min_severity: Option<Severity>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct Metrics {
    #[serde(deserialize_with = "addresses")]
    pub(super) listen: Option<Vec<SocketAddr>>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct Runtime {
    pub(super) sockets: Option<Runtimes>,
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Hooks {
    pub(super) choices: HookChoices,
    pub(super) ring_kib: Option<u32>,
}

impl<'de> Deserialize<'de> for Hooks {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(HooksVisitor)
    }
}

struct HooksVisitor;

impl<'de> Visitor<'de> for HooksVisitor {
    type Value = Hooks;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Hooks, A::Error> {
        let mut hooks = Hooks::default();
        while let Some(HookKey(hook)) = map.next_key()? {
            match hook {
                Some(hook) => hooks.choices.set(hook, map.next_value_seed(ChoiceSeed(hook))?),
                None => hooks.ring_kib = map.next_value_seed(RingSeed)?,
            }
        }
        Ok(hooks)
    }
}

/// A key of `[hooks]`: a hook, or `ring_kib`.
struct HookKey(Option<&'static Hook>);

impl<'de> Deserialize<'de> for HookKey {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        const KEYS: [&str; HOOKS.len() + 1] = {
            let mut keys = ["ring_kib"; HOOKS.len() + 1];
            let mut index = 0;
            while index < HOOKS.len() {
                keys[index] = HOOKS[index].name;
                index += 1;
            }
            keys
        };
        let key = String::deserialize(from)?;
        match HOOKS.iter().find(|hook| hook.name == key) {
            Some(hook) => Ok(Self(Some(hook))),
            None if key == "ring_kib" => Ok(Self(None)),
            None => Err(D::Error::unknown_field(&key, &KEYS)),
        }
    }
}

struct RingSeed;

impl<'de> DeserializeSeed<'de> for RingSeed {
    type Value = Option<u32>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        ring(from)
    }
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct Store {
    pub(super) enabled: Option<bool>,
    #[serde(deserialize_with = "store_days")]
    pub(super) max_age_days: Option<u64>,
    #[serde(deserialize_with = "store_mib")]
    pub(super) max_mib: Option<u64>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct Recorder {
    pub(super) enabled: Option<bool>,
    #[serde(deserialize_with = "minutes")]
    pub(super) minutes: Option<u32>,
    #[serde(deserialize_with = "mebibytes")]
    pub(super) max_mib: Option<u32>,
}

/// A name that can stand in events and logs.
#[derive(Debug, PartialEq)]
pub(super) struct NodeName(pub(super) String);

impl<'de> Deserialize<'de> for NodeName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        if name.is_empty() || name.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(D::Error::custom(format!("{name:?} is not valid: expected a name without blanks")));
        }
        Ok(Self(name))
    }
}

fn addresses<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<SocketAddr>>, D::Error> {
    from.deserialize_seq(AddressesVisitor).map(Some)
}

struct AddressesVisitor;

impl<'de> Visitor<'de> for AddressesVisitor {
    type Value = Vec<SocketAddr>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(r#"a list such as ["127.0.0.1:19809"]"#)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut addresses = Vec::new();
        while let Some(Address(address)) = list.next_element()? {
            addresses.push(address);
        }
        Ok(addresses)
    }
}

struct Address(SocketAddr);

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(Self).map_err(|_| {
            D::Error::custom(format!(
                "{text:?} is not valid: expected ADDR:PORT, as in 127.0.0.1:19809 or [::1]:19809"
            ))
        })
    }
}

fn ring<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let kib = i64::deserialize(from)?;
    match u32::try_from(kib) {
        Ok(kib) if kib.is_power_of_two() && (MIN_RING_KIB..=MAX_RING_KIB).contains(&kib) => Ok(Some(kib)),
        _ => Err(D::Error::custom(format!(
            "{kib} is not valid: expected a power of two from {MIN_RING_KIB} to {MAX_RING_KIB}"
        ))),
    }
}

fn store_days<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    within(from, 1, MAX_STORE_DAYS)
}

fn store_mib<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    within(from, MIN_STORE_MIB, MAX_STORE_MIB)
}

fn minutes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    within(from, MINUTES.0, MINUTES.1)
}

fn mebibytes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    within(from, RECORDER_MIB.0, RECORDER_MIB.1)
}

fn within<'de, D: Deserializer<'de>, N>(from: D, least: N, most: N) -> Result<Option<N>, D::Error>
where
    N: TryFrom<i64> + PartialOrd + fmt::Display,
{
    let given = i64::deserialize(from)?;
    match N::try_from(given) {
        Ok(number) if least <= number && number <= most => Ok(Some(number)),
        _ => Err(D::Error::custom(format!("{given} is not valid: expected a number from {least} to {most}"))),
    }
}

/// A place in a file, printed as `FILE:LINE:COLUMN`; both count from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub path: PathBuf,
    /// Line.
    pub line: usize,
    /// Column, in characters.
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.path.display(), self.line, self.column)
    }
}

/// What is wrong with the text of a file.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum FileError {
    /// A key that means nothing there.
    #[error("{place}: unknown key {key:?}{}", hint(.nearest.as_deref(), .valid))]
    UnknownKey {
        /// Where it stands.
        place: Place,
        /// The key.
        key: String,
        /// The valid key that looks most like it.
        nearest: Option<String>,
        /// Every key that is valid there.
        valid: Vec<String>,
    },
    /// Not TOML, or a value of the wrong type or range.
    #[error("{place}: {}{message}", .key.as_ref().map_or_else(String::new, |key| format!("{key}: ")))]
    Invalid {
        /// Where it stands.
        place: Place,
        /// The key that it belongs to, with its table, where there is one.
        key: Option<String>,
        /// What is wrong, and what is valid.
        message: String,
    },
}

fn hint(nearest: Option<&str>, valid: &[String]) -> String {
    nearest.map_or_else(
        || format!("; valid keys here: {}", valid.join(", ")),
        |nearest| format!("; did you mean {nearest:?}?"),
    )
}

/// Reads the text; `path` is only for complaints.
pub(super) fn parse(path: &Path, text: &str) -> Result<File, FileError> {
    toml::from_str(text).map_err(|error| explain(path, text, &error))
}

fn explain(path: &Path, text: &str, error: &toml::de::Error) -> FileError {
    let span = error.span().unwrap_or_default();
    let key = key(text, span.start);
    let place = place(path, text, span);
    let message = error.message();
    // serde hands over the key and the valid ones as text only, in backticks.
    let mut quoted = message.split('`').skip(1).step_by(2).map(str::to_owned);
    match (message.starts_with("unknown field"), quoted.next()) {
        (true, Some(key)) => {
            let valid: Vec<String> = quoted.collect();
            FileError::UnknownKey { place, nearest: nearest(&key, &valid), key, valid }
        }
        _ => FileError::Invalid { place, key, message: message.replace('\n', "; ").replace('`', "\"") },
    }
}

fn nearest(key: &str, valid: &[String]) -> Option<String> {
    valid
        .iter()
        .map(|candidate| (strsim::jaro_winkler(key, candidate), candidate))
        .filter(|(likeness, _)| *likeness >= LIKENESS)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate.clone())
}

/// The key whose value stands there, with its table.
fn key(text: &str, at: usize) -> Option<String> {
    let before = text.get(..at)?;
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let (key, _) = before[line_start..].split_once('=')?;
    let key = key.trim();
    if key.is_empty() || key.contains(['"', '\'', '#', '[']) {
        return None;
    }
    let table =
        before[..line_start].lines().rev().find_map(|line| line.trim().strip_prefix('[')?.split(']').next());
    Some(table.map_or_else(|| key.to_owned(), |table| format!("{table}.{key}")))
}

fn place(path: &Path, text: &str, span: Range<usize>) -> Place {
    let before = text.get(..span.start).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    Place {
        path: path.to_owned(),
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(text: &str) -> String {
        parse(Path::new("/k.toml"), text).unwrap_err().to_string()
    }

    #[test]
    fn a_value_in_place_of_a_section_is_told_what_is_expected() {
        assert_eq!(
            complaint("hooks = 1"),
            "/k.toml:1:9: hooks: invalid type: integer \"1\", expected a table"
        );
    }

    #[test]
    fn every_setting_is_understood() {
        let file = parse(
            Path::new("/k.toml"),
            r#"
            node_name = "slave-197"
            socket = "/run/k.sock"
            state_dir = "/var/lib/k"
            cmdline = "all"
            require_ebpf = true
            [output]
            format = "json"
            min_severity = "warning"
            [metrics]
            listen = ["0.0.0.0:19809", "[::1]:19809"]
            [runtime]
            sockets = ["docker=/run/docker.sock"]
            [hooks]
            neighbor = "netlink"
            umount = "off"
            ring_kib = 512
            [store]
            enabled = false
            max_age_days = 30
            max_mib = 512
            [recorder]
            enabled = false
            minutes = 30
            max_mib = 32
            [incidents]
            learned_gateway_failed_seconds = 20
            gateway_static_percent = 100
            "#,
        )
        .unwrap();
        assert_eq!(file.node_name, Some(NodeName("slave-197".into())));
        assert_eq!(file.cmdline, Some(Cmdline::All));
        assert_eq!(file.output.min_severity, Some(Severity::Warning));
        assert_eq!(file.metrics.listen.unwrap().len(), 2);
        assert_eq!(
            file.runtime.sockets,
            Some(Runtimes::of(&["docker=/run/docker.sock".parse().unwrap()]).unwrap())
        );
        assert_eq!(file.hooks.ring_kib, Some(512));
        assert_eq!(file.store, Store { enabled: Some(false), max_age_days: Some(30), max_mib: Some(512) });
        let recorder = Recorder { enabled: Some(false), minutes: Some(30), max_mib: Some(32) };
        assert_eq!(file.recorder, recorder);
        assert_eq!(file.incidents.learned_gateway_failed_seconds, 20);
        assert_eq!(file.incidents.gateway_static_percent, 100);
        assert_eq!(file.incidents.gateway_static_pods, 3);
    }

    #[test]
    fn an_empty_file_sets_nothing() {
        assert_eq!(parse(Path::new("/k.toml"), "").unwrap(), File::default());
    }

    #[test]
    fn an_unknown_key_is_told_with_its_place_and_the_nearest_valid_one() {
        assert_eq!(
            complaint("node_name = \"a\"\n\n[output]\nfromat = \"json\"\n"),
            r#"/k.toml:4:1: unknown key "fromat"; did you mean "format"?"#
        );
        assert_eq!(
            complaint("require_epbf = true"),
            r#"/k.toml:1:1: unknown key "require_epbf"; did you mean "require_ebpf"?"#
        );
        assert_eq!(
            complaint("[hook]\nneighbor = \"off\""),
            r#"/k.toml:1:2: unknown key "hook"; did you mean "hooks"?"#
        );
        assert_eq!(
            complaint("[output]\nzzz = 1"),
            r#"/k.toml:2:1: unknown key "zzz"; valid keys here: format, min_severity"#
        );
    }

    #[test]
    fn a_wrong_value_is_told_with_its_place_and_what_is_valid() {
        for (text, place, valid) in [
            ("[output]\nformat = \"xml\"", "/k.toml:2:10: ", "one of pretty, json, none"),
            ("[output]\nformat = 3", "/k.toml:2:10: ", "one of pretty, json, none"),
            ("[output]\nmin_severity = \"loud\"", "/k.toml:2:16: ", "critical"),
            ("[hooks]\nneighbor = \"kprobe\"", "/k.toml:2:12: ", "one of auto, tp_btf, netlink, off"),
            ("[hooks]\numount = \"netlink\"", "/k.toml:2:10: ", "one of auto, tracepoint, off"),
            ("[hooks]\nring_kib = 1000", "/k.toml:2:12: ", "a power of two from 64 to 2048"),
            ("[hooks]\nring_kib = 4096", "/k.toml:2:12: ", "a power of two from 64 to 2048"),
            ("[hooks]\nring_kib = \"1M\"", "/k.toml:2:12: ", "expected"),
            ("[store]\nmax_mib = 4", "/k.toml:2:11: ", "a number from 8 to"),
            ("[store]\nmax_age_days = -1", "/k.toml:2:16: ", "a number from 1 to 3650"),
            ("[metrics]\nlisten = [\"localhost\"]", "/k.toml:2:10: ", "ADDR:PORT"),
            ("[metrics]\nlisten = \"127.0.0.1:1\"", "/k.toml:2:10: ", "a list such as"),
            ("[runtime]\nsockets = [\"cri=/x\"]", "/k.toml:2:11: ", "cri is not supported by this build"),
            ("[runtime]\nsockets = true", "/k.toml:2:11: ", "\"auto\", \"none\" or a list"),
            ("[incidents]\ngateway_static_percent = 0", "/k.toml:2:26: ", "expected 1 to 100"),
            ("[incidents]\nvolume_busy_warning_seconds = -1", "/k.toml:2:31: ", "expected u32"),
            ("require_ebpf = \"yes\"", "/k.toml:1:16: ", "boolean"),
            ("cmdline = \"some\"", "/k.toml:1:11: ", "one of off, host, all"),
            ("[recorder]\nminutes = 0", "/k.toml:2:11: ", "1 to 1440"),
            ("[recorder]\nmax_mib = 2", "/k.toml:2:11: ", "4 to 1024"),
            ("node_name = \"a b\"", "/k.toml:1:13: ", "without blanks"),
        ] {
            let said = complaint(text);
            assert!(said.starts_with(place) && said.contains(valid), "{text}: {said}");
        }
    }

    #[test]
    fn a_wrong_value_is_told_with_its_key() {
        let said = complaint("node_name = \"a\"\n[hooks]\n# size\nring_kib = 1000");
        assert!(said.starts_with("/k.toml:4:12: hooks.ring_kib: 1000 is not valid"), "{said}");
        assert!(complaint("cmdline = \"some\"").starts_with("/k.toml:1:11: cmdline: "));
    }

    #[test]
    fn text_that_is_not_toml_is_told_with_its_place() {
        assert!(complaint("a = \n").starts_with("/k.toml:1:"));
        assert!(complaint("[output]\nformat = \"json\"\nformat = \"json\"").starts_with("/k.toml:3:1: "));
    }
}
