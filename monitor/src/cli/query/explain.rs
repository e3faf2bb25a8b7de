//! `explain`: what lines of logs mean, and the incidents behind them.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Read};

use clap::Args;
use kevtmon_history::query::explain::{self, Explanation, Known, Page};
use kevtmon_render::explain as text;

use super::{ClientArgs, Failure, Output, processes};
use crate::cli::exit;

/// What is read of standard input, bytes.
const INPUT: u32 = 4 << 20;

/// Arguments of `explain`.
#[derive(Debug, Default, Args)]
pub struct ExplainArgs {
    /// A line, in quotes, or several; - or nothing for those on standard input
    #[arg(value_name = "LINE")]
    pub line: Option<OsString>,
    /// Print one JSON object per line that is known
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

impl ExplainArgs {
    pub(super) fn answer(&self, output: &mut Output<'_>) -> Result<u8, Failure> {
        let page = explain::read(&self.lines(output)?);
        let Page { lines, unknown, omitted } = &page;
        if lines.is_empty() && *unknown == 0 {
            return Err(Failure::Arguments("give a line of a log".to_owned()));
        }
        let source = output.source;
        let mut explained: Vec<Explanation> = Vec::new();
        if !lines.is_empty() {
            let known = Known::read(source.history(), source.incidents(&page.incidents())?)?;
            explained.extend(lines.iter().map(|line| known.explain(line)));
        }
        let views = explained.iter_mut().filter_map(|explanation| explanation.incident.as_mut());
        let others = processes::retain_current(views.map(|view| &mut view.incident.advice));
        for (index, explanation) in explained.iter().enumerate() {
            if self.json {
                output.json(explanation)?;
                continue;
            }
            let gap = if index > 0 { "\n" } else { "" };
            write!(output.out, "{gap}{}", text::text(explanation, &output.pretty, &output.clock))?;
        }
        output.remark_others(&others);
        let is_open =
            |explanation: &Explanation| explanation.incident.as_ref().is_some_and(|view| view.is_open());
        let is_unexplained =
            |explanation: &&Explanation| explanation.possible.is_some() && !is_open(explanation);
        let unexplained = explained.iter().filter(is_unexplained).count();
        if unexplained > 0 {
            let _ = output.nothing(&format!("no open incident explains {unexplained} of {}", lines.len()));
        }
        if *omitted > 0 {
            output.remark(&format!("{omitted} more lines are known, and left out"));
        }
        if *unknown > 0 {
            let known: usize = explained.iter().map(|explanation| explanation.count).sum();
            let all = known + omitted + unknown;
            output.remark(&format!("no line that kevtmon knows: {unknown} of {all}"));
        }
        Ok(if explained.is_empty() { exit::FAILED } else { exit::OK })
    }

    /// The lines, as far as they are text.
    fn lines(&self, output: &mut Output<'_>) -> Result<String, Failure> {
        if let Some(line) = self.line.as_deref().filter(|line| *line != OsStr::new("-")) {
            return Ok(line.to_string_lossy().into_owned());
        }
        let input = io::stdin();
        if input.is_terminal() {
            output.remark(&"reading lines from standard input; end with Ctrl-D");
        }
        let mut bytes = Vec::new();
        input.lock().take(u64::from(INPUT) + 1).read_to_end(&mut bytes).map_err(Failure::Input)?;
        let most = INPUT as usize;
        if bytes.len() > most {
            bytes.truncate(most);
            output.remark(&format!("only the first {} MiB of standard input are read", INPUT >> 20));
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}
