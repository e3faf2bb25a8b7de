//! How often open incidents have been seen by now: their events tell it at 1, 2, 4, 8 … only.

use kevtmon_core::state::NodeState;

use super::history::IncidentView;

/// Counts the incidents as the state does, which is not older than they are.
pub fn apply<'v>(views: impl IntoIterator<Item = &'v mut IncidentView>, state: &NodeState) {
    for view in views {
        if !view.is_open() || view.boot_id != state.boot_id || view.seq > state.seq {
            continue;
        }
        if let Some(recount) = state.recounts.iter().find(|recount| recount.id == view.incident.id) {
            view.incident.count = recount.count;
            view.incident.last_seen.clone_from(&recount.last_seen);
        }
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_core::diagnose::Recount;

    use super::*;
    use crate::test_support::memory::{incident, time};

    #[test]
    fn only_an_open_incident_that_the_state_knows_is_counted_as_it_is_there() {
        let state = crate::test_support::node_state::state();
        let view = |seq: u64| {
            let told = kevtmon_event::Incident { count: 4, ..incident("a", 1) };
            IncidentView::new(told, None, None, state.boot_id.clone(), seq)
        };
        let mut closed = view(5);
        closed.incident.closed = Some(time(9));
        let mut of_another_boot = view(5);
        of_another_boot.boot_id = "another".into();
        let mut views = [view(5), view(6), closed, of_another_boot];
        let recount = Recount { id: "a".into(), count: 5, last_seen: time(8) };
        let state = NodeState { seq: 5, recounts: vec![recount], ..state.clone() };
        apply(&mut views, &state);
        assert_eq!(views.each_ref().map(|view| view.incident.count), [5, 4, 4, 4]);
        assert_eq!(views[0].incident.last_seen, time(8));
    }
}
