//! The bounded way from the core to a file: lines go in, a thread of its own writes them, at most once a second.
//! Whoever puts lines in never waits for the disk.

use std::io;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::event::Incident;
use crate::sinks::yield_to_others;

/// Longest time that a line waits.
const PAUSE: Duration = Duration::from_secs(1);
/// Incidents that wait to be noted, the newest word on each.
const INCIDENTS: usize = 64;
/// Room that an idle tape keeps.
const KEPT: usize = 64 * 1024;

/// Where lines end up.
pub(super) trait Reel: Send + 'static {
    /// A part begins; what follows belongs to it.
    ///
    /// # Errors
    /// When nothing can be written.
    fn begin(&mut self, place: Begin) -> io::Result<()>;

    /// Takes whole lines.
    ///
    /// # Errors
    /// When they cannot be written, or not all of them.
    fn write(&mut self, lines: &[u8]) -> io::Result<()>;

    /// An incident opened, or changed since.
    fn note(&mut self, incident: &Incident, opened: bool);

    /// Nothing waits now; called after each write.
    fn rest(&mut self);
}

/// How a part begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begin {
    /// In a file of its own.
    NewFile,
    /// Where the last one ended.
    SameFile,
}

/// What does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// Too much waits.
    Full,
    /// The last write failed.
    Failed,
}

impl Refused {
    /// As in metric labels.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Full => "queue-full",
            Self::Failed => "write-failed",
        }
    }
}

/// How much may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    /// Bytes of lines, besides those that a part begins with.
    pub(super) most: usize,
    /// Bytes at which the second is not waited for.
    pub(super) urgent: usize,
}

/// The end that lines are put into.
pub(super) struct Tape {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

struct Shared {
    name: &'static str,
    bounds: Bounds,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    work: Work,
    /// Bytes of `work` that count against the bound.
    counted: usize,
    /// Until the next part begins nothing is written.
    failed: bool,
    /// Lines that were taken and could not be written.
    lost: u64,
    phase: Phase,
}

#[derive(Default)]
struct Work {
    lines: Vec<u8>,
    /// Where in `lines` parts begin.
    begins: Vec<(usize, Begin)>,
    incidents: Vec<(Incident, bool)>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    #[default]
    Open,
    /// Nothing more comes.
    Finishing,
    Closed,
}

impl Work {
    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.begins.is_empty() && self.incidents.is_empty()
    }
}

impl Tape {
    /// Starts the thread.
    ///
    /// # Errors
    /// When there can be none.
    pub(super) fn start(name: &'static str, bounds: Bounds, reel: impl Reel) -> io::Result<Self> {
        let shared = Arc::new(Shared { name, bounds, state: Mutex::default(), changed: Condvar::new() });
        let thread = thread::Builder::new().name(name.to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || {
                yield_to_others();
                shared.run(reel);
            }
        })?;
        Ok(Self { shared, thread })
    }

    /// As in metric labels.
    pub(super) fn name(&self) -> &'static str {
        self.shared.name
    }

    /// Puts a line in.
    pub(super) fn put(&self, line: &[u8]) -> Result<(), Refused> {
        let mut state = self.shared.lock();
        if state.failed {
            return Err(Refused::Failed);
        }
        if state.counted + line.len() > self.shared.bounds.most {
            return Err(Refused::Full);
        }
        let before = state.counted;
        let was_idle = state.work.is_empty();
        state.counted += line.len();
        state.work.lines.extend_from_slice(line);
        let urgent = self.shared.bounds.urgent;
        let is_urgent = before < urgent && state.counted >= urgent;
        drop(state);
        if was_idle || is_urgent {
            self.shared.changed.notify_all();
        }
        Ok(())
    }

    /// Begins a part with these lines; they may be many. Ends a failure: writing is tried again.
    pub(super) fn begin(&self, begin: Begin, lines: &[u8]) {
        let mut state = self.shared.lock();
        state.failed = false;
        let here = state.work.lines.len();
        state.work.begins.push((here, begin));
        state.work.lines.extend_from_slice(lines);
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Lines that were taken and could not be written since the last call.
    pub(super) fn take_lost(&self) -> u64 {
        mem::take(&mut self.shared.lock().lost)
    }

    /// Whether all that was put in is written, or failed to be.
    pub(super) fn is_empty(&self) -> bool {
        self.shared.lock().work.is_empty()
    }

    /// Passes the newest word on an incident; false when too many wait.
    pub(super) fn note(&self, incident: &Incident, opened: bool) -> bool {
        let mut state = self.shared.lock();
        let incidents = &mut state.work.incidents;
        if let Some((known, was_opened)) = incidents.iter_mut().find(|(known, _)| known.id == incident.id) {
            known.clone_from(incident);
            *was_opened |= opened;
        } else if incidents.len() < INCIDENTS {
            incidents.push((incident.clone(), opened));
        } else {
            return false;
        }
        drop(state);
        self.shared.changed.notify_all();
        true
    }

    /// Lets the thread write what waits, until the deadline.
    pub(super) fn finish(self, deadline: Instant) {
        let mut state = self.shared.lock();
        if state.phase == Phase::Open {
            state.phase = Phase::Finishing;
            self.shared.changed.notify_all();
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let (state, _) = self
            .shared
            .changed
            .wait_timeout_while(state, left, |state| state.phase == Phase::Finishing)
            .unwrap_or_else(PoisonError::into_inner);
        let phase = state.phase;
        drop(state);
        if phase == Phase::Closed {
            // A panic of that thread was printed when it happened.
            let _ = self.thread.join();
        } else {
            tracing::warn!(what = self.shared.name, "could not be written to its end in time");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut reel: impl Reel) {
        let mut work = Work::default();
        let mut written = None;
        let mut broken = false;
        let mut told = false;
        while self.take(&mut work, written) {
            let (lost, outcome) = wind(&mut reel, &work, &mut broken);
            for (incident, opened) in &work.incidents {
                reel.note(incident, *opened);
            }
            reel.rest();
            written = Some(Instant::now());
            work.begins.clear();
            work.incidents.clear();
            work.lines.clear();
            work.lines.shrink_to(KEPT);
            let mut state = self.lock();
            // What came in since may begin a part of its own.
            state.failed = broken && state.work.begins.is_empty();
            state.lost += lost;
            drop(state);
            match outcome {
                Ok(()) => told &= broken,
                Err(error) if !mem::replace(&mut told, true) => {
                    tracing::warn!(what = self.name, %error, "cannot be written; it goes on with a gap once it can");
                }
                Err(_) => {}
            }
        }
        self.lock().phase = Phase::Closed;
        self.changed.notify_all();
    }

    /// Waits for work, and then for a second after the last write; false when nothing more comes.
    fn take(&self, work: &mut Work, written: Option<Instant>) -> bool {
        let mut state = self
            .changed
            .wait_while(self.lock(), |state| state.work.is_empty() && state.phase == Phase::Open)
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(due) = written.and_then(|written| written.checked_add(PAUSE)) {
            let left = due.saturating_duration_since(Instant::now());
            state = self
                .changed
                .wait_timeout_while(state, left, |state| {
                    state.counted < self.bounds.urgent && state.phase == Phase::Open
                })
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        mem::swap(&mut state.work, work);
        state.counted = 0;
        !work.is_empty()
    }
}

/// Writes each part to its place. After a failure nothing is written until a part begins: it would stand behind a
/// hole that nobody sees. Tells how many lines that cost.
fn wind(reel: &mut impl Reel, work: &Work, broken: &mut bool) -> (u64, io::Result<()>) {
    let mut lost = 0;
    let mut outcome = Ok(());
    let mut write = |broken: &mut bool, begin: Option<Begin>, lines: &[u8]| {
        if let Some(begin) = begin {
            *broken = false;
            if let Err(error) = reel.begin(begin) {
                *broken = true;
                outcome = Err(error);
            }
        }
        if !*broken && let Err(error) = reel.write(lines) {
            *broken = true;
            outcome = Err(error);
        }
        if *broken {
            lost += lines.iter().map(|byte| u64::from(*byte == b'\n')).sum::<u64>();
        }
    };
    let first = work.begins.first().map_or(work.lines.len(), |(here, _)| *here);
    write(broken, None, &work.lines[..first]);
    for (index, (here, begin)) in work.begins.iter().enumerate() {
        let end = work.begins.get(index + 1).map_or(work.lines.len(), |(next, _)| *next);
        write(broken, Some(*begin), &work.lines[*here..end]);
    }
    (lost, outcome)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Writes nothing until it is let, and fails when it is told to.
    struct Gated {
        permits: Receiver<io::Result<()>>,
        seen: Arc<Mutex<Vec<u8>>>,
    }

    impl Reel for Gated {
        fn begin(&mut self, _begin: Begin) -> io::Result<()> {
            Ok(())
        }

        fn write(&mut self, lines: &[u8]) -> io::Result<()> {
            if lines.is_empty() {
                return Ok(());
            }
            self.permits.recv().unwrap_or(Ok(()))?;
            self.seen.lock().unwrap().extend_from_slice(lines);
            Ok(())
        }

        fn note(&mut self, _incident: &Incident, _opened: bool) {}

        fn rest(&mut self) {}
    }

    type Seen = Arc<Mutex<Vec<u8>>>;

    fn gated() -> (Tape, SyncSender<io::Result<()>>, Seen) {
        let (permit, permits) = sync_channel(100);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let reel = Gated { permits, seen: Arc::clone(&seen) };
        let tape = Tape::start("test", Bounds { most: 10, urgent: 1 }, reel).unwrap();
        (tape, permit, seen)
    }

    fn until(mut done: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done() {
            assert!(Instant::now() < deadline, "it does not come");
            thread::yield_now();
        }
    }

    #[test]
    fn a_disk_that_does_not_answer_delays_nobody_and_what_waits_is_bounded() {
        let (tape, permit, seen) = gated();
        tape.begin(Begin::SameFile, b"head\n");
        until(|| tape.is_empty());
        let taken = (0..100).filter(|_| tape.put(b"1234\n").is_ok()).count();
        assert_eq!(taken, 2);
        drop(permit);
        tape.finish(Instant::now() + PATIENCE);
        assert_eq!(&seen.lock().unwrap()[..], b"head\n1234\n1234\n");
    }

    #[test]
    fn after_a_failed_write_nothing_follows_the_hole_until_a_part_begins() {
        let (tape, permit, seen) = gated();
        permit.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
        tape.put(b"a\nb\n").unwrap();
        until(|| tape.put(b"c\n") == Err(Refused::Failed) || !tape.is_empty() && tape.take_lost() > 0);
        until(|| tape.is_empty());
        assert!(seen.lock().unwrap().is_empty());
        drop(permit);
        tape.begin(Begin::SameFile, b"head\n");
        tape.put(b"d\n").unwrap();
        tape.finish(Instant::now() + PATIENCE);
        assert_eq!(&seen.lock().unwrap()[..], b"head\nd\n");
    }
}
