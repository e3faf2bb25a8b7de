//! `incidents`: open incidents, and closed ones.

use clap::Args;
use kevtmon_history::query::filter::{self, IncidentFilter};
use kevtmon_render::incident;

use super::{ClientArgs, Failure, Output, parsed, processes};
use crate::cli::exit;

/// Arguments of `incidents`.
#[derive(Debug, Default, Args)]
pub struct IncidentsArgs {
    /// Include closed incidents
    #[arg(long)]
    pub all: bool,
    /// Only incidents of this kind; may be repeated
    #[arg(long, value_name = "KIND")]
    pub kind: Vec<String>,
    /// Only incidents with this pod as target or actor; NAMESPACE/NAME or uid
    #[arg(long, value_name = "NS/NAME")]
    pub pod: Option<String>,
    /// Minimum severity: debug, info, notice, warning or critical
    #[arg(long, value_name = "SEVERITY")]
    pub severity: Option<String>,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

impl IncidentsArgs {
    fn filter(&self) -> Result<IncidentFilter, Failure> {
        let kinds = self.kind.iter().map(|kind| parsed("kind", Some(kind), filter::incident_kind));
        Ok(IncidentFilter {
            all: self.all,
            kinds: kinds.filter_map(Result::transpose).collect::<Result<_, _>>()?,
            severity: parsed("severity", self.severity.as_ref(), filter::severity)?,
            pod: parsed("pod", self.pod.as_ref(), filter::pod)?,
            ..IncidentFilter::default()
        })
    }

    pub(super) fn answer(&self, output: &mut Output<'_>) -> Result<u8, Failure> {
        let filter = self.filter()?;
        let mut views = output.source.incidents(&filter)?;
        if views.is_empty() {
            let is_narrowed = filter != IncidentFilter { all: self.all, ..IncidentFilter::default() };
            return Ok(output.nothing(match (self.all, is_narrowed) {
                (false, false) => "no open incidents",
                (false, true) => "no matching open incidents",
                (true, false) => "no incidents",
                (true, true) => "no matching incidents",
            }));
        }
        let others = processes::retain_current(views.iter_mut().map(|view| &mut view.incident.advice));
        for view in &views {
            match self.json {
                true => output.json(view)?,
                false => {
                    output.out.write_all(incident::text(view, &output.pretty, &output.clock).as_bytes())?
                }
            }
        }
        output.remark_others(&others);
        Ok(exit::OK)
    }
}
