//! How a scan looks at one process. That can start another program meanwhile, which need not have what the one before had: it is a
//! possible holder.

use kevtmon_observation::Holder;
use kevtmon_sources::procfs::dir::Dir;

use super::Scan;
use crate::orphans::Keeper;
use crate::pins::{Described, Extent, Pin, Rest, Visit, described};
use crate::progress::Stage;
use crate::searched::ScanTargets;

impl Scan<'_> {
    /// Does what the stage has to do with one process; false when there was no time for all of it.
    pub(super) fn look(
        &mut self,
        tgid: u32,
        process: &Dir,
        targets: &ScanTargets<'_>,
        is_near: bool,
    ) -> bool {
        let (visit, is_done) = self.visit(tgid, process, targets, is_near);
        if let Some(visit) = visit {
            self.take(tgid, process, visit, is_near);
        }
        is_done
    }

    /// What the stage finds in one process, and whether it is done with it.
    fn visit(
        &mut self,
        tgid: u32,
        process: &Dir,
        targets: &ScanTargets<'_>,
        is_near: bool,
    ) -> (Option<Visit>, bool) {
        let deadline = self.deadline;
        match self.progress.stage {
            Stage::Own | Stage::Near | Stage::Far => (self.visitor.links(tgid, process, targets), true),
            Stage::OwnFiles | Stage::NearFiles | Stage::FarFiles => {
                let found = self.visitor.files(tgid, process, targets, (Rest::ALL, Extent::First));
                let (visit, rest) = found.map_or((None, None), |(visit, rest)| (Some(visit), rest));
                self.progress.rest.extend(rest.map(|rest| (tgid, rest)));
                (visit, true)
            }
            Stage::Crowds => {
                let after = self.progress.crowds.get(&tgid).copied().unwrap_or_default();
                let mut rest = self.progress.rest.get(&tgid).cloned().unwrap_or(Rest::NONE);
                let (visit, at) = self.visitor.crowd((tgid, after), process, targets, (&mut rest, &deadline));
                self.progress.rest.extend(rest.is_any().then_some((tgid, rest)));
                self.progress.crowds.extend(at.map(|at| (tgid, at)));
                (Some(visit), at.is_none())
            }
            Stage::Rest => self.rest(tgid, process, targets),
            Stage::Hidden => (self.visitor.hidden((tgid, process), (targets, is_near), &deadline), true),
            Stage::Unseen => (self.visitor.unseen((tgid, process), targets, &deadline), true),
        }
    }

    /// Looks at what was left of the files of a process.
    fn rest(&mut self, tgid: u32, process: &Dir, targets: &ScanTargets<'_>) -> (Option<Visit>, bool) {
        let Some(rest) = self.progress.rest.get(&tgid).cloned() else { return (None, true) };
        let deadline = self.deadline;
        let found = self.visitor.files(tgid, process, targets, (rest, Extent::Until(&deadline)));
        let (visit, left) = found.map_or((None, None), |(visit, left)| (Some(visit), left));
        let is_done = left.is_none();
        self.progress.rest.extend(left.map(|left| (tgid, left)));
        (visit, is_done)
    }

    /// Adds what was found in a process.
    fn take(&mut self, tgid: u32, process: &Dir, visit: Visit, near: bool) {
        let is_known = |pin: &Pin| {
            let mut same = self
                .report
                .holders
                .iter()
                .filter(|holder| holder.tgid == tgid && holder.access == pin.access);
            same.any(|holder| pin.possible || !holder.possible)
        };
        let new = visit.pins.iter().filter(|pin| !is_known(pin)).cloned().collect();
        let Described { mut holders, is_replaced } =
            described(self.proc, (tgid, process), visit.ns, new, visit.exe.as_deref());
        if is_replaced {
            holders.iter_mut().for_each(|holder| holder.possible = true);
            self.blind_to(tgid, "it executed another program during the scan");
        }
        self.doubt(tgid, process, &visit, near);
        for (ns, fd) in visit.kept {
            self.progress.keepers.entry(ns).or_insert(Keeper { tgid, fd });
        }
        for holder in holders {
            let is_less =
                |known: &Holder| known.possible && (known.tgid, known.access) == (holder.tgid, holder.access);
            if let Some(known) = self.report.holders.iter_mut().find(|known| is_less(known)) {
                *known = holder;
                continue;
            }
            if self.report.holders.len() < self.most_listed {
                self.report.holders.push(holder);
            } else {
                self.report.holders_omitted += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Instant;

    use kevtmon_observation::Access;
    use kevtmon_sources::procfs::Proc;

    use super::*;
    use crate::ScanRequest;
    use crate::progress::Progress;

    #[test]
    fn what_was_found_of_a_program_the_one_that_came_after_it_possibly_holds() {
        let root = tempfile::tempdir().unwrap();
        let process = root.path().join("10");
        fs::create_dir(&process).unwrap();
        fs::write(process.join("stat"), format!("10 (now) S 1 {}", "0 ".repeat(30))).unwrap();
        symlink("/bin/now", process.join("exe")).unwrap();
        let proc = Proc::new(root.path());
        let request: ScanRequest = serde_json::from_value(serde_json::json!({
            "id": 1, "mntns": 1, "tgid": 10, "path": "/v", "origin": null, "follow": true, "mount_only": false,
        }))
        .unwrap();
        let dir = proc.dir(10).unwrap();
        for (exe, possible) in [("/bin/before", true), ("/bin/now", false)] {
            let mut scan = Scan::new(&proc, &request, Progress::default(), Instant::now());
            let pins = vec![Pin::of(Access::Fd, "/v/f".to_owned())];
            let mut visit = Visit::default();
            (visit.pins, visit.exe) = (pins, Some(exe.to_owned()));
            scan.take(10, &dir, visit, true);
            let named: Vec<_> =
                scan.report.holders.iter().map(|holder| (holder.comm.as_str(), holder.possible)).collect();
            assert_eq!((named, scan.report.complete), (vec![("now", possible)], !possible));
        }
    }
}
