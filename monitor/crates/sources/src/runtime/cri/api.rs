//! The messages that are read, by the field numbers of the CRI (`api.proto` in kubernetes/cri-api) and of containerd's events.
//!
//! Only what is used is declared; a decoder skips the rest, such as mounts and environments. In what is
//! declared, v1 and v1alpha2 are the same on the wire: only the name of the service differs.

use std::collections::HashMap;

use prost::Message;

/// A request without fields that matter: `VersionRequest`, `GetEventsRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct VersionResponse {
    #[prost(string, tag = "2")]
    pub(super) runtime_name: String,
    #[prost(string, tag = "3")]
    pub(super) runtime_version: String,
}

/// `ListContainersRequest` and `ListPodSandboxRequest`: one of an id, or all.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ListRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) filter: Option<IdFilter>,
}

/// `ContainerFilter` and `PodSandboxFilter`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct IdFilter {
    #[prost(string, tag = "1")]
    pub(super) id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ListContainersResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) containers: Vec<Container>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ListPodSandboxResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) items: Vec<PodSandbox>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Container {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(string, tag = "2")]
    pub(super) pod_sandbox_id: String,
    #[prost(message, optional, tag = "3")]
    pub(super) metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "4")]
    pub(super) image: Option<ImageSpec>,
    #[prost(string, tag = "5")]
    pub(super) image_ref: String,
    /// A [`ContainerState`].
    #[prost(int32, tag = "6")]
    pub(super) state: i32,
    /// Wall clock, nanoseconds.
    #[prost(int64, tag = "7")]
    pub(super) created_at: i64,
    #[prost(map = "string, string", tag = "8")]
    pub(super) labels: HashMap<String, String>,
    #[prost(map = "string, string", tag = "9")]
    pub(super) annotations: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerMetadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(uint32, tag = "2")]
    pub(super) attempt: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ImageSpec {
    #[prost(string, tag = "1")]
    pub(super) image: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodSandbox {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(message, optional, tag = "2")]
    pub(super) metadata: Option<PodSandboxMetadata>,
    /// A [`SandboxState`].
    #[prost(int32, tag = "3")]
    pub(super) state: i32,
    /// Wall clock, nanoseconds.
    #[prost(int64, tag = "4")]
    pub(super) created_at: i64,
    #[prost(map = "string, string", tag = "5")]
    pub(super) labels: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodSandboxMetadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) uid: String,
    #[prost(string, tag = "3")]
    pub(super) namespace: String,
    #[prost(uint32, tag = "4")]
    pub(super) attempt: u32,
}

/// `ContainerStatusRequest` and `PodSandboxStatusRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct StatusRequest {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    /// Only then does the answer have `info`, where the process id is.
    #[prost(bool, tag = "2")]
    pub(super) verbose: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<ContainerStatus>,
    #[prost(map = "string, string", tag = "2")]
    pub(super) info: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerStatus {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(message, optional, tag = "2")]
    pub(super) metadata: Option<ContainerMetadata>,
    #[prost(int32, tag = "3")]
    pub(super) state: i32,
    /// Wall clock, nanoseconds; 0 if it was not.
    #[prost(int64, tag = "5")]
    pub(super) started_at: i64,
    #[prost(int64, tag = "6")]
    pub(super) finished_at: i64,
    #[prost(int32, tag = "7")]
    pub(super) exit_code: i32,
    #[prost(message, optional, tag = "8")]
    pub(super) image: Option<ImageSpec>,
    #[prost(string, tag = "10")]
    pub(super) reason: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodSandboxStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<PodSandboxStatus>,
    #[prost(map = "string, string", tag = "2")]
    pub(super) info: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodSandboxStatus {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(message, optional, tag = "2")]
    pub(super) metadata: Option<PodSandboxMetadata>,
    #[prost(int32, tag = "3")]
    pub(super) state: i32,
    #[prost(message, optional, tag = "5")]
    pub(super) network: Option<PodSandboxNetworkStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodSandboxNetworkStatus {
    #[prost(string, tag = "1")]
    pub(super) ip: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) additional_ips: Vec<PodIp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodIp {
    #[prost(string, tag = "1")]
    pub(super) ip: String,
}

/// `ContainerState` of the CRI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum ContainerState {
    Created = 0,
    Running = 1,
    Exited = 2,
    Unknown = 3,
}

/// `PodSandboxState`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum SandboxState {
    Ready = 0,
    NotReady = 1,
}

/// `containerd.services.events.v1.SubscribeRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SubscribeRequest {
    #[prost(string, repeated, tag = "1")]
    pub(super) filters: Vec<String>,
}

/// `containerd.services.events.v1.Envelope`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Envelope {
    #[prost(message, optional, tag = "1")]
    pub(super) timestamp: Option<Timestamp>,
    #[prost(string, tag = "2")]
    pub(super) namespace: String,
    #[prost(string, tag = "3")]
    pub(super) topic: String,
    #[prost(message, optional, tag = "4")]
    pub(super) event: Option<Any>,
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Timestamp {
    #[prost(int64, tag = "1")]
    pub(super) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(super) nanos: i32,
}

/// `google.protobuf.Any`; the topic tells what it is.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Any {
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
}

/// `containerd.events.TaskStart`. What concerns a container alone has its id as the first field as well.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TaskStart {
    #[prost(string, tag = "1")]
    pub(super) container_id: String,
    #[prost(uint32, tag = "2")]
    pub(super) pid: u32,
}

/// `containerd.events.TaskExit`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TaskExit {
    #[prost(string, tag = "1")]
    pub(super) container_id: String,
    /// The container's for its first process, else that of what was executed in it later.
    #[prost(string, tag = "2")]
    pub(super) id: String,
    #[prost(uint32, tag = "4")]
    pub(super) exit_status: u32,
}

/// Any other event of containerd of which only the container matters.
#[derive(Clone, PartialEq, Message)]
pub(super) struct OfContainer {
    #[prost(string, tag = "1")]
    pub(super) id: String,
}

/// The CRI's own `ContainerEventResponse`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerEvent {
    #[prost(string, tag = "1")]
    pub(super) container_id: String,
    /// A [`ContainerEventType`].
    #[prost(int32, tag = "2")]
    pub(super) kind: i32,
    /// Wall clock, nanoseconds.
    #[prost(int64, tag = "3")]
    pub(super) created_at: i64,
}

/// `ContainerEventType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum ContainerEventType {
    Created = 0,
    Started = 1,
    Stopped = 2,
    Deleted = 3,
}
