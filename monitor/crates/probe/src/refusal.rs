//! Why the kernel refused a program, in one line: the errno, and the first complaint of the verifier.
//!
//! The whole log has thousands of lines of instructions that were fine; what is wrong stands among the last ones.

use std::error::Error;
use std::io;

use aya::programs::ProgramError;
use kevtmon_sources::kernel::{CONFIDENTIALITY, lockdown};
use kevtmon_types::error_chain::chain;
use nix::errno::Errno;

/// `ENOTSUPP` of include/linux/errno.h, for which libraries have no name: no program can be attached so on this architecture.
const NOT_SUPPORTED: i32 = 524;
/// Longest complaint, in characters.
const COMPLAINT: usize = 160;
/// Beginnings of lines that are no complaint: sums, and what the verifier knows at an instruction.
const NO_COMPLAINT: [&str; 11] = [
    ";", "processed ", "verification time", "stack depth", "from ", "last_idx", "regs=", "parent ", "func#",
    "arg#", "Validating ",
];

/// The error with its causes; of a program that was refused, without the log, and with the mode of lockdown if it is one in
/// which programs are.
pub(super) fn reason(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(part) = next {
        if let Some(ProgramError::LoadError { io_error, verifier_log }) = part.downcast_ref() {
            push(&mut text, &refused(io_error, &verifier_log.to_string(), lockdown().as_deref()));
            return text;
        }
        if !is_transparent(part) {
            let shown = match part.downcast_ref::<io::Error>() {
                Some(error) if error.raw_os_error() == Some(NOT_SUPPORTED) => errno(error),
                _ => part.to_string(),
            };
            if !text.contains(&shown) {
                push(&mut text, &shown);
            }
        }
        next = part.source();
    }
    if text.is_empty() { chain(error) } else { text }
}

/// Whether its text is that of its cause, log included.
fn is_transparent(error: &(dyn Error + 'static)) -> bool {
    let Some(cause) = error.source() else { return false };
    matches!(cause.downcast_ref(), Some(ProgramError::LoadError { .. }))
        && error.to_string() == cause.to_string()
}

fn push(text: &mut String, part: &str) {
    if !text.is_empty() {
        text.push_str(": ");
    }
    text.push_str(part);
}

/// What the kernel answered, and its first complaint.
fn refused(error: &io::Error, log: &str, lockdown: Option<&str>) -> String {
    let mode = lockdown.filter(|mode| *mode == CONFIDENTIALITY).map(|mode| format!("under lockdown={mode}"));
    mode.into_iter().chain([errno(error)]).chain(complaint(log)).collect::<Vec<_>>().join(": ")
}

/// `EPERM: Operation not permitted`.
fn errno(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(NOT_SUPPORTED) => "ENOTSUPP: not supported by this kernel".to_owned(),
        Some(number) => {
            let errno = Errno::from_raw(number);
            format!("{errno:?}: {}", errno.desc())
        }
        None => error.to_string(),
    }
}

/// The first line of the log that is neither an instruction nor a sum.
fn complaint(log: &str) -> Option<String> {
    let is_complaint = |line: &&str| {
        !line.is_empty()
            && !is_instruction(line)
            && !is_state(line)
            && !NO_COMPLAINT.iter().any(|beginning| line.starts_with(beginning))
    };
    // What was fine comes first, and is told by what it is; the complaint ends the log.
    let line = log.lines().map(str::trim).find(is_complaint)?;
    Some(line.chars().take(COMPLAINT).collect())
}

/// Registers, of an older kernel: `R1=ctx(id=0,off=0,imm=0) R10=fp0`.
fn is_state(line: &str) -> bool {
    line.starts_with('R') && line.split(' ').next().is_some_and(|word| word.contains('='))
}

/// `12: (85) call …`, or the registers there: `12: R0=…`.
fn is_instruction(line: &str) -> bool {
    let Some((number, rest)) = line.split_once(':') else { return false };
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number && (rest.trim_start().starts_with(['(', 'R', ';']) || rest.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("neigh_update")]
    struct Outer(#[source] ProgramError);

    fn of(number: i32, log: &str) -> String {
        refused(&io::Error::from_raw_os_error(number), log, None)
    }

    #[test]
    fn a_lockdown_under_which_programs_are_refused_is_named() {
        let error = io::Error::from_raw_os_error(libc::EINVAL);
        let under = |mode| refused(&error, "unknown func bpf_probe_read#4\n", mode);
        assert_eq!(
            under(Some("confidentiality")),
            "under lockdown=confidentiality: EINVAL: Invalid argument: unknown func bpf_probe_read#4"
        );
        assert_eq!(under(Some("integrity")), under(None));
    }

    #[test]
    fn the_reason_is_the_errno_and_the_first_complaint() {
        let log = "func#0 @0\n0: R1=ctx(off=0) R10=fp0\nR1=ctx(id=0,off=0,imm=0) R10=fp0\n; let entry = 1\n\
                   0: (79) r6 = *(u64 *)(r1 +8)\n\
                   func 'neigh_update' arg1 type INT is not a struct\n\
                   invalid bpf_context access off=8 size=8\nprocessed 1 insns (limit 1000000)\n";
        let expected = "EACCES: Permission denied: func 'neigh_update' arg1 type INT is not a struct";
        assert_eq!(of(libc::EACCES, log), expected);
    }

    #[test]
    fn a_register_of_the_wrong_type_is_a_complaint() {
        let log = "0: (b7) r1 = 0\nR1 type=inv expected=fp\n";
        assert_eq!(complaint(log).as_deref(), Some("R1 type=inv expected=fp"));
    }

    #[test]
    fn without_a_complaint_the_errno_is_all() {
        assert_eq!(of(libc::EPERM, ""), "EPERM: Operation not permitted");
        assert_eq!(complaint("processed 4 insns (limit 1000000)\n"), None);
    }

    #[test]
    fn an_errno_that_only_the_kernel_knows_is_named() {
        let expected = "ENOTSUPP: not supported by this kernel";
        assert_eq!(of(NOT_SUPPORTED, ""), expected);
        assert_eq!(reason(&io::Error::from_raw_os_error(NOT_SUPPORTED)), expected);
    }

    #[test]
    fn a_complaint_is_cut() {
        assert_eq!(complaint(&"x".repeat(1000)).map(|text| text.len()), Some(COMPLAINT));
    }

    #[test]
    fn another_error_is_told_with_its_causes() {
        assert_eq!(reason(&Outer(ProgramError::NotLoaded)), "neigh_update: the program is not loaded");
    }
}
