//! What the model of the node tells of open incidents and their events do not: how often they have been seen by now, which events
//! tell at 1, 2, 4, 8 … only; that nothing is wrong at the moment, of those that open and close again and again; that no source
//! watches them.

use kevtmon_core::state::NodeState;

use super::history::IncidentView;
use super::stale;

/// Brings the incidents up to the state, which is not older than they are.
pub fn apply(views: &mut [IncidentView], state: &NodeState) {
    for view in views.iter_mut() {
        // What the state does not know yet may be that it is wrong again.
        if !view.is_open() || view.boot_id != state.boot_id || view.seq > state.seq {
            continue;
        }
        let incident = &mut view.incident;
        if let Some(recount) = state.recounts.iter().find(|recount| recount.id == incident.id) {
            incident.count = recount.count;
            incident.last_seen.clone_from(&recount.last_seen);
            incident.clock_set_ms = recount.clock_set_ms;
        }
        if let Some(quiet) = state.quiet_periods.iter().find(|quiet| quiet.id == incident.id) {
            view.well_since = Some(quiet.since.clone());
            incident.advice.clear();
        }
    }
    stale::without_source(views, state);
}

#[cfg(test)]
mod tests {
    use kevtmon_core::diagnose::{QuietPeriod, Recount};
    use kevtmon_event::Incident;

    use super::*;
    use crate::test_support::memory::{incident, time};

    #[test]
    fn only_an_open_incident_that_the_state_knows_is_told_as_it_is_there() {
        let state = crate::test_support::node_state::state();
        let view = |id: &str, seq: u64| {
            let told = Incident { count: 4, ..incident(id, 1) };
            IncidentView::new(told, None, None, state.boot_id.clone(), seq)
        };
        let mut closed = view("a", 5);
        closed.incident.closed = Some(time(9));
        let mut of_another_boot = view("a", 5);
        of_another_boot.boot_id = "another".into();
        let mut views = [view("a", 5), view("b", 5), view("a", 6), closed, of_another_boot];
        let state = NodeState {
            seq: 5,
            recounts: vec![Recount { id: "a".into(), count: 5, last_seen: time(8), clock_set_ms: 1 }],
            quiet_periods: vec![QuietPeriod { id: "a".into(), since: time(7) }],
            ..state.clone()
        };
        apply(&mut views, &state);
        assert_eq!(views.each_ref().map(|view| view.incident.count), [5, 4, 4, 4, 4]);
        assert_eq!(
            views.each_ref().map(|view| view.well_since.is_some()),
            [true, false, false, false, false]
        );
        assert_eq!((&*views[0].incident.last_seen, views[0].incident.clock_set_ms), (&*time(8), 1));
        assert_eq!(views[0].status(), Some("intermittent, not active now"));
        assert_eq!((views[1].status(), views[3].status()), (None, Some("closed")));
    }
}
