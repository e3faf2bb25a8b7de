//! The completions and the manual pages against the commands.

use super::*;

fn completions(shell: Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "kevtmon", &mut text);
    String::from_utf8(text).unwrap()
}

/// The options of a command that its help shows.
fn options(command: &clap::Command) -> Vec<String> {
    let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
    shown.filter_map(|argument| argument.get_long()).map(|long| format!("--{long}")).collect()
}

#[test]
fn every_shell_gets_completions_that_know_the_commands() {
    for shell in [Shell::Bash, Shell::Elvish, Shell::Fish, Shell::PowerShell, Shell::Zsh] {
        let text = completions(shell);
        for command in manual::commands() {
            assert!(text.contains(command.get_name()), "{shell}: {}", command.get_name());
        }
    }
}

#[test]
fn bash_completes_every_long_option_of_every_command() {
    let text = completions(Shell::Bash);
    // The words that may follow a command, one line a command.
    let words: Vec<Vec<&str>> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("opts=\"")?.strip_suffix('"'))
        .map(|words| words.split(' ').collect())
        .collect();
    for command in manual::commands() {
        let mut expected = options(&command);
        expected.extend(command.get_subcommands().map(|below| below.get_name().to_owned()));
        let found = words.iter().any(|words| expected.iter().all(|word| words.contains(&word.as_str())));
        assert!(found, "{}: {expected:?}", manual::name(&command));
    }
}

#[test]
fn every_command_has_a_page_with_its_name_its_meaning_and_all_its_options() {
    let commands = manual::commands();
    let names: Vec<&str> = commands.iter().map(manual::name).collect();
    for expected in ["kevtmon", "kevtmon-run", "kevtmon-why", "kevtmon-config", "kevtmon-config-check"] {
        assert!(names.contains(&expected), "{names:?}");
    }
    for command in &commands {
        let page = String::from_utf8(manual::page(command, "2026-01-02").unwrap()).unwrap();
        // A hyphen that may be copied is written with a backslash.
        let plain = page.replace("\\-", "-");
        let name = manual::name(command);
        assert!(plain.contains(&format!(".TH {name} 1 2026-01-02 ")), "{plain}");
        let about = command.get_about().unwrap().to_string();
        assert!(plain.contains(&format!(".SH NAME\n{name} - {about}\n")), "{about} in {plain}");
        for option in options(command) {
            assert!(plain.contains(&format!("\\fB{option}\\fR")), "{option} in {plain}");
        }
        for below in command.get_subcommands() {
            assert!(plain.contains(&format!("\n{}(1)\n", manual::name(below))), "{plain}");
        }
    }
}

#[test]
fn the_pages_are_files_that_are_called_like_the_commands() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("man1");
    manual::write(&pages).unwrap();
    let mut files: Vec<String> = std::fs::read_dir(&pages)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    files.sort();
    let mut expected: Vec<String> =
        manual::commands().iter().map(|command| format!("{}.1", manual::name(command))).collect();
    expected.sort();
    assert_eq!(files, expected);
    let file = pages.join("kevtmon.1");
    let refused = manual::write(&file).unwrap_err().to_string();
    assert_eq!(refused, format!("cannot write {}", file.display()));
}
