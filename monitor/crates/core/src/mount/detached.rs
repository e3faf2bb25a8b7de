//! Mounts of pods and containers that were detached (`umount --lazy`) though no unmount of them had been refused: the call
//! succeeds whoever uses them, so it is looked who does. All that were detached within some seconds are looked for at once,
//! since runtimes detach mounts of each container that ends.
//!
//! A look whose time runs out goes on, beside those that begin later. Who was found is told at once, and what the look ends with
//! where that is something else.

use std::collections::BTreeMap;
use std::mem;

use kevtmon_event::wording::{actor_phrase, holders_phrase, users};
use kevtmon_event::{Confidence, Event, Kind, MountHolder, Severity, Shared};
use kevtmon_observation::{
    Access, BootNs, DetachedMount, HolderReport, MeantMount, Rank, Request, Share, Verdict,
};
use serde::{Deserialize, Serialize};

use super::events::mount_phrase;
use super::{MS, QueuedUmount};
use crate::Core;
use crate::held::unreadable;

/// So long after a mount was detached: who only was about to let go has.
const SETTLE: BootNs = 1_000 * MS;
/// Between two looks, each of which reads all processes.
const INTERVAL: BootNs = 10_000 * MS;
/// An answer is not waited for any longer.
const TIMEOUT: BootNs = 120_000 * MS;
/// The same of the end of a look that goes on: it may have to wait for its last turn as long as it went on.
const RETENTION: BootNs = 720_000 * MS;
/// Looks that go on; fewer have a place among what is left of scans.
const GOING_ON_MAX: usize = 8;
/// Mounts that wait for a look; of more, it is not found out who uses them.
const MAX: usize = 64;
/// Marks the ids of these requests.
const DETACHED: u64 = 1 << 52;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Detached {
    waiting: Vec<Waiting>,
    /// Of which it is looked who uses them: the request, and until when it is waited for.
    asked: Vec<Waiting>,
    request: Option<(u64, BootNs)>,
    /// Looks whose time ran out and that go on, by their requests.
    going_on: BTreeMap<u64, GoingOn>,
    /// When the next look is due, if one is.
    next: Option<BootNs>,
    last: u64,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Waiting {
    umount: QueuedUmount,
    /// The event that tells of it, if one does.
    seq: Option<u64>,
    /// What was told of who uses it on, while the look went on.
    told: Option<ReportedScan>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct GoingOn {
    asked: Vec<Waiting>,
    until: BootNs,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct ReportedScan {
    holders: Vec<(u32, Access)>,
    cut: bool,
}

impl ReportedScan {
    fn of(report: &HolderReport) -> Self {
        let mut holders: Vec<(u32, Access)> =
            report.holders.iter().map(|holder| (holder.tgid, holder.access)).collect();
        holders.sort_unstable();
        Self { holders, cut: report.cut }
    }
}

impl Waiting {
    fn meant(&self) -> Option<MeantMount> {
        self.umount.attempt.origin.as_ref()?.target
    }
}

impl Detached {
    pub(super) fn due(&self) -> Option<BootNs> {
        let next = match self.request {
            Some((_, deadline)) => Some(deadline),
            None => self.next.filter(|_| !self.waiting.is_empty()),
        };
        self.going_on.values().map(|going_on| going_on.until).chain(next).min()
    }

    /// Those of which there is no more to be waited for.
    fn take_overdue(&mut self, now: BootNs) -> Vec<Waiting> {
        let overdue = self.going_on.iter().filter(|(_, going_on)| going_on.until <= now);
        let overdue: Vec<u64> = overdue.map(|(id, _)| *id).collect();
        overdue.iter().filter_map(|id| self.going_on.remove(id)).flat_map(|of| of.asked).collect()
    }
}

impl Core {
    /// A mount of the host was detached that nobody was looked for on. `seq`: of the event that tells of it.
    pub(super) fn look_for_users(&mut self, umount: &QueuedUmount, seq: Option<u64>) {
        let is_of_host = umount.account.host && self.kubelets.mounts_in(umount.key.mntns);
        let waiting = Waiting { umount: umount.clone(), seq, told: None };
        let detached = &mut self.holder_scans.detached;
        if !is_of_host || !umount.is_lazy() || waiting.meant().is_none() || detached.waiting.len() >= MAX {
            return;
        }
        detached.waiting.push(waiting);
        let settled = umount.at.saturating_add(SETTLE);
        detached.next = Some(detached.next.map_or(settled, |next| next.max(settled)));
    }

    pub(super) fn look_at_detached(&mut self, now: BootNs) {
        for waiting in self.holder_scans.detached.take_overdue(now) {
            self.ends_unanswered(now, waiting);
        }
        let detached = &mut self.holder_scans.detached;
        if detached.due().is_none_or(|due| due > now) {
            return;
        }
        if detached.request.take().is_some() {
            detached.next = Some(now.saturating_add(INTERVAL));
            let asked = mem::take(&mut detached.asked);
            return asked.into_iter().for_each(|mut waiting| self.take_users(now, &mut waiting, None));
        }
        detached.asked = mem::take(&mut detached.waiting);
        detached.last += 1;
        let id = DETACHED | detached.last;
        detached.request = Some((id, now.saturating_add(TIMEOUT)));
        let mount = |waiting: &Waiting| {
            Some(DetachedMount { meant: waiting.meant()?, path: waiting.umount.key.path.clone() })
        };
        let mounts = detached.asked.iter().filter_map(mount).collect();
        let share = Share { rank: Rank::Host, account: String::new() };
        self.request(Request::DetachedUsers { id, mounts, share });
    }

    /// Who uses detached mounts was looked for, or more was found of that.
    pub fn detached_users(&mut self, at: BootNs, id: u64, reports: Vec<HolderReport>) {
        let detached = &mut self.holder_scans.detached;
        let GoingOn { mut asked, until } = if detached.request.is_some_and(|(asked, _)| asked == id) {
            detached.request = None;
            detached.next = Some(at.saturating_add(INTERVAL));
            GoingOn { asked: mem::take(&mut detached.asked), until: at.saturating_add(RETENTION) }
        } else {
            let Some(going_on) = detached.going_on.remove(&id) else { return };
            going_on
        };
        let goes_on = reports.iter().any(|report| report.goes_on);
        let mut reports: BTreeMap<u64, HolderReport> =
            reports.into_iter().map(|report| (report.id, report)).collect();
        for (place, waiting) in (0..).zip(&mut asked) {
            self.take_users(at, waiting, reports.remove(&place));
        }
        if !goes_on {
            return;
        }
        let going_on = &mut self.holder_scans.detached.going_on;
        going_on.insert(id, GoingOn { asked, until });
        if going_on.len() > GOING_ON_MAX
            && let Some((_, lost)) = going_on.pop_first()
        {
            lost.asked.into_iter().for_each(|waiting| self.ends_unanswered(at, waiting));
        }
    }

    /// A look that went on has no end.
    fn ends_unanswered(&mut self, at: BootNs, mut waiting: Waiting) {
        // Who was told was seen by then, and of more nothing is known.
        if waiting.told.is_none() {
            let skipped = HolderReport::skipped(0, waiting.umount.key.path.clone());
            let mut report = HolderReport { verdict: Verdict::Incomplete, ..skipped };
            report.cut();
            self.take_users(at, &mut waiting, Some(report));
        }
    }

    /// A mount that was detached is used on, or nobody was found who does. The latter is told only of what is told anyway:
    /// runtimes detach mounts of each container that ends. But if the time was too short for all processes, somebody may have
    /// seen to that. As long as the look goes on, only that it is used is told, and once.
    fn take_users(&mut self, at: BootNs, waiting: &mut Waiting, report: Option<HolderReport>) {
        let is_used = report.as_ref().is_some_and(|report| !report.holders.is_empty());
        let (goes_on, is_cut) = report.as_ref().map_or((false, false), |report| (report.goes_on, report.cut));
        let reported = report.as_ref().map(ReportedScan::of);
        let is_news = match &waiting.told {
            None if goes_on => is_used,
            None => is_used || is_cut || waiting.seq.is_some(),
            told => !goes_on && reported.is_some() && *told != reported,
        };
        if !is_news {
            return;
        }
        let seq = self.emit_used(at, waiting, report);
        waiting.seq = waiting.seq.or(seq);
        waiting.told = reported.filter(|_| goes_on);
    }

    fn emit_used(&mut self, at: BootNs, waiting: &Waiting, report: Option<HolderReport>) -> Option<u64> {
        let Waiting { umount, seq, told } = waiting;
        let is_used = report.as_ref().is_some_and(|report| !report.holders.is_empty());
        let report = report.unwrap_or_else(|| {
            let mut skipped = HolderReport::skipped(0, umount.key.path.clone());
            skipped.blind_spot(None, "there was no answer in time");
            skipped
        });
        self.take_up(umount.source, umount.task.as_deref());
        let mount = self.mount_object(umount, super::events::Known::default());
        let actor = self.unmounting_actor(&umount.attempt);
        let target = self.mount_target(&mount, &actor);
        let subject = mount_phrase(&mount, target.as_ref());
        let likely = if actor.confidence == Confidence::Certain { "" } else { "likely " };
        let (verdict, complete) = (report.verdict, report.complete);
        let unreadable = unreadable(Some(&report), complete, verdict);
        let holders: Vec<MountHolder> =
            report.holders.into_iter().map(|holder| self.mount_holder(umount.at, holder)).collect();
        let phrase = holders_phrase(&holders, verdict);
        let later = if told.is_some() { " (found later)" } else { "" };
        let used = match users(&holders).next() {
            Some(_) => format!(", and is still {phrase}{later}"),
            None if is_used => format!("; {phrase}{later}"),
            None if verdict == Verdict::Skipped => "; users not scanned".to_owned(),
            None if told.is_some() => "; no user found any more; scan incomplete".to_owned(),
            None => "; no user found; scan incomplete".to_owned(),
        };
        let by = actor_phrase(&actor);
        let severity = if is_used { Severity::Notice } else { Severity::Debug };
        let message = format!("{subject}, or what was mounted on it, detached {likely}by {by}{used}");
        let event = Event {
            mount: Some(Box::new(mount)),
            actor: Some(Shared::new(actor)),
            target: target.map(Shared::new),
            holders: Some(holders),
            holders_complete: Some(complete),
            holders_unreadable: unreadable,
            holders_verdict: Some(verdict),
            completes: *seq,
            ..self.event(at, Kind::MountDetached, severity, message)
        };
        self.emit(event)
    }
}
