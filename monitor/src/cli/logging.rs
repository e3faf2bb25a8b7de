//! Logs of the daemon about itself, to standard error: standard output carries events only.
//!
//! No standard error can end or block the daemon: what a full disk, a closed pipe or one that nobody reads does not
//! take is counted, and logged as soon as something is taken again.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal, StderrLock, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use kevtmon_types::names::names;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use thiserror::Error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{LevelFilter, ParseError};
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

names! {
    /// Format of the logs.
    LogFormat {
        /// One line of text per message.
        Text = "text",
        /// One JSON object per line.
        Json = "json",
    }
}

/// Why logging cannot be set up.
#[derive(Debug, Error)]
pub enum LoggingError {
    #[error("RUST_LOG={value:?} is not valid; try info, or kevtmon=debug,warn")]
    Directives { value: String, source: ParseError },
    #[error("logging is set up already")]
    Twice(#[from] TryInitError),
}

/// Starts logging at `info`, or as configured by `RUST_LOG`.
pub fn init(format: LogFormat, programs: bool) -> Result<(), LoggingError> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(directives(env::var("RUST_LOG").unwrap_or_default(), programs)?)
        .with_writer(move || LogOutput { format, stderr: Stderr(io::stderr().lock()) })
        // They would be printed to standard error, whose failure is a panic.
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal() && super::wants_colour());
    match format {
        LogFormat::Text => builder.finish().try_init()?,
        LogFormat::Json => builder.json().flatten_event(true).finish().try_init()?,
    }
    Ok(())
}

/// Messages that standard error did not take.
static LOST: AtomicU64 = AtomicU64::new(0);
/// A pipe that is ready takes so many bytes without blocking (`PIPE_BUF`).
const CHUNK: usize = 4096;

struct Stderr(StderrLock<'static>);

/// Standard error opened once more, if it is a terminal. One that is stopped, or that nobody reads, is said to be ready
/// for as long as it takes a single byte, and a longer message would block. Others use its description, too, so that only
/// one of our own can be made non-blocking.
static TERMINAL: LazyLock<Option<File>> = LazyLock::new(|| {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let open = || OpenOptions::new().write(true).custom_flags(flags).open("/dev/stderr");
    io::stderr().is_terminal().then(open)?.ok()
});

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &*TERMINAL {
            Some(terminal) => (&*terminal).write(bytes),
            None => self.0.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stderr {
    fn as_fd(&self) -> BorrowedFd<'_> {
        TERMINAL.as_ref().map_or_else(|| self.0.as_fd(), AsFd::as_fd)
    }
}

/// Standard error, or nothing while that cannot be written.
struct LogOutput<W: Write + AsFd> {
    format: LogFormat,
    stderr: W,
}

impl<W: Write + AsFd> Write for LogOutput<W> {
    /// Takes a whole message; never fails.
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        let lost = LOST.swap(0, Ordering::Relaxed);
        let told = if lost > 0 { self.put(loss(self.format, lost).as_bytes()) } else { Ok(()) };
        match told {
            Err(_) => LOST.fetch_add(lost + 1, Ordering::Relaxed),
            Ok(()) if self.put(message).is_err() => LOST.fetch_add(1, Ordering::Relaxed),
            Ok(()) => 0,
        };
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<W: Write + AsFd> LogOutput<W> {
    fn put(&mut self, mut rest: &[u8]) -> io::Result<()> {
        while !rest.is_empty() {
            let mut ready = [PollFd::new(self.stderr.as_fd(), PollFlags::POLLOUT)];
            if poll(&mut ready, PollTimeout::ZERO)? == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            match self.stderr.write(&rest[..rest.len().min(CHUNK)]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn loss(format: LogFormat, count: u64) -> String {
    let message = format!("{count} log messages were lost: standard error did not take them");
    match format {
        LogFormat::Text => format!("{} WARN {message}\n", Timestamp::now()),
        LogFormat::Json => {
            let time = Timestamp::now().to_string();
            format!("{}\n", serde_json::json!({"timestamp": time, "level": "WARN", "message": message}))
        }
    }
}

/// Below this level the Docker client logs whole responses, environments of containers included.
const QUIET: &str = "bollard=info";
/// The messages of the eBPF programs are at debug level.
const PROGRAMS: &str = "kevtmon_ebpf=debug";

fn directives(value: String, programs: bool) -> Result<EnvFilter, LoggingError> {
    let parse = || {
        let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).parse(&value)?;
        let filter = filter.add_directive(QUIET.parse()?);
        Ok(if programs { filter.add_directive(PROGRAMS.parse()?) } else { filter })
    };
    parse().map_err(|source| LoggingError::Directives { value: value.clone(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_pipe_takes_nothing_and_says_later_what_it_missed() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut output = LogOutput { format: LogFormat::Json, stderr: writer };
        let message = [b'x'; 5000];
        let mut written = 0;
        while LOST.load(Ordering::Relaxed) < 3 {
            assert_eq!(output.write(&message).unwrap(), message.len());
            written += 1;
            assert!(written < 1000, "a pipe has an end");
        }
        let mut taken = vec![0; 64 * 1024];
        let length = io::Read::read(&mut reader, &mut taken).unwrap();
        assert!(length > 0);
        output.write_all(b"news").unwrap();
        drop(output);
        let mut rest = String::new();
        io::Read::read_to_string(&mut reader, &mut rest).unwrap();
        assert!(rest.contains("\"3 log messages were lost") && rest.ends_with("}\nnews"), "{rest}");
    }

    #[test]
    fn without_directives_the_level_is_info() {
        assert_eq!(directives(String::new(), false).unwrap().max_level_hint(), Some(LevelFilter::INFO));
        assert_eq!(directives("debug".into(), false).unwrap().max_level_hint(), Some(LevelFilter::DEBUG));
    }

    #[test]
    fn the_docker_client_never_logs_what_containers_keep_secret() {
        for wish in ["debug", "bollard=trace", "bollard=debug,kevtmon=debug"] {
            let shown = directives(wish.into(), false).unwrap().to_string();
            assert!(shown.contains("bollard=info"), "{shown}");
            assert!(!shown.contains("bollard=trace") && !shown.contains("bollard=debug"), "{shown}");
        }
    }

    #[test]
    fn directives_that_mean_nothing_are_refused() {
        let error = directives("kevtmon=loud".into(), false).unwrap_err();
        assert!(error.to_string().contains("kevtmon=loud"), "{error}");
    }
}
