//! The configuration file. Input: TOML text. Output: the values that it sets. The settings are declared elsewhere.

use std::ops::Range;
use std::path::Path;

use kevtmon_types::position::Position;
use kevtmon_types::position::{hint, nearest};
use kevtmon_types::settings::setting::invalid;
use kevtmon_types::settings::{Description, Values};
use serde::Deserialize as _;
use thiserror::Error as ThisError;
use toml::de::{DeString, DeTable, DeValue, ValueDeserializer};
use toml::{Spanned, Value};

/// What is wrong with the text of a file.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum FileError {
    #[error("{position}: unknown key {key:?}{}", hint(.nearest.as_deref(), .valid))]
    UnknownKey {
        position: Position,
        key: String,
        /// The valid key that looks most like it.
        nearest: Option<String>,
        valid: Vec<String>,
    },
    #[error("{position}: {}{message}", .key.as_ref().map_or_else(String::new, |key| format!("{key}: ")))]
    Invalid {
        position: Position,
        /// The key that it belongs to, with its table, where there is one.
        key: Option<String>,
        /// What is wrong, and what is valid.
        message: String,
    },
}

/// Reads the text; `path` is only for error messages.
pub(super) fn parse(
    path: &Path,
    text: &str,
    settings: &[&'static dyn Description],
) -> Result<Values, FileError> {
    let document = DeTable::parse(text).map_err(|error| FileError::Invalid {
        position: position(path, text, error.span()),
        key: None,
        message: error.message().replace('\n', "; ").replace('`', "\""),
    })?;
    let mut file = Reader { path, text, settings, values: Values::default() };
    file.table("", document.into_inner())?;
    Ok(file.values)
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    settings: &'a [&'static dyn Description],
    values: Values,
}

impl Reader<'_> {
    fn table(&mut self, table: &str, entries: DeTable<'_>) -> Result<(), FileError> {
        // The first mistake of the file is the one to report.
        let mut entries: Vec<_> = entries.into_iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let name = key.get_ref().as_ref();
            let setting = self.settings.iter().copied().find(|setting| is(*setting, table, name));
            match setting {
                Some(setting) => self.value(setting, value)?,
                None if table.is_empty() && self.settings.iter().any(|setting| setting.table() == name) => {
                    self.subtable(name, value)?;
                }
                None => return Err(self.unknown(table, &key)),
            }
        }
        Ok(())
    }

    fn subtable(&mut self, name: &str, value: Spanned<DeValue<'_>>) -> Result<(), FileError> {
        let span = value.span();
        let value = match value.into_inner() {
            DeValue::Table(entries) => return self.table(name, entries),
            other => Spanned::new(span.clone(), other),
        };
        let message = untyped(value).map_or_else(|message| message, |value| invalid(&value, "a table"));
        Err(self.invalid(name.to_owned(), span, message))
    }

    fn value(
        &mut self,
        setting: &'static dyn Description,
        value: Spanned<DeValue<'_>>,
    ) -> Result<(), FileError> {
        let span = value.span();
        let parsed = untyped(value)
            .and_then(|value| setting.parse(value))
            .map_err(|message| self.invalid(setting.name(), span, message))?;
        self.values.store(setting, parsed);
        Ok(())
    }

    fn invalid(&self, key: String, span: Range<usize>, message: String) -> FileError {
        FileError::Invalid { position: position(self.path, self.text, Some(span)), key: Some(key), message }
    }

    fn unknown(&self, table: &str, key: &Spanned<DeString<'_>>) -> FileError {
        let mut valid: Vec<String> = Vec::new();
        for setting in self.settings {
            let name = if setting.table() == table { setting.key() } else { setting.table() };
            let is_here = setting.table() == table || table.is_empty();
            if is_here && !valid.iter().any(|known| known == name) {
                valid.push(name.to_owned());
            }
        }
        FileError::UnknownKey {
            position: position(self.path, self.text, Some(key.span())),
            nearest: nearest(key.get_ref(), &valid).map(str::to_owned),
            key: key.get_ref().clone().into_owned(),
            valid,
        }
    }
}

fn untyped(value: Spanned<DeValue<'_>>) -> Result<Value, String> {
    Value::deserialize(ValueDeserializer::from(value)).map_err(|error| error.message().to_owned())
}

fn is(setting: &dyn Description, table: &str, key: &str) -> bool {
    setting.table() == table && setting.key() == key
}

fn position(path: &Path, text: &str, span: Option<Range<usize>>) -> Position {
    let before = span.and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    Position {
        path: path.to_owned(),
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::descriptions;

    fn read(text: &str) -> Result<Values, FileError> {
        parse(Path::new("/k.toml"), text, &descriptions())
    }

    fn complaint(text: &str) -> String {
        read(text).unwrap_err().to_string()
    }

    #[test]
    fn a_value_in_place_of_a_table_is_refused_with_what_is_expected() {
        assert_eq!(complaint("hooks = 1"), "/k.toml:1:9: hooks: 1 is not valid: expected a table");
    }

    #[test]
    fn an_empty_file_sets_nothing() {
        assert!(read("").unwrap().is_empty());
    }

    #[test]
    fn the_first_mistake_is_reported() {
        let said = complaint("socket = 1\ncmdline = 2\n[store]\nzzz = 1\n[hooks]\nneighbor = 1");
        assert!(said.starts_with("/k.toml:1:10: socket: "), "{said}");
    }

    #[test]
    fn dotted_and_quoted_keys_and_inline_tables_are_understood() {
        assert!(complaint("store.max_mib = 1").starts_with("/k.toml:1:17: store.max_mib: 1 is not valid"));
        assert!(complaint("store = { max_mib = 1 }").starts_with("/k.toml:1:21: store.max_mib: "));
        assert!(complaint("[\"store\"]\n'max_mib' = 1").starts_with("/k.toml:2:13: store.max_mib: "));
    }

    #[test]
    fn an_unknown_key_is_reported_with_its_position_and_the_nearest_valid_one() {
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
    fn a_wrong_value_is_reported_with_its_position_and_what_is_valid() {
        for (text, position, valid) in [
            ("[output]\nformat = \"xml\"", "/k.toml:2:10: ", "one of pretty, json, none"),
            ("[output]\nformat = 3", "/k.toml:2:10: ", "one of pretty, json, none"),
            ("[output]\nmin_severity = \"loud\"", "/k.toml:2:16: ", "critical"),
            ("[hooks]\nneighbor = \"kprobe\"", "/k.toml:2:12: ", "one of auto, tp_btf, raw_tp, netlink, off"),
            ("[hooks]\numount = \"netlink\"", "/k.toml:2:10: ", "one of auto, tracepoint, helpers, off"),
            ("[hooks]\nring_kib = 1000", "/k.toml:2:12: ", "a power of two from 64 to 2048"),
            ("[hooks]\nring_kib = 4096", "/k.toml:2:12: ", "a power of two from 64 to 2048"),
            ("[hooks]\nring_kib = \"1M\"", "/k.toml:2:12: ", "a power of two from 64 to 2048"),
            ("[store]\nmax_mib = 4", "/k.toml:2:11: ", "a number from 8 to"),
            ("[store]\nmax_age_days = -1", "/k.toml:2:16: ", "a number from 1 to 3650"),
            ("[metrics]\nlisten = [\"localhost\"]", "/k.toml:2:10: ", "ADDR:PORT"),
            ("[metrics]\nlisten = \"127.0.0.1:1\"", "/k.toml:2:10: ", "a list such as"),
            ("[runtime]\nsockets = [\"lxd=/x\"]", "/k.toml:2:11: ", "\"lxd=/x\" is not valid"),
            ("[runtime]\nsockets = true", "/k.toml:2:11: ", "\"auto\", \"none\" or a list"),
            ("[incidents]\ngateway_static_percent = 0", "/k.toml:2:26: ", "expected a number from 1 to 100"),
            (
                "[incidents]\nvolume_busy_warning_seconds = -1",
                "/k.toml:2:31: ",
                "-1 is not valid: expected a number from 0 to 4294967295",
            ),
            ("require_ebpf = \"yes\"", "/k.toml:1:16: ", "boolean"),
            ("cmdline = \"some\"", "/k.toml:1:11: ", "one of off, host, all"),
            ("[recorder]\nminutes = 0", "/k.toml:2:11: ", "a number from 1 to 1440"),
            ("[recorder]\nmax_mib = 2", "/k.toml:2:11: ", "a number from 4 to 1024"),
            ("node_name = \"a b\"", "/k.toml:1:13: ", "without blanks"),
        ] {
            let said = complaint(text);
            assert!(said.starts_with(position) && said.contains(valid), "{text}: {said}");
        }
    }

    #[test]
    fn a_wrong_value_is_reported_with_its_key() {
        let said = complaint("node_name = \"a\"\n[hooks]\n# size\nring_kib = 1000");
        assert!(said.starts_with("/k.toml:4:12: hooks.ring_kib: 1000 is not valid"), "{said}");
        assert!(complaint("cmdline = \"some\"").starts_with("/k.toml:1:11: cmdline: "));
    }

    #[test]
    fn text_that_is_not_toml_is_reported_with_its_position() {
        assert!(complaint("a = \n").starts_with("/k.toml:1:"));
        assert!(complaint("[output]\nformat = \"json\"\nformat = \"json\"").starts_with("/k.toml:3:1: "));
    }
}
