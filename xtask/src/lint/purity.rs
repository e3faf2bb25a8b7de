//! Pure modules get time and facts as input, so that a recording replays to the same answer: they do no I/O and read
//! no clock.

use super::files::File;
use super::rules::Finding;

/// The modules that are pure.
const PURE: [&str; 5] = ["node", "diagnose", "core", "query", "render"];

/// Beginnings of paths that lead out of the process, and what is found there.
const OUTSIDE: [(&str, &str); 12] = [
    ("std::fs", "reaches the file system"),
    ("std::net", "reaches the network"),
    ("std::os::unix::net", "reaches the network"),
    ("std::process", "starts processes"),
    ("std::thread", "starts threads"),
    ("std::env", "reads the environment"),
    ("std::time::Instant", "reads a clock"),
    ("std::time::SystemTime", "reads a clock"),
    ("crate::clock", "reads a clock"),
    ("tokio", "does I/O"),
    ("nix", "calls the kernel"),
    ("libc", "calls the kernel"),
];

/// What of it is only data.
const DATA: [&str; 9] = [
    "std::net::IpAddr",
    "std::net::Ipv4Addr",
    "std::net::Ipv6Addr",
    "std::net::AddrParseError",
    "crate::clock::BootNs",
    "crate::clock::MS",
    "crate::clock::NS_PER_TICK",
    "crate::clock::SECOND",
    "nix::errno",
];

/// What in this file is not pure though it has to be.
pub(super) fn check(file: &File) -> Vec<Finding> {
    let pure = |module: &Vec<String>| PURE.iter().any(|name| starts_with(module, name));
    if !file.is_of_daemon() || !file.module.as_ref().is_some_and(pure) {
        return Vec::new();
    }
    let live = file.source.paths.iter().filter(|found| !found.in_test);
    live.filter_map(|found| {
        let what = impurity(&found.what)?;
        let complaint = format!("`{}` {what}: {} are pure", found.what.join("::"), PURE.join(", "));
        Some(Finding::new(file, found.line, complaint))
    })
    .collect()
}

fn impurity(path: &[String]) -> Option<&'static str> {
    if path.len() > 1 && path.last().is_some_and(|name| name == "now") {
        return Some("reads a clock");
    }
    let (_, what) = OUTSIDE.iter().find(|(outside, _)| starts_with(path, outside))?;
    let is_constant = path[0] == "libc" && path.last().is_some_and(|name| !name.contains(char::is_lowercase));
    let is_data = DATA.iter().any(|data| starts_with(path, data));
    (!is_constant && !is_data).then_some(what)
}

fn starts_with(path: &[String], beginning: &str) -> bool {
    let mut path = path.iter();
    beginning.split("::").all(|name| path.next().is_some_and(|found| found == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        check(&File::new(path, text).expect("Rust")).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn pure_code_reads_no_clock_and_does_no_io() {
        for text in [
            "fn f() { let t = SystemTime::now(); }",
            "fn f() { let t = std::time::Instant::now(); }",
            "fn f() { let t = jiff::Timestamp::now(); }",
            "use std::time::{Duration, Instant};",
            "use std::fs;",
            "use std::{collections::HashMap, fs};",
            "use std::fs::File as Handle;",
            "fn f() { let x = std::fs::read(path); }",
            "use std::net::TcpStream;",
            "use std::net::{IpAddr, UdpSocket};",
            "use std::{fmt, net};",
            "use std::process::Command;",
            "use crate::clock::boot_now;",
            "use tokio::sync::mpsc;",
            "use nix::unistd::read;",
            "fn f() { libc::read(0, p, 1); }",
        ] {
            for path in ["monitor/src/core.rs", "monitor/src/node/mod.rs", "monitor/src/query/story.rs"] {
                assert_eq!(findings(path, text).len(), 1, "{path}: {text}");
            }
            assert_eq!(findings("monitor/src/sources/netlink/mod.rs", text), [""; 0]);
            assert_eq!(findings("monitor/src/cli/client/remote.rs", text), [""; 0]);
        }
    }

    #[test]
    fn addresses_numbers_and_words_are_data() {
        for text in [
            "use std::net::IpAddr;",
            "use std::net::{IpAddr, Ipv4Addr};",
            "fn of(address: std::net::IpAddr, x: u8) -> Option<std::net::Ipv6Addr> { None }",
            "use nix::errno::Errno;",
            "const BUSY: i32 = libc::EBUSY;",
            "use std::time::Duration;",
            "// std::fs is out of reach here, as is Instant::now()",
        ] {
            assert_eq!(findings("monitor/src/node/neighbors.rs", text), [""; 0], "{text}");
        }
    }

    #[test]
    fn tests_of_pure_code_may_read_files() {
        let text = "fn a() {}\n\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}";
        assert_eq!(findings("monitor/src/node/pods.rs", text), [""; 0]);
        assert_eq!(findings("monitor/src/node/pods/tests.rs", "use std::fs;"), [""; 0]);
        let found = findings("monitor/src/node/pods.rs", "#[cfg(test)]\nuse std::fmt;\nuse std::fs;");
        assert_eq!(
            found,
            [
                "monitor/src/node/pods.rs:3: `std::fs` reaches the file system: node, diagnose, core, query, render are pure"
            ]
        );
    }
}
