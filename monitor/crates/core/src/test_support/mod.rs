//! Shared by the tests of several modules.

pub mod model;
pub mod node_state;
