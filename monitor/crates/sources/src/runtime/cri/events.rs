//! Event streams of runtimes with a CRI as changes.
//!
//! containerd's own events go to every subscriber, whatever its version. The CRI's `GetContainerEvents` does not: in
//! containerd 1.7 and in CRI-O before 1.28 all callers share one queue, so each message that is read here would be missing
//! in the kubelet. So it is used with newer CRI-Os only.

use prost::Message;

use super::EVENTS;
use super::api;
use super::known::{Known, Run};
use crate::grpc::Method;
use crate::runtime::change::{Change, ChangeKind, wall_now};
use crate::runtime::client::RuntimeError;
use crate::runtime::is_container_id;

/// `containerd.services.events.v1.Events/Subscribe`.
pub(super) const SUBSCRIBE: Method =
    Method { service: "containerd.services.events.v1.Events", name: "Subscribe" };

/// Namespace of containerd in which its CRI keeps everything.
const NAMESPACE: &str = "k8s.io";

/// What containerd reports of containers and their first processes.
const TOPICS: &[(&str, ChangeKind)] = &[
    ("/containers/create", ChangeKind::Created),
    ("/tasks/start", ChangeKind::Started),
    ("/tasks/exit", ChangeKind::Died),
    ("/tasks/oom", ChangeKind::OutOfMemory),
    ("/tasks/paused", ChangeKind::Paused),
    ("/tasks/resumed", ChangeKind::Unpaused),
    ("/containers/delete", ChangeKind::Removed),
];

/// First version of CRI-O that gives each caller of `GetContainerEvents` all of them.
const CRIO_WITH_EVENTS: (u64, u64) = (1, 28);

/// Only what [`of_containerd`] takes.
pub(super) fn subscription() -> api::SubscribeRequest {
    let filter = |(topic, _): &(&str, ChangeKind)| format!("namespace=={NAMESPACE},topic==\"{topic}\"");
    api::SubscribeRequest { filters: TOPICS.iter().map(filter).collect() }
}

/// Whether this version of CRI-O can be asked for events.
pub(super) fn has_events(crio: &str) -> bool {
    let mut numbers = crio.trim_start_matches('v').split('.').map_while(|number| number.parse().ok());
    numbers.next().zip(numbers.next()).is_some_and(|version| version >= CRIO_WITH_EVENTS)
}

/// The change that an event of containerd reports.
pub(super) fn of_containerd(message: &[u8], known: &mut Known) -> Result<Option<Change>, RuntimeError> {
    let malformed = |error| RuntimeError::Decode { request: SUBSCRIBE.name, source: Box::new(error) };
    let event = api::Envelope::decode(message).map_err(malformed)?;
    let Some((_, kind)) = TOPICS.iter().find(|(topic, _)| *topic == event.topic) else { return Ok(None) };
    if event.namespace != NAMESPACE {
        return Ok(None);
    }
    let value = event.event.unwrap_or_default().value;
    let mut exit_code = None;
    let (id, run) = match kind {
        ChangeKind::Started => {
            let start = api::TaskStart::decode(&*value).map_err(malformed)?;
            (start.container_id, Some(Run::Started(start.pid)))
        }
        ChangeKind::Died => {
            let exit = api::TaskExit::decode(&*value).map_err(malformed)?;
            if exit.id != exit.container_id {
                return Ok(None);
            }
            exit_code = i32::try_from(exit.exit_status).ok();
            (exit.id, Some(Run::Ended))
        }
        ChangeKind::Removed => (api::OfContainer::decode(&*value).map_err(malformed)?.id, None),
        _ => (api::OfContainer::decode(&*value).map_err(malformed)?.id, Some(Run::Announced)),
    };
    let wall = event
        .timestamp
        .map(|time| time.seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(time.nanos)));
    let change = change(SUBSCRIBE.name, id, *kind, wall, run, known)?;
    Ok(Some(Change { exit_code, ..change }))
}

/// The change that an event of the CRI reports.
pub(super) fn of_cri(message: &[u8], known: &mut Known) -> Result<Option<Change>, RuntimeError> {
    let malformed = |error| RuntimeError::Decode { request: EVENTS, source: Box::new(error) };
    let event = api::ContainerEvent::decode(message).map_err(malformed)?;
    let Ok(kind) = api::ContainerEventType::try_from(event.kind) else { return Ok(None) };
    let (kind, run) = match kind {
        api::ContainerEventType::Created => (ChangeKind::Created, Some(Run::Announced)),
        api::ContainerEventType::Started => (ChangeKind::Started, Some(Run::Started(0))),
        api::ContainerEventType::Stopped => (ChangeKind::Died, Some(Run::Ended)),
        api::ContainerEventType::Deleted => (ChangeKind::Removed, None),
    };
    let wall = Some(event.created_at).filter(|wall| *wall > 0);
    change(EVENTS, event.container_id, kind, wall, run, known).map(Some)
}

fn change(
    request: &'static str,
    id: String,
    kind: ChangeKind,
    wall: Option<i64>,
    run: Option<Run>,
    known: &mut Known,
) -> Result<Change, RuntimeError> {
    if !is_container_id(&id) {
        return Err(RuntimeError::UnidentifiedEvent { request });
    }
    let facts = known.get(&id);
    match run {
        Some(run) => known.announce(&id, run),
        None => known.forget(&id),
    }
    Ok(Change { id, kind, wall: wall.unwrap_or_else(wall_now), facts, exit_code: None })
}
