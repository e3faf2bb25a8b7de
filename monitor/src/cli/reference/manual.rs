//! The manual pages, one for each command, made of its help.
//!
//! In: the declaration of the commands, and the date in SOURCE_DATE_EPOCH. Out: files such as `kevtmon-why.1`.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use jiff::Timestamp;
use kevtmon_server::sinks::api::SOCKET;
use kevtmon_types::build_info::VERSION;
use thiserror::Error;

use super::super::Cli;
use crate::config::{DEFAULT_FILE, STATE_DIR};

/// By which a build that can be repeated gets its time.
const TIME: &str = "SOURCE_DATE_EPOCH";

/// What the exit codes of all commands mean; the page of a command has what is particular about it.
const CODES: [(&str, &str); 6] = [
    ("0", "Done, found, or stopped by a signal."),
    ("1", "Failed, or nothing was found."),
    ("2", "The query is wrong, or its answer incomplete."),
    ("64", "Wrong arguments or configuration."),
    ("69", "The configuration requires hooks that do not work on this kernel."),
    ("77", "A capability is missing."),
];

/// Why there are no pages.
#[derive(Debug, Error)]
pub(super) enum ManualError {
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{TIME} is no number of seconds since 1970: {0:?}")]
    Time(String),
}

/// Writes the page of every command into a directory.
pub(super) fn write(directory: &Path) -> Result<(), ManualError> {
    let failed = |path: PathBuf| move |source| ManualError::Write { path, source };
    fs::create_dir_all(directory).map_err(failed(directory.to_owned()))?;
    let date = date(env::var(TIME).ok())?;
    for command in commands() {
        let path = directory.join(format!("{}.1", name(&command)));
        page(&command, &date).and_then(|text| fs::write(&path, text)).map_err(failed(path))?;
    }
    Ok(())
}

/// The day of a time, or today.
fn date(time: Option<String>) -> Result<String, ManualError> {
    let time = match time {
        None => Timestamp::now(),
        Some(time) => {
            let seconds = time.parse().ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
            seconds.ok_or(ManualError::Time(time))?
        }
    };
    Ok(time.strftime("%Y-%m-%d").to_string())
}

/// All that have a page: those above before those below.
pub(super) fn commands() -> Vec<Command> {
    let mut whole = Cli::command().disable_help_subcommand(true);
    whole.build();
    let mut found = vec![whole];
    let mut next = 0;
    while let Some(command) = found.get(next) {
        let below: Vec<Command> =
            command.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned().collect();
        found.extend(below);
        next += 1;
    }
    found
}

/// With the names of the commands above it, as `kevtmon-config-check`.
pub(super) fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

pub(super) fn page(command: &Command, date: &str) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let man = Man::new(command.clone()).date(date).source(format!("kevtmon {VERSION}"));
    man.manual("kevtmon").render(&mut text)?;
    let mut more = Roff::new();
    match name(command).rsplit_once('-') {
        Some((above, _)) => see_also(&mut more, &[above, "kevtmon"]),
        None => {
            files(&mut more);
            exit_status(&mut more);
            see_also(&mut more, &["systemctl", "journalctl"]);
        }
    }
    text.extend(more.to_roff().into_bytes());
    // Before the values that an argument may have, the line is broken twice, which is one too many for mandoc.
    let text = String::from_utf8_lossy(&text).replace(".br\n\n.br\n", ".br\n");
    Ok(text.into_bytes())
}

fn files(page: &mut Roff) {
    let (state, socket) = ((STATE_DIR.default)(), (SOCKET.default)());
    page.control("SH", ["FILES"]);
    for (path, what) in [
        (Path::new(DEFAULT_FILE), "The configuration, if it exists."),
        (state.as_path(), "Events, incidents and recordings."),
        (socket.as_path(), "Where the running daemon answers queries."),
    ] {
        page.control("TP", []).text([bold(path.display().to_string())]).text([roman(what)]);
    }
}

fn exit_status(page: &mut Roff) {
    page.control("SH", ["EXIT STATUS"]);
    for (code, what) in CODES {
        page.control("TP", []).text([bold(code)]).text([roman(what)]);
    }
}

fn see_also(page: &mut Roff, pages: &[&str]) {
    let mut pages = pages.to_vec();
    pages.dedup();
    page.control("SH", ["SEE ALSO"]);
    let listed = pages.iter().map(|page| format!("{page}(1)")).collect::<Vec<_>>().join(", ");
    page.text([roman(listed)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_the_date_that_a_repeatable_build_asks_for() {
        assert_eq!(date(Some("86399".to_owned())).unwrap(), "1970-01-01");
        assert_eq!(date(Some("86400".to_owned())).unwrap(), "1970-01-02");
        let refused = date(Some("today".to_owned())).unwrap_err().to_string();
        assert_eq!(refused, "SOURCE_DATE_EPOCH is no number of seconds since 1970: \"today\"");
    }

    #[test]
    fn every_exit_code_is_explained() {
        use crate::cli::exit::{FAILED, OK, PRIVILEGE, QUERY, UNSUPPORTED, USAGE};
        let codes = [OK, FAILED, QUERY, USAGE, UNSUPPORTED, PRIVILEGE].map(|code| code.to_string());
        assert_eq!(CODES.map(|(code, _)| code.to_owned()), codes);
    }
}
