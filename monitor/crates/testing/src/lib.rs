//! Shared by the unit tests of all crates: one event of each shape, the check of the schema, waits, a process of its own, and the
//! heap of that.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panics")]

pub mod alone;
pub mod facts;
#[cfg(target_env = "gnu")]
pub mod heap;
pub mod numbered;
pub mod patience;
#[path = "../../../../tests/src/random.rs"]
pub mod random;
pub mod same;
pub mod sample;
pub mod schema;
