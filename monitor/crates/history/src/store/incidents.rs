//! Incidents: one row for each episode, with its newest event as it was emitted.

use kevtmon_event::{CloseReason, Event, Incident, Kind, Severity};
use kevtmon_types::escape::to_json;
use rusqlite::params;

use super::{Writer, time};

/// Closed incidents that are kept, however young; an incident takes about 2 KiB.
const MOST_CLOSED: i64 = 2000;
/// The same of those that are no warnings: what users do in namespaces of their own displaces none of the others.
const MOST_NOTICES: i64 = 500;

/// The newest incident of each account comes first, then the second of each, and so on.
const FORGET_SURPLUS: &str = "
    WITH ranked AS (
        SELECT rowid AS number, last_seen,
            row_number() OVER (PARTITION BY account ORDER BY last_seen DESC) AS rank
        FROM incidents WHERE open = 0 AND severity BETWEEN ?1 AND ?2)
    DELETE FROM incidents WHERE rowid IN
        (SELECT number FROM ranked ORDER BY rank, last_seen DESC LIMIT -1 OFFSET ?3)";

/// Whose share of the closed incidents it counts against: that of the pod, whose containers come and go, else of its
/// tenant.
fn account(event: &Event) -> &str {
    let pod = event.target.as_deref().and_then(|target| target.pod.as_ref()).filter(|pod| !pod.claimed);
    pod.map_or(&*event.tenant.name, |pod| pod.uid.as_str())
}

impl Writer {
    pub(super) fn put_incident(
        &self,
        event: &Event,
        incident: &Incident,
        json: &str,
    ) -> rusqlite::Result<()> {
        self.connection
            .prepare_cached(
                "INSERT INTO incidents
                     (id, kind, severity, open, opened, last_seen, closed, boot_id, json, episode, account)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
                 ON CONFLICT (id, opened) DO UPDATE SET kind = ?2, severity = ?3, open = ?4, last_seen = ?6,
                     closed = ?7, boot_id = ?8, json = ?9, episode = ?10",
            )?
            .execute(params![
                incident.id,
                incident.kind,
                incident.severity as i64,
                event.kind != Kind::IncidentClosed,
                time::nanos(&incident.opened),
                time::nanos(&incident.last_seen),
                incident.closed.as_deref().map(time::nanos),
                event.boot_id,
                json,
                incident.episode,
                account(event),
            ])
            .map(drop)
    }

    /// Records its evidence, to find the incidents that an event is evidence of.
    pub(super) fn put_evidence(&self, incident: &Incident) -> rusqlite::Result<()> {
        let mut put = self
            .connection
            .prepare_cached("INSERT OR IGNORE INTO evidence (event, incident) VALUES (?1, ?2)")?;
        for seq in &incident.evidence {
            put.execute(params![self.id(*seq), incident.id])?;
        }
        Ok(())
    }

    /// The newest event of each open incident; what cannot be read was written by another version of the program.
    pub(super) fn open_incidents(&self) -> rusqlite::Result<Vec<Event>> {
        let mut select =
            self.connection.prepare("SELECT json FROM incidents WHERE open = 1 ORDER BY opened, id")?;
        let rows: Vec<String> = select.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        Ok(rows.iter().filter_map(|json| serde_json::from_str(json).ok()).collect())
    }

    /// The last episode of incidents that closed in this boot.
    pub(super) fn last_episodes(&self) -> rusqlite::Result<Vec<(String, u32)>> {
        let mut select = self.connection.prepare(
            "SELECT id, max(episode) FROM incidents WHERE open = 0 AND boot_id = ?1
             GROUP BY id ORDER BY max(last_seen)",
        )?;
        select.query_map([&self.boot_id], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    }

    pub(super) fn expire_incident(&self, mut event: Event, closed: i64) -> rusqlite::Result<()> {
        let Some(mut incident) = event.incident.take() else { return Ok(()) };
        incident.close(time::text(closed), CloseReason::Expired);
        event.message = incident.message();
        event.kind = Kind::IncidentClosed;
        event.time = time::text(closed);
        event.incident = Some(incident.clone());
        let json = to_json(&event).unwrap_or_default();
        self.put_incident(&event, &incident, &json)
    }

    /// Removes closed incidents that are too old. Where they are too many, each account keeps as many of its newest ones as
    /// the others do.
    pub(super) fn forget_incidents(&self, before: i64) -> rusqlite::Result<()> {
        let mut delete =
            self.connection.prepare_cached("DELETE FROM incidents WHERE open = 0 AND last_seen < ?1")?;
        delete.execute([before])?;
        let mut count = self
            .connection
            .prepare_cached("SELECT count(*) FROM incidents WHERE open = 0 AND severity BETWEEN ?1 AND ?2")?;
        let mut keep = self.connection.prepare_cached(FORGET_SURPLUS)?;
        let notice = Severity::Notice as i64;
        for (least, most, number) in [(notice + 1, i64::MAX, MOST_CLOSED), (0, notice, MOST_NOTICES)] {
            let there: i64 = count.query_row([least, most], |row| row.get(0))?;
            if there > number {
                keep.execute([least, most, number])?;
            }
        }
        Ok(())
    }
}
