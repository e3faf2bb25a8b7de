//! Docker's events that change what is known of a container.
//!
//! In: messages of the event stream. Out: a change of one container; everything else is refused, most of
//! it by the filter already, so that exec probes wake nobody.

use std::collections::HashMap;

use bollard::models::{EventMessage, EventMessageTypeEnum};
use bollard::query_parameters::{EventsOptions, EventsOptionsBuilder};
use nix::time::{ClockId, clock_gettime};

use super::super::is_container_id;
use crate::clock::boot_now;
use crate::observation::BootNs;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Created,
    Started,
    Died,
    Paused,
    Unpaused,
    Renamed,
    Destroyed,
    /// Connected to a network or disconnected from one.
    Network,
}

/// A change of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    /// 64 hex digits.
    pub(super) id: String,
    pub(super) kind: Kind,
    /// Wall clock, nanoseconds.
    pub(super) wall: i64,
    /// Name, image and labels of the container.
    pub(super) attributes: HashMap<String, String>,
}

/// Only what [`read`] takes, and all of it since `wall`: the daemon answers the request before it has
/// subscribed us (`getEvents` in moby's router/system), but has kept its last 256 events.
pub(super) fn subscription(wall: i64) -> EventsOptions {
    let types = vec!["container", "network"];
    let actions =
        ["create", "start", "die", "pause", "unpause", "rename", "destroy", "connect", "disconnect"];
    let filters = HashMap::from([("type", types), ("event", actions.to_vec())]);
    let since = format!("{}.{:09}", wall / 1_000_000_000, wall % 1_000_000_000);
    EventsOptionsBuilder::default().since(&since).filters(&filters).build()
}

/// The change that a message tells of.
pub(super) fn read(message: EventMessage) -> Option<Change> {
    let actor = message.actor?;
    let attributes = actor.attributes.unwrap_or_default();
    let network = message.typ == Some(EventMessageTypeEnum::NETWORK);
    let (kind, id) = match message.action?.as_str() {
        "connect" | "disconnect" if network => (Kind::Network, attributes.get("container")?.clone()),
        _ if message.typ != Some(EventMessageTypeEnum::CONTAINER) => return None,
        "create" => (Kind::Created, actor.id?),
        "start" => (Kind::Started, actor.id?),
        "die" => (Kind::Died, actor.id?),
        "pause" => (Kind::Paused, actor.id?),
        "unpause" => (Kind::Unpaused, actor.id?),
        "rename" => (Kind::Renamed, actor.id?),
        "destroy" => (Kind::Destroyed, actor.id?),
        _ => return None,
    };
    let wall = message.time_nano.or(message.time.map(|s| s.saturating_mul(1_000_000_000)))?;
    is_container_id(&id).then_some(Change { id, kind, wall, attributes })
}

/// Now on the wall clock, nanoseconds.
pub(super) fn wall_now() -> i64 {
    clock_gettime(ClockId::CLOCK_REALTIME)
        .map_or(0, |t| t.tv_sec().saturating_mul(1_000_000_000).saturating_add(t.tv_nsec()))
}

/// A stamp of the wall clock on the boot clock; one from the future, after the clock was set, is now.
pub(super) fn boot_time(wall: i64) -> BootNs {
    let age = u64::try_from(wall_now().saturating_sub(wall)).unwrap_or(0);
    boot_now().saturating_sub(age)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn change(value: Value) -> Option<Change> {
        read(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn an_event_becomes_a_change_of_its_container() {
        let seen = change(json!({
            "Type": "container", "Action": "die", "time": 7, "timeNano": 7_000_000_001_i64,
            "Actor": {"ID": ID, "Attributes": {"name": "web", "exitCode": "0"}},
        }));
        let seen = seen.unwrap();
        assert_eq!((seen.kind, seen.id.as_str(), seen.wall), (Kind::Died, ID, 7_000_000_001));
        assert_eq!(seen.attributes["name"], "web");
    }

    #[test]
    fn a_network_that_is_connected_changes_the_container() {
        let seen = change(json!({
            "Type": "network", "Action": "connect", "time": 7,
            "Actor": {"ID": "n", "Attributes": {"container": ID}},
        }));
        assert_eq!(seen.map(|c| (c.kind, c.id, c.wall)), Some((Kind::Network, ID.to_owned(), 7_000_000_000)));
    }

    #[test]
    fn everything_else_is_refused() {
        for (kind, action, id) in [
            ("image", "create", ID),
            ("network", "create", ID),
            ("container", "exec_start: sh", ID),
            ("container", "connect", ID),
            ("container", "die", "../x"),
        ] {
            let message = json!({"Type": kind, "Action": action, "time": 1, "Actor": {"ID": id}});
            assert_eq!(change(message), None, "{kind} {action}");
        }
        assert_eq!(change(json!({"Type": "container", "Action": "die", "Actor": {"ID": ID}})), None);
        assert_eq!(change(json!({})), None);
    }

    #[test]
    fn a_stamp_of_the_wall_clock_becomes_one_of_the_boot_clock() {
        const SECOND: i64 = 1_000_000_000;
        const SLEW: u64 = 1_000_000;
        let before = boot_now();
        let second_later = boot_time(wall_now() - SECOND) + SECOND.unsigned_abs();
        assert!((before - SLEW..=boot_now() + SLEW).contains(&second_later));
        assert!(boot_time(i64::MAX) <= boot_now());
        assert_eq!(boot_time(i64::MIN), 0);
    }
}
