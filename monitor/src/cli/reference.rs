//! Reference commands: schema of events, completions, manual pages, configuration.

mod manual;

use std::path::PathBuf;

use clap::{CommandFactory, Subcommand, ValueEnum};
use clap_complete::Shell;
use kevtmon_event::{schema, schema_of};
use kevtmon_history::query::history::IncidentView;
use kevtmon_server::sinks::listen::WEB_CONFIG;
use kevtmon_server::web_config::WebConfig;
use kevtmon_types::error_chain::chain;

use super::{Cli, exit, fail, print, remark};
use crate::config::{self, Config, Overrides};

/// Reference commands.
#[derive(Debug, Subcommand)]
pub enum Reference {
    /// Print the JSON Schema of a line that a command writes with `--json`
    Schema {
        /// Of which command
        #[arg(value_enum, default_value_t)]
        of: Document,
    },
    /// Print shell completions
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages, one for each command, into a directory
    ///
    /// `man -l DIRECTORY/kevtmon.1` shows one. The pages have the date of SOURCE_DATE_EPOCH, if that is set, or else of today.
    Manual {
        /// The directory; created if it does not exist
        directory: PathBuf,
    },
    /// Show or check the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
}

/// What is described by a JSON Schema.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub enum Document {
    /// `kevtmon events`, and what the daemon writes
    #[default]
    Events,
    /// `kevtmon incidents`
    Incidents,
}

/// Commands about the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print a configuration file with every setting, its meaning and its default
    Default,
    /// Check a configuration file and print the effective configuration
    Check {
        /// The file [default: /etc/kevtmon/kevtmon.toml, if it exists]
        file: Option<PathBuf>,
    },
}

impl Reference {
    /// Prints the output of the command; returns the exit code.
    pub fn run(&self) -> u8 {
        let mut text = Vec::new();
        match self {
            Self::Schema { of } => {
                let schema = match of {
                    Document::Events => schema(),
                    Document::Incidents => schema_of::<IncidentView>(),
                };
                text = format!("{:#}\n", schema.to_value()).into_bytes();
            }
            Self::Completions { shell } => {
                clap_complete::generate(*shell, &mut Cli::command(), "kevtmon", &mut text);
            }
            Self::Manual { directory } => {
                let written = manual::write(directory);
                return written.map_or_else(|error| fail(&error, exit::FAILED), |()| exit::OK);
            }
            Self::Config(ConfigCommand::Default) => text = config::default_file().into_bytes(),
            Self::Config(ConfigCommand::Check { file }) => match check(file.clone()) {
                Ok(effective) => text = effective.into_bytes(),
                Err(reason) => {
                    remark(&reason);
                    return exit::USAGE;
                }
            },
        }
        match print(&text) {
            Ok(()) => exit::OK,
            Err(error) => {
                remark(&format!("cannot write: {error}"));
                exit::FAILED
            }
        }
    }
}

/// The effective configuration, if it and the web configuration that it names can be used; else why not.
fn check(file: Option<PathBuf>) -> Result<String, String> {
    let config = Config::load(&Overrides { file, ..Overrides::default() }).map_err(|error| chain(&error))?;
    let web = config.get(&WEB_CONFIG);
    if !web.as_os_str().is_empty() {
        WebConfig::load(&web).map_err(|error| chain(&error))?;
    }
    Ok(config::effective_file(&config))
}

#[cfg(test)]
mod tests;
