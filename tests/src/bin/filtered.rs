//! Executes a command with some system calls denied, as by `SystemCallFilter=~…` of a unit: `filtered NUMBER,… COMMAND …`.

#![allow(clippy::expect_used, reason = "a test whose set-up fails must fail")]

use std::os::unix::process::CommandExt;
use std::process::Command;

use kevtmon_tests::seccomp::answer;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let denied = arguments.next().expect("numbers of system calls");
    let denied: Vec<u32> = denied.split(',').map(|number| number.parse().expect("a number")).collect();
    let program = arguments.next().expect("a command");
    answer(&denied, libc::EPERM);
    let error = Command::new(&program).args(arguments).exec();
    panic_with(&program, &error);
}

#[expect(clippy::panic, reason = "the test fails with it")]
fn panic_with(program: &str, error: &std::io::Error) -> ! {
    panic!("{program}: {error}");
}
