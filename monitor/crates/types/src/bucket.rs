//! Token buckets: a budget that is used up at once or little by little, and comes back at a constant rate.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::clock::BootNs;

/// Accounts that are told apart; all others share one bucket.
const ACCOUNTS_MAX: usize = 256;
/// Name of the account of the others.
const OTHERS: &str = "";

/// What something costs, and how much there is, both as the time in which that comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Price {
    /// Of what is taken.
    pub of_one: BootNs,
    /// Of all that can be taken at once.
    pub of_all: BootNs,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bucket {
    /// When it will be whole again.
    whole: BootNs,
}

impl Bucket {
    /// Takes that much, if it is there.
    pub fn take(&mut self, now: BootNs, price: Price) -> bool {
        let next = self.whole.max(now).saturating_add(price.of_one);
        let has_it = next - now <= price.of_all;
        if has_it {
            self.whole = next;
        }
        has_it
    }

    /// Whether nothing is missing.
    pub fn is_whole(&self, now: BootNs) -> bool {
        self.whole <= now
    }
}

/// The budgets of any number of accounts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Buckets(BTreeMap<String, Bucket>);

impl Buckets {
    /// Takes that much from the bucket of an account, if it is there.
    pub fn take(&mut self, account: &str, now: BootNs, price: Price) -> bool {
        if let Some(bucket) = self.0.get_mut(account) {
            return bucket.take(now, price);
        }
        if self.0.len() >= ACCOUNTS_MAX {
            self.0.retain(|_, bucket| !bucket.is_whole(now));
        }
        let account = if self.0.len() < ACCOUNTS_MAX { account } else { OTHERS };
        self.0.entry(account.to_owned()).or_default().take(now, price)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten at once, and one of them back each 5.
    const PRICE: Price = Price { of_one: 5, of_all: 50 };

    fn taken(mut take: impl FnMut() -> bool) -> usize {
        (0..1000).filter(|_| take()).count()
    }

    #[test]
    fn a_bucket_has_its_burst_then_its_rate_and_never_more_than_the_burst() {
        let mut bucket = Bucket::default();
        assert!(bucket.is_whole(0));
        assert_eq!(taken(|| bucket.take(100, PRICE)), 10);
        assert!(!bucket.is_whole(149) && bucket.is_whole(150));
        assert_eq!(taken(|| bucket.take(104, PRICE)), 0);
        assert_eq!(taken(|| bucket.take(120, PRICE)), 4);
        assert_eq!(taken(|| bucket.take(9000, PRICE)), 10);
    }

    #[test]
    fn what_costs_nothing_is_always_there() {
        let mut bucket = Bucket::default();
        assert_eq!(taken(|| bucket.take(7, Price { of_one: 0, of_all: 0 })), 1000);
    }

    #[test]
    fn accounts_without_end_share_one_bucket_and_take_nothing_from_the_others() {
        let mut buckets = Buckets::default();
        let all: usize =
            (0..1000).map(|number| taken(|| buckets.take(&format!("account {number}"), 100, PRICE))).sum();
        assert_eq!(all, 10 * (ACCOUNTS_MAX + 1));
        assert_eq!(buckets.0.len(), ACCOUNTS_MAX + 1);
        // Those that are whole again are forgotten.
        assert_eq!(taken(|| buckets.take("another", 200, PRICE)), 10);
        assert_eq!(buckets.0.len(), 1);
    }
}
