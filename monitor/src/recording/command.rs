//! The commands `replay` and `bundle`: files enter, events or a bundle leave, as an exit code. Needs no privilege
//! but that of reading the files.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, IsTerminal, Write};
use std::path::Path;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use nix::sys::utsname::uname;

use super::bundle::{BundleError, bundle};
use super::file::create_private;
use super::format::Writer;
use super::replay::{ReplayError, Summary, replay};
use crate::build_info::{REVISION, VERSION};
use crate::cli::exit;
use crate::cli::recording::{BundleArgs, ReplayArgs};
use crate::config::{Config, Overrides};
use crate::error_chain::chain;
use crate::event::Event;
use crate::sinks::json;
use crate::sinks::pretty::Pretty;

/// Read and written in pieces of this size, in bytes.
const CHUNK: usize = 256 * 1024;

/// This program on this kernel, with a configuration.
#[must_use]
pub fn writer(config: serde_json::Value) -> Writer {
    let kernel = uname().map(|name| name.release().to_string_lossy().into_owned()).unwrap_or_default();
    Writer { kevtmon: VERSION.to_owned(), revision: REVISION.to_owned(), kernel, config }
}

/// Runs `replay`.
#[must_use]
pub fn run_replay(args: &ReplayArgs) -> u8 {
    // The node was named when it was recorded; this one may have no usable name.
    let overrides = |file: &Path| Overrides {
        file: Some(file.to_owned()),
        node_name: Some("replay".into()),
        ..Overrides::default()
    };
    let config = match args.config.as_deref().map(|file| Config::load(&overrides(file))).transpose() {
        Ok(config) => config,
        Err(error) => return complain(&error, exit::USAGE),
    };
    let stdout = io::stdout();
    let pretty = (!args.json && stdout.is_terminal()).then(|| Pretty {
        colour: std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty()),
        zone: TimeZone::system(),
    });
    let mut out = BufWriter::with_capacity(CHUNK, stdout.lock());
    let outcome = open(&args.file).map_err(|error| ReplayError::Read(error.into())).and_then(|input| {
        let summary = replay(input, config.as_ref(), |event| print(&event, pretty.as_ref(), &mut out))?;
        out.flush()?;
        Ok(summary)
    });
    match outcome {
        Ok(summary) => {
            report(&args.file, &summary);
            if args.strict && summary.skipped > 0 { exit::FAILED } else { exit::OK }
        }
        // Whoever reads has seen enough.
        Err(ReplayError::Write(error)) if error.kind() == ErrorKind::BrokenPipe => exit::OK,
        Err(error) => {
            say(&format!("{}: {}", args.file.display(), chain(&error)));
            exit::FAILED
        }
    }
}

/// Runs `bundle`.
#[must_use]
pub fn run_bundle(args: &BundleArgs) -> u8 {
    let overrides = Overrides {
        file: args.config.clone(),
        state_dir: args.state_dir.clone(),
        node_name: Some("bundle".into()),
        ..Overrides::default()
    };
    let config = match Config::load(&overrides) {
        Ok(config) => config,
        Err(error) => return complain(&error, exit::USAGE),
    };
    let writer = writer(serde_json::Value::Null);
    let created = Timestamp::now().to_string();
    let pack = |out: &mut dyn Write| {
        let out = BufWriter::with_capacity(CHUNK, out);
        bundle(&config.state_dir, &args.incident, &writer, created, out)
    };
    let packed = match &args.output {
        None if io::stdout().is_terminal() => {
            say("a bundle is not for reading: send it to a file, as in kevtmon bundle INCIDENT > FILE");
            return exit::USAGE;
        }
        None => pack(&mut io::stdout().lock()),
        Some(path) => create_private(path).map_err(BundleError::Write).and_then(|mut file| pack(&mut file)),
    };
    packed.map_or_else(|error| complain(&error, exit::FAILED), |()| exit::OK)
}

fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::with_capacity(CHUNK, io::stdin())));
    }
    Ok(Box::new(BufReader::with_capacity(CHUNK, File::open(path)?)))
}

fn print(event: &Event, pretty: Option<&Pretty>, out: &mut BufWriter<io::StdoutLock<'_>>) -> io::Result<()> {
    match pretty {
        Some(pretty) => out.write_all(pretty.text(event).as_bytes()),
        None => json::write_to(event, out),
    }
}

/// Says what was read, and what could not be.
fn report(file: &Path, summary: &Summary) {
    let file = file.display();
    for skipped in &summary.first_skipped {
        say(&format!("{file}:{}: skipped: {}", skipped.line, skipped.what));
    }
    let told = u64::try_from(summary.first_skipped.len()).unwrap_or(u64::MAX);
    if summary.skipped > told {
        say(&format!("{file}: {} more lines skipped", summary.skipped - told));
    }
    for gap in &summary.gaps {
        say(&format!("{file}: {} observations are missing: {}", gap.discarded, gap.reason));
    }
    for line in &summary.cut {
        say(&format!("{file}:{line}: the line is cut: the writer was killed, or still writes"));
    }
    say(&format!("{file}: {} observations, {} events", summary.observations, summary.events));
}

fn complain(error: &dyn Error, code: u8) -> u8 {
    say(&chain(error));
    code
}

fn say(text: &str) {
    // Nobody is left to tell when even this cannot be printed.
    let _ = writeln!(io::stderr(), "kevtmon: {text}");
}
