//! Runtimes behind the Container Runtime Interface: containerd, CRI-O, and Docker behind an adapter.
//!
//! Read requests only: `Version`, lists, statuses and event streams. The socket is root on the node.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryFutureExt, TryStreamExt, future, stream};
use kevtmon_observation::{ContainerFacts, PodProof};
use kevtmon_types::lock::lock;
use known::Known;
use prost::Message;
use tokio::time::sleep;
use tonic::{Code, Status, Streaming};

use super::client::{Changes, Inspection, Listed, RuntimeClient, RuntimeError};
use super::kubelet;
use super::source::Options;
use super::state_files::StateFiles;
use crate::grpc::{Channel, Fault, Method};
use crate::kubelet::PodLabels;

mod api;
mod events;
mod facts;
mod known;

/// Its services, the newest first.
const SERVICES: &[&str] = &["runtime.v1.RuntimeService", "runtime.v1alpha2.RuntimeService"];

const VERSION: &str = "Version";
const LIST_CONTAINERS: &str = "ListContainers";
const LIST_SANDBOXES: &str = "ListPodSandbox";
const CONTAINER_STATUS: &str = "ContainerStatus";
const SANDBOX_STATUS: &str = "PodSandboxStatus";
const EVENTS: &str = "GetContainerEvents";

/// Pauses between looks for a container that an event announced: together they must stay below the session's patience.
const PAUSES_MS: [u64; 6] = [10, 20, 40, 80, 160, 320];

/// Runtimes by what they call themselves, and their name in `ContainerFacts::runtime`, where that differs.
const RUNTIMES: &[(&str, &str)] = &[("cri-o", "crio")];

/// A runtime without a proper name.
const UNNAMED: &str = "cri";

#[derive(Debug, Clone)]
pub(super) struct Cri {
    channel: Channel,
    service: &'static str,
    runtime: Arc<str>,
    stream: Option<EventStream>,
    known: Arc<Mutex<Known>>,
    labels: Arc<PodLabels>,
}

/// What tells changes of containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventStream {
    Containerd,
    /// The CRI's.
    Cri,
}

impl RuntimeClient for Cri {
    const LOOKS_BACK: bool = false;

    async fn connect(socket: &Path, options: &Options) -> Result<Self, RuntimeError> {
        let channel = Channel::connect(socket).await?;
        let (service, version) = version(&channel).await?;
        let named = RUNTIMES.iter().find(|(name, _)| *name == version.runtime_name);
        let runtime = named.map_or(version.runtime_name.as_str(), |(_, name)| name);
        let stream = match runtime {
            "containerd" => Some(EventStream::Containerd),
            "crio" if events::has_events(&version.runtime_version) => Some(EventStream::Cri),
            _ => None,
        };
        let runtime = if kubelet::is_name(runtime) { runtime } else { UNNAMED };
        Ok(Self {
            channel,
            service,
            runtime: runtime.into(),
            stream,
            known: Arc::default(),
            labels: Arc::clone(&options.pod_labels),
        })
    }

    fn runtime(&self) -> &str {
        &self.runtime
    }

    fn usual_state_files(socket: &Path) -> Option<StateFiles> {
        StateFiles::of_cri(socket)
    }

    async fn list(&self) -> Result<Listed, RuntimeError> {
        let all = api::ListRequest::default();
        // In this order each container finds its sandbox, which exists longer.
        let containers: api::ListContainersResponse = self.ask(LIST_CONTAINERS, &all).await?;
        let sandboxes: api::ListPodSandboxResponse = self.ask(LIST_SANDBOXES, &all).await?;
        let proof = self.proof();
        let Listed { containers: mut sandboxes, malformed } =
            sandboxes.items.into_iter().map(|sandbox| facts::sandbox(sandbox, proof, &self.labels)).collect();
        sandboxes.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        let in_sandbox = |container: api::Container| {
            let of = sandboxes.binary_search_by(|known| known.id.cmp(&container.pod_sandbox_id));
            facts::container(container, of.ok().map(|index| &sandboxes[index]))
        };
        let mut listed: Listed = containers.containers.into_iter().map(in_sandbox).collect();
        listed.containers.extend(sandboxes);
        let containers = lock(&self.known).list(listed.containers);
        Ok(Listed { containers, malformed: listed.malformed + malformed })
    }

    async fn inspect(&self, id: &str) -> Result<Option<Inspection>, RuntimeError> {
        let listed = lock(&self.known).get(id);
        let found = if listed.is_some() { listed } else { self.find(id).await? };
        let Some(facts) = found else { return Ok(None) };
        let inspection = if facts.sandbox {
            let answer = self.status(SANDBOX_STATUS, id).await?;
            answer.map(|answer| facts::with_sandbox_status(facts, answer))
        } else {
            let answer = self.status(CONTAINER_STATUS, id).await?;
            answer.map(|answer| facts::with_status(facts, answer))
        };
        Ok(inspection.map(|Inspection { facts, since }| {
            let told = facts.state;
            let facts = lock(&self.known).put(facts);
            // Where an event knows better, it has the time as well.
            Inspection { since: since.filter(|_| facts.state == told), facts }
        }))
    }

    fn events(&self, _: i64) -> Changes {
        let Some(kind) = self.stream else {
            let source = format!("that of {} is not used", self.runtime).into();
            return Box::pin(stream::once(future::ready(Err(RuntimeError::NoEvents { source }))));
        };
        let known = Arc::clone(&self.known);
        Box::pin(self.messages(kind).filter_map(move |message| {
            let change = message.and_then(|message| {
                let known = &mut lock(&known);
                match kind {
                    EventStream::Containerd => events::of_containerd(&message, known),
                    EventStream::Cri => events::of_cri(&message, known),
                }
            });
            future::ready(change.transpose())
        }))
    }
}

impl Cri {
    /// Docker keeps no pods: an adapter reads them from what its containers are called.
    fn proof(&self) -> PodProof {
        if &*self.runtime == "docker" { PodProof::Claimed } else { PodProof::Cri }
    }

    async fn ask<A: Message + Default>(
        &self,
        name: &'static str,
        question: &impl Message,
    ) -> Result<A, RuntimeError> {
        let method = Method { service: self.service, name };
        self.channel.ask(method, question).await.map_err(|fault| fault.into_error(name))
    }

    /// The answer about one container or sandbox; `None` if it does not exist.
    async fn status<A: Message + Default>(
        &self,
        name: &'static str,
        id: &str,
    ) -> Result<Option<A>, RuntimeError> {
        let method = Method { service: self.service, name };
        let question = api::StatusRequest { id: id.to_owned(), verbose: true };
        match self.channel.ask(method, &question).await {
            Ok(answer) => Ok(Some(answer)),
            Err(fault) if fault.code() == Some(Code::NotFound) => Ok(None),
            Err(fault) => Err(fault.into_error(name)),
        }
    }

    /// One that was not listed yet: an event may announce it some milliseconds before the CRI knows it.
    async fn find(&self, id: &str) -> Result<Option<ContainerFacts>, RuntimeError> {
        for pause in PAUSES_MS.map(Duration::from_millis) {
            if let Some(facts) = self.find_now(id).await? {
                return Ok(Some(facts));
            }
            if !lock(&self.known).is_announced(id) {
                return Ok(None);
            }
            sleep(pause).await;
        }
        self.find_now(id).await
    }

    async fn find_now(&self, id: &str) -> Result<Option<ContainerFacts>, RuntimeError> {
        let of = |id: &str| api::ListRequest { filter: Some(api::IdFilter { id: id.to_owned() }) };
        let containers: api::ListContainersResponse = self.ask(LIST_CONTAINERS, &of(id)).await?;
        let container = containers.containers.into_iter().find(|container| container.id == id);
        let sandbox = container.as_ref().map_or(id, |container| &container.pod_sandbox_id);
        let sandboxes: api::ListPodSandboxResponse = self.ask(LIST_SANDBOXES, &of(sandbox)).await?;
        let found = sandboxes.items.into_iter().find(|known| known.id == sandbox);
        let found = found.and_then(|found| facts::sandbox(found, self.proof(), &self.labels));
        Ok(match container {
            Some(container) => facts::container(container, found.as_ref()),
            None => found,
        })
    }

    /// Messages of the event stream. The request is on its way when this returns, so that what is listed next is newer.
    fn messages(
        &self,
        kind: EventStream,
    ) -> impl futures_util::Stream<Item = Result<Bytes, RuntimeError>> + Send + use<> {
        let (channel, service) = (self.channel.clone(), self.service);
        let mut opening: Opening = Box::pin(async move {
            match kind {
                EventStream::Containerd => channel.stream(events::SUBSCRIBE, &events::subscription()).await,
                EventStream::Cri => channel.stream(Method { service, name: EVENTS }, &api::Empty {}).await,
            }
        });
        let early = opening.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let request = match kind {
            EventStream::Containerd => events::SUBSCRIBE.name,
            EventStream::Cri => EVENTS,
        };
        let opened = async move {
            match early {
                Poll::Ready(opened) => opened,
                Poll::Pending => opening.await,
            }
        };
        let messages = opened
            .map_err(not_offered)
            .map_ok(move |messages| messages.map_err(move |status| broken(request, status)))
            .try_flatten_stream();
        let mut any = false;
        // CRI-O ends the stream at once where events are not enabled, newer ones with an error.
        messages.map(Some).chain(stream::once(future::ready(None))).filter_map(move |message| {
            let ended = || RuntimeError::NoEvents { source: "it ended at once".into() };
            let shown = match message {
                None if any || kind == EventStream::Containerd => None,
                None => Some(Err(ended())),
                Some(message) => Some(message),
            };
            any = true;
            future::ready(shown)
        })
    }
}

type Opening = Pin<Box<dyn Future<Output = Result<Streaming<Bytes>, Fault>> + Send>>;

/// The newest version that is served, and who serves it.
async fn version(channel: &Channel) -> Result<(&'static str, api::VersionResponse), RuntimeError> {
    let mut refused = None;
    for service in SERVICES {
        let method = Method { service, name: VERSION };
        match channel.ask::<api::VersionResponse>(method, &api::Empty {}).await {
            Ok(version) => return Ok((service, version)),
            Err(fault) if fault.code() == Some(Code::Unimplemented) => refused = Some(fault),
            Err(fault) => return Err(fault.into_error(VERSION)),
        }
    }
    let source = refused.map_or_else(|| "no answer".into(), |fault| Box::new(fault) as _);
    Err(RuntimeError::NotServed { api: "the CRI", source })
}

/// Why there is no event stream: a refusal is no failure.
fn not_offered(fault: Fault) -> RuntimeError {
    match fault.code() {
        Some(Code::Unimplemented | Code::Unknown | Code::PermissionDenied) => {
            RuntimeError::NoEvents { source: Box::new(fault) }
        }
        _ => RuntimeError::Events { source: Box::new(fault) },
    }
}

fn broken(request: &'static str, status: Status) -> RuntimeError {
    match Fault::from(status).into_error(request) {
        RuntimeError::Request { source, .. } => RuntimeError::Events { source },
        malformed => malformed,
    }
}

#[cfg(test)]
mod tests;
