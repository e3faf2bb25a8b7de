//! `state`: the model of this node, as it is or as it was recorded last.

use clap::Args;

use super::{ClientArgs, Failure, Output};
use crate::cli::exit;
use crate::render;

/// Arguments of `state`.
#[derive(Debug, Default, Args)]
pub struct StateArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would show it in the help")]
    pub client: ClientArgs,
}

impl StateArgs {
    pub(super) fn answer(&self, output: &mut Output<'_>) -> Result<u8, Failure> {
        let state = output.source.state()?;
        let Some(state) = state else {
            return Ok(output.nothing("no recorded state"));
        };
        match self.json {
            true => output.json(&state)?,
            false => {
                output.out.write_all(render::state::text(&state, &output.pretty, &output.clock).as_bytes())?
            }
        }
        Ok(exit::OK)
    }
}
