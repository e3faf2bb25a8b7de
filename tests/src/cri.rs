//! What a kubelet sends to a runtime: the requests of the CRI, v1, that tests need.

use std::collections::HashMap;
use std::path::Path;

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, HeaderMap, TE};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::UnixStream;

/// `PodSandboxMetadata`.
#[derive(Clone, PartialEq, Message)]
pub struct PodMetadata {
    /// Name of the pod.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its identity.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// Its namespace.
    #[prost(string, tag = "3")]
    pub namespace: String,
}

/// `IDMapping`.
#[derive(Clone, PartialEq, Message)]
pub struct Ids {
    /// The first one on the host.
    #[prost(uint32, tag = "1")]
    pub host: u32,
    /// The first one in the pod.
    #[prost(uint32, tag = "2")]
    pub container: u32,
    /// How many.
    #[prost(uint32, tag = "3")]
    pub length: u32,
}

/// `UserNamespace`: one of the pod's own.
#[derive(Clone, PartialEq, Message)]
pub struct UserNamespace {
    /// Its users.
    #[prost(message, repeated, tag = "2")]
    pub uids: Vec<Ids>,
    /// Its groups.
    #[prost(message, repeated, tag = "3")]
    pub gids: Vec<Ids>,
}

/// `NamespaceOption`.
#[derive(Clone, PartialEq, Message)]
pub struct Namespaces {
    /// Which network: 0 is one of its own, [`NODE`] the host's.
    #[prost(int32, tag = "1")]
    pub network: i32,
    /// Of a pod whose users are not the host's (`hostUsers: false`).
    #[prost(message, optional, tag = "5")]
    pub user: Option<UserNamespace>,
}

/// The host's namespace (`NamespaceMode`).
pub const NODE: i32 = 2;

/// `LinuxSandboxSecurityContext`.
#[derive(Clone, PartialEq, Message)]
pub struct Security {
    /// Which namespaces the pod has.
    #[prost(message, optional, tag = "1")]
    pub namespaces: Option<Namespaces>,
}

/// `LinuxPodSandboxConfig`.
#[derive(Clone, PartialEq, Message)]
pub struct LinuxPod {
    /// Control group of the pod.
    #[prost(string, tag = "1")]
    pub cgroup_parent: String,
    /// How it is shut off from the host.
    #[prost(message, optional, tag = "2")]
    pub security: Option<Security>,
}

/// `PodSandboxConfig`.
#[derive(Clone, PartialEq, Message)]
pub struct PodConfig {
    /// Who it is.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<PodMetadata>,
    /// Labels of the pod.
    #[prost(map = "string, string", tag = "6")]
    pub labels: HashMap<String, String>,
    /// What concerns Linux.
    #[prost(message, optional, tag = "8")]
    pub linux: Option<LinuxPod>,
}

/// `RunPodSandboxRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct RunPodSandbox {
    /// The pod.
    #[prost(message, optional, tag = "1")]
    pub config: Option<PodConfig>,
}

/// A name: `ContainerMetadata` and `ImageSpec`.
#[derive(Clone, PartialEq, Message)]
pub struct Name {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// `Mount`.
#[derive(Clone, PartialEq, Message)]
pub struct Mount {
    /// Where the container sees it.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// Where it is on the host.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// Whether it follows the host's mounts below: 1 if so.
    #[prost(int32, tag = "5")]
    pub propagation: i32,
    /// An image in place of a path of the host.
    #[prost(message, optional, tag = "9")]
    pub image: Option<Name>,
}

/// `Capability`.
#[derive(Clone, PartialEq, Message)]
pub struct Capabilities {
    /// Those beyond the usual ones.
    #[prost(string, repeated, tag = "1")]
    pub add: Vec<String>,
}

/// `LinuxContainerSecurityContext`.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerSecurity {
    /// What it may do.
    #[prost(message, optional, tag = "1")]
    pub capabilities: Option<Capabilities>,
    /// The same as of its pod.
    #[prost(message, optional, tag = "3")]
    pub namespaces: Option<Namespaces>,
}

/// `LinuxContainerConfig`.
#[derive(Clone, PartialEq, Message)]
pub struct LinuxContainer {
    /// How it is shut off from the host.
    #[prost(message, optional, tag = "2")]
    pub security: Option<ContainerSecurity>,
}

/// `ContainerConfig`.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerConfig {
    /// Its name in the pod.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<Name>,
    /// Its image.
    #[prost(message, optional, tag = "2")]
    pub image: Option<Name>,
    /// What it executes.
    #[prost(string, repeated, tag = "3")]
    pub command: Vec<String>,
    /// Its volumes.
    #[prost(message, repeated, tag = "7")]
    pub mounts: Vec<Mount>,
    /// What concerns Linux.
    #[prost(message, optional, tag = "15")]
    pub linux: Option<LinuxContainer>,
}

/// `CreateContainerRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct CreateContainer {
    /// Its sandbox.
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: String,
    /// The container.
    #[prost(message, optional, tag = "2")]
    pub config: Option<ContainerConfig>,
    /// The pod, once more.
    #[prost(message, optional, tag = "3")]
    pub sandbox_config: Option<PodConfig>,
}

/// `VersionResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct Version {
    /// That of the runtime.
    #[prost(string, tag = "3")]
    pub runtime: String,
}

/// An id: of what was made, and of what is to be started, stopped or removed.
#[derive(Clone, PartialEq, Message)]
pub struct Id {
    /// 64 hex digits.
    #[prost(string, tag = "1")]
    pub id: String,
}

/// Sends one request to the service of runtimes; panics unless it succeeds.
pub fn ask<A: Message + Default>(socket: &Path, method: &str, question: &impl Message) -> A {
    attempt(socket, method, question).unwrap_or_else(|error| panic!("{method}: {error}"))
}

/// Sends one request.
///
/// # Errors
/// What the runtime answers, or why it does not.
pub fn attempt<A: Message + Default>(
    socket: &Path,
    method: &str,
    question: &impl Message,
) -> Result<A, String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().expect("a runtime");
    let mut message = BytesMut::new();
    message.put_u8(0);
    message.put_u32(question.encoded_len().try_into().expect("a short message"));
    question.encode(&mut message).expect("a buffer grows");
    let answer = runtime.block_on(exchange(socket, method, message.freeze()))?;
    let message = answer.get(5..).ok_or("an answer without a message")?;
    A::decode(message).map_err(|error| error.to_string())
}

async fn exchange(socket: &Path, method: &str, message: Bytes) -> Result<Bytes, String> {
    let stream = UnixStream::connect(socket).await.map_err(|error| error.to_string())?;
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut requests, connection) = handshake.await.map_err(|error| error.to_string())?;
    let connection = tokio::spawn(connection);
    let request = hyper::Request::post(format!("http://localhost/runtime.v1.RuntimeService/{method}"))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .body(Full::new(message))
        .expect("a request");
    let response = requests.send_request(request).await.map_err(|error| error.to_string())?;
    // A refusal may come without a body.
    refusal(response.headers())?;
    let body = response.into_body().collect().await.map_err(|error| error.to_string())?;
    if let Some(trailers) = body.trailers() {
        refusal(trailers)?;
    }
    connection.abort();
    Ok(body.to_bytes())
}

fn refusal(headers: &HeaderMap) -> Result<(), String> {
    match headers.get("grpc-status") {
        Some(status) if status != "0" => Err(format!("{:?}", headers.get("grpc-message"))),
        _ => Ok(()),
    }
}
