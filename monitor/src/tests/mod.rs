//! Shared by the tests of several modules: one event of each shape, and a history in memory.

pub(crate) mod history;
pub(crate) mod sample;
