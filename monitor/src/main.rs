//! The program: arguments, logging, configuration, run, exit code.

fn main() {}
