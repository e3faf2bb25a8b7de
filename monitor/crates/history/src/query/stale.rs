//! Open incidents that nobody watches: no daemon answers, or what would show their end does not deliver. They are told as what
//! was known last, without advice, since a step may be wrong in the state of now.

use kevtmon_core::diagnose::{self, Watch};
use kevtmon_core::state::NodeState;
use kevtmon_observation::{SourceKind, SourceStatus};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::history::{Extent, IncidentView};

/// Why it is not known whether an open incident is still so.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stale {
    /// The newest time up to which it was surely watched, RFC 3339; absent where that is unknown.
    #[schemars(extend("format" = "date-time"))]
    pub since: Option<String>,
    /// What does not watch it, and why.
    pub reason: String,
    /// What to do to know more.
    pub next: String,
}

impl Stale {
    /// Of what was known last to a daemon that does not run.
    pub fn without_daemon(since: Option<String>) -> Self {
        let (reason, next) = ("no daemon answers".to_owned(), "start kevtmon and query again".to_owned());
        Self { since, reason, next }
    }
}

/// Marks what was open when the daemon was last alive, of which the history tells.
pub fn without_daemon<'v>(views: impl IntoIterator<Item = &'v mut IncidentView>, extent: &Extent) {
    for view in views {
        mark(view, Stale::without_daemon(extent.to.clone()));
    }
}

/// Marks what is open where the daemon's model of the node, which would show what is watched, cannot be had.
pub fn without_model<'v>(views: impl IntoIterator<Item = &'v mut IncidentView>) {
    for view in views {
        let stale = Stale {
            since: None,
            reason: "the daemon does not answer for its model of the node".to_owned(),
            next: "query again".to_owned(),
        };
        mark(view, stale);
    }
}

/// Marks what a source would end that is down.
pub(super) fn without_source(views: &mut [IncidentView], state: &NodeState) {
    for view in views {
        if let Some(source) = silent_source(view, state) {
            let why = source.reason.as_deref().unwrap_or("no reason given");
            let stale = Stale {
                since: None,
                reason: format!("{} does not deliver: {why}", source.source),
                next: format!("query again once {} delivers", source.source),
            };
            mark(view, stale);
        }
    }
}

fn mark(view: &mut IncidentView, stale: Stale) {
    if view.is_open() {
        view.incident.advice.clear();
        view.stale = Some(stale);
    }
}

/// The source that is down, of what would show that an incident is over.
fn silent_source<'s>(view: &IncidentView, state: &'s NodeState) -> Option<&'s SourceStatus> {
    let mut down = state.sources.iter().filter(|source| !source.up);
    match diagnose::kind(&view.incident.kind)?.watched_by {
        Watch::Netlink => down.find(|source| source.kind == SourceKind::Netlink),
        Watch::Executions => down.find(|source| source.source == "hook.exec"),
        Watch::Runtime => {
            let container = view.target.as_ref()?.container.as_ref()?;
            match state.containers.iter().find(|known| known.container.id == container.id) {
                Some(known) if !known.stale => None,
                Some(known) => down.find(|source| known.sources.contains(&source.source)),
                // It was reported to an earlier daemon: by whom is not known, but by no runtime that was never there.
                None => down.find(|source| {
                    let is_its = |runtime| source.source.split(':').next() == Some(runtime);
                    source.kind == SourceKind::Runtime
                        && (!source.absent || container.runtime.as_deref().is_some_and(is_its))
                }),
            }
        }
        Watch::None => None,
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_core::state::ContainerStatus;
    use kevtmon_event::{Action, Advice, Container, Risk, Shared};
    use kevtmon_testing::sample;

    use super::*;
    use crate::test_support::memory::{incident, time};
    use crate::test_support::node_state::{alone, state};

    fn view(kind: &str) -> IncidentView {
        let mut incident = incident("a", 1);
        incident.kind = kind.into();
        incident.summary = "pod a/b has lost its gateway 10.0.0.1".into();
        incident.advice = vec![Advice {
            text: "end it".into(),
            form: String::new(),
            command: "kill 7".into(),
            risk: Risk::Destructive,
            action: Action::KillHolder,
            process: None,
        }];
        IncidentView::new(incident, None, None, String::new(), 1)
    }

    #[test]
    fn without_a_daemon_what_is_open_was_so_and_what_is_closed_is_as_it_was() {
        let mut closed = view("volume-busy");
        closed.incident.closed = Some(time(2));
        let mut views = [view("gateway-neighbor-lost"), view("volume-busy"), closed.clone()];
        let extent = Extent { to: Some(time(9)), ..Extent::default() };
        without_daemon(&mut views, &extent);
        for view in &views[..2] {
            assert_eq!(view.stale.as_ref().unwrap().since, extent.to);
            assert!(view.incident.advice.is_empty() && view.is_open());
            assert_eq!(view.status(), Some("last known"));
        }
        assert_eq!(views[2], closed);
        let mut views = [view("gateway-neighbor-lost"), closed.clone()];
        without_model(&mut views);
        assert!(views[0].stale.is_some() && views[0].incident.advice.is_empty());
        assert_eq!(views[1], closed);
    }

    #[test]
    fn only_what_a_silent_source_would_end_is_not_known() {
        let mut state = state();
        let docker = "docker:/run/docker.sock";
        state.sources = vec![
            SourceStatus::up(SourceKind::Netlink, "netlink"),
            SourceStatus::down(SourceKind::Runtime, docker, "connection refused"),
        ];
        let container = Container::of_id("c".into());
        let status =
            |stale| ContainerStatus { sources: vec![docker.into()], stale, ..alone(container.clone()) };
        let marked = |state: &NodeState| {
            let mut views = ["gateway-neighbor-lost", "orphan-container", "volume-busy"].map(view);
            views[1].target = sample::deletion().target.map(Shared::into_inner);
            views[1].target.as_mut().unwrap().container = Some(container.clone());
            without_source(&mut views, state);
            views.map(|view| view.stale.map(|stale| stale.reason))
        };
        let silent = format!("{docker} does not deliver: connection refused");
        assert_eq!(marked(&state), [None, Some(silent.clone()), None], "it was reported before a restart");
        state.sources[1].absent = true;
        assert_eq!(marked(&state), [None, None, None], "it is of no runtime that there is not");
        state.sources[1].absent = false;
        state.containers = vec![status(false)];
        assert_eq!(marked(&state), [None, None, None], "another source still reports it");
        state.containers = vec![status(true)];
        assert_eq!(marked(&state), [None, Some(silent), None]);
        state.sources[0] = SourceStatus::down(SourceKind::Netlink, "netlink", "no buffer");
        let [gateway, _, volume] = marked(&state);
        assert_eq!((gateway.unwrap().as_str(), volume), ("netlink does not deliver: no buffer", None));
    }
}
