//! Shared by the tests of several modules, and of the crates above.
#![allow(dead_code, reason = "each uses a part")]

pub mod memory;
#[path = "../../../core/src/test_support/node_state.rs"]
pub mod node_state;
pub mod stories;
