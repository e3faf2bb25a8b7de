//! Events that no reader of the stream still needs. Where they are too many, the oldest of whoever has most of them goes,
//! so that nobody displaces what others did.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::Kept;
use crate::event::Charge;
use crate::shares::Shares;

/// Most events.
const EVENTS: usize = 4096;
/// Most bytes of their JSON.
const BYTES: usize = 3 << 19;
/// What an event takes besides its JSON.
const OVERHEAD: usize = 128;

#[derive(Default)]
pub(super) struct Older {
    by_charge: BTreeMap<Charge, Shelf>,
    /// What they count.
    shares: Shares<Charge>,
    events: usize,
    bytes: usize,
}

/// What one source has caused.
#[derive(Default)]
struct Shelf {
    events: VecDeque<Kept>,
    /// By kind, what the next one is compressed against. It is of the same source, so that it is kept no longer than needed:
    /// the oldest go first.
    models: Vec<(&'static str, Arc<str>)>,
}

impl Shelf {
    fn push(&mut self, mut kept: Kept) {
        let model = self.models.iter_mut().find(|(kind, _)| *kind == kept.kind);
        match model.as_ref().and_then(|(_, model)| kept.line.packed(model)) {
            Some(packed) => kept.line = packed,
            // The next ones will rather resemble this one.
            None => match model {
                Some((_, model)) => *model = kept.line.text(),
                None => self.models.push((kept.kind, kept.line.text())),
            },
        }
        if self.events.capacity() == 0 {
            // Of most of many there is one event: the first growth makes room for four.
            self.events.reserve_exact(1);
        }
        self.events.push_back(kept);
    }
}

impl Older {
    /// Adds an event that is newer than all others.
    pub(super) fn push(&mut self, charge: Charge, kept: Kept) {
        let bytes = size(&kept);
        self.bytes += bytes;
        self.events += 1;
        self.shares.add(&charge, charge.weigh(bytes as u64));
        self.by_charge.entry(charge).or_default().push(kept);
        while self.events > EVENTS || self.bytes > BYTES {
            let Some(charge) = self.shares.largest().map(|(charge, _)| charge.clone()) else { return };
            self.forget_oldest_of(&charge);
        }
    }

    fn forget_oldest_of(&mut self, charge: &Charge) {
        let Some(all) = self.by_charge.get_mut(charge) else { return };
        if let Some(oldest) = all.events.pop_front() {
            let bytes = size(&oldest);
            self.bytes -= bytes;
            self.events -= 1;
            self.shares.remove(charge, charge.weigh(bytes as u64));
        }
        if all.events.is_empty() {
            self.by_charge.remove(charge);
        }
    }

    /// All of them, in any order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Kept> {
        self.by_charge.values().flat_map(|shelf| &shelf.events)
    }

    /// The oldest one.
    pub(super) fn first(&self) -> Option<&Kept> {
        let oldest = self.by_charge.values().filter_map(|shelf| shelf.events.front());
        oldest.min_by_key(|kept| kept.position)
    }
}

fn size(kept: &Kept) -> usize {
    kept.line.len() + OVERHEAD
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::super::line::Line;
    use super::*;
    use crate::event::{Severity, Standing};
    use crate::query::filter::Position;
    #[cfg(target_env = "gnu")]
    use crate::tests::{alone::alone, heap::assert_stays};

    fn kept(seq: u64) -> Kept {
        let position = Position { time: Timestamp::UNIX_EPOCH, seq };
        Kept {
            position,
            line: Line::Plain("x".repeat(1000).into()),
            kind: "neighbor.deleted",
            severity: Severity::Notice,
        }
    }

    #[test]
    fn a_flood_displaces_only_itself() {
        let charge = |standing, account: &str| Charge { standing, account: account.into() };
        let mut older = Older::default();
        let calico = charge(Standing::Known, "calico-node.service");
        for seq in 1..=200 {
            older.push(calico.clone(), kept(seq));
        }
        for seq in 1000..50_000 {
            older.push(charge(Standing::Foreign, "users"), kept(seq));
        }
        assert!(older.bytes <= BYTES);
        let mut left: Vec<u64> = older.iter().map(|kept| kept.position.seq).collect();
        left.sort_unstable();
        assert_eq!(left[..200], (1..=200).collect::<Vec<_>>());
        assert_eq!(
            left[200..],
            (50_000 - (left.len() as u64 - 200)..50_000).collect::<Vec<_>>(),
            "the newest"
        );
        assert_eq!(older.first().unwrap().position.seq, 1);
        // Whoever is known may have eight times as much, and then it is its turn.
        for seq in 50_000..60_000 {
            older.push(calico.clone(), kept(seq));
        }
        assert!(older.iter().any(|kept| (1000..50_000).contains(&kept.position.seq)));
        assert!(!older.iter().any(|kept| kept.position.seq < 200));
    }

    #[cfg(target_env = "gnu")]
    #[test]
    fn accounts_that_come_and_go_take_no_more_memory_than_those_that_fill_it() {
        alone(
            module_path!(),
            "accounts_that_come_and_go_take_no_more_memory_than_those_that_fill_it",
            || {
                let mut older = Older::default();
                let full = BYTES / size(&kept(0));
                assert_stays(full as u64, |seq| {
                    let account = format!("{seq:064x}").into();
                    older.push(Charge { standing: Standing::Known, account }, kept(seq));
                });
                assert_eq!(older.events, full);
            },
        );
    }
}
