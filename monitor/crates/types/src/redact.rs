//! Masks secrets in command lines, before anything else sees them.
//!
//! In: the raw arguments of a process, which are untrusted. Out: one line that is safe to
//! show: secrets masked, no terminal escapes, at most [`MAX_LEN`] bytes. It rather masks too
//! much than too little, and has no table of the options of each program.

mod argument;
mod flag;
mod name;

use argument::{Context, Next};

/// Longest command line that is kept, in bytes.
pub const MAX_LEN: usize = 4096;

/// How much of the arguments is looked at: what is masked takes less room in the line.
const MAX_INPUT: usize = 2 * MAX_LEN;

/// What stands for a secret.
const MASK: &str = "***";

/// What stands for a cut.
const ELLIPSIS: char = '…';

/// Turns the NUL-separated arguments of a process into one masked, cut line; `None` when there are none.
///
/// A missing NUL at the end means that the capture was cut within the last argument, so that what is left
/// of it may be the beginning of a secret.
pub fn command_line(args: &[u8]) -> Option<String> {
    let kept = args.get(..MAX_INPUT).unwrap_or(args);
    let (kept, cut) = match kept.strip_suffix(b"\0") {
        Some(whole) => (whole, false),
        None => (kept, true),
    };
    let mut line = String::new();
    let mut next = Next::Plain;
    let (mut password_command, mut glued_command) = (false, false);
    let mut arguments = kept.split(|byte| *byte == 0).map(String::from_utf8_lossy).peekable();
    while let Some(arg) = arguments.next() {
        let context = Context {
            first: line.is_empty(),
            password_command,
            glued_command,
            cut: cut && arguments.peek().is_none(),
        };
        if !arg.is_empty() && !line.is_empty() {
            line.push(' ');
        }
        next = argument::mask(&arg, next, &context, &mut line);
        password_command |= flag::is_password_command(&arg);
        glued_command |= flag::is_glued_command(&arg);
    }
    let mut line: String = line.chars().map(harmless).collect();
    if line.len() > MAX_LEN || args.len() > MAX_INPUT {
        line.truncate(line.floor_char_boundary(MAX_LEN - ELLIPSIS.len_utf8()));
        line.push(ELLIPSIS);
    }
    (!line.is_empty()).then_some(line)
}

/// Masks the secrets in what is mounted: user info in a URL, `user:password@host:/path`, `password=…`.
pub fn mount_source(source: &str) -> String {
    let context = Context { first: false, password_command: false, glued_command: false, cut: false };
    let mut masked = String::new();
    argument::mask(source, Next::Plain, &context, &mut masked);
    masked
}

/// Arguments are shown on terminals: no escapes, no line breaks, nothing that reorders or hides text.
fn harmless(c: char) -> char {
    match c {
        '\t' => ' ',
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' => {
            char::REPLACEMENT_CHARACTER
        }
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

#[cfg(test)]
mod tests;
