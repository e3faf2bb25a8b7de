//! Names of pods, kept for a day after the pod: its mounts and cgroups have only its uid.

use std::collections::HashMap;

use kevtmon_core::node::pods::PodNames;
use kevtmon_event::{Event, Kind, Pod};
use kevtmon_observation::BootNs;
use rusqlite::params;

use super::Writer;

/// How long the name of a deleted pod is kept, in nanoseconds.
const REMEMBER_NS: i64 = 86_400 * 1_000_000_000;
/// A pod that events keep mentioning is written this often, in nanoseconds.
const REFRESH_NS: i64 = 60 * 1_000_000_000;
/// Pods whose state is kept in memory; a node runs a few hundred.
const CACHED: usize = 4096;
/// Most pods in the file.
const MOST: i64 = 20_000;

/// What was last written of each pod.
#[derive(Default)]
pub(super) struct Written(HashMap<String, Seen>);

#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    at: i64,
    gone: bool,
}

impl Writer {
    pub(super) fn note_pods(&mut self, event: &Event, now: i64) -> rusqlite::Result<()> {
        let actor = event.actor.as_ref().and_then(|actor| actor.pod.as_ref());
        let target = event.target.as_ref().and_then(|target| target.pod.as_ref());
        // The end of one container is the end of the pod unless another one shows signs of life.
        let gone = event.kind == Kind::ContainerRemoved;
        for (pod, gone) in actor.map(|pod| (pod, false)).into_iter().chain(target.map(|pod| (pod, gone))) {
            self.note_pod(pod, gone, now)?;
        }
        Ok(())
    }

    fn note_pod(&mut self, pod: &Pod, gone: bool, now: i64) -> rusqlite::Result<()> {
        let (Some(namespace), Some(name), false) = (&pod.namespace, &pod.name, pod.claimed) else {
            return Ok(());
        };
        let fresh = |seen: &Seen| seen.gone == gone && now.saturating_sub(seen.at) < REFRESH_NS;
        if self.pods.0.get(&pod.uid).is_some_and(fresh) {
            return Ok(());
        }
        let ips = serde_json::to_string(&pod.ip).unwrap_or_default();
        self.connection
            .prepare_cached(
                "INSERT INTO pods (uid, namespace, name, ips, last_seen, gone) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                 ON CONFLICT (uid) DO UPDATE SET last_seen = ?5, gone = ?6,
                     ips = CASE WHEN ?4 = '[]' THEN ips ELSE ?4 END",
            )?
            .execute(params![pod.uid, namespace, name, ips, now, gone.then_some(now)])?;
        if self.pods.0.len() >= CACHED {
            self.pods.0.clear();
        }
        self.pods.0.insert(pod.uid.clone(), Seen { at: now, gone });
        Ok(())
    }

    /// Each as of when it was last there: one that is not known to be gone may have been there until now. `now` and
    /// `boot` are the same moment on two clocks.
    pub(super) fn pod_names(&self, now: i64, boot: BootNs) -> rusqlite::Result<PodNames> {
        let mut names = PodNames::default();
        let mut select = self.connection.prepare(
            "SELECT uid, namespace, name, gone FROM pods
             ORDER BY gone IS NULL DESC, gone DESC, last_seen DESC, uid LIMIT ?1",
        )?;
        let mut rows = select.query([i64::try_from(PodNames::CAPACITY).unwrap_or(i64::MAX)])?;
        while let Some(row) = rows.next()? {
            let gone: Option<i64> = row.get(3)?;
            let ago = gone.map_or(0, |gone| now.saturating_sub(gone));
            let seen = boot.saturating_sub(BootNs::try_from(ago).unwrap_or(0));
            names.insert(row.get(0)?, row.get(1)?, row.get(2)?, seen);
        }
        Ok(names)
    }

    pub(super) fn forget_pods(&self, now: i64, unseen_since: i64) -> rusqlite::Result<()> {
        self.connection
            .prepare_cached(
                "DELETE FROM pods WHERE gone < ?1 OR last_seen < ?2 OR last_seen <
                 (SELECT last_seen FROM pods ORDER BY last_seen DESC LIMIT 1 OFFSET ?3)",
            )?
            .execute(params![now.saturating_sub(REMEMBER_NS), unseen_since, MOST])?;
        Ok(())
    }
}
