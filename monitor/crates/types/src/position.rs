//! Where in a file something is wrong, and what was meant.

use std::fmt;
use std::path::PathBuf;

/// Below this similarity a suggestion would only mislead (Jaro-Winkler, 0 to 1).
const SIMILARITY: f64 = 0.75;

/// A position in a file, printed as `FILE:LINE:COLUMN`; both count from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    pub path: PathBuf,
    pub line: usize,
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.path.display(), self.line, self.column)
    }
}

/// The valid key that looks most like one that is not, if any does.
pub fn nearest<'a, S: AsRef<str>>(key: &str, valid: &'a [S]) -> Option<&'a str> {
    valid
        .iter()
        .map(|candidate| (strsim::jaro_winkler(key, candidate.as_ref()), candidate.as_ref()))
        .filter(|(similarity, _)| *similarity >= SIMILARITY)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// The end of a message about an unknown key.
pub fn hint<S: AsRef<str>>(nearest: Option<&str>, valid: &[S]) -> String {
    let all = || valid.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    nearest.map_or_else(
        || format!("; valid keys here: {}", all()),
        |nearest| format!("; did you mean {nearest:?}?"),
    )
}
