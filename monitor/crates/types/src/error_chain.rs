//! An error with all its causes, in one line.

use std::error::Error;

/// An error and its causes in one line, for a reason that an operator reads.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let next = inner.to_string();
        // Some libraries repeat their cause in their own message.
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = inner.source();
    }
    text
}
