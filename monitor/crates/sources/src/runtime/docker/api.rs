//! The fields of the Engine API's answers that are read. Of the others nothing is kept, however many there are: an answer of
//! some megabytes would be some gigabytes as the library decodes it.

use std::collections::HashMap;

pub use bollard::models::ContainerStateStatusEnum;
use serde::Deserialize;

/// `GET /containers/json`: an entry.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ContainerSummary {
    pub id: Option<String>,
    pub names: Option<Vec<String>>,
    pub image: Option<String>,
    #[serde(rename = "ImageID")]
    pub image_id: Option<String>,
    pub created: Option<i64>,
    pub state: Option<ContainerStateStatusEnum>,
    pub labels: Option<HashMap<String, String>>,
    pub host_config: Option<HostConfig>,
    pub network_settings: Option<NetworkSettings>,
}

/// `GET /containers/ID/json`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ContainerInspectResponse {
    pub id: Option<String>,
    pub name: Option<String>,
    pub created: Option<String>,
    pub image: Option<String>,
    pub config: Option<ContainerConfig>,
    pub host_config: Option<HostConfig>,
    pub network_settings: Option<NetworkSettings>,
    pub state: Option<ContainerState>,
    pub graph_driver: Option<GraphDriver>,
}

/// What keeps its root file system.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct GraphDriver {
    pub name: Option<String>,
    /// None once that is removed.
    pub data: Option<GraphDriverData>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct GraphDriverData {
    /// Of overlay file systems: where it is mounted.
    pub merged_dir: Option<String>,
    /// Of the device mapper.
    pub device_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ContainerConfig {
    /// As it was asked for.
    pub image: Option<String>,
    pub labels: Option<HashMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct HostConfig {
    pub network_mode: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct NetworkSettings {
    pub networks: Option<HashMap<String, EndpointSettings>>,
    /// The file on which its network namespace is mounted; of one that has its own.
    pub sandbox_key: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
pub struct EndpointSettings {
    #[serde(rename = "IPAddress")]
    pub ip_address: Option<String>,
    #[serde(rename = "GlobalIPv6Address")]
    pub global_ipv6_address: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ContainerState {
    pub status: Option<ContainerStateStatusEnum>,
    pub pid: Option<i64>,
    pub exit_code: Option<i64>,
    #[serde(rename = "OOMKilled")]
    pub oom_killed: Option<bool>,
    pub error: Option<String>,
    pub started_at: Option<String>,
    pub finished_at: Option<String>,
}
