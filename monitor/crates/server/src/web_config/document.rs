//! The text of a web configuration: YAML, read into values that know where they are. Keys are checked when they are taken.

use std::path::Path;

use kevtmon_types::position::{Position, hint, nearest};
use yaml_rust2::parser::{Event, Parser};
use yaml_rust2::scanner::{Marker, TScalarStyle};

use super::WebConfigError;

/// What exporter-toolkit knows is two deep.
const DEPTH: usize = 4;

/// A value, and where it begins.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) position: Position,
    value: Value,
}

#[derive(Debug)]
enum Value {
    Null,
    /// A scalar, and whether it was quoted.
    Text(String, bool),
    List,
    Map(Vec<(Key, Node)>),
}

#[derive(Debug)]
struct Key {
    position: Position,
    name: String,
}

/// Keys of a table: those that mean something here, and those that only exporter-toolkit has, with why not.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) valid: &'static [&'static str],
    pub(super) unsupported: &'static [(&'static str, &'static str)],
}

/// Reads the text; `path` is for positions only.
pub(super) fn read(path: &Path, text: &str) -> Result<Node, WebConfigError> {
    Reader { path, parser: Parser::new_from_str(text) }.document()
}

struct Reader<'a> {
    path: &'a Path,
    parser: Parser<std::str::Chars<'a>>,
}

impl Reader<'_> {
    fn document(&mut self) -> Result<Node, WebConfigError> {
        loop {
            let (event, marker) = self.next()?;
            match event {
                Event::StreamStart | Event::DocumentStart => {}
                // Nothing, or comments only.
                Event::StreamEnd => return Ok(Node { position: self.position(marker), value: Value::Null }),
                other => {
                    let node = self.node(other, marker, DEPTH)?;
                    self.end()?;
                    return Ok(node);
                }
            }
        }
    }

    fn end(&mut self) -> Result<(), WebConfigError> {
        loop {
            let (event, marker) = self.next()?;
            match event {
                Event::DocumentEnd => {}
                Event::StreamEnd => return Ok(()),
                _ => return Err(invalid(self.position(marker), "there is a second document")),
            }
        }
    }

    fn node(&mut self, event: Event, marker: Marker, depth: usize) -> Result<Node, WebConfigError> {
        let mut position = self.position(marker);
        let value = match event {
            Event::Scalar(text, style, ..) => scalar(text, style),
            Event::SequenceStart(..) => {
                self.skip_list(depth)?;
                Value::List
            }
            Event::MappingStart(..) if depth == 0 => return Err(invalid(position, "it is nested too deep")),
            Event::MappingStart(..) => {
                let entries = self.map(depth - 1)?;
                // The parser is behind the first key by then.
                if let Some((first, _)) = entries.first() {
                    position = first.position.clone();
                }
                Value::Map(entries)
            }
            Event::Alias(_) => return Err(invalid(position, "aliases are not supported")),
            _ => return Err(invalid(position, "expected a value")),
        };
        Ok(Node { position, value })
    }

    fn map(&mut self, depth: usize) -> Result<Vec<(Key, Node)>, WebConfigError> {
        let mut entries: Vec<(Key, Node)> = Vec::new();
        loop {
            let (event, marker) = self.next()?;
            let position = self.position(marker);
            let name = match event {
                Event::MappingEnd => return Ok(entries),
                Event::Scalar(name, ..) => name,
                _ => return Err(invalid(position, "expected the name of a key")),
            };
            if entries.iter().any(|(key, _)| key.name == name) {
                return Err(invalid(position, format!("key {name:?} is there twice")));
            }
            let (event, marker) = self.next()?;
            let value = self.node(event, marker, depth)?;
            entries.push((Key { position, name }, value));
        }
    }

    /// No key takes a list.
    fn skip_list(&mut self, depth: usize) -> Result<(), WebConfigError> {
        loop {
            let (event, marker) = self.next()?;
            match event {
                Event::SequenceEnd => return Ok(()),
                _ if depth == 0 => return Err(invalid(self.position(marker), "it is nested too deep")),
                other => drop(self.node(other, marker, depth - 1)?),
            }
        }
    }

    fn next(&mut self) -> Result<(Event, Marker), WebConfigError> {
        self.parser.next_token().map_err(|error| {
            invalid(self.position(*error.marker()), format!("not valid YAML: {}", error.info()))
        })
    }

    fn position(&self, marker: Marker) -> Position {
        Position { path: self.path.to_owned(), line: marker.line().max(1), column: marker.col() + 1 }
    }
}

fn scalar(text: String, style: TScalarStyle) -> Value {
    let plain = style == TScalarStyle::Plain;
    match text.as_str() {
        "" | "~" | "null" if plain => Value::Null,
        _ => Value::Text(text, !plain),
    }
}

pub(super) fn invalid(position: Position, message: impl Into<String>) -> WebConfigError {
    WebConfigError::Invalid { position, message: message.into() }
}

impl Node {
    /// The entries of a table, whatever their names are; none of one that is empty.
    pub(super) fn entries(&self) -> Result<Vec<(&str, &Position, &Self)>, WebConfigError> {
        match &self.value {
            Value::Null => Ok(Vec::new()),
            Value::Map(entries) => {
                Ok(entries.iter().map(|(key, value)| (key.name.as_str(), &key.position, value)).collect())
            }
            Value::Text(..) | Value::List => {
                Err(invalid(self.position.clone(), "expected keys with values, as in `key: value`"))
            }
        }
    }

    /// The entries of a table with known keys.
    pub(super) fn table(&self, keys: &Keys) -> Result<Table<'_>, WebConfigError> {
        let entries = self.entries()?;
        for (name, position, _) in &entries {
            if keys.valid.contains(name) {
                continue;
            }
            let message = match keys.unsupported.iter().find(|(known, _)| known == name) {
                Some((_, why)) => format!("key {name:?} is not supported: {why}"),
                None => format!("unknown key {name:?}{}", hint(nearest(name, keys.valid), keys.valid)),
            };
            return Err(invalid((*position).clone(), message));
        }
        Ok(Table(entries))
    }

    /// Text; a value that is not there is an error.
    pub(super) fn text(&self) -> Result<&str, WebConfigError> {
        match &self.value {
            Value::Text(text, _) => Ok(text),
            _ => Err(invalid(self.position.clone(), "expected text")),
        }
    }

    /// `true` or `false`, not quoted.
    pub(super) fn flag(&self) -> Result<bool, WebConfigError> {
        match &self.value {
            Value::Text(text, false) if text == "true" => Ok(true),
            Value::Text(text, false) if text == "false" => Ok(false),
            _ => Err(invalid(self.position.clone(), "expected true or false")),
        }
    }

    /// One of a few words.
    pub(super) fn choice<T: Copy>(&self, choices: &[(&str, T)]) -> Result<T, WebConfigError> {
        let text = self.text()?;
        let chosen = choices.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        chosen.ok_or_else(|| {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            let message = format!("{text:?} is not valid: expected {}", words.join(", "));
            invalid(self.position.clone(), message)
        })
    }
}

/// A table whose keys are all known.
#[derive(Debug)]
pub(super) struct Table<'a>(Vec<(&'a str, &'a Position, &'a Node)>);

impl<'a> Table<'a> {
    /// The value of a key, if it has one.
    pub(super) fn get(&self, key: &str) -> Option<&'a Node> {
        let found = self.0.iter().find(|(name, ..)| *name == key).map(|(.., value)| *value);
        found.filter(|node| !matches!(node.value, Value::Null))
    }

    /// The same of a key that keeps clients out: without a value, it would let them in.
    pub(super) fn given(&self, key: &str) -> Result<Option<&'a Node>, WebConfigError> {
        match self.0.iter().find(|(name, ..)| *name == key) {
            Some((_, position, Node { value: Value::Null, .. })) => {
                Err(invalid((*position).clone(), format!("{key} has no value")))
            }
            found => Ok(found.map(|(.., value)| *value)),
        }
    }
}
