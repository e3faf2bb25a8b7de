//! `why`: the story of one subject, from its causes to what could not be seen.

use clap::Args;
use kevtmon_history::query::why::Outcome;
use kevtmon_render::{escaped, story};

use super::{ClientArgs, Failure, Output, processes};
use crate::cli::exit;

/// Arguments of `why`.
#[derive(Debug, Default, Args)]
pub struct WhyArgs {
    /// Id of an incident, pod, container, address, path, interface, process, volume, device, network namespace (name,
    /// path or inode number), or seq:NUMBER of an event; FAMILY:VALUE if it is ambiguous
    #[arg(value_name = "INCIDENT|POD|CONTAINER|IP|PATH|VETH|PID")]
    pub word: String,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

impl WhyArgs {
    pub(super) fn answer(&self, output: &mut Output<'_>) -> Result<u8, Failure> {
        let word = self.word.trim();
        if word.is_empty() {
            return Err(Failure::Arguments(
                "name a pod, container, address, path, interface, process or incident".into(),
            ));
        }
        match output.source.why(word)? {
            Outcome::Story(mut story) => {
                let others = processes::retain_current([&mut story.advice]);
                match self.json {
                    true => output.json(&story)?,
                    false => {
                        output.out.write_all(story::text(&story, &output.pretty, &output.clock).as_bytes())?
                    }
                }
                output.remark_others(&others);
                Ok(exit::OK)
            }
            Outcome::Ambiguous(subjects) => {
                if self.json {
                    output.json(&serde_json::json!({ "ambiguous": word, "candidates": subjects }))?;
                }
                output.remark(&format!(
                    "{} is ambiguous: {} matches; name one of them:",
                    escaped(word),
                    subjects.len()
                ));
                for line in story::candidates(&subjects).lines() {
                    writeln!(output.err, "{line}")?;
                }
                Ok(exit::QUERY)
            }
            Outcome::Unknown(nothing) => {
                let what = format!("nothing is known of {}", escaped(word));
                let code = output.nothing_in(&what, Some(nothing.extent));
                if !nothing.unwatched.is_empty() {
                    output.remark(&story::not_watched(&nothing.unwatched));
                }
                Ok(code)
            }
        }
    }
}
