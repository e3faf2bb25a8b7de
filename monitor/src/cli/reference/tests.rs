//! The completions against the commands.

use super::*;

#[test]
fn every_shell_gets_completions_that_know_the_commands() {
    for shell in [Shell::Bash, Shell::Elvish, Shell::Fish, Shell::PowerShell, Shell::Zsh] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "kevtmon", &mut text);
        let text = String::from_utf8(text).unwrap();
        for command in ["run", "events", "incidents", "why", "state", "schema", "completions", "config"] {
            assert!(text.contains(command), "{shell}: {command}");
        }
    }
}
