//! `state`: the model of this node, as it is or as it was recorded last.

use clap::Args;
use serde::Serialize;

use super::{ClientArgs, Failure, Output};
use crate::cli::client::Source;
use crate::cli::exit;
use crate::core::state::NodeState;
use crate::query::stale::Stale;
use crate::render;

/// The model, and why it may be otherwise by now.
#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    state: &'a NodeState,
    #[serde(skip_serializing_if = "Option::is_none")]
    stale: Option<Stale>,
}

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
        let stale = match output.source {
            Source::Files { .. } => Some(Stale::without_daemon(Some(state.time.clone()))),
            Source::Daemon(_) => None,
        };
        match self.json {
            true => output.json(&Answer { state: &state, stale })?,
            false => {
                let text = render::state::text(&state, stale.as_ref(), &output.pretty, &output.clock);
                output.out.write_all(text.as_bytes())?;
            }
        }
        Ok(exit::OK)
    }
}
