//! Those of the crate of tests, for which this crate would be another one.
#![allow(dead_code, reason = "this one uses a part")]

#[path = "../../testing/src/numbered.rs"]
pub mod numbered;
#[path = "../../testing/src/sample.rs"]
pub mod sample;
#[path = "../../testing/src/schema.rs"]
pub mod schema;
