//! `replay`: prints the events of a recording. Needs no privilege but read access to the file.

use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use jiff::tz::TimeZone;
use kevtmon_history::recording::replay::{ReplayError, Summary, replay};
use kevtmon_render::Pretty;
use kevtmon_types::error_chain::chain;
use kevtmon_types::escape::append_json;
use kevtmon_types::regular_file;

use super::{exit, fail, remark, wants_colour};
use crate::config::{Config, Overrides};

/// Size of reads and writes, in bytes.
const CHUNK: usize = 256 * 1024;

/// Arguments of `replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Recording of `run --record`, or bundle; - for standard input
    pub file: PathBuf,
    /// Configuration file with thresholds and `cmdline` that replace the recorded ones
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print one JSON object per line, as `run --output json` [default unless standard output is a terminal]
    #[arg(long)]
    pub json: bool,
    /// Fail if a line cannot be read
    #[arg(long)]
    pub strict: bool,
}

impl ReplayArgs {
    /// Replays the file; returns the exit code.
    pub fn run(&self) -> u8 {
        // The node was named when it was recorded; this one may have no usable name.
        let overrides = |file: &Path| Overrides {
            file: Some(file.to_owned()),
            node_name: Some("replay".into()),
            ..Overrides::default()
        };
        let policy = match self.config.as_deref().map(|file| Config::load(&overrides(file))).transpose() {
            Ok(config) => config.map(|config| config.policy()),
            Err(error) => return fail(&error, exit::USAGE),
        };
        let stdout = io::stdout();
        let pretty = (!self.json && stdout.is_terminal())
            .then(|| Pretty { colour: wants_colour(), zone: TimeZone::system() });
        let mut out = BufWriter::with_capacity(CHUNK, stdout.lock());
        let input = match open(&self.file) {
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                remark(&format!("cannot replay {}: {error}", self.file.display()));
                return exit::USAGE;
            }
            input => input.map_err(|error| ReplayError::Read(error.into())),
        };
        let outcome = input.and_then(|input| {
            let mut line = Vec::new();
            let summary = replay(input, policy.as_ref(), |event| {
                line.clear();
                match &pretty {
                    Some(pretty) => line.extend_from_slice(pretty.text(&event).as_bytes()),
                    None => {
                        append_json(&mut line, &event)?;
                        line.push(b'\n');
                    }
                }
                out.write_all(&line)
            })?;
            out.flush()?;
            Ok(summary)
        });
        match outcome {
            Ok(summary) => {
                report(&self.file, &summary);
                if self.strict && summary.skipped > 0 { exit::FAILED } else { exit::OK }
            }
            // The reader closed the pipe, as head does.
            Err(ReplayError::Write(error)) if error.kind() == ErrorKind::BrokenPipe => exit::OK,
            Err(error) => {
                remark(&format!("{}: {}", self.file.display(), chain(&error)));
                exit::FAILED
            }
        }
    }
}

fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::with_capacity(CHUNK, io::stdin())));
    }
    Ok(Box::new(BufReader::with_capacity(CHUNK, regular_file::open(path)?)))
}

/// Prints a summary: what was read, skipped and missing.
fn report(file: &Path, summary: &Summary) {
    let file = file.display();
    for skipped in &summary.first_skipped {
        remark(&format!("{file}:{}: skipped: {}", skipped.line, skipped.what));
    }
    let printed = u64::try_from(summary.first_skipped.len()).unwrap_or(u64::MAX);
    if summary.skipped > printed {
        remark(&format!("{file}: {} more lines skipped", summary.skipped - printed));
    }
    for gap in &summary.gaps {
        remark(&format!("{file}: {} observations are missing: {}", gap.discarded, gap.reason));
    }
    for line in &summary.cut {
        remark(&format!("{file}:{line}: the line is truncated: the recorder was killed or is still writing"));
    }
    remark(&format!("{file}: {} observations, {} events", summary.observations, summary.events));
}
