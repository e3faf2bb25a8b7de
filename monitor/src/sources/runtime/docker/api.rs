//! The fields of the Engine API's answers that are read. Of the others nothing is kept, however many there are: an answer of
//! some megabytes would be some gigabytes as the library decodes it.

use std::collections::HashMap;

pub(crate) use bollard::models::{ContainerStateStatusEnum, ContainerSummaryStateEnum};
use serde::Deserialize;

/// `GET /containers/json`: an entry.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ContainerSummary {
    pub(crate) id: Option<String>,
    pub(crate) names: Option<Vec<String>>,
    pub(crate) image: Option<String>,
    #[serde(rename = "ImageID")]
    pub(crate) image_id: Option<String>,
    pub(crate) created: Option<i64>,
    pub(crate) state: Option<ContainerSummaryStateEnum>,
    pub(crate) labels: Option<HashMap<String, String>>,
    pub(crate) host_config: Option<HostConfig>,
    pub(crate) network_settings: Option<NetworkSettings>,
}

/// `GET /containers/ID/json`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ContainerInspectResponse {
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) created: Option<String>,
    /// Its id.
    pub(crate) image: Option<String>,
    pub(crate) config: Option<ContainerConfig>,
    pub(crate) host_config: Option<HostConfig>,
    pub(crate) network_settings: Option<NetworkSettings>,
    pub(crate) state: Option<ContainerState>,
    pub(crate) graph_driver: Option<GraphDriver>,
}

/// What keeps its root file system.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct GraphDriver {
    pub(crate) name: Option<String>,
    /// None once that is removed.
    pub(crate) data: Option<GraphDriverData>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct GraphDriverData {
    /// Of overlay file systems: where it is mounted.
    pub(crate) merged_dir: Option<String>,
    /// Of the device mapper.
    pub(crate) device_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ContainerConfig {
    /// As it was asked for.
    pub(crate) image: Option<String>,
    pub(crate) labels: Option<HashMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct HostConfig {
    pub(crate) network_mode: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct NetworkSettings {
    pub(crate) networks: Option<HashMap<String, EndpointSettings>>,
    /// The file on which its network namespace is mounted; of one that has its own.
    pub(crate) sandbox_key: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct EndpointSettings {
    #[serde(rename = "IPAddress")]
    pub(crate) ip_address: Option<String>,
    #[serde(rename = "GlobalIPv6Address")]
    pub(crate) global_ipv6_address: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ContainerState {
    pub(crate) status: Option<ContainerStateStatusEnum>,
    pub(crate) pid: Option<i64>,
    pub(crate) exit_code: Option<i64>,
    #[serde(rename = "OOMKilled")]
    pub(crate) oom_killed: Option<bool>,
    pub(crate) error: Option<String>,
    pub(crate) started_at: Option<String>,
    pub(crate) finished_at: Option<String>,
}
