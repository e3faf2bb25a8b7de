//! The files of `deploy/` and `docs/`, as users have them.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use yaml_rust2::{Yaml, YamlLoader};

/// Where a file of the repository is, by its path there.
#[must_use]
pub fn path(of: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this package is in a workspace").join(of)
}

/// The text of such a file.
#[must_use]
pub fn text(of: &str) -> String {
    std::fs::read_to_string(path(of)).unwrap_or_else(|error| panic!("{of}: {error}"))
}

/// The documents of such a file of YAML.
#[must_use]
pub fn yaml(of: &str) -> Vec<Value> {
    parse(&text(of), of)
}

/// The documents of a text that is called so; empty ones are left out.
#[must_use]
pub fn parse(text: &str, of: &str) -> Vec<Value> {
    let documents = YamlLoader::load_from_str(text).unwrap_or_else(|error| panic!("{of}: {error}\n{text}"));
    documents.iter().map(json).filter(|document| !document.is_null()).collect()
}

/// The only document of such a file.
#[must_use]
pub fn document(of: &str) -> Value {
    let [only] =
        <[Value; 1]>::try_from(yaml(of)).unwrap_or_else(|all| panic!("{of}: {} documents", all.len()));
    only
}

/// A member that has to be a text.
#[must_use]
pub fn string<'a>(of: &'a Value, member: &str) -> &'a str {
    of[member].as_str().unwrap_or_else(|| panic!("{member} is no text in {of}"))
}

/// A member that has to be a list.
#[must_use]
pub fn list<'a>(of: &'a Value, member: &str) -> &'a [Value] {
    of[member].as_array().unwrap_or_else(|| panic!("{member} is no list in {of}"))
}

/// The commands that such a file of Markdown shows on a console, each in a line, without what they print.
#[must_use]
pub fn commands(of: &str) -> Vec<String> {
    let text = text(of).replace("\\\n", " ");
    let blocks = text.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.flat_map(str::lines).filter_map(|line| line.strip_prefix("$ ")).map(str::to_owned).collect()
}

fn json(yaml: &Yaml) -> Value {
    match yaml {
        Yaml::Real(text) => text.parse::<f64>().map_or_else(|_| text.as_str().into(), Value::from),
        Yaml::Integer(number) => (*number).into(),
        Yaml::String(text) => text.as_str().into(),
        Yaml::Boolean(bool) => (*bool).into(),
        Yaml::Array(all) => all.iter().map(json).collect(),
        Yaml::Hash(members) => {
            let text = |key: &Yaml| key.as_str().expect("a name is a text").to_owned();
            members.iter().map(|(key, value)| (text(key), json(value))).collect::<Map<_, _>>().into()
        }
        Yaml::Null => Value::Null,
        Yaml::Alias(_) | Yaml::BadValue => panic!("{yaml:?}"),
    }
}
