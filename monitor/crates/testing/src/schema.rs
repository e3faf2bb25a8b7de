//! Whether an event keeps the published schema.

use std::sync::LazyLock;

use jsonschema::Validator;
use kevtmon_event::{Event, schema};
use schemars::Schema;
use schemars::transform::{RecursiveTransform, Transform};
use serde_json::Value;

/// Stricter than what is published: what is not described is wrong too.
static STRICT: LazyLock<Validator> = LazyLock::new(|| {
    fn close(schema: &mut Schema) {
        if schema.get("properties").is_some() {
            schema.insert("additionalProperties".to_owned(), false.into());
        }
    }
    let mut strict = schema();
    RecursiveTransform(close).transform(&mut strict);
    jsonschema::validator_for(strict.as_value()).unwrap()
});

/// What is wrong with the JSON of an event.
pub fn errors(json: &Value) -> Vec<String> {
    STRICT.iter_errors(json).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

pub fn assert_valid(event: &Event) {
    let json = serde_json::to_value(event).unwrap();
    assert_eq!(errors(&json), Vec::<String>::new(), "{json:#}");
    assert_is_marked(event);
}

/// The message of an incident that is over says so, and nothing is left to be done.
pub fn assert_is_marked(event: &Event) {
    let Some(incident) = event.incident.as_ref().filter(|incident| incident.closed.is_some()) else { return };
    let reason = incident.close_reason.unwrap();
    assert!(event.message.starts_with(&format!("{}: ", reason.phrase())), "{}", event.message);
    assert!(incident.advice.is_empty(), "{incident:?}");
}
