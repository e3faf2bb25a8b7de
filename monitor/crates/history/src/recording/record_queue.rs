//! The queue between the core and a recording: lines enter, a thread writes them to a [`SegmentWriter`], at most
//! once a second. The core never waits for the disk.

use std::collections::HashMap;
use std::io;
use std::mem;
use std::time::{Duration, Instant};

use kevtmon_event::{Incident, Priority, Tenant};

use crate::queue::{Bounds, Buffer, Queue, QueueClass, Refused, Worker};

/// Longest time that a line waits.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Incidents that wait to be written, the newest state of each.
const INCIDENTS: usize = 64;
/// Memory that an idle buffer keeps, in bytes.
const KEPT_CAPACITY: usize = 64 * 1024;

/// Where the lines of a recording are written.
pub(super) trait SegmentWriter: Send + 'static {
    /// Starts a part; the lines that follow belong to it.
    fn start_part(&mut self, start: PartStart) -> io::Result<()>;

    /// Writes whole lines.
    fn write_lines(&mut self, lines: &[u8]) -> io::Result<()>;

    /// An incident opened, or changed since.
    fn update_incident(&mut self, _incident: &Incident, _opened: bool) {}

    /// Called after each batch.
    fn batch_done(&mut self) {}
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartStart {
    /// In a file of its own.
    NewFile,
    /// Where the last one ended.
    SameFile,
}

/// How much may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordBounds {
    /// Bytes of lines, besides the headers of parts.
    pub(super) capacity: usize,
    /// Bytes from which on the thread writes without waiting for its second.
    pub(super) urgent: usize,
}

/// The producer's end.
pub(super) struct RecordQueue {
    name: &'static str,
    bounds: RecordBounds,
    queue: Queue<Records>,
}

#[derive(Default)]
struct Records {
    lines: Vec<u8>,
    /// Where in `lines` parts start.
    parts: Vec<(usize, PartStart)>,
    incidents: Vec<(Incident, bool)>,
    /// Bytes of `lines` that count against the bounds.
    counted: usize,
    /// How many of them each tenant has.
    tenants: HashMap<Tenant, usize>,
    is_urgent: bool,
    /// Nothing is written until the next part starts.
    has_failed: bool,
    /// Lines that were queued and could not be written.
    lost: u64,
}

impl RecordQueue {
    /// Starts the thread, which tells why nothing can be written, and that it can again. `failed`: the former was told.
    pub(super) fn start(
        name: &'static str,
        bounds: RecordBounds,
        writer: impl SegmentWriter,
        failed: bool,
        tell: impl Fn(Option<String>) + Send + 'static,
    ) -> io::Result<Self> {
        let tell = Box::new(tell);
        let worker = RecordWorker { name, writer, tell, is_broken: failed, is_reported: failed, lost: 0 };
        Ok(Self { name, bounds, queue: Queue::start(name, worker)? })
    }

    /// As in metric labels.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Queues a line, on the account of whoever caused it.
    pub(super) fn put(&self, line: &[u8], tenant: &Tenant) -> Result<(), Refused> {
        self.queue.put(|waiting| waiting.push(line, tenant, self.bounds)).unwrap_or(Err(Refused::Closed))
    }

    /// Starts a part with its header, which may be long and does not count against the bounds. After a failure,
    /// writing is tried again.
    pub(super) fn start_part(&self, start: PartStart, header: &[u8]) {
        // Once the queue is closed nothing is written any more.
        let _ = self.queue.put(|waiting| {
            waiting.has_failed = false;
            waiting.parts.push((waiting.lines.len(), start));
            waiting.lines.extend_from_slice(header);
        });
    }

    /// Lines that were queued and could not be written, since the last call.
    pub(super) fn take_lost(&self) -> u64 {
        self.queue.put(|waiting| mem::take(&mut waiting.lost)).unwrap_or_default()
    }

    /// Whether nothing waits for the thread.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.read(Records::is_empty)
    }

    /// Queues the newest state of an incident; false when too many wait.
    pub(super) fn update_incident(&self, incident: &Incident, opened: bool) -> bool {
        self.queue.put(|waiting| waiting.update_incident(incident, opened)).unwrap_or(false)
    }

    /// Lets the thread write what waits, until the deadline.
    pub(super) fn finish(self, deadline: Instant) {
        if let Err(bytes) = self.queue.finish(deadline) {
            tracing::warn!(recording = self.name, bytes, "recording was not written to its end in time");
        }
    }
}

impl Records {
    fn push(&mut self, line: &[u8], tenant: &Tenant, bounds: RecordBounds) -> Result<(), Refused> {
        if self.has_failed {
            return Err(Refused::Failed);
        }
        let RecordBounds { capacity, urgent } = bounds;
        if !(Bounds { capacity, reserved: 0 }).admits(self.counted, line.len(), QueueClass::Normal) {
            return Err(Refused::Full);
        }
        if tenant.priority != Priority::Daemon {
            // As many as are left free, so that there is a place for everybody.
            let tenants = self.tenants.get(tenant).copied().unwrap_or(0).saturating_add(line.len());
            if tenants.saturating_mul(tenant.priority.price()) > capacity.saturating_sub(self.counted) {
                return Err(Refused::Budget);
            }
            match self.tenants.get_mut(tenant) {
                Some(known) => *known = tenants,
                None => drop(self.tenants.insert(tenant.clone(), tenants)),
            }
        }
        self.counted += line.len();
        self.is_urgent |= self.counted >= urgent;
        self.lines.extend_from_slice(line);
        Ok(())
    }

    fn update_incident(&mut self, incident: &Incident, opened: bool) -> bool {
        if let Some((known, was_opened)) = self
            .incidents
            .iter_mut()
            .find(|(known, _)| (&known.id, known.episode) == (&incident.id, incident.episode))
        {
            known.clone_from(incident);
            *was_opened |= opened;
        } else if self.incidents.len() < INCIDENTS {
            self.incidents.push((incident.clone(), opened));
        } else {
            return false;
        }
        // Its window is there when the incident is read about.
        self.is_urgent |= opened;
        true
    }

    fn clear(&mut self) {
        self.parts.clear();
        self.incidents.clear();
        self.lines.clear();
        self.lines.shrink_to(KEPT_CAPACITY);
    }
}

impl Buffer for Records {
    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.parts.is_empty() && self.incidents.is_empty()
    }

    fn len(&self) -> usize {
        self.lines.len()
    }

    fn is_urgent(&self) -> bool {
        self.is_urgent
    }

    fn take_into(&mut self, batch: &mut Self) {
        mem::swap(&mut self.lines, &mut batch.lines);
        mem::swap(&mut self.parts, &mut batch.parts);
        mem::swap(&mut self.incidents, &mut batch.incidents);
        self.counted = 0;
        self.tenants.clear();
        self.is_urgent = false;
    }
}

/// Why a recording is down.
pub(super) fn cannot_write(error: &io::Error) -> String {
    format!("cannot write: {error}")
}

/// Writes what was queued. After a failure nothing is written until a part starts: it would follow an
/// unreported gap.
struct RecordWorker<W> {
    name: &'static str,
    writer: W,
    tell: Box<dyn Fn(Option<String>) + Send>,
    is_broken: bool,
    /// Whether the failure was told.
    is_reported: bool,
    /// Lines of the last batch that could not be written.
    lost: u64,
}

impl<W: SegmentWriter> RecordWorker<W> {
    fn write(&mut self, batch: &Records) -> io::Result<()> {
        let mut outcome = Ok(());
        let first = batch.parts.first().map_or(batch.lines.len(), |(offset, _)| *offset);
        self.write_part(None, &batch.lines[..first], &mut outcome);
        for (index, (offset, start)) in batch.parts.iter().enumerate() {
            let end = batch.parts.get(index + 1).map_or(batch.lines.len(), |(next, _)| *next);
            self.write_part(Some(*start), &batch.lines[*offset..end], &mut outcome);
        }
        outcome
    }

    fn write_part(&mut self, start: Option<PartStart>, lines: &[u8], outcome: &mut io::Result<()>) {
        if let Some(start) = start {
            let started = self.writer.start_part(start);
            self.is_broken = started.is_err();
            if started.is_err() {
                *outcome = started;
            }
        }
        if !self.is_broken
            && let Err(error) = self.writer.write_lines(lines)
        {
            self.is_broken = true;
            *outcome = Err(error);
        }
        if self.is_broken {
            self.lost += lines.iter().map(|byte| u64::from(*byte == b'\n')).sum::<u64>();
        }
    }
}

impl<W: SegmentWriter> Worker for RecordWorker<W> {
    type Buffer = Records;

    fn process(&mut self, batch: &mut Records) -> io::Result<Option<Instant>> {
        let outcome = self.write(batch);
        for (incident, opened) in &batch.incidents {
            self.writer.update_incident(incident, *opened);
        }
        self.writer.batch_done();
        let written = Instant::now();
        batch.clear();
        match outcome {
            Ok(()) if !self.is_broken && mem::take(&mut self.is_reported) => {
                tracing::info!(recording = self.name, "recording continues");
                (self.tell)(None);
            }
            Err(error) if !mem::replace(&mut self.is_reported, true) => {
                tracing::warn!(recording = self.name, %error, "cannot write; recording resumes with a gap");
                (self.tell)(Some(cannot_write(&error)));
            }
            Ok(()) | Err(_) => {}
        }
        Ok(written.checked_add(WRITE_INTERVAL))
    }

    fn report(&mut self, waiting: &mut Records) {
        // What was queued since may start a part of its own.
        waiting.has_failed = self.is_broken && waiting.parts.is_empty();
        waiting.lost += mem::take(&mut self.lost);
    }
}

#[cfg(test)]
mod tests;
