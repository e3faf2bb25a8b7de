//! Incidents that are kept open though nothing is wrong at the moment: they open and close again and again, and their end
//! counts once it has lasted. Until then they are marked as well,
//! without advice.

use kevtmon_core::state::NodeState;

use super::history::IncidentView;

/// Marks the incidents of which the state, which is not older than they are, says so.
pub fn apply<'v>(views: impl IntoIterator<Item = &'v mut IncidentView>, state: &NodeState) {
    for view in views {
        // What the state does not know yet may be that it is wrong again.
        if !view.is_open() || view.boot_id != state.boot_id || view.seq > state.seq {
            continue;
        }
        if let Some(quiet_period) =
            state.quiet_periods.iter().find(|quiet_period| quiet_period.id == view.incident.id)
        {
            view.well_since = Some(quiet_period.since.clone());
            view.incident.advice.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_core::diagnose::QuietPeriod;

    use super::*;
    use crate::test_support::memory::incident;

    #[test]
    fn only_an_open_incident_that_the_state_knows_is_told_as_over_for_now() {
        let view = |id: &str, seq: u64| IncidentView::new(incident(id, 1), None, None, String::new(), seq);
        let mut closed = view("a", 5);
        closed.incident.closed = Some("2026-01-02T03:04:05Z".into());
        let mut of_another_boot = view("a", 5);
        of_another_boot.boot_id = "another".into();
        let mut views = [view("a", 5), view("b", 5), view("a", 6), closed, of_another_boot];
        let state = crate::test_support::node_state::state();
        let since = "2026-01-02T03:04:06Z".to_owned();
        views[..4].iter_mut().for_each(|view| view.boot_id.clone_from(&state.boot_id));
        let state = NodeState {
            seq: 5,
            quiet_periods: vec![QuietPeriod { id: "a".into(), since: since.clone() }],
            ..state
        };
        apply(&mut views, &state);
        let well: Vec<bool> = views.iter().map(|view| view.well_since.is_some()).collect();
        assert_eq!(well, [true, false, false, false, false]);
        assert_eq!(views[0].status(), Some("intermittent, not active now"));
        assert_eq!(views[1].status(), None);
        assert_eq!(views[3].status(), Some("closed"));
    }
}
