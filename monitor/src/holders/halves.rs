//! One scan by two readers at once, each of which looks at half of the processes: what the kernel does for one of them does not
//! wait for the other. Each finds the mount and its copies by itself, so each knows what it looked for.

use serde::{Deserialize, Serialize};

use crate::observation::{Access, Holder, HolderReport, Verdict};

/// Which processes are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Half {
    One,
    Other,
}

impl Half {
    pub(super) const BOTH: [Self; 2] = [Self::One, Self::Other];

    /// Whether a process is in it. Who is started by the same program often has an even id, or often an odd one.
    pub(super) fn has(self, tgid: u32) -> bool {
        let mixed = tgid.wrapping_mul(0x9e37_79b1) >> 31;
        mixed == u32::from(self == Self::Other)
    }

    /// Whether it is the one that reports what is no process.
    pub(super) fn is_first(self) -> bool {
        self == Self::One
    }
}

/// What two readers have found, each of them in one half.
pub(super) fn joined(one: HolderReport, other: HolderReport, most_listed: usize) -> HolderReport {
    let verdict = verdict(one.verdict, other.verdict);
    let is_same = match (&one.mount, &other.mount) {
        (Some(one), Some(other)) => one.identity() == other.identity(),
        // One that was not made is told as that.
        (Some(_), None) => other.verdict == Verdict::Skipped,
        (None, Some(_)) => one.verdict == Verdict::Skipped,
        (None, None) => true,
    };
    let (mut joined, other) = if one.mount.is_some() { (one, other) } else { (other, one) };
    if !is_same {
        joined.blind_spot(None, "the mounts changed while they were looked at");
    }
    joined.complete &= other.complete;
    for spot in other.blind_spots {
        joined.blind_spot(spot.tgid.map(|tgid| (tgid, spot.comm)), &spot.reason);
    }
    for holder in other.holders {
        add(&mut joined.holders, holder);
    }
    joined.holders.sort_by_key(|holder| holder.access == Access::Mount);
    let omitted = joined.holders.len().saturating_sub(most_listed);
    joined.holders.truncate(most_listed);
    joined.holders_omitted += other.holders_omitted + u32::try_from(omitted).unwrap_or(u32::MAX);
    joined.unreadable += other.unreadable;
    joined.unserved |= other.unserved;
    if joined.servers.is_empty() {
        joined.servers = other.servers;
    }
    joined.elapsed_ns = joined.elapsed_ns.max(other.elapsed_ns);
    HolderReport { verdict, ..joined }
}

/// As a scan of all processes would conclude.
fn verdict(one: Verdict, other: Verdict) -> Verdict {
    let either = |verdict| one == verdict || other == verdict;
    // What stands without all processes having been looked at, the strongest first.
    let standing = [Verdict::Processes, Verdict::ChildMount, Verdict::Kernel];
    let is_about_mount =
        !either(Verdict::NotAMount) && !either(Verdict::Transient) && !either(Verdict::Skipped);
    match standing.into_iter().find(|verdict| either(*verdict)) {
        Some(Verdict::Processes) => Verdict::Processes,
        Some(verdict) if is_about_mount || one == other => verdict,
        None if one == other => one,
        _ => Verdict::Incomplete,
    }
}

/// Adds a holder; a copy of the mount in another namespace is listed once, by a process that keeps it rather than by none.
fn add(holders: &mut Vec<Holder>, new: Holder) {
    let is_same = |known: &&mut Holder| {
        new.access == Access::Mount
            && known.access == Access::Mount
            && known.mntns == new.mntns
            && known.path == new.path
    };
    match holders.iter_mut().find(is_same) {
        Some(known) if known.tgid == 0 => *known = new,
        Some(_) => {}
        None => holders.push(new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::model::mount;

    #[test]
    fn each_process_is_in_one_half_and_neighbors_are_not_all_in_the_same() {
        let of = |tgids: &mut dyn Iterator<Item = u32>| {
            let halves = tgids.map(|tgid| Half::BOTH.map(|half| half.has(tgid)));
            let halves: Vec<_> = halves.inspect(|[one, other]| assert_ne!(one, other)).collect();
            halves.iter().filter(|[one, _]| *one).count()
        };
        for step in 1..=4 {
            let count = of(&mut (1000..3000).step_by(step));
            let all = 2000 / step;
            assert!(count > all / 3 && count < all * 2 / 3, "{count} of {all}");
        }
    }

    fn report(verdict: Verdict) -> HolderReport {
        HolderReport {
            mount: Some(mount(7)),
            complete: true,
            verdict,
            unreadable: 1,
            ..HolderReport::skipped(1, "/v")
        }
    }

    #[test]
    fn nothing_is_known_of_both_halves_that_is_not_known_of_each() {
        let verdict = |one, other| joined(report(one), report(other), 8).verdict;
        assert_eq!(verdict(Verdict::None, Verdict::None), Verdict::None);
        assert_eq!(verdict(Verdict::None, Verdict::Processes), Verdict::Processes);
        assert_eq!(verdict(Verdict::None, Verdict::Incomplete), Verdict::Incomplete);
        assert_eq!(verdict(Verdict::ChildMount, Verdict::Processes), Verdict::Processes);
        assert_eq!(verdict(Verdict::Transient, Verdict::None), Verdict::Incomplete);
        assert_eq!(verdict(Verdict::Kernel, Verdict::None), Verdict::Kernel);
        assert_eq!(verdict(Verdict::Kernel, Verdict::ChildMount), Verdict::ChildMount);
        assert_eq!(verdict(Verdict::Kernel, Verdict::Transient), Verdict::Incomplete);
        assert_eq!(verdict(Verdict::Skipped, Verdict::None), Verdict::Incomplete);
        let mut partial = report(Verdict::None);
        partial.blind_spot(Some((9, None)), "it may not be read");
        for (one, other) in [(partial.clone(), report(Verdict::None)), (report(Verdict::None), partial)] {
            let joined = joined(one, other, 8);
            assert_eq!((joined.complete, joined.unreadable, joined.blind_spots.len()), (false, 2, 1));
        }
    }

    #[test]
    fn two_halves_that_saw_different_mounts_say_so() {
        let other = HolderReport { mount: Some(mount(8)), ..report(Verdict::None) };
        assert!(!joined(report(Verdict::None), other, 8).complete);
        let none = HolderReport { mount: None, ..report(Verdict::NotAMount) };
        let joined = joined(none, report(Verdict::None), 8);
        assert_eq!((joined.complete, joined.verdict), (false, Verdict::Incomplete));
        assert!(joined.mount.is_some());
    }

    #[test]
    fn a_copy_in_another_namespace_is_listed_once_with_who_keeps_it() {
        let copy =
            |tgid, ns| Holder { tgid, mntns: Some(ns), ..Holder::of_kernel(Access::Mount, "/v".to_owned()) };
        let with = |holders| HolderReport { holders, ..report(Verdict::None) };
        let joined = joined(with(vec![copy(0, 1), copy(7, 2)]), with(vec![copy(8, 1), copy(9, 2)]), 8);
        let listed: Vec<_> = joined.holders.iter().map(|holder| (holder.tgid, holder.mntns)).collect();
        assert_eq!(listed, [(8, Some(1)), (7, Some(2))]);
    }

    #[test]
    fn what_one_half_could_not_look_at_is_told_and_what_the_other_has_found_stays() {
        let mut failed = HolderReport::skipped(1, "/v");
        failed.blind_spot(None, "no reader is free");
        let joined = joined(report(Verdict::Processes), failed, 8);
        let reasons: Vec<_> = joined.blind_spots.iter().map(|spot| spot.reason.as_str()).collect();
        assert_eq!((joined.verdict, joined.complete), (Verdict::Processes, false));
        assert_eq!(reasons, ["no reader is free"]);
    }
}
