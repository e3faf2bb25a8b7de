//! Shared by the tests of several modules: one event of each shape, a history in memory, a model of a node, the check of
//! the schema, waits, a process of its own, and the heap of that.

pub(crate) mod alone;
mod documents;
#[cfg(target_env = "gnu")]
pub(crate) mod heap;
pub(crate) mod history;
mod incidents;
pub(crate) mod model;
pub(crate) mod patience;
#[path = "../../../tests/src/random.rs"]
#[allow(
    unreachable_pub,
    dead_code,
    unfulfilled_lint_expectations,
    reason = "it is the one of the end-to-end tests, whose lints differ"
)]
pub(crate) mod random;
mod readme;
pub(crate) mod sample;
pub(crate) mod schema;
