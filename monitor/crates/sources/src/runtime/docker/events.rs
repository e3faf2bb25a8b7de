//! Docker's events that change the state of a container.
//!
//! In: messages of the event stream. Out: a change of one container; everything else is refused, most of
//! it by the filter already, so that exec probes cause no work.

use std::collections::HashMap;

use bollard::models::{EventMessage, EventMessageTypeEnum};
use bollard::query_parameters::{EventsOptions, EventsOptionsBuilder};

use super::super::change::{Change, ChangeKind};
use super::super::client::RuntimeError;
use super::super::is_container_id;
use super::{EVENTS, facts};

/// What happens to a container, by its name in an engine's API.
pub(in super::super) type Actions = &'static [(&'static str, ChangeKind)];

/// Docker's names, and where Podman has others, its own: it filters by `died` what it then sends as `die`.
pub(super) const ACTIONS: Actions = &[
    ("create", ChangeKind::Created),
    ("start", ChangeKind::Started),
    ("die", ChangeKind::Died),
    ("died", ChangeKind::Died),
    ("oom", ChangeKind::OutOfMemory),
    ("pause", ChangeKind::Paused),
    ("unpause", ChangeKind::Unpaused),
    ("rename", ChangeKind::Other),
    ("destroy", ChangeKind::Removed),
    ("remove", ChangeKind::Removed),
];

/// Attributes with the exit code, of Docker and of Podman.
const EXIT_CODES: &[&str] = &["exitCode", "containerExitCode"];

/// What happens to a network that is a change of one of its containers.
const NETWORK_ACTIONS: Actions =
    &[("connect", ChangeKind::Network), ("disconnect", ChangeKind::Disconnected)];

/// Only what [`read`] takes, and all of it since `wall`: the daemon answers the request before it has
/// subscribed us (`getEvents` in moby's router/system), but has kept its last 256 events.
pub(super) fn subscription(actions: Actions, wall: i64) -> EventsOptions {
    let actions = actions.iter().chain(NETWORK_ACTIONS).map(|(action, _)| *action);
    let filters = HashMap::from([("type", vec!["container", "network"]), ("event", actions.collect())]);
    let since = format!("{}.{:09}", wall / 1_000_000_000, wall % 1_000_000_000);
    EventsOptionsBuilder::default().since(&since).filters(&filters).build()
}

/// The change that a message reports; `None` of what is none of a container.
/// Errors: where it does not tell which container has changed, or when.
pub(super) fn read(actions: Actions, message: EventMessage) -> Result<Option<Change>, RuntimeError> {
    let EventMessage { actor, action, typ, time, time_nano, .. } = message;
    let actor = actor.unwrap_or_default();
    let attributes = actor.attributes.unwrap_or_default();
    let action = action.unwrap_or_default();
    let known = |actions: Actions| actions.iter().find(|(name, _)| *name == action).map(|(_, kind)| *kind);
    let (id, kind, is_container) = match typ {
        Some(EventMessageTypeEnum::NETWORK) => {
            let Some((kind, id)) = known(NETWORK_ACTIONS).zip(attributes.get("container")) else {
                return Ok(None);
            };
            (Some(id.clone()), kind, false)
        }
        Some(EventMessageTypeEnum::CONTAINER) => {
            let Some(kind) = known(actions) else { return Ok(None) };
            (actor.id, kind, true)
        }
        _ => return Ok(None),
    };
    let wall = time_nano.or(time.map(|s| s.saturating_mul(1_000_000_000)));
    let Some((id, wall)) = id.filter(|id| is_container_id(id)).zip(wall) else {
        return Err(RuntimeError::UnidentifiedEvent { request: EVENTS });
    };
    let code = EXIT_CODES.iter().find_map(|name| attributes.get(*name)?.parse().ok());
    let exit_code = code.filter(|_| kind == ChangeKind::Died);
    let facts = if is_container { facts::from_event(&id, attributes) } else { None };
    Ok(Some(Change { id, kind, wall, facts, exit_code }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn change(value: Value) -> Option<Change> {
        read(ACTIONS, serde_json::from_value(value).unwrap()).unwrap()
    }

    #[test]
    fn an_event_becomes_a_change_of_its_container() {
        let seen = change(json!({
            "Type": "container", "Action": "die", "time": 7, "timeNano": 7_000_000_001_i64,
            "Actor": {"ID": ID, "Attributes": {"name": "web", "exitCode": "0"}},
        }));
        let seen = seen.unwrap();
        assert_eq!((seen.kind, seen.id.as_str(), seen.wall), (ChangeKind::Died, ID, 7_000_000_001));
        assert_eq!(seen.facts.unwrap().name, "web");
        assert_eq!(seen.exit_code, Some(0));
    }

    #[test]
    fn podman_is_asked_for_its_own_names_and_understood() {
        let asked = format!("{:?}", subscription(ACTIONS, 0));
        assert!(asked.contains("died") && asked.contains("remove"), "{asked}");
        // As Podman 4.3 sends them: it filters by "died" and writes "die".
        for (action, kind) in
            [("die", ChangeKind::Died), ("died", ChangeKind::Died), ("remove", ChangeKind::Removed)]
        {
            let seen = change(json!({
                "status": action, "id": ID, "from": "localhost/bb:1", "Type": "container", "Action": action,
                "Actor": {"ID": ID, "Attributes": {
                    "containerExitCode": "0", "image": "localhost/bb:1", "name": "pw", "podId": "",
                }},
                "scope": "local", "time": 7, "timeNano": 7_000_000_001_i64,
            }));
            let code = (kind == ChangeKind::Died).then_some(0);
            let seen = seen.map(|seen| (seen.kind, seen.id, seen.exit_code));
            assert_eq!(seen, Some((kind, ID.to_owned(), code)), "{action}");
        }
        // That of a network is none of a container.
        let network = json!({"Type": "network", "Action": "remove", "time": 7, "Actor": {"ID": ID}});
        assert_eq!(change(network), None);
    }

    #[test]
    fn a_network_that_is_connected_changes_the_container() {
        for (action, kind) in [("connect", ChangeKind::Network), ("disconnect", ChangeKind::Disconnected)] {
            let seen = change(json!({
                "Type": "network", "Action": action, "time": 7,
                "Actor": {"ID": "n", "Attributes": {"container": ID}},
            }));
            let seen = seen.map(|c| (c.kind, c.id, c.wall));
            assert_eq!(seen, Some((kind, ID.to_owned(), 7_000_000_000)));
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for (kind, action, id) in [
            ("image", "create", ID),
            ("network", "create", ID),
            ("container", "exec_start: sh", ID),
            ("container", "connect", ID),
        ] {
            let message = json!({"Type": kind, "Action": action, "time": 1, "Actor": {"ID": id}});
            assert_eq!(change(message), None, "{kind} {action}");
        }
        assert_eq!(change(json!({})), None);
    }

    #[test]
    fn an_event_of_a_container_that_does_not_tell_which_is_malformed() {
        let die = |actor: Value| json!({"Type": "container", "Action": "die", "time": 1, "Actor": actor});
        for message in [
            die(json!({"ID": "../x"})),
            die(json!({"ID": ID.to_uppercase()})),
            die(json!({})),
            json!({"Type": "container", "Action": "die", "Actor": {"ID": ID}}),
            json!({"Type": "network", "Action": "connect", "time": 1,
                "Actor": {"ID": "n", "Attributes": {"container": "web"}}}),
        ] {
            let told = read(ACTIONS, serde_json::from_value(message.clone()).unwrap());
            assert!(matches!(told, Err(RuntimeError::UnidentifiedEvent { .. })), "{message}: {told:?}");
        }
    }
}
