//! A text of wrapped paragraphs.

use std::fmt::Write as _;

use kevtmon_event::{Advice, Risk};

use super::{Pretty, Style, escaped, wrap};

/// The text so far.
pub(super) struct Paragraphs<'a> {
    pub(super) text: String,
    pub(super) pretty: &'a Pretty,
}

impl<'a> Paragraphs<'a> {
    pub(super) fn new(pretty: &'a Pretty) -> Self {
        Self { text: String::new(), pretty }
    }

    pub(super) fn line(&mut self, line: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{}", line.trim_end());
    }

    /// A paragraph that is indented, each line in this style.
    pub(super) fn put(&mut self, indent: usize, style: Option<Style>, words: &str) {
        self.put_behind(indent, "", "", style, words);
    }

    /// A paragraph behind a label, of which `painted` is the same with colours; the further lines are indented as wide.
    pub(super) fn put_behind(
        &mut self,
        indent: usize,
        label: &str,
        painted: &str,
        style: Option<Style>,
        words: &str,
    ) {
        let begin = indent + label.chars().count();
        for (index, line) in wrap::lines(words, begin, begin).iter().enumerate() {
            let line = style.map_or_else(|| line.clone(), |style| self.pretty.paint(style, line));
            match index {
                0 => self.line(&format!("{:indent$}{painted}{line}", "")),
                _ => self.line(&format!("{:begin$}{line}", "")),
            }
        }
    }

    /// A command, and above it what it does.
    pub(super) fn advice(&mut self, indent: usize, advice: &Advice) {
        let what = format!("{} ({})", escaped(&advice.text), risk(advice.risk));
        // Every line is a comment to a shell that the whole is pasted into.
        for line in wrap::lines(&what, indent + 2, indent + 2) {
            let line = self.pretty.paint(Style::Dim, &format!("# {line}"));
            self.line(&format!("{:indent$}{line}", ""));
        }
        self.command(indent, &advice.command);
    }

    /// A command, broken so that it can still be pasted.
    pub(super) fn command(&mut self, indent: usize, command: &str) {
        let lines = wrap::command_lines(&escaped(command), indent, indent + 4);
        for (index, line) in lines.iter().enumerate() {
            let indent = if index == 0 { indent } else { indent + 4 };
            self.line(&format!("{:indent$}{line}", ""));
        }
    }
}

fn risk(risk: Risk) -> &'static str {
    match risk {
        Risk::Read => "read-only",
        Risk::Restart => "changes or restarts something",
        Risk::Destructive => "may lose data",
    }
}
