//! Whether two values are the same in all that `Debug` shows.

use std::fmt::Debug;

/// Compares the complete state of two cores, so that a field that is not saved is found. Maps are not
/// ordered, and use counters need only keep their order, so lines are sorted and counters ignored.
#[track_caller]
pub fn assert_same(restored: &impl Debug, live: &impl Debug, place: &str) {
    let outline = |text: String| {
        let mut lines: Vec<String> =
            text.lines().filter(|line| !line.trim().starts_with("value: ")).map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    let (restored, live) = (outline(format!("{restored:#?}")), outline(format!("{live:#?}")));
    let differs = restored.iter().zip(&live).find(|(restored, live)| restored != live);
    assert!(restored == live, "{place}: {differs:?}");
}
