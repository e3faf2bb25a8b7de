//! Where events go: the sinks, the HTTP server of metrics, health and API, and its client.

pub mod client;
pub mod http;
pub mod sinks;
pub mod web_config;

#[cfg(test)]
extern crate self as kevtmon_server;

#[cfg(test)]
mod api_rig;
#[cfg(test)]
#[path = "../../history/src/test_support/mod.rs"]
mod test_support;
