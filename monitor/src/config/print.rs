//! The configuration as a file: all settings with their meaning and default, or the effective values. And as JSON, for
//! recordings.

use std::collections::BTreeMap;

use kevtmon_types::settings::{Description, Values};
use serde::ser::{Serialize, Serializer};
use toml::{Table, Value};

use super::{Config, Environment, Overrides, descriptions, merge};

const WIDTH: usize = 100;

/// A configuration file with every setting and what it means, commented out, at its default.
pub fn default_file() -> String {
    // The defaults of a service on some node, wherever this is printed.
    let environment = Environment { host_name: Some("node-1".to_owned()), ..Environment::default() };
    let mut text =
        "# Configuration of kevtmon. Every setting is optional; these are the defaults.\n".to_owned();
    let Ok(Config(defaults)) = merge(Values::default(), &Overrides::default(), environment) else {
        return text;
    };
    write(&mut text, |setting| {
        let comment: String = wrapped(&meaning(setting)).map(|line| format!("# {line}\n")).collect();
        format!("\n{comment}# {}", line(setting, &defaults))
    });
    text
}

/// A configuration file with the effective value of every setting.
pub fn effective_file(config: &Config) -> String {
    let mut text = String::new();
    write(&mut text, |setting| line(setting, &config.0));
    text
}

/// Table by table, those of the top level first.
fn write(text: &mut String, line: impl Fn(&dyn Description) -> String) {
    let mut table = "";
    for setting in descriptions() {
        if setting.table() != table {
            table = setting.table();
            text.push_str(&format!("\n[{table}]\n"));
        }
        text.push_str(&line(setting));
    }
}

fn line(setting: &dyn Description, values: &Values) -> String {
    format!("{} = {}\n", setting.key(), values.stored(setting).to_toml())
}

fn meaning(setting: &dyn Description) -> String {
    match setting.valid() {
        Some(valid) => format!("{} Valid: {valid}.", setting.doc()),
        None => setting.doc().into_owned(),
    }
}

fn wrapped(text: &str) -> impl Iterator<Item = String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + 1 + word.len() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.into_iter()
}

/// The tables and keys of the file.
impl Serialize for Config {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut tables: BTreeMap<&str, Table> = BTreeMap::new();
        for setting in descriptions() {
            let value = self.0.stored(setting).to_toml();
            tables.entry(setting.table()).or_default().insert(setting.key().to_owned(), value);
        }
        let mut file = tables.remove("").unwrap_or_default();
        file.extend(tables.into_iter().map(|(table, values)| (table.to_owned(), Value::Table(values))));
        file.serialize(to)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::{env, fs};

    use super::*;
    use crate::config::file;

    fn environment() -> Environment {
        Environment { host_name: Some("node-1".into()), ..Environment::default() }
    }

    fn parsed(text: &str) -> Values {
        file::parse(Path::new("/k.toml"), text, &descriptions())
            .unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    #[test]
    fn no_setting_is_described_twice_and_tables_are_not_scattered() {
        let mut keys: Vec<_> =
            descriptions().iter().map(|setting| (setting.table(), setting.key())).collect();
        let mut tables: Vec<_> = keys.iter().map(|(table, _)| *table).collect();
        tables.dedup();
        let count = tables.len();
        tables.sort_unstable();
        tables.dedup();
        assert_eq!(tables.len(), count);
        let count = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), count);
    }

    #[test]
    fn the_default_file_changes_nothing_and_its_comments_hold_valid_defaults() {
        let text = default_file();
        assert!(parsed(&text).is_empty());
        let is_setting = |line: &&str| line.starts_with('[') || line.contains(" = ");
        let bare: String = text
            .lines()
            .map(|line| line.strip_prefix("# ").unwrap_or(line))
            .filter(is_setting)
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(bare.matches(" = ").count(), descriptions().len(), "{bare}");
        let back = merge(parsed(&bare), &Overrides::default(), Environment::default()).unwrap();
        let defaults = merge(Values::default(), &Overrides::default(), environment()).unwrap();
        for setting in descriptions() {
            assert!(back.0.stored(setting).equals(&*defaults.0.stored(setting)), "{setting:?}");
        }
    }

    #[test]
    fn the_effective_file_is_a_file_with_the_same_effect() {
        let text = "node_name = \"a\\\"b\\\\c\"\nstate_dir = \"/tmp/ä\"\ncmdline = \"off\"\n[metrics]\nlisten = []\n\
                    [runtime]\nsockets = [\"docker=/a\", \"docker=/b c\"]\n[hooks]\nring_kib = 64\n";
        let config = merge(parsed(text), &Overrides::default(), environment()).unwrap();
        let effective = effective_file(&config);
        let again = merge(parsed(&effective), &Overrides::default(), Environment::default()).unwrap();
        for setting in descriptions() {
            assert!(again.0.stored(setting).equals(&*config.0.stored(setting)), "{setting:?}\n{effective}");
        }
    }

    #[test]
    fn recordings_contain_the_tables_and_keys_of_the_file() {
        let config = merge(parsed("[store]\nmax_mib = 9"), &Overrides::default(), environment()).unwrap();
        let json = serde_json::to_value(&config).unwrap();
        let file: Value = toml::from_str(&effective_file(&config)).unwrap();
        assert_eq!(json, serde_json::to_value(file).unwrap());
        assert_eq!(json["store"]["max_mib"], 9);
    }

    #[test]
    fn a_path_that_is_not_unicode_is_printed_as_far_as_it_can_be() {
        use std::os::unix::ffi::OsStringExt as _;
        let path = std::ffi::OsString::from_vec(b"/tmp/\xff".to_vec());
        let over = Overrides { socket: Some(path.into()), ..Overrides::default() };
        let config = merge(Values::default(), &over, environment()).unwrap();
        assert!(effective_file(&config).contains("socket = \"/tmp/\u{fffd}\""));
    }

    #[test]
    fn the_documentation_is_the_default_file() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
        let manual = fs::read_to_string(&path).unwrap();
        let (before, rest) = manual.split_once("```toml\n").unwrap();
        let (file, after) = rest.split_once("```").unwrap();
        if env::var_os("KEVTMON_BLESS").is_some() {
            fs::write(&path, format!("{before}```toml\n{}```{after}", default_file())).unwrap();
        } else {
            assert_eq!(file, default_file(), "docs/configuration.md is written again with KEVTMON_BLESS=1");
        }
    }

    #[test]
    fn the_example_of_the_readme_is_valid() {
        let readme = include_str!("../../../README.md");
        let (example, _) = readme.split_once("```toml\n").unwrap().1.split_once("```").unwrap();
        assert!(!parsed(example).is_empty());
    }
}
