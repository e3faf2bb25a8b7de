//! Looks for users of detached mounts, which go on as scans do.

use std::time::Instant;

use kevtmon_observation::{Fact, HolderReport, Verdict};
use kevtmon_sources::procfs::readers::BlockingReaders;
use kevtmon_types::error_chain::chain;

use super::{Done, PATIENCE, SCAN_MAX, Terms, Work};
use crate::DetachedRequest;
use crate::detached::{Looked, Progress};
use crate::jobs::{self, Measured};

#[derive(Debug)]
pub(super) struct Detached {
    pub(super) request: DetachedRequest,
    pub(super) progress: Progress,
    pub(super) begun: Option<Instant>,
    pub(super) told: Vec<HolderReport>,
}

impl From<DetachedRequest> for Detached {
    fn from(request: DetachedRequest) -> Self {
        Self { request, progress: Progress::default(), begun: None, told: Vec::new() }
    }
}

impl Detached {
    pub(super) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Looks until the time is over.
    pub(super) fn carry_out(mut self: Box<Self>, readers: &BlockingReaders, terms: Terms) -> Done {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        let (request, progress) = (self.request.clone(), self.progress.clone());
        match readers.ask(jobs::Detached { request, progress, terms }, PATIENCE) {
            Ok(Measured { found: Looked { mut reports, progress }, took }) => {
                let left = progress.filter(|_| begun.elapsed() < SCAN_MAX);
                for report in &mut reports {
                    report.goes_on = left.is_some();
                }
                let reply = Fact::DetachedUsers { id: self.request.id, reports: reports.clone() };
                let left = left.map(|progress| {
                    (self.progress, self.told) = (progress, reports);
                    Work::Detached(self)
                });
                Done { reply: Some(reply), took, left }
            }
            Err(error) => Work::Detached(self).undone(&chain(&error)),
        }
    }

    /// What is known where no more is found out.
    pub(super) fn unanswered(self, reason: &str) -> Fact {
        let mut reports = self.told;
        for report in &mut reports {
            (report.goes_on, report.verdict) = (false, Verdict::Incomplete);
            // That was some time ago.
            report.holders.iter_mut().for_each(|holder| holder.possible = true);
            report.blind_spot(None, reason);
        }
        Fact::DetachedUsers { id: self.request.id, reports }
    }
}
