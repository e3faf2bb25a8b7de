//! Which mount a path leads to, and whether that is for certain the one that the call meant.

use std::time::Duration;

use kevtmon_observation::{MountIdentity, MountPresence};
use kevtmon_sources::procfs::readers::{BlockingReaders, Unread};

use super::ScanRequest;
use super::jobs::{Locate, Measured, Terms};
use super::locate::Located;
use super::table::{Tables, Uncertainty};
use super::worker::PATIENCE;

pub(super) struct Look {
    pub(super) located: Located,
    /// Why that is only likely what was meant.
    pub(super) doubt: Option<Uncertainty>,
    pub(super) took: Duration,
}

/// Looks where a path leads to, and whether the mounts were those of the call all the while.
pub(super) fn look(
    readers: &BlockingReaders,
    tables: &Tables,
    request: &ScanRequest,
    terms: Terms,
) -> Result<Look, Unread> {
    let job = Locate { request: request.clone(), terms };
    let Measured { found: located, took } = readers.ask(job, PATIENCE)?;
    let mark = request.origin.as_ref().and_then(|origin| origin.table);
    let events = mark.and_then(|mark| Some((mark.event, tables.event(&mark)?)));
    let doubt = match events {
        _ if located.is_meant => None,
        // What is found there later is another look's.
        _ if located.report.mount.is_none() => Some(Uncertainty::NotSeen),
        _ if !located.report.complete => Some(Uncertainty::Path),
        _ if located.may_be_replaced => Some(Uncertainty::Replaced),
        // The number only grows: what it is after the look, it was all the while.
        Some((of_call, now)) => (of_call != now).then_some(Uncertainty::Changed),
        None => Some(Uncertainty::NotSeen),
    };
    Ok(Look { located, doubt, took })
}

impl Look {
    /// Whether the path led to this mount during the call; `id` is that of the request.
    pub(super) fn leads_to(&self, id: u64, identity: &MountIdentity) -> MountPresence {
        let report = &self.located.report;
        let found = report.mount.as_ref().and_then(|mount| mount.identity());
        let doubt = self.doubt.map(Uncertainty::reason);
        let blind = report.blind_spots.last().map(|spot| spot.reason.as_str());
        match (found, doubt, blind) {
            (Some(found), None, None) => MountPresence::known(id, found.is_same(identity)),
            // Another look at this call would be no more certain.
            (Some(found), Some(doubt), None) if found.is_same(identity) => {
                MountPresence { id, present: Some(true), is_likely: true, reason: Some(doubt.to_owned()) }
            }
            (_, doubt, blind) => MountPresence::unknown(id, doubt.or(blind).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_observation::HolderReport;
    use kevtmon_testing::facts::mount;

    use super::*;

    #[test]
    fn what_is_found_in_doubt_is_likely_the_same_and_for_certain_nothing_else() {
        let identity = mount(410).identity().unwrap();
        for (id, doubt, present) in [
            (410, None, (Some(true), false)),
            (410, Some(Uncertainty::Changed), (Some(true), true)),
            (411, None, (Some(false), false)),
            (411, Some(Uncertainty::Changed), (None, false)),
        ] {
            let report = HolderReport { mount: Some(mount(id)), ..HolderReport::skipped(1, "/mnt/x") };
            let look = Look { located: report.into(), doubt, took: Duration::ZERO };
            let found = look.leads_to(7, &identity);
            assert_eq!((found.present, found.is_likely), present, "{id} {doubt:?}");
            assert_eq!(found.reason.as_deref(), doubt.map(Uncertainty::reason));
        }
    }
}
