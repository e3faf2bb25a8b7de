//! Logs of the daemon about itself, to standard error: standard output carries events only.

use std::env;
use std::io::{self, IsTerminal};

use thiserror::Error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{LevelFilter, ParseError};
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::names::names;

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
    /// `RUST_LOG` is not a list of directives.
    #[error("RUST_LOG={value:?} is not valid; try info, or kevtmon=debug,warn")]
    Directives {
        /// What it holds.
        value: String,
        /// Why it is not valid.
        #[source]
        source: ParseError,
    },
    /// Logging is set up already.
    #[error("logging is set up already")]
    Twice(#[from] TryInitError),
}

/// Starts logging at `info`, or as configured by `RUST_LOG`.
///
/// # Errors
/// When `RUST_LOG` cannot be parsed.
pub fn init(format: LogFormat, programs: bool) -> Result<(), LoggingError> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(directives(env::var("RUST_LOG").unwrap_or_default(), programs)?)
        .with_writer(io::stderr)
        .with_ansi(
            io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        );
    match format {
        LogFormat::Text => builder.finish().try_init()?,
        LogFormat::Json => builder.json().flatten_event(true).finish().try_init()?,
    }
    Ok(())
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
