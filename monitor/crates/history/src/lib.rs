//! What happened: recordings and their replay, the store of events, and queries on both.

#[cfg(test)]
extern crate self as kevtmon_history;

pub mod query;
pub mod queue;
pub mod recording;
pub mod store;

#[cfg(test)]
mod test_support;
