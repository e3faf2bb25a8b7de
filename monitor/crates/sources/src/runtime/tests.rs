//! The session against a runtime without an event stream, and the names of sockets.

pub(crate) mod mutate;
pub(crate) mod reports;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::stream;
use kevtmon_observation::{ContainerFacts, ContainerState, Fact, Observation, SourceKind, SourceStatus};
use kevtmon_testing::facts;
use tokio::sync::mpsc;

use super::client::{Inspection, Listed};
use super::*;
use crate::procfs::Proc;

fn socket(path: &str) -> RuntimeSocket {
    RuntimeSocket { kind: RuntimeKind::Docker, path: path.into() }
}

#[test]
fn a_source_is_named_by_runtime_and_path_and_its_label_has_no_path() {
    let sockets = [socket("/run/docker.sock"), socket("/run/dind.sock"), socket("/c")];
    assert_eq!(sockets[1].source(), "docker:/run/dind.sock");
    assert_eq!(sockets[1].to_string(), "docker=/run/dind.sock");
    assert_eq!(metric_labels(&sockets), ["docker", "docker-2", "docker-3"]);
}

#[test]
fn every_runtime_that_can_be_named_has_a_usual_place() {
    assert_eq!(RuntimeKind::ALL.len(), RuntimeKind::NAMES.len());
    let (there, absent) = default_sockets();
    let places = RuntimeKind::ALL.iter().map(|kind| kind.places().len());
    assert_eq!(there.len() + absent.len(), places.sum::<usize>());
    assert!(!there.is_empty(), "that none is there is to be seen");
}

/// A runtime that can only be listed.
#[derive(Clone)]
struct Mute;

static LISTED: Mutex<Vec<ContainerFacts>> = Mutex::new(Vec::new());

fn container(digit: char) -> ContainerFacts {
    ContainerFacts {
        runtime: String::new(),
        state: ContainerState::Exited,
        tgid: None,
        started_ns: None,
        ..facts::container(&digit.to_string().repeat(64))
    }
}

impl RuntimeClient for Mute {
    async fn connect(_: &Path, _: &Options) -> Result<Self, RuntimeError> {
        Ok(Self)
    }

    fn runtime(&self) -> &str {
        "mute"
    }

    async fn list(&self) -> Result<Listed, RuntimeError> {
        Ok(Listed { containers: LISTED.lock().unwrap().clone(), malformed: 1 })
    }

    async fn inspect(&self, id: &str) -> Result<Option<Inspection>, RuntimeError> {
        let listed = LISTED.lock().unwrap().iter().find(|facts| facts.id == id).cloned();
        Ok(listed.map(|facts| Inspection { facts, since: None }))
    }

    fn events(&self, _: i64) -> Changes {
        let source = std::io::Error::from(std::io::ErrorKind::Unsupported);
        Box::pin(stream::once(async move { Err(RuntimeError::NoEvents { source: Box::new(source) }) }))
    }
}

#[tokio::test]
async fn a_runtime_without_an_event_stream_is_polled_and_degraded() {
    let (tx, mut rx) = mpsc::channel::<Observation>(8);
    let timing = Options { poll: Duration::from_millis(20), ..Options::default() };
    let source =
        tokio::spawn(run::<Mute>("mute:/a".into(), Path::new("/a"), timing, Proc::default().into(), tx));
    let mut status: Option<SourceStatus> = None;
    let mut listed: Vec<ContainerFacts> = Vec::new();
    let met = timeout(Duration::from_secs(30), async {
        while let Some(observation) = rx.recv().await {
            match observation.fact {
                Fact::Source(reported) => {
                    LISTED.lock().unwrap().push(container('a'));
                    status = Some(reported);
                }
                Fact::RuntimeSnapshot { containers, .. } => listed = containers,
                Fact::Malformed { source, count } => assert_eq!((&*source, count), ("mute:/a", 1)),
                fact => panic!("{fact:?}"),
            }
            if status.as_ref().is_some_and(|status| status.attach_mode.is_some()) && !listed.is_empty() {
                break;
            }
        }
    });
    met.await.unwrap();
    let status = status.unwrap();
    assert_eq!(
        (status.kind, status.up, status.attach_mode.as_deref()),
        (SourceKind::Runtime, true, Some("list"))
    );
    assert!(status.reason.unwrap().starts_with("the runtime has no event stream"));
    assert_eq!((listed[0].runtime.as_str(), listed[0].source.as_str()), ("mute", "mute:/a"));
    source.abort();
}

#[test]
fn what_an_inspect_told_outlives_what_is_read_from_disk() {
    let mut containers = containers::Containers::new("docker:/a".into());
    let named = |image: &str| ContainerFacts { image: image.into(), ..container('a') };
    containers.inspected(named("etcd:3"), process::Identity::default(), 1);
    containers.read_from_disk(std::iter::once(named("etcd:3")), |_| true);
    // A list has the id of an image whose name has moved on.
    containers.replace(vec![named("sha256:0")], true, &HashMap::new(), |_| false);
    assert_eq!(containers.take_all()[0].image, "etcd:3");
}
