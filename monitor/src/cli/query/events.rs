//! `events`: past events, and new ones as they occur.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use jiff::Timestamp;
use kevtmon_event::Event;
use kevtmon_history::query::filter::{self, DEFAULT_LIMIT, EventFilter, MAX_LIMIT, Order};
use kevtmon_history::query::history::{Found, HistoryError};
use kevtmon_history::query::record::{Record, timestamp};
use kevtmon_history::query::time;
use kevtmon_render::time::Clock;
use kevtmon_server::client::Remote;
use kevtmon_types::error_chain::chain;
use kevtmon_types::escape::json;

use super::{ClientArgs, Failure, Output, Source, parsed};
use crate::cli::exit;

/// First pause before reconnecting; doubles each time.
const PAUSE: Duration = Duration::from_millis(250);
/// What repeats itself is counted for this time at most before it is printed.
const FOLD_TIME: Duration = Duration::from_secs(1);
/// Attempts to reconnect: a restart takes seconds.
const TRIES: u32 = 7;

/// Arguments of `events`.
#[derive(Debug, Default, Args)]
pub struct EventsArgs {
    /// Print new events as they occur
    #[arg(long, short)]
    pub follow: bool,
    /// Only events since then: an age (90s, 15m, 1h30m, 2d) or a time (2026-01-02T03:04:05Z)
    #[arg(long, value_name = "WHEN")]
    pub since: Option<String>,
    /// Only events before then: an age or a time, as for --since
    #[arg(long, value_name = "WHEN")]
    pub until: Option<String>,
    /// Only events of this kind, or of a family such as `neighbor.`; may be repeated
    #[arg(long, value_name = "KIND")]
    pub kind: Vec<String>,
    /// Only events with this pod as target, actor or holder; NAMESPACE/NAME or uid
    #[arg(long, value_name = "NS/NAME")]
    pub pod: Option<String>,
    /// Only events with this container as target, actor or holder; its id or the first digits of it
    #[arg(long, value_name = "ID")]
    pub container: Option<String>,
    /// Minimum severity: debug, info, notice, warning or critical
    #[arg(long, value_name = "SEVERITY")]
    pub severity: Option<String>,
    /// Maximum number of events, the newest [default: 100; with --since no limit]
    #[arg(long, value_name = "COUNT")]
    pub limit: Option<usize>,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

impl EventsArgs {
    fn filter(&self, now: Timestamp) -> Result<EventFilter, Failure> {
        if self.follow && self.until.is_some() {
            return Err(Failure::Arguments("--until cannot be combined with --follow".to_owned()));
        }
        if self.limit == Some(0) {
            return Err(Failure::Arguments("--limit must be at least 1".to_owned()));
        }
        let kinds = self.kind.iter().map(|kind| parsed("kind", Some(kind), filter::kind));
        let moment = |text: &str| time::parse(text, now);
        Ok(EventFilter {
            kinds: kinds.filter_map(Result::transpose).collect::<Result<_, _>>()?,
            severity: parsed("severity", self.severity.as_ref(), filter::severity)?,
            since: parsed("since", self.since.as_ref(), moment)?,
            until: parsed("until", self.until.as_ref(), moment)?,
            pod: parsed("pod", self.pod.as_ref(), filter::pod)?,
            container: parsed("container", self.container.as_ref(), filter::container)?,
            ..EventFilter::default()
        })
    }

    pub(super) fn answer(&self, output: &mut Output<'_>) -> Result<u8, Failure> {
        let filter = self.filter(output.clock.now)?;
        if !self.follow {
            let found = self.print_past(output, filter, |_| true)?;
            return Ok(if found > 0 { exit::OK } else { output.nothing("no matching events") });
        }
        let source = output.source;
        let Source::Daemon(remote) = source else {
            return Err(Failure::Arguments("--follow needs a running daemon".to_owned()));
        };
        // Events that occur while the past ones are read are left to the stream.
        let extent = source.history().extent()?;
        if self.since.is_some() || self.limit.is_some() {
            self.print_past(output, filter.clone(), |found| {
                let record = Record::read(Arc::clone(&found.line));
                let is_new = |record: Record| {
                    record.event.boot_id == extent.boot_id && record.event.seq > extent.last_seq
                };
                !record.is_ok_and(is_new)
            })?;
        }
        let after = Some(extent.last_seq);
        self.follow(
            output,
            remote,
            EventFilter { since: None, after, boot_id: Some(extent.boot_id), ..filter },
        )
    }

    /// Prints past events, the oldest first; returns how many.
    fn print_past(
        &self,
        output: &mut Output<'_>,
        mut filter: EventFilter,
        wanted: impl Fn(&Found) -> bool,
    ) -> Result<usize, Failure> {
        let history = output.source.history();
        let mut left = match (self.limit, self.since.is_some()) {
            (Some(limit), _) => limit,
            (None, false) => DEFAULT_LIMIT,
            (None, true) => {
                filter.order = Order::Oldest;
                usize::MAX
            }
        };
        let mut printed = 0;
        let mut newest = VecDeque::new();
        while left > 0 {
            filter.limit = left.min(MAX_LIMIT);
            let page = history.events(&filter)?;
            left = left.saturating_sub(page.events.len());
            let events = page.events.into_iter().filter(&wanted);
            match filter.order {
                Order::Oldest => {
                    for found in events {
                        self.print(output, found)?;
                        printed += 1;
                    }
                }
                Order::Newest => events.rev().for_each(|found| newest.push_front(found)),
            }
            filter.cursor = page.next;
            if filter.cursor.is_none() {
                break;
            }
        }
        printed += newest.len();
        for found in newest {
            self.print(output, found)?;
        }
        print_counted(output, Clock::local_and_age)?;
        Ok(printed)
    }

    fn print(&self, output: &mut Output<'_>, found: Found) -> Result<(), Failure> {
        if self.json {
            return Ok(writeln!(output.out, "{}", json(&found.line))?);
        }
        let mut record = Record::read(found.line).map_err(HistoryError::from)?;
        // What was advised then may do harm now; `incidents` and `why` have the advice of what is open.
        if let Some(incident) = &mut record.event.incident {
            incident.advice.clear();
        }
        let clock = &output.clock;
        let when = |event: &Event| clock.local_and_age(timestamp(&event.time));
        let text = output.fold.event(Box::new(record.event), &record.kind, when);
        Ok(output.out.write_all(text.as_bytes())?)
    }

    /// Follows the stream; resumes where the connection broke, and waits for a daemon that restarts.
    fn follow(
        &self,
        output: &mut Output<'_>,
        remote: &Remote,
        mut filter: EventFilter,
    ) -> Result<u8, Failure> {
        let mut tries = 0;
        let mut counting_since = None;
        loop {
            let (mut last, mut failed) = (None, None);
            let ended = remote.follow(&filter, FOLD_TIME, |line| {
                let printed = match line {
                    Some(line) => self.print_live(output, line).map(|position| last = Some(position)),
                    None => Ok(()),
                };
                let printed = printed.and_then(|()| {
                    let since = output.fold.is_pending().then(|| counting_since.unwrap_or_else(Instant::now));
                    counting_since = since.filter(|since| since.elapsed() < FOLD_TIME);
                    match (since, counting_since) {
                        (Some(_), None) => print_counted(output, Clock::local),
                        _ => Ok(()),
                    }
                });
                match printed {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(error) => {
                        failed = Some(error);
                        ControlFlow::Break(())
                    }
                }
            });
            print_counted(output, Clock::local)?;
            if let Some(error) = failed {
                return Err(error);
            }
            if let Some((boot_id, seq)) = last {
                (filter.boot_id, filter.after) = (Some(boot_id), Some(seq));
                tries = 0;
            }
            match ended {
                Err(error) if !error.is_dead() => return Err(error.into()),
                Ok(()) if tries == 0 => output.remark(&"the daemon closed the stream; reconnecting"),
                Err(error) if tries == 0 => output.remark(&format!("{}; reconnecting", chain(&error))),
                Err(error) if tries == TRIES => return Err(error.into()),
                Ok(()) | Err(_) => {}
            }
            // Nothing unparks this thread; it would only reconnect earlier.
            thread::park_timeout(PAUSE * 2_u32.saturating_pow(tries));
            tries = (tries + 1).min(TRIES);
        }
    }

    /// Returns the boot and the number of the event.
    fn print_live(&self, output: &mut Output<'_>, line: &str) -> Result<(String, u64), Failure> {
        let record = Record::read(line).map_err(HistoryError::from)?;
        output.clock.now = Timestamp::now();
        let position = (record.event.boot_id.clone(), record.event.seq);
        if self.json {
            writeln!(output.out, "{}", json(&record.line))?;
        } else {
            let clock = &output.clock;
            let when = |event: &Event| clock.local(timestamp(&event.time));
            let text = output.fold.event(Box::new(record.event), &record.kind, when);
            output.out.write_all(text.as_bytes())?;
        }
        output.out.flush()?;
        Ok(position)
    }
}

/// Prints what was counted of events that repeat themselves.
fn print_counted(output: &mut Output<'_>, when: fn(&Clock, Timestamp) -> String) -> Result<(), Failure> {
    let clock = &output.clock;
    let text = output.fold.flush(|event| when(clock, timestamp(&event.time)));
    output.out.write_all(text.as_bytes())?;
    Ok(output.out.flush()?)
}
