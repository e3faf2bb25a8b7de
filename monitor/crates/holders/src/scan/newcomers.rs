//! Processes that came while a scan looked at others, or were given something: whoever holds a mount can hand it on to a child or to
//! another one, and end before he is looked at.

use std::collections::BTreeSet;
use std::time::Duration;

use kevtmon_sources::procfs::dir::is_gone;

use super::Scan;
use crate::listed::Listed;
use crate::progress::Stage;
use crate::searched::ScanTargets;

/// How often it is looked for others that came meanwhile.
const ROUNDS: usize = 3;
/// They are few, and have some time however late it is.
const TIME: Duration = Duration::from_millis(50);
/// All that is looked at of one.
const STAGES: [Stage; 6] =
    [Stage::Near, Stage::NearFiles, Stage::Crowds, Stage::Rest, Stage::Hidden, Stage::Unseen];
/// Why those that came are not all known.
const NO_TIME: &str = "not all processes that started during the scan were read";

impl Scan<'_> {
    /// Looks at those that are in no list yet, as long as nobody is found. Without the kernel's lists it is not known to whom
    /// something was given.
    pub(super) fn look_at_newcomers(&mut self, targets: &ScanTargets<'_>) {
        let stage = self.progress.stage;
        self.deadline.allow(TIME);
        let mut round = 0;
        while !self.report.is_explained() && self.look_at_new(targets) {
            round += 1;
            if round == ROUNDS {
                // There may be others again.
                self.report.blind_spot(None, NO_TIME);
                break;
            }
        }
        self.progress.stage = stage;
    }

    /// Whether there were any.
    fn look_at_new(&mut self, targets: &ScanTargets<'_>) -> bool {
        let mut tgids = self.proc.pids().unwrap_or_default();
        let not_looked_at = [self.own, self.asker()];
        tgids.retain(|tgid| !self.progress.listed.contains(tgid));
        match self.listed.as_mut().map_or_else(|| Ok(BTreeSet::new()), Listed::given_since) {
            Ok(given) => tgids.extend(given),
            Err(_) => self.report.blind_spot(None, "the kernel does not list its present users"),
        }
        tgids.retain(|tgid| !not_looked_at.contains(&Some(*tgid)));
        for tgid in &tgids {
            if self.deadline.is_over() {
                self.report.blind_spot(None, NO_TIME);
                return false;
            }
            self.progress.listed.insert(*tgid);
            match self.proc.dir(*tgid) {
                Ok(process) => {
                    for stage in STAGES {
                        self.progress.stage = stage;
                        if stage == Stage::Unseen {
                            self.foresee([*tgid].iter(), targets);
                        }
                        if !self.look(*tgid, &process, targets, true) {
                            self.report.blind_spot(None, NO_TIME);
                            return false;
                        }
                    }
                }
                Err(error) if is_gone(&error) => {}
                Err(_) => self.add_unreadable(*tgid, true),
            }
        }
        !tgids.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Instant;

    use kevtmon_observation::Access;
    use kevtmon_sources::procfs::Proc;
    use kevtmon_sources::procfs::mountinfo::MountTable;

    use super::*;
    use crate::ScanRequest;
    use crate::progress::Progress;
    use crate::searched::SearchedMount;

    #[test]
    fn who_came_while_others_were_looked_at_is_looked_at_too() {
        let root = tempfile::tempdir().unwrap();
        for tgid in [10, 20] {
            let process = root.path().join(tgid.to_string());
            for directory in ["fd", "fdinfo", "ns"] {
                fs::create_dir_all(process.join(directory)).unwrap();
            }
            fs::write(process.join("stat"), format!("{tgid} (p) S 1 {}", "0 ".repeat(30))).unwrap();
            for (link, to) in
                [("exe", "/x"), ("root", "/"), ("cwd", "/"), ("ns/mnt", "mnt:[1]"), ("fd/3", "/v/f")]
            {
                symlink(to, process.join(link)).unwrap();
            }
            fs::write(process.join("fdinfo/3"), "mnt_id:\t2\n").unwrap();
        }
        let proc = Proc::new(root.path());
        let request: ScanRequest = serde_json::from_value(serde_json::json!({
            "id": 1, "mntns": 1, "tgid": 10, "path": "/v", "origin": null, "follow": true, "mount_only": false,
        }))
        .unwrap();
        let table = MountTable::parse("1 0 8:1 / / rw - ext4 d rw\n2 1 0:9 / /v rw - tmpfs t rw\n", "/");
        let mounts = vec![SearchedMount { ns: 1, mount: table.by_id(2).unwrap() }];
        let targets = ScanTargets { mounts, tables: BTreeMap::from([(1, &table)]) };
        let progress = Progress { listed: [10].into(), stage: Stage::Hidden, ..Progress::default() };
        let mut scan = Scan::new(&proc, &request, progress, Instant::now());
        scan.look_at_newcomers(&targets);
        let named: Vec<_> = scan.report.holders.iter().map(|holder| (holder.tgid, holder.access)).collect();
        assert_eq!(named, [(20, Access::Fd)]);
        assert_eq!(scan.progress.stage, Stage::Hidden);
    }
}
