//! The query commands. Input: arguments. Output: text or JSON on standard output, remarks on standard error.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};

use clap::Subcommand;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use kevtmon_event::Event;
use kevtmon_history::query::history::{Extent, HistoryError};
use kevtmon_render::time::Clock;
use kevtmon_render::{Fold, Pretty, Transcript};
use kevtmon_server::client::RemoteError;
use kevtmon_types::error_chain::chain;
use kevtmon_types::escape::to_json;

use super::client::{ClientArgs, Source, StateError, Unreachable};
use super::{exit, wants_colour};

mod events;
mod explain;
mod incidents;
pub(super) mod processes;
mod state;
#[cfg(test)]
mod tests;
mod why;

pub use events::EventsArgs;
pub use explain::ExplainArgs;
pub use incidents::IncidentsArgs;
pub use state::StateArgs;
pub use why::WhyArgs;

/// Size of writes, in bytes: what a pipe holds.
const CHUNK: usize = 64 * 1024;
/// What happens again after this time is printed again.
const FOLD_GAP: SignedDuration = SignedDuration::from_secs(60);

/// What standard output is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Terminal {
    /// A file, or a pipe to another program.
    None,
    /// A terminal that is to show no colours.
    Plain,
    /// A terminal with colours.
    Coloured,
}

/// The query commands.
#[derive(Debug, Subcommand)]
pub enum Query {
    /// Show events: the newest, those of a time range, or new ones as they occur
    Events(EventsArgs),
    /// Show open incidents, or all of them
    Incidents(IncidentsArgs),
    /// Explain what happened to a pod, container, address, path, interface or process, and why
    Why(WhyArgs),
    /// Tell what lines of logs mean, and which incident is behind each
    ///
    /// Lines of the kubelet, of dockerd and containerd, of CNI plugins and the kernel, as they stand in a log: in LINE, or on
    /// standard input. Each that is known is printed with what it speaks of, and with the incident that happened to that; else
    /// with the reason why it is harmless, or with what the cause can be and the commands that show more. What is not known is
    /// counted.
    ///
    /// Exit code: 0 a line is known, 1 none is, 2 there is no line, or the history cannot be read.
    Explain(ExplainArgs),
    /// Show the model of this node: sources, pods, containers, network namespaces
    State(StateArgs),
}

impl Query {
    /// Answers on standard output; returns the exit code.
    pub fn run(&self) -> u8 {
        let terminal = match wants_colour() {
            _ if !io::stdout().is_terminal() => Terminal::None,
            true => Terminal::Coloured,
            false => Terminal::Plain,
        };
        let clock = Clock { now: Timestamp::now(), zone: TimeZone::system() };
        let mut out = io::BufWriter::with_capacity(CHUNK, io::stdout().lock());
        self.execute(clock, terminal, &mut out, &mut io::stderr().lock())
    }

    /// Answers; returns the exit code.
    pub fn execute(&self, clock: Clock, terminal: Terminal, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
        let source = match (self.client().connect(err), self) {
            (Ok(source), _) => source,
            // What a line means is known without a history.
            (Err(Unreachable), Self::Explain(_)) => Source::Nowhere,
            (Err(Unreachable), _) => return exit::QUERY,
        };
        self.answer_from(&source, clock, terminal, out, err)
    }

    fn answer_from(
        &self,
        source: &Source,
        clock: Clock,
        terminal: Terminal,
        out: &mut dyn Write,
        err: &mut dyn Write,
    ) -> u8 {
        let pretty = Pretty { colour: terminal == Terminal::Coloured, zone: clock.zone.clone() };
        let transcript = Transcript::new(pretty.clone());
        // What reads a pipe expects a line for each event.
        let transcript = if terminal == Terminal::None { transcript } else { transcript.wrapped() };
        let fold = Fold::new(transcript, FOLD_GAP);
        let mut output = Output { source, clock, pretty, fold, out, err };
        let answered = self
            .answer(&mut output)
            .and_then(|code| output.out.flush().map_err(Failure::from).map(|()| code));
        match answered {
            Ok(code) => code,
            // The reader closed the pipe, as head does.
            Err(Failure::Output(error)) if error.kind() == ErrorKind::BrokenPipe => exit::OK,
            Err(error) => {
                output.remark(&error);
                exit::QUERY
            }
        }
    }

    fn client(&self) -> &ClientArgs {
        match self {
            Self::Events(args) => &args.client,
            Self::Incidents(args) => &args.client,
            Self::Why(args) => &args.client,
            Self::Explain(args) => &args.client,
            Self::State(args) => &args.client,
        }
    }

    fn answer(&self, output: &mut Output<'_>) -> Result<u8, Failure> {
        match self {
            Self::Events(args) => args.answer(output),
            Self::Incidents(args) => args.answer(output),
            Self::Why(args) => args.answer(output),
            Self::Explain(args) => args.answer(output),
            Self::State(args) => args.answer(output),
        }
    }
}

/// Why a query has no answer.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{}", chain(.0))]
    History(#[from] HistoryError),
    #[error("{}", chain(.0))]
    Remote(#[from] RemoteError),
    #[error("{}", chain(.0))]
    State(#[from] StateError),
    #[error("{0}")]
    Arguments(String),
    #[error("cannot read standard input: {0}")]
    Input(#[source] io::Error),
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
    #[error("cannot write JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// The value of an argument, if it is given.
fn parsed<T, E: Display>(
    name: &str,
    text: Option<&String>,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<Option<T>, Failure> {
    let invalid = |error| Failure::Arguments(format!("--{name}: {error}"));
    text.map(|text| parse(text).map_err(invalid)).transpose()
}

/// Where one query is answered from, and where its answer is written.
struct Output<'a> {
    source: &'a Source,
    clock: Clock,
    pretty: Pretty,
    /// Events that were printed as text.
    fold: Fold<Box<Event>>,
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
}

impl Output<'_> {
    /// Prints a line to standard error.
    fn remark(&mut self, what: &dyn Display) {
        // There is nowhere left to report that standard error cannot be written.
        let _ = writeln!(self.err, "kevtmon: {what}");
    }

    /// Prints which processes are no longer what was found.
    fn remark_others(&mut self, pids: &BTreeSet<u32>) {
        for pid in pids {
            self.remark(&format!(
                "process {pid} has ended, or is no longer in what it was found in: no step about it is shown"
            ));
        }
    }

    /// Prints that nothing was found, and where it was searched.
    fn nothing(&mut self, what: &str) -> u8 {
        let extent = self.source.history().extent().ok();
        self.nothing_in(what, extent)
    }

    /// The same, with the extent of the history.
    fn nothing_in(&mut self, what: &str, extent: Option<Extent>) -> u8 {
        let searched = self.source.searched(extent, &self.clock);
        self.remark(&format!("{what}: {searched}"));
        exit::FAILED
    }

    fn json(&mut self, value: &impl serde::Serialize) -> Result<(), Failure> {
        Ok(writeln!(self.out, "{}", to_json(value)?)?)
    }
}
