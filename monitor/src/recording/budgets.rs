//! How much of a recording what users do among themselves may take: what they do concerns nobody else, and would
//! leave no disk for what does.

use std::collections::HashMap;
use std::sync::Arc;

use crate::event::{Charge, Standing};
use crate::observation::BootNs;

const SECOND: BootNs = 1_000_000_000;
/// Bytes a second of one account, on average,
const RATE: u64 = 8 << 10;
/// and at once.
const BURST: u64 = 256 << 10;
/// Accounts that are told apart; all others share one budget.
const ACCOUNTS_MAX: usize = 256;

/// The budgets of the accounts, each as when it will be whole again.
#[derive(Debug, Default)]
pub(super) struct Budgets(HashMap<Arc<str>, BootNs>);

impl Budgets {
    /// Whether an account may have so many bytes recorded. Known containers and the node have no such limit.
    pub(super) fn admits(&mut self, at: BootNs, charge: &Charge, bytes: usize) -> bool {
        if charge.standing != Standing::Foreign {
            return true;
        }
        if self.0.len() >= ACCOUNTS_MAX && !self.0.contains_key(&charge.account) {
            self.0.retain(|_, whole| *whole > at);
        }
        let account = match self.0.len() < ACCOUNTS_MAX || self.0.contains_key(&charge.account) {
            true => Arc::clone(&charge.account),
            false => Arc::from(""),
        };
        let whole = self.0.entry(account).or_default();
        let price = u64::try_from(bytes).unwrap_or(u64::MAX).saturating_mul(SECOND / RATE);
        let next = (*whole).max(at).saturating_add(price);
        let fits = next - at <= BURST * (SECOND / RATE);
        if fits {
            *whole = next;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charge(standing: Standing, account: &str) -> Charge {
        Charge { standing, account: account.into() }
    }

    #[test]
    fn an_account_has_its_burst_then_its_rate_and_takes_nothing_of_others() {
        let mut budgets = Budgets::default();
        let user = charge(Standing::Foreign, "user-1000.slice");
        let taken = |budgets: &mut Budgets, charge: &Charge, at| {
            (0..10_000).filter(|_| budgets.admits(at, charge, 512)).count()
        };
        assert_eq!(taken(&mut budgets, &user, 1000 * SECOND), 512);
        assert_eq!(taken(&mut budgets, &user, 1010 * SECOND), 160);
        assert_eq!(taken(&mut budgets, &charge(Standing::Foreign, "user-1001.slice"), 1010 * SECOND), 512);
        assert_eq!(taken(&mut budgets, &charge(Standing::Node, "cron.service"), 1010 * SECOND), 10_000);
    }

    #[test]
    fn accounts_without_end_share_what_is_left() {
        let mut budgets = Budgets::default();
        let taken: usize = (0..2000)
            .map(|number| {
                let user = charge(Standing::Foreign, &format!("uid {number}"));
                (0..1000).filter(|_| budgets.admits(SECOND, &user, 512)).count()
            })
            .sum();
        assert_eq!(taken, 512 * (ACCOUNTS_MAX + 1));
        assert_eq!(budgets.0.len(), ACCOUNTS_MAX + 1);
    }
}
