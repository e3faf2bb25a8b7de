//! The JSON Schema of events, made from the types that are written.

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde_json::{Value, json};

use super::Event;

/// The JSON Schema of one event.
pub fn schema() -> Schema {
    schema_of::<Event>()
}

/// The JSON Schema of a document, draft 2020-12: what this program writes, documented by the doc comments.
pub fn schema_of<T: JsonSchema>() -> Schema {
    SchemaSettings::draft2020_12()
        .for_serialize()
        .with_transform(RecursiveTransform(without_null))
        .with_transform(RecursiveTransform(with_listed_names))
        .with_transform(RecursiveTransform(with_standard_formats))
        .into_generator()
        .into_root_schema_for::<T>()
}

/// What is unknown is absent, so that no value is ever null.
fn without_null(schema: &mut Schema) {
    // What a reader assumes where a field is absent is never written.
    schema.remove("default");
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|name| name != "null");
        if let [one] = &types[..] {
            let one = one.clone();
            schema.insert("type".to_owned(), one);
        }
    }
    if let Some(Value::Array(mut any)) = schema.remove("anyOf") {
        any.retain(|option| option["type"] != "null");
        match &any[..] {
            [Value::Object(only)] => {
                // What documents the field is more specific than what documents its type.
                let rest = only
                    .iter()
                    .filter(|(key, _)| *key != "description" || schema.get(key.as_str()).is_none());
                let rest: Vec<_> = rest.map(|(key, value)| (key.clone(), value.clone())).collect();
                schema.ensure_object().extend(rest);
            }
            _ => drop(schema.insert("anyOf".to_owned(), any.into())),
        }
    }
}

/// An enumeration as a list of names, which tools offer for completion, with their meanings in its description.
fn with_listed_names(schema: &mut Schema) {
    let Some(Value::Array(options)) = schema.remove("oneOf") else { return };
    let mut description = schema.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
    description.push('\n');
    for option in &options {
        let name = option["const"].as_str().unwrap_or_default();
        let meaning = option["description"].as_str().unwrap_or_default();
        description.push_str(&format!("\n- `{name}`: {meaning}"));
    }
    let names: Vec<Value> = options.into_iter().map(|mut option| option["const"].take()).collect();
    schema.insert("type".to_owned(), "string".into());
    schema.insert("enum".to_owned(), names.into());
    schema.insert("description".to_owned(), description.into());
}

/// Strict validators refuse formats that no standard has, such as the widths of integers.
fn with_standard_formats(schema: &mut Schema) {
    if schema.get("format").is_some_and(|format| *format != json!("date-time")) {
        schema.remove("format");
    }
}

#[cfg(test)]
mod tests;
