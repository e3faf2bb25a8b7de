//! Who uses mounts on that were detached: the ids of the mounts go in, all processes are read, and those come out that have
//! something of them, or of a copy that went with one.
//!
//! No mount table shows such a mount any more, and files on it have the names that they have from its root. Descriptors and
//! directories keep its id; where the kernel does not tell the id that is never reused, what has the other one need not
//! be on the same mount. Which copies it had, and which file system it is, is known from the time when it was mounted
//! ([`Attached`]), if it was seen then.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::time::Duration;

use kevtmon_observation::{Access, DetachedMount, Holder, HolderReport, MeantMount, NsInum, Verdict};
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::dir::Dir;
use kevtmon_sources::procfs::mountinfo::Mount;
use kevtmon_sources::procfs::statmount::MountNamespace;
use look::Look;
pub(super) use mapped::first_of;
pub(super) use progress::Progress;
use serde::{Deserialize, Serialize};

use super::attached::{Attached, AttachedMount};
use super::pins::Pin;
use super::searched::{ScanTargets, SearchedMount, answers_at_once, is_layered};

mod again;
mod look;
mod mapped;
mod progress;
#[cfg(test)]
mod tests;

const BLIND: &str = "its files in sockets and in io_urings, and what the kernel has of it, were not scanned";
/// The same where its file system is not known, its files show another one, or a server may have to be asked.
const UNMAPPED: &str = "its files that are only mapped were not scanned";
const UNBOUND: &str = "sockets that are bound in it were not scanned";
/// What is not known of its copies.
const UNSEEN: &str = "it was not seen while it was mounted; it is unknown whether its copies in other mount namespaces \
                      went with it";
const NOT_ALL: &str =
    "not all mount namespaces could be read while it was mounted; unknown copies may have gone with it";

/// A request who uses detached mounts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachedRequest {
    /// Returned in the answer.
    pub id: u64,
    pub mounts: Vec<DetachedMount>,
    attached: Vec<Option<AttachedMount>>,
}

impl DetachedRequest {
    pub fn new(id: u64, mounts: Vec<DetachedMount>) -> Self {
        Self { id, mounts, attached: Vec::new() }
    }

    pub(super) fn with(self, attached: &Attached) -> Self {
        Self { attached: attached.of(&self.mounts), ..self }
    }
}

/// One of the mounts, with the copies that went with it.
struct Searched<'a> {
    detached: &'a DetachedMount,
    attached: Option<&'a AttachedMount>,
    /// As ones that anything may be on, whatever its name: the id alone decides.
    mounts: Vec<Mount>,
}

impl<'a> Searched<'a> {
    fn new(detached: &'a DetachedMount, attached: Option<&'a AttachedMount>) -> Self {
        let mut searched = Self { detached, attached, mounts: Vec::new() };
        let ids: Vec<u64> = searched.all().map(|(mount, _)| mount.id).collect();
        searched.mounts = ids.into_iter().map(|id| any_name(id, attached)).collect();
        searched
    }

    /// The mount and its copies, these with the namespace that had them.
    fn all(&self) -> impl Iterator<Item = (MeantMount, Option<NsInum>)> {
        let copies = self.attached.iter().flat_map(|attached| &attached.copies);
        let copies = copies.map(|copy| (copy.mount, Some(copy.mntns)));
        [(self.detached.meant, None)].into_iter().chain(copies)
    }

    fn targets(&self) -> ScanTargets<'_> {
        targets(&self.mounts)
    }

    fn device(&self) -> Option<&'a str> {
        // Each mapping is asked for its mount, and no server is to be waited for.
        let is_told = |fstype: &str| !is_layered(fstype) && answers_at_once(fstype);
        let attached = self.attached.filter(|attached| is_told(&attached.fstype));
        attached.map(|attached| attached.device.as_str())
    }

    fn report(&self, id: u64) -> HolderReport {
        let mut report =
            HolderReport { complete: true, ..HolderReport::skipped(id, self.detached.path.clone()) };
        report.blind_spot(None, BLIND);
        match self.attached {
            None => [UNMAPPED, UNBOUND, UNSEEN].iter().for_each(|reason| report.blind_spot(None, reason)),
            Some(attached) => {
                if self.device().is_none() {
                    report.blind_spot(None, UNMAPPED);
                }
                if !attached.is_all {
                    report.blind_spot(None, NOT_ALL);
                }
            }
        }
        report
    }
}

/// What was found of each mount, and how to go on if that is not all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Looked {
    /// With the number of its place as id.
    pub(super) reports: Vec<HolderReport>,
    pub(super) progress: Option<Progress>,
}

/// Goes on to answer a request, for about so much of the processor's time.
pub(super) fn users(proc: &Proc, request: &DetachedRequest, progress: Progress, budget: Duration) -> Looked {
    let attached = |index: usize| request.attached.get(index).and_then(Option::as_ref);
    let searched: Vec<Searched<'_>> = request
        .mounts
        .iter()
        .enumerate()
        .map(|(index, mount)| Searched::new(mount, attached(index)))
        .collect();
    let together: Vec<Mount> = searched.iter().flat_map(|searched| searched.mounts.clone()).collect();
    let (progress, is_done) = Look::new(proc, &searched, targets(&together), progress).all(budget);
    let mut reports = progress.found.clone();
    for report in &mut reports {
        let is_held = report.holders.iter().any(Holder::explains);
        report.verdict = if is_held { Verdict::Processes } else { Verdict::Incomplete };
        if !is_done {
            report.cut();
        }
    }
    Looked { reports, progress: (!is_done).then_some(progress) }
}

fn any_name(id: u64, attached: Option<&AttachedMount>) -> Mount {
    let known = |text: fn(&AttachedMount) -> &String| attached.map(text).cloned().unwrap_or_default();
    Mount {
        id,
        parent: 0,
        device: known(|attached| &attached.device),
        root: "/".to_owned(),
        mountpoint: "/".to_owned(),
        shared: None,
        master: None,
        fstype: known(|attached| &attached.fstype),
        source: String::new(),
    }
}

fn targets(mounts: &[Mount]) -> ScanTargets<'_> {
    let ns: NsInum = 0;
    let mounts = mounts.iter().map(|mount| SearchedMount { ns, mount }).collect();
    ScanTargets { mounts, tables: BTreeMap::new() }
}

/// Those of them that are on the mount, or on a copy that went with it.
fn pins(process: &Dir, ns: NsInum, uses: Vec<Use>, searched: &Searched<'_>) -> Vec<Pin> {
    let pin = |used: Use| {
        let sure = searched.all().filter_map(|mount| used.is_on(process, ns, mount)).max()?;
        let path = used.pin.path.as_deref().map(|path| path_on(&searched.detached.path, path));
        Some(Pin { path, possible: !sure, ..used.pin })
    };
    uses.into_iter().filter_map(pin).collect()
}

pub(super) struct Use {
    pub(super) pin: Pin,
    pub(super) id: u64,
    pub(super) unique: Option<u64>,
}

impl Use {
    fn of(process: &Dir, pin: Pin) -> Option<Self> {
        let MeantMount { id, unique } = pin.mount?;
        let unique = unique.or_else(|| self::unique(process, &pin));
        Some(Self { pin, id, unique })
    }

    /// Whether it is on one of the detached mounts; `None` where it is not, else how surely.
    fn is_on(
        &self,
        process: &Dir,
        ns: NsInum,
        (meant, copy_in): (MeantMount, Option<NsInum>),
    ) -> Option<bool> {
        if self.id != meant.id {
            return None;
        }
        let mut sure = match meant.unique.zip(self.unique) {
            Some((meant, found)) if meant != found => return None,
            both => both.is_some(),
        };
        // Only that of the host was seen to be detached.
        if let Some(copy_in) = copy_in {
            match is_attached(process, meant) {
                Some(true) => return None,
                known => sure &= known.is_some() && copy_in == ns,
            }
        }
        Some(sure)
    }
}

/// Whether a mount is in the namespace of a process; `None` where that cannot be seen.
fn is_attached(process: &Dir, mount: MeantMount) -> Option<bool> {
    let by_kernel = mount.unique.and_then(|unique| MountNamespace::of(process).ok()?.has(unique));
    by_kernel.or_else(|| {
        let table = process.mount_table("/", |_| true).ok()?;
        let is_there = table.by_id(mount.id).is_some();
        (is_there || !table.is_cut()).then_some(is_there)
    })
}

/// The name that a file had while the mount was there.
pub(super) fn path_on(mount_point: &str, name: &str) -> String {
    match name.trim_start_matches('/') {
        "" => mount_point.to_owned(),
        below => format!("{}/{below}", mount_point.trim_end_matches('/')),
    }
}

/// The id that is never reused, of the mount that a pin is on.
fn unique(process: &Dir, pin: &Pin) -> Option<u64> {
    let link = match pin.access {
        Access::Cwd => "cwd".to_owned(),
        Access::Root => "root".to_owned(),
        Access::Exe => "exe".to_owned(),
        Access::Fd => match pin.tid {
            Some(tid) => format!("task/{tid}/fd/{}", pin.fd?),
            None => format!("fd/{}", pin.fd?),
        },
        _ => return None,
    };
    process.unique_mount_of(&CString::new(link).ok()?).ok()?
}
