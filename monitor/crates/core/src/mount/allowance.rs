//! What one account may have done for its busy mounts. Who has mounts of his own can keep any number of them busy, under
//! any number of names, and each of them would be scanned for holders, or told about without a scan.

use std::collections::BTreeMap;

use kevtmon_observation::BootNs;
use serde::{Deserialize, Serialize};

use super::SCAN_INTERVAL_NS;
use crate::node::mounts::Account;

/// Scans begun for one account in ten seconds.
const SCANS_PER_INTERVAL: u32 = 16;
/// The count of attempts without a scan begins again after this time without one.
const UNSCANNED_RETENTION_NS: u64 = 15 * 60 * 1_000_000_000;
/// Accounts that are remembered. Of more, the half that tried last stays: one that is forgotten has its whole allowance
/// again, so that nobody is refused for what others do.
const ACCOUNTS_MAX: usize = 1024;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Allowances {
    #[serde(with = "kevtmon_types::pairs")]
    of: BTreeMap<Account, Allowance>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Allowance {
    /// When the interval began, and the scans in it.
    began: BootNs,
    scans: u32,
    /// Attempts on mounts that no scan had found, and the time of the last.
    unscanned: u64,
    last: BootNs,
}

impl Allowances {
    /// Whether one more scan may begin; counts it.
    pub(super) fn take_scan(&mut self, at: BootNs, account: &Account) -> bool {
        let allowance = self.get(account);
        if allowance.began.saturating_add(SCAN_INTERVAL_NS) <= at {
            (allowance.began, allowance.scans) = (at, 0);
        }
        allowance.last = allowance.last.max(at);
        let may = allowance.scans < SCANS_PER_INTERVAL;
        allowance.scans += u32::from(may);
        may
    }

    /// Counts an attempt on a mount that is not scanned; returns how many there were. All mounts of the account count
    /// together, for nothing is known of them but names.
    pub(super) fn unscanned(&mut self, at: BootNs, account: &Account) -> u64 {
        let allowance = self.get(account);
        allowance.unscanned += 1;
        allowance.last = allowance.last.max(at);
        allowance.unscanned
    }

    pub(super) fn expire(&mut self, now: BootNs) {
        self.of.retain(|_, allowance| allowance.last.saturating_add(UNSCANNED_RETENTION_NS) > now);
    }

    fn get(&mut self, account: &Account) -> &mut Allowance {
        if self.of.len() >= ACCOUNTS_MAX && !self.of.contains_key(account) {
            self.forget_older_half();
        }
        self.of.entry(account.clone()).or_default()
    }

    /// All at once, so that it costs no more the more accounts there are.
    fn forget_older_half(&mut self) {
        let mut times: Vec<BootNs> = self.of.values().map(|allowance| allowance.last).collect();
        let middle = times.len() / 2;
        let (_, median, _) = times.select_nth_unstable(middle);
        let median = *median;
        self.of.retain(|_, allowance| allowance.last > median);
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_types::clock::SECOND as S;

    use super::*;

    fn account(name: impl ToString) -> Account {
        Account { host: false, name: name.to_string() }
    }

    #[test]
    fn accounts_without_end_take_nothing_from_the_next_and_are_not_remembered_for_ever() {
        let mut allowances = Allowances::default();
        for number in 0..10 * ACCOUNTS_MAX as u64 {
            assert!(allowances.take_scan(S + number, &account(number)), "{number}");
            assert_eq!(allowances.unscanned(S + number, &account(number)), 1);
        }
        assert!(allowances.of.len() <= ACCOUNTS_MAX);
        for same in 0..2 * ACCOUNTS_MAX {
            assert!(allowances.take_scan(S, &account(format!("at once {same}"))), "{same}");
        }
        assert!(allowances.of.len() <= ACCOUNTS_MAX);
    }

    #[test]
    fn one_account_has_so_many_scans_in_an_interval() {
        let mut allowances = Allowances::default();
        let mut taken = |at| (0..100).filter(|_| allowances.take_scan(at, &account("a"))).count();
        let (at, all) = (2 * SCAN_INTERVAL_NS, SCANS_PER_INTERVAL as usize);
        assert_eq!(taken(at), all);
        assert_eq!(taken(at + SCAN_INTERVAL_NS - 1), 0);
        assert_eq!(taken(at + SCAN_INTERVAL_NS), all);
    }
}
