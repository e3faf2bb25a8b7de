//! Where programs find what the tracepoints of system calls give them.
//!
//! Those do not hand out the record that tracefs describes, but a structure of the kernel's own, which has the same layout
//! if the kernel was put together well; some vendor's was not. So what type information says of that structure is
//! compared with what tracefs says of each tracepoint, and where they differ nothing is read. Where no types are shown, that
//! is compared with the layout that all kernels have had so far, whatever of their own they put before it.

use kevtmon_ebpf::syscall::SyscallContext;
use thiserror::Error;
use zerocopy::IntoBytes as _;

use super::btf::{Btf, BtfError};
use super::hooks::Offsets;

/// Where the programs of every hook read it.
pub(super) const OFFSETS: Offsets = Offsets { global: "SYSCALL_CONTEXT", resolve: offsets };

/// Bytes that each argument takes, whatever its type.
const ARGUMENT: u32 = 8;

/// Why a tracepoint of a system call is not used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum ContextError {
    #[error("the format of {event} in tracefs has no {field}")]
    NoField { event: String, field: &'static str },
    #[error("{by} has {field} of {event} at byte {expected}, tracefs at byte {tracefs}")]
    Differs { by: &'static str, event: String, field: String, expected: u32, tracefs: u32 },
}

/// A layout, and what it is known by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    pub(super) layout: SyscallContext,
    by: &'static str,
}

impl Expected {
    /// By the types of this kernel.
    pub(super) fn of(btf: &Btf<'_>) -> Result<Self, BtfError> {
        Ok(Self { layout: resolve(btf)?, by: "type information" })
    }

    /// Where no types are shown. Before 6.7 the structure began with a pointer and two longs, and since then it begins as the
    /// record does: here both are the same.
    pub(super) const WITHOUT_TYPES: Self =
        Self { layout: SyscallContext { number: 8, arguments: 16, result: 16 }, by: "every kernel so far" };
}

fn resolve(btf: &Btf<'_>) -> Result<SyscallContext, BtfError> {
    // Two structures have this name: one has the arguments, the other the result.
    Ok(SyscallContext {
        number: btf.need("syscall_tp_t.syscall_nr")?,
        arguments: btf.need("syscall_tp_t.args")?,
        result: btf.need("syscall_tp_t.ret")?,
    })
}

fn offsets(btf: &Btf<'_>) -> Result<Vec<u8>, BtfError> {
    Ok(resolve(btf)?.as_bytes().to_vec())
}

/// Compares it with the format of `sys_enter_NAME` or `sys_exit_NAME`.
pub(super) fn check(expected: &Expected, event: &str, format: &str) -> Result<(), ContextError> {
    let Expected { layout: context, by } = *expected;
    let differs = |field: &str, expected: u32, tracefs: u32| match expected == tracefs {
        true => Ok(()),
        false => {
            let (event, field) = (event.to_owned(), field.to_owned());
            Err(ContextError::Differs { by, event, field, expected, tracefs })
        }
    };
    let missing = |field| ContextError::NoField { event: event.to_owned(), field };
    let of_call: Vec<(&str, u32)> = fields(format).filter(|(name, _)| !name.starts_with("common_")).collect();
    let number = of_call.iter().find(|(name, _)| matches!(*name, "__syscall_nr" | "nr"));
    let (name, at) = number.ok_or_else(|| missing("number"))?;
    differs(name, context.number, *at)?;
    if event.starts_with("sys_exit_") {
        let (name, at) = of_call.iter().find(|(name, _)| *name == "ret").ok_or_else(|| missing("result"))?;
        return differs(name, context.result, *at);
    }
    // What newer kernels copy of the memory that an argument points to has such a name, too.
    let mut arguments =
        of_call.iter().filter(|(name, _)| !name.starts_with("__") && *name != "nr").peekable();
    if arguments.peek().is_none() {
        return Err(missing("argument"));
    }
    (context.arguments..)
        .step_by(ARGUMENT as usize)
        .zip(arguments)
        .try_for_each(|(expected, (name, at))| differs(name, expected, *at))
}

/// Names and offsets in `field:TYPE NAME; offset:N; size:N; signed:N;`, which tabs separate.
fn fields(format: &str) -> impl Iterator<Item = (&str, u32)> {
    format.lines().filter_map(|line| {
        let mut parts = line.trim().strip_prefix("field:")?.split(';');
        let name = parts.next()?.split(|c: char| c.is_whitespace() || c == '*').next_back()?;
        let offset = parts.find_map(|part| part.trim().strip_prefix("offset:"))?;
        Some((name.split('[').next()?, offset.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: Expected = Expected { by: "type information", ..Expected::WITHOUT_TYPES };

    const COMMON: &str = "name: x\nID: 944\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n";

    const ENTER: &str = "\tfield:int __syscall_nr;\toffset:8;\tsize:4;\tsigned:1;\n\
        \tfield:char * name;\toffset:16;\tsize:8;\tsigned:0;\n\
        \tfield:int flags;\toffset:24;\tsize:8;\tsigned:0;\n";

    const EXIT: &str = "\tfield:int __syscall_nr;\toffset:8;\tsize:4;\tsigned:1;\n\
        \tfield:long ret;\toffset:16;\tsize:8;\tsigned:1;\n\nprint fmt: \"0x%lx\", REC->ret\n";

    fn enter(format: &str) -> Result<(), ContextError> {
        check(&EXPECTED, "sys_enter_umount", &format!("{COMMON}{format}"))
    }

    fn exit(format: &str) -> Result<(), ContextError> {
        check(&EXPECTED, "sys_exit_umount", &format!("{COMMON}{format}"))
    }

    #[test]
    fn a_format_with_all_in_the_same_place_agrees() {
        assert_eq!((enter(ENTER), exit(EXIT)), (Ok(()), Ok(())));
        let copied = "\tfield:__data_loc char[] __name_val;\toffset:32;\tsize:4;\tsigned:0;\n";
        assert_eq!(enter(&format!("{ENTER}{copied}")), Ok(()), "what newer kernels add is no argument");
        assert_eq!(exit(&EXIT.replace("__syscall_nr", "nr")), Ok(()), "its name before 4.17");
    }

    #[test]
    fn any_other_place_is_told_with_both() {
        let moved = |from: &str, format: &str| format.replace(from, "offset:12;");
        let text = |checked: Result<(), ContextError>| checked.unwrap_err().to_string();
        assert_eq!(
            text(enter(&moved("offset:24;", ENTER))),
            "type information has flags of sys_enter_umount at byte 24, tracefs at byte 12"
        );
        assert_eq!(
            text(exit(&moved("offset:16;", EXIT))),
            "type information has ret of sys_exit_umount at byte 16, tracefs at byte 12"
        );
        assert!(text(exit(&moved("offset:8;", EXIT))).contains("__syscall_nr"));
    }

    #[test]
    fn a_format_without_what_is_read_is_refused() {
        let missing = |checked: Result<(), ContextError>| match checked {
            Err(ContextError::NoField { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        assert_eq!((missing(enter("")), missing(exit("garbage"))), ("number", "number"));
        assert_eq!(missing(exit(ENTER)), "result");
        assert_eq!(missing(enter(&ENTER[..ENTER.find("\tfield:char").unwrap()])), "argument");
    }
}
