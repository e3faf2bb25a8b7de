//! Shared by the tests of several modules: one event of each shape, a history in memory, and the check of the schema.

pub(crate) mod history;
pub(crate) mod sample;
pub(crate) mod schema;
