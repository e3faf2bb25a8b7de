//! In which order processes are looked at: by turns of those whose they are, so that nobody keeps out others by how many
//! processes he has.
//!
//! By turns of the accounts of their control groups, within one by turns of its users, as [`super::scan_queue`] does: a user id is
//! anybody's to choose who is root in a container, and an account is not. The owner of a directory of /proc is no user: it is
//! root where the process may not be inspected.

use std::collections::HashMap;

use kevtmon_observation::cgroup::account;
use kevtmon_sources::procfs::Proc;

use super::Deadline;

/// Processes between two looks at the clock.
const PER_LOOK: usize = 64;

/// Whose a process is: an account, by its place among the names, and a user.
type Party = (usize, Option<u32>);

#[derive(Debug, Default)]
pub(super) struct ScanOrder {
    parties: HashMap<u32, Party>,
    accounts: HashMap<String, usize>,
    /// The control groups in files that were read.
    cgroups: HashMap<String, Option<String>>,
}

impl ScanOrder {
    /// The account of those of whom it is not known.
    pub(super) const UNKNOWN: usize = 0;

    /// These processes by turns. When the time is over, those of which nothing is known by then count as one party.
    pub(super) fn order(
        &mut self,
        proc: &Proc,
        tgids: impl IntoIterator<Item = u32>,
        deadline: &Deadline,
    ) -> Vec<u32> {
        let mut is_over = false;
        let mut of = Vec::new();
        for (count, tgid) in tgids.into_iter().enumerate() {
            is_over = is_over || count % PER_LOOK == PER_LOOK - 1 && deadline.is_over();
            if !is_over {
                self.look_up(proc, tgid);
            }
            of.push((self.parties.get(&tgid).copied().unwrap_or_default(), tgid));
        }
        by_turns(&of)
    }

    /// The account of a process that was in an order.
    pub(super) fn account_of(&self, tgid: u32) -> usize {
        self.parties.get(&tgid).map_or(Self::UNKNOWN, |(account, _)| *account)
    }

    fn look_up(&mut self, proc: &Proc, tgid: u32) {
        if self.parties.contains_key(&tgid) {
            return;
        }
        let cgroup = proc.cgroup_among(tgid, &mut self.cgroups);
        let account = cgroup.map_or(Self::UNKNOWN, |cgroup| {
            let next = self.accounts.len() + 1;
            *self.accounts.entry(account(&cgroup).to_owned()).or_insert(next)
        });
        self.parties.insert(tgid, (account, proc.uid(tgid)));
    }
}

/// First one of each account, and of the processes of that first one of each user.
fn by_turns(of: &[(Party, u32)]) -> Vec<u32> {
    let mut of_party: HashMap<Party, u32> = HashMap::new();
    let mut within: Vec<(u32, Party, u32)> = Vec::new();
    for (party, tgid) in of {
        let turn = of_party.entry(*party).or_default();
        *turn += 1;
        within.push((*turn, *party, *tgid));
    }
    within.sort_unstable();
    let mut of_account: HashMap<usize, u32> = HashMap::new();
    let mut scan_order: Vec<(u32, usize, u32)> = Vec::new();
    for (_, (account, _), tgid) in within {
        let turn = of_account.entry(account).or_default();
        *turn += 1;
        scan_order.push((*turn, account, tgid));
    }
    scan_order.sort_unstable();
    scan_order.into_iter().map(|(.., tgid)| tgid).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use super::*;

    /// A node on which these processes are in these control groups of root's, each with this user.
    fn node(processes: &[(u32, &str, u32)]) -> (tempfile::TempDir, Proc) {
        let top = tempfile::tempdir().unwrap();
        let mounted = top.path().join("sys/fs/cgroup");
        fs::create_dir_all(&mounted).unwrap();
        for file in ["cgroup.controllers", "cgroup.procs"] {
            fs::write(mounted.join(file), "").unwrap();
        }
        for (tgid, cgroup, uid) in processes {
            let group = mounted.join(cgroup);
            fs::create_dir_all(&group).unwrap();
            fs::set_permissions(&group, fs::Permissions::from_mode(0o755)).unwrap();
            let process = top.path().join(format!("proc/{tgid}"));
            fs::create_dir_all(&process).unwrap();
            fs::write(process.join("cgroup"), format!("0::/{cgroup}\n")).unwrap();
            fs::write(process.join("status"), format!("Name:\tx\nUid:\t{uid}\t0\t0\t0\n")).unwrap();
        }
        let proc = Proc::new(top.path().join("proc"));
        (top, proc)
    }

    fn order(processes: &[(u32, &str, u32)]) -> Vec<u32> {
        let (_top, proc) = node(processes);
        let tgids = processes.iter().map(|(tgid, ..)| *tgid);
        ScanOrder::default().order(&proc, tgids, &Deadline::after(Duration::from_secs(60)))
    }

    #[test]
    fn root_in_a_container_however_many_processes_it_has_takes_no_turn_of_the_hosts() {
        let pod = |byte: &str| format!("kubepods/pod1/{}", byte.repeat(64));
        let (greedy, other) = (pod("a"), pod("b"));
        let mut processes: Vec<_> = (1..=5).map(|tgid| (tgid, greedy.as_str(), 0)).collect();
        processes.extend([(6, "system.slice/kubelet.service", 0), (7, other.as_str(), 0)]);
        processes.push((8, "system.slice/kubelet.service", 0));
        assert_eq!(order(&processes), [1, 6, 7, 2, 8, 3, 4, 5]);
    }

    #[test]
    fn users_of_one_account_have_turns_whoever_owns_their_directories_in_proc() {
        // All directories here belong to one user, as those do of who lets nobody inspect him.
        let unit = "system.slice/x.service";
        let mut processes: Vec<_> = (1..=5).map(|tgid| (tgid, unit, 1000)).collect();
        processes.extend([(6, unit, 0), (7, unit, 1001), (8, unit, 0)]);
        assert_eq!(order(&processes), [6, 1, 7, 8, 2, 3, 4, 5]);
    }

    #[test]
    fn groups_that_a_user_has_made_are_no_accounts() {
        let (_top, proc) = node(&[
            (1, "user.slice/user-5.slice/a/x.service", 5),
            (2, "user.slice/user-5.slice/b", 5),
            (3, "a.service", 5),
        ]);
        let mut scan_order = ScanOrder::default();
        assert_eq!(scan_order.order(&proc, [1, 2, 3], &Deadline::after(Duration::from_secs(60))), [1, 3, 2]);
        assert_eq!(scan_order.account_of(1), scan_order.account_of(2));
        assert_ne!(scan_order.account_of(1), scan_order.account_of(3));
    }
}
