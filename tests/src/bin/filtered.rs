//! Executes a command with some system calls denied, as by `SystemCallFilter=~…` of a unit: `filtered NUMBER,… COMMAND …`.

#![allow(clippy::expect_used, reason = "a test whose set-up fails must fail")]

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Offset of the number in `struct seccomp_data`.
const NUMBER: u32 = 0;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let denied = arguments.next().expect("numbers of system calls");
    let denied: Vec<u32> = denied.split(',').map(|number| number.parse().expect("a number")).collect();
    let program = arguments.next().expect("a command");
    deny(&denied);
    let error = Command::new(&program).args(arguments).exec();
    panic_with(&program, &error);
}

#[expect(clippy::panic, reason = "the test fails with it")]
fn panic_with(program: &str, error: &std::io::Error) -> ! {
    panic!("{program}: {error}");
}

/// Each of these calls fails with EPERM from now on, in whatever this process becomes.
fn deny(numbers: &[u32]) {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let errno = u32::try_from(libc::EPERM).expect("a number of an error");
    let statement = |code: u32, jf: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).expect("a code of an instruction"),
        jt: 0,
        jf,
        k,
    };
    let mut program = vec![statement(LOAD, 0, NUMBER)];
    for number in numbers {
        program.push(statement(EQUAL, 1, *number));
        program.push(statement(RETURN, 0, libc::SECCOMP_RET_ERRNO | errno));
    }
    program.push(statement(RETURN, 0, libc::SECCOMP_RET_ALLOW));
    let length = u16::try_from(program.len()).expect("a program that is not too long");
    let filter = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which lives until then.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    };
    assert!(done, "seccomp: {}", std::io::Error::last_os_error());
}
