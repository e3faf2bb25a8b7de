//! `--self-test`: has a process of its own delete a neighbor entry and be refused an unmount, and asks the daemon who it was.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use kevtmon_event::Event;
use kevtmon_history::query::doctor::{DaemonReport, Step};
use kevtmon_history::query::filter::{EventFilter, MAX_LIMIT, Order};
use kevtmon_history::query::history::{History, HistoryError};
use kevtmon_observation::NsInum;
use kevtmon_server::client::Remote;
use kevtmon_sources::procfs::Proc;
use kevtmon_types::error_chain::chain;

use crate::self_test::{ARGUMENT, Done, NEIGHBOR};

/// Longest wait for each step of the process that acts.
const STEP: Duration = Duration::from_secs(10);
/// How long the daemon may take to know a new network namespace.
const KNOWN: Duration = Duration::from_secs(3);
/// How long an event may take.
const EVENT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);

const DELETION: &str = "delete a permanent neighbor entry";
const REFUSAL: &str = "be refused an unmount";
const CLEANUP: &str = "leave nothing behind";

/// Does all steps. The worker's namespaces end with it, whatever happens.
pub(super) fn run(remote: Option<&Remote>, daemon: Option<&DaemonReport>) -> Vec<Step> {
    let (Some(remote), Some(daemon)) = (remote, daemon) else {
        let outcome = "no daemon was asked: start one, since it is the daemon that names who acts";
        return [DELETION, REFUSAL].into_iter().map(|what| failed(what, outcome)).collect();
    };
    let mut worker = match Worker::start() {
        Ok(worker) => worker,
        Err(reason) => return vec![failed(DELETION, reason)],
    };
    let mut steps = match act(&mut worker, remote, daemon) {
        Ok(steps) => steps,
        Err(reason) => vec![failed(DELETION, reason)],
    };
    let link = worker.link.take();
    drop(worker);
    if let Some(link) = link {
        steps.push(cleaned_up(&link));
    }
    steps
}

fn failed(what: &str, outcome: impl Into<String>) -> Step {
    Step { what: what.to_owned(), passed: false, seq: None, named: None, ms: None, outcome: outcome.into() }
}

fn act(worker: &mut Worker, remote: &Remote, daemon: &DaemonReport) -> Result<Vec<Step>, String> {
    let Done::Prepared { link, mount } = worker.next()? else { return Err(NONSENSE.to_owned()) };
    worker.link = Some(link);
    let proc = Proc::default();
    // A child of ours, which waits for its next step.
    let ns = |kind| proc.ns(worker.child.id(), kind).ok_or("the namespaces of the worker cannot be read");
    let (netns, mntns) = (ns("net")?, ns("mnt")?);
    let after = wait_until_known(remote, netns)?;
    let began = Instant::now();
    worker.allow()?;
    let Done::Acted { umount } = worker.next()? else { return Err(NONSENSE.to_owned()) };
    if umount != "EBUSY" {
        return Err(format!("the unmount was to be refused, and returned {umount}"));
    }
    let is_deletion = |event: &Event| {
        let address = NEIGHBOR.to_string();
        event.neighbor.as_ref().is_some_and(|it| it.netns == netns && it.address.to_string() == address)
    };
    let path = mount.to_string_lossy();
    let is_refusal = |event: &Event| event.mount.as_ref().is_some_and(|it| it.path == path);
    let see = |what, kind: &str, hook, fits: &dyn Fn(&Event) -> bool, is_worker: &dyn Fn(&Event) -> bool| {
        see(remote, &Expected { what, kind, after, began, lack: lack(daemon, hook), fits, is_worker })
    };
    Ok(vec![
        see(DELETION, "neighbor.deleted", "hook.neighbor", &is_deletion, &|event| {
            event.actor.as_ref().is_some_and(|actor| actor.netns == Some(netns))
        }),
        see(REFUSAL, "mount.busy", "hook.umount", &is_refusal, &|event| {
            event.actor.as_ref().is_some_and(|actor| actor.mntns == Some(mntns))
        }),
    ])
}

const NONSENSE: &str = "the worker said something else than expected";

/// Why the hook may see less than all, as the daemon tells.
fn lack(daemon: &DaemonReport, hook: &str) -> Option<String> {
    let status = daemon.sources.iter().find(|status| status.source == hook)?;
    let reason = status.reason.as_deref()?;
    Some(match (&status.attach_mode, status.up) {
        (Some(attach_mode), true) => format!("{hook} is attached by {attach_mode}: {reason}"),
        _ => format!("{hook} is down: {reason}"),
    })
}

/// Waits a while until the daemon knows the namespace, without which it may not know the entry; the number of its newest
/// event then.
fn wait_until_known(remote: &Remote, netns: NsInum) -> Result<u64, String> {
    let until = Instant::now() + KNOWN;
    loop {
        let state = remote.state().map_err(|error| chain(&error))?.ok_or("the daemon has no model")?;
        let is_known = state.namespaces.iter().any(|known| known.netns == netns && !known.stale);
        if is_known || Instant::now() >= until {
            return Ok(state.seq);
        }
        thread::park_timeout(PAUSE);
    }
}

/// An event that is to come.
struct Expected<'a> {
    what: &'a str,
    kind: &'a str,
    after: u64,
    began: Instant,
    lack: Option<String>,
    fits: &'a dyn Fn(&Event) -> bool,
    is_worker: &'a dyn Fn(&Event) -> bool,
}

fn see(remote: &Remote, expected: &Expected<'_>) -> Step {
    let found = wait_for(remote, expected);
    let ms = u64::try_from(expected.began.elapsed().as_millis()).ok();
    let because = expected.lack.as_ref().map_or_else(String::new, |lack| format!("; {lack}"));
    match found {
        Ok(Some(event)) => {
            let named = (expected.is_worker)(&event);
            let who = if named { event.message.clone() } else { format!("seen, without an actor{because}") };
            Step { passed: named, seq: Some(event.seq), named: Some(named), ms, ..failed(expected.what, who) }
        }
        Ok(None) => {
            let within = EVENT.as_secs();
            failed(expected.what, format!("no event {} within {within} s{because}", expected.kind))
        }
        Err(error) => failed(expected.what, chain(&error)),
    }
}

fn wait_for(remote: &Remote, expected: &Expected<'_>) -> Result<Option<Event>, HistoryError> {
    let until = expected.began + EVENT;
    loop {
        if let Some(event) = find(remote, expected)? {
            return Ok(Some(event));
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        thread::park_timeout(PAUSE);
    }
}

/// Looks through all pages: on a busy node the newest one is full of what others do.
fn find(history: &impl History, expected: &Expected<'_>) -> Result<Option<Event>, HistoryError> {
    let mut filter = EventFilter {
        kinds: vec![expected.kind.to_owned()],
        after: Some(expected.after),
        order: Order::Oldest,
        limit: MAX_LIMIT,
        ..EventFilter::default()
    };
    loop {
        let page = history.events(&filter)?;
        let events = page.events.iter().filter_map(|found| serde_json::from_str::<Event>(&found.line).ok());
        if let Some(event) = events.into_iter().find(|event| (expected.fits)(event)) {
            return Ok(Some(event));
        }
        filter.cursor = page.next;
        if filter.cursor.is_none() {
            return Ok(None);
        }
    }
}

fn cleaned_up(link: &str) -> Step {
    let place = Path::new("/sys/class/net").join(link);
    let until = Instant::now() + STEP;
    while place.exists() && Instant::now() < until {
        thread::park_timeout(PAUSE);
    }
    match place.exists() {
        false => Step { passed: true, ..failed(CLEANUP, "the namespaces, the veth and the mounts are gone") },
        true => failed(CLEANUP, format!("{link} is still there: ip link delete {link}")),
    }
}

/// The process that acts; it ends when this is dropped.
struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    done: Receiver<Done>,
    /// The end of its veth in this network namespace, once it is known.
    link: Option<String>,
}

impl Worker {
    fn start() -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("cannot start the worker: {error}");
        let mut child = Command::new(std::env::current_exe().map_err(failed)?)
            .arg(ARGUMENT)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (send, done) = sync_channel(1);
        thread::spawn(move || {
            let lines = BufReader::new(stdout?).lines();
            // Whoever asks may have lost patience.
            lines
                .map_while(Result::ok)
                .try_for_each(|line| serde_json::from_str(&line).ok().and_then(|done| send.send(done).ok()))
        });
        Ok(Self { child, stdin, done, link: None })
    }

    fn next(&self) -> Result<Done, String> {
        match self.done.recv_timeout(STEP) {
            Ok(Done::Failed { reason }) => Err(reason),
            Ok(done) => Ok(done),
            Err(RecvTimeoutError::Timeout) => Err("the worker does not answer".to_owned()),
            Err(RecvTimeoutError::Disconnected) => Err("the worker has ended".to_owned()),
        }
    }

    /// Lets it do the next step.
    fn allow(&mut self) -> Result<(), String> {
        let stdin = self.stdin.as_mut().ok_or(NONSENSE)?;
        stdin.write_all(b"\n").map_err(|error| format!("the worker has ended: {error}"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.stdin.take());
        // It may have ended already. Its namespaces end with it, soon after.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::memory::{Memory, event};

    #[test]
    fn an_event_is_found_among_very_many_of_its_kind() {
        let many = Memory::of((1..=3 * MAX_LIMIT as u64).map(event));
        let kind = event(1).kind.name();
        let found = |seq| {
            let fits = move |event: &Event| event.seq == seq;
            let expected = Expected {
                what: DELETION,
                kind,
                after: 5,
                began: Instant::now(),
                lack: None,
                fits: &fits,
                is_worker: &|_| true,
            };
            find(&many, &expected).unwrap().map(|event| event.seq)
        };
        assert_eq!([6, 1_500, 3_000].map(found), [Some(6), Some(1_500), Some(3_000)]);
        assert_eq!([5, 3_001].map(found), [None, None]);
    }
}
