//! How much of a recording one account may take: what users do among themselves, or a container to its own network,
//! concerns nobody else, and would leave no disk for what does.

use kevtmon_event::{Priority, Tenant};
use kevtmon_observation::BootNs;
use kevtmon_types::bucket::{Buckets, Price};
use kevtmon_types::clock::SECOND;

/// Bytes a second, on average, and at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rate {
    per_second: u64,
    burst: u64,
}

/// Of a user. Little of it is ever read: no incident of others rests on it.
const OF_USER: Rate = Rate { per_second: 8 << 10, burst: 256 << 10 };
/// Of a container: its network may be read again with all that it may have in it.
const OF_CONTAINER: Rate = Rate { per_second: 16 << 10, burst: 1 << 20 };

/// The budgets of the accounts: no user has the name of a container.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    users: Buckets,
    containers: Buckets,
}

impl Budgets {
    /// Whether an account may have so many bytes recorded. The node and the daemon have no such limit.
    pub(super) fn admits(&mut self, at: BootNs, tenant: &Tenant, bytes: usize) -> bool {
        let (accounts, Rate { per_second, burst }) = match tenant.priority {
            Priority::Foreign => (&mut self.users, OF_USER),
            Priority::Known => (&mut self.containers, OF_CONTAINER),
            Priority::Daemon | Priority::Node => return true,
        };
        let of_bytes = |bytes: u64| bytes.saturating_mul(SECOND / per_second);
        let of_one = of_bytes(u64::try_from(bytes).unwrap_or(u64::MAX));
        accounts.take(&tenant.name, at, Price { of_one, of_all: of_bytes(burst) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(priority: Priority, account: &str) -> Tenant {
        Tenant { priority, name: account.into() }
    }

    #[test]
    fn an_account_has_its_burst_then_its_rate_and_takes_nothing_of_others() {
        let mut budgets = Budgets::default();
        let user = tenant(Priority::Foreign, "user-1000.slice");
        let taken = |budgets: &mut Budgets, tenant: &Tenant, at| {
            (0..10_000).filter(|_| budgets.admits(at, tenant, 512)).count()
        };
        assert_eq!(taken(&mut budgets, &user, 1000 * SECOND), 512);
        assert_eq!(taken(&mut budgets, &user, 1010 * SECOND), 160);
        assert_eq!(taken(&mut budgets, &tenant(Priority::Foreign, "user-1001.slice"), 1010 * SECOND), 512);
        assert_eq!(taken(&mut budgets, &tenant(Priority::Node, "cron.service"), 1010 * SECOND), 10_000);
        let container = tenant(Priority::Known, "user-1000.slice");
        assert_eq!(taken(&mut budgets, &container, 1010 * SECOND), 2048, "no user has its name");
        assert_eq!(taken(&mut budgets, &container, 1020 * SECOND), 320);
    }
}
