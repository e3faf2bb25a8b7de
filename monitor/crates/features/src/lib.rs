//! No code: its `Cargo.toml` makes the daemon, its tests and `cargo xtask` share compiled dependencies.
