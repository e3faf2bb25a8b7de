//! What the daemon sends: its stream of events, and answers. Each has a thread, which ends with the program.

use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::Duration;

use kevtmon_history::query::doctor::DaemonReport;
use kevtmon_history::query::filter::{EventFilter, IncidentFilter};
use kevtmon_history::query::history::{History, HistoryError, IncidentView};
use kevtmon_history::query::record::Record;
use kevtmon_history::query::why::Outcome;
use kevtmon_server::client::Remote;
use kevtmon_types::error_chain::chain;

use crate::cli::query::processes;

/// How often incidents and sources are queried without an event that changes them.
const PERIOD: Duration = Duration::from_secs(2);
/// Pause before reconnecting: a restart takes seconds.
const PAUSE: Duration = Duration::from_secs(1);

/// What is to be queried.
pub(super) enum Request {
    Incidents,
    /// The story of the incident of this id.
    Why(String),
}

/// What the daemon sent, or why it did not.
pub(super) enum Answer {
    Event(Box<Record>),
    /// What is wrong, and what the daemon tells of itself.
    State(Result<(Vec<IncidentView>, DaemonReport), String>),
    Why(String, Result<Outcome, String>),
}

/// Starts the threads: one for each connection.
pub(super) fn start(
    [events, queries]: [Remote; 2],
    answers: SyncSender<Answer>,
    requests: Receiver<Request>,
) {
    let streamed = answers.clone();
    thread::spawn(move || follow(&events, &streamed));
    thread::spawn(move || answer(&queries, &requests, &answers));
}

/// Sends events as they occur, over restarts of the daemon.
fn follow(remote: &Remote, answers: &SyncSender<Answer>) {
    let mut is_received = true;
    while is_received {
        // That the daemon does not answer is shown by the other thread.
        let _ = remote.follow(&EventFilter::default(), Duration::MAX, |line| {
            // An event of a newer version that cannot be read is not counted.
            if let Some(record) = line.and_then(|line| Record::read(line).ok()) {
                is_received = answers.send(Answer::Event(Box::new(record))).is_ok();
            }
            if is_received { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        // Nothing unparks this thread; it would only reconnect earlier.
        thread::park_timeout(PAUSE);
    }
}

/// Answers requests, one after the other.
fn answer(remote: &Remote, requests: &Receiver<Request>, answers: &SyncSender<Answer>) {
    let mut request = Request::Incidents;
    loop {
        let answer = match request {
            Request::Incidents => Answer::State(state(remote).map_err(|error| chain(&error))),
            Request::Why(id) => {
                let story = why(remote, &id).map_err(|error| chain(&error));
                Answer::Why(id, story)
            }
        };
        if answers.send(answer).is_err() {
            return;
        }
        request = match requests.recv_timeout(PERIOD) {
            Ok(request) => request,
            Err(RecvTimeoutError::Timeout) => Request::Incidents,
            Err(RecvTimeoutError::Disconnected) => return,
        };
    }
}

fn state(remote: &Remote) -> Result<(Vec<IncidentView>, DaemonReport), HistoryError> {
    let mut incidents = remote.incidents(&IncidentFilter::default())?;
    processes::retain_current(incidents.iter_mut().map(|view| &mut view.incident.advice));
    Ok((incidents, remote.doctor()?))
}

fn why(remote: &Remote, id: &str) -> Result<Outcome, HistoryError> {
    let mut outcome = remote.why(id)?;
    if let Outcome::Story(story) = &mut outcome {
        processes::retain_current([&mut story.advice]);
    }
    Ok(outcome)
}
