//! What one account may have done for its busy mounts. Who has mounts of his own can keep any number of them busy, under
//! any number of names, and each of them would be scanned for holders, or told about without a scan.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::SCAN_INTERVAL_NS;
use crate::node::mounts::Account;
use crate::observation::BootNs;

/// Scans begun for one account in ten seconds.
const SCANS_PER_INTERVAL: u32 = 16;
/// The count of attempts without a scan begins again after this time without one.
const UNSCANNED_RETENTION_NS: u64 = 15 * 60 * 1_000_000_000;
/// Accounts that are told apart.
const ACCOUNTS_MAX: usize = 1024;

/// What each account has had.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Allowances {
    #[serde(with = "crate::pairs")]
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
        let Some(allowance) = self.get(account) else { return false };
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
        let Some(allowance) = self.get(account) else { return 0 };
        allowance.unscanned += 1;
        allowance.last = allowance.last.max(at);
        allowance.unscanned
    }

    pub(super) fn expire(&mut self, now: BootNs) {
        self.of.retain(|_, allowance| allowance.last.saturating_add(UNSCANNED_RETENTION_NS) > now);
    }

    fn get(&mut self, account: &Account) -> Option<&mut Allowance> {
        if !self.of.contains_key(account) {
            if self.of.len() >= ACCOUNTS_MAX {
                return None;
            }
            self.of.insert(account.clone(), Allowance::default());
        }
        self.of.get_mut(account)
    }
}
