//! Whether the heap of a process stays as large as it is; for tests that are [`alone`](super::alone).

/// Growth that is none: how full the nodes of a tree are changes,
const SLACK: usize = 48 << 10;
/// and what is used again may be up to 31 bytes larger than what was asked for, since no chunk is smaller than 32 (malloc.c,
/// `MINSIZE`): less than this part of all in use.
const SLACK_SHARE: usize = 12;

/// Rounds until a tree is as full as it stays: filled in order, its nodes are fuller than after removals.
const WARM: u64 = 4;

/// Does something again and again, each time with the next number; fails if more of the heap is in use afterwards than when
/// it was done `full` times, after which all that is bounded is full.
#[track_caller]
pub fn assert_stays(full: u64, mut step: impl FnMut(u64)) {
    (0..WARM * full).for_each(&mut step);
    let before = in_use();
    (WARM * full..32 * full).for_each(&mut step);
    let grown = in_use().saturating_sub(before);
    assert!(
        grown < SLACK.max(before / SLACK_SHARE),
        "{} KiB more than the {} KiB before",
        grown >> 10,
        before >> 10
    );
}

fn in_use() -> usize {
    // SAFETY: it only reads the numbers of the allocator.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}
