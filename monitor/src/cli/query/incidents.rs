//! `incidents`: open incidents, and closed ones.

use clap::Args;

use super::{ClientArgs, Failure, Output};
use crate::cli::exit;
use crate::query::filter::IncidentFilter;
use crate::render::incident;

/// Arguments of `incidents`.
#[derive(Debug, Default, Args)]
pub struct IncidentsArgs {
    /// Include closed incidents
    #[arg(long)]
    pub all: bool,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would show it in the help")]
    pub client: ClientArgs,
}

impl IncidentsArgs {
    pub(super) fn answer(&self, output: &mut Output<'_>) -> Result<u8, Failure> {
        let filter = IncidentFilter { all: self.all, ..IncidentFilter::default() };
        let views = output.source.history().incidents(&filter)?;
        if views.is_empty() {
            return Ok(output.nothing(if self.all { "no incidents" } else { "no open incidents" }));
        }
        for view in &views {
            match self.json {
                true => output.json(view)?,
                false => {
                    output.out.write_all(incident::text(view, &output.pretty, &output.clock).as_bytes())?
                }
            }
        }
        Ok(exit::OK)
    }
}
