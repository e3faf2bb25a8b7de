//! Feeds a recording to a core, which emits the same events again. Needs nothing of the node that it runs on.

use std::io::{self, BufRead};
use std::mem;

use kevtmon_core::diagnose::RestoreError;
use kevtmon_core::{Core, Output};
use kevtmon_event::Event;
use kevtmon_observation::{BootNs, Fact, Observation};
use kevtmon_types::settings::Policy;
use thiserror::Error;

use super::format::{Gap, Header};
use super::reader::{Line, ReadError, Reader, Skipped};
use crate::queue::Refused;

/// Most skipped lines that are listed one by one.
const TOLD: usize = 10;

/// Why a replay ended early.
#[derive(Debug, Error)]
pub enum ReplayError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("it starts with a state that cannot be restored")]
    State(#[from] RestoreError),
    #[error("cannot write events")]
    Write(#[from] io::Error),
}

/// What was replayed, and what could not be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Time of the last observation.
    pub until: BootNs,
    /// Observations that the core took.
    pub observations: u64,
    pub events: u64,
    /// Unknown lines.
    pub skipped: u64,
    pub first_skipped: Vec<Skipped>,
    pub gaps: Vec<Gap>,
    /// Truncated lines: the daemon was killed, or is still writing.
    pub cut: Vec<u64>,
}

/// Replays all of it. With a policy, its thresholds and the like hold instead of what was
/// recorded; the node, its boot and its sources stay as they were.
pub fn replay(
    input: impl BufRead,
    policy: Option<&Policy>,
    tell: impl FnMut(Event) -> io::Result<()>,
) -> Result<Summary, ReplayError> {
    play(input, policy, tell).map(|played| played.summary)
}

pub(super) struct Played {
    /// As it is at the end; `None` if there was no part.
    pub(super) core: Option<Core>,
    /// Of the last part.
    pub(super) header: Option<Header<'static>>,
    pub(super) summary: Summary,
}

/// As [`replay`].
pub(super) fn play(
    input: impl BufRead,
    policy: Option<&Policy>,
    mut tell: impl FnMut(Event) -> io::Result<()>,
) -> Result<Played, ReplayError> {
    let mut reader = Reader::new(input);
    let mut player = Player { policy, ..Player::default() };
    while let Some(line) = reader.next_line()? {
        match line {
            Line::Bundle(_) => {}
            Line::Part(header) => player.begin(*header)?,
            Line::Observation(observation) => player.observe(observation, &mut tell)?,
            Line::Skipped(skipped) => player.skip(skipped),
            Line::Cut { line } => player.summary.cut.push(line),
        }
    }
    Ok(Played { core: player.core, header: player.header, summary: player.summary })
}

#[derive(Default)]
struct Player<'a> {
    policy: Option<&'a Policy>,
    /// Of the part that is read.
    header: Option<Header<'static>>,
    /// `None` before the first part.
    core: Option<Core>,
    summary: Summary,
}

impl Player<'_> {
    fn begin(&mut self, mut header: Header<'static>) -> Result<(), RestoreError> {
        let goes_on = self.header.as_ref().is_some_and(|earlier| header.continues(earlier));
        // What is missing before the recording begins is no gap of it.
        self.summary.gaps.extend(header.gap.clone().filter(|_| self.header.is_some()));
        if let Some(policy) = self.policy {
            policy.apply_to(&mut header.settings);
        }
        let state = mem::take(&mut header.state);
        if !goes_on {
            self.core = Some(Core::restore(header.settings.clone(), state)?);
        }
        self.header = Some(header);
        Ok(())
    }

    fn observe(
        &mut self,
        mut observation: Observation,
        tell: &mut impl FnMut(Event) -> io::Result<()>,
    ) -> io::Result<()> {
        if let (Some(policy), Fact::Settings(settings)) = (self.policy, &mut observation.fact) {
            policy.apply_to(settings);
        }
        // There is none only in a bundle without recording.
        let Some(core) = &mut self.core else { return Ok(()) };
        if let Fact::Unrecorded { count } = observation.fact {
            let reason = Refused::Budget.reason().to_owned();
            self.summary.gaps.push(Gap { discarded: count, reason });
            return Ok(());
        }
        self.summary.observations += 1;
        self.summary.until = observation.at;
        core.observe(observation);
        for output in core.take_output() {
            if let Output::Event(event) = output {
                self.summary.events += 1;
                tell(*event)?;
            }
        }
        Ok(())
    }

    fn skip(&mut self, skipped: Skipped) {
        self.summary.skipped += 1;
        if self.summary.first_skipped.len() < TOLD {
            self.summary.first_skipped.push(skipped);
        }
    }
}
