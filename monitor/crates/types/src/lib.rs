//! What every crate may need: time, names, settings, redaction, escaping.

pub mod allocator;
pub mod bucket;
pub mod build_info;
pub mod clock;
pub mod error_chain;
pub mod escape;
pub mod is_zero;
pub mod kernel_release;
pub mod lock;
pub mod names;
pub mod namespace;
pub mod pairs;
pub mod position;
pub mod redact;
pub mod regular_file;
pub mod settings;
pub mod shares;
