//! Container runtimes: which containers there are, whose pod they belong to, where their processes are.
//!
//! One file per runtime; what the kubelet writes into all of them is read here once.

pub mod docker;
mod kubelet;

/// Whether it is a full container id: 64 hex digits. Ids become part of request paths, so nothing else
/// may pass for one.
fn is_container_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
