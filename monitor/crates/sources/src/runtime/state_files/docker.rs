//! Files of dockerd: `containers/ID/config.v2.json` and `hostconfig.json` below its data root (container/container.go in
//! moby).

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{ENTRIES_MAX, Found, Written, file_of_root, in_directories};
use crate::kubelet::{PodLabels, below};
use crate::runtime::client::Inspection;
use crate::runtime::docker::api::{self, ContainerStateStatusEnum};
use crate::runtime::docker::from_inspect;

/// Where dockerd reads where it keeps its data.
const CONFIGURATION: &str = "/etc/docker/daemon.json";
/// Where it does by default.
const DATA_ROOT: &str = "/var/lib/docker";

/// The zero of Go's clock.
const NEVER: &str = "0001-01-01";

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Configuration {
    data_root: Option<PathBuf>,
    /// Its name before 17.05.
    graph: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Config {
    #[serde(rename = "ID")]
    id: String,
    name: Option<String>,
    created: Option<String>,
    image: Option<String>,
    state: State,
    config: Option<api::ContainerConfig>,
    network_settings: Option<api::NetworkSettings>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct State {
    running: bool,
    paused: bool,
    restarting: bool,
    #[serde(rename = "OOMKilled")]
    oom_killed: bool,
    removal_in_progress: bool,
    dead: bool,
    pid: i64,
    exit_code: i64,
    error: String,
    started_at: String,
    finished_at: String,
}

impl State {
    /// As dockerd names it (container/state.go, `StateString`).
    fn status(&self) -> ContainerStateStatusEnum {
        match self {
            Self { running: true, paused: true, .. } => ContainerStateStatusEnum::PAUSED,
            Self { running: true, restarting: true, .. } => ContainerStateStatusEnum::RESTARTING,
            Self { running: true, .. } => ContainerStateStatusEnum::RUNNING,
            Self { removal_in_progress: true, .. } => ContainerStateStatusEnum::REMOVING,
            Self { dead: true, .. } => ContainerStateStatusEnum::DEAD,
            Self { started_at, .. } if started_at.starts_with(NEVER) => ContainerStateStatusEnum::CREATED,
            Self { .. } => ContainerStateStatusEnum::EXITED,
        }
    }
}

pub(super) fn read(root: &Path, data: Option<&Path>, labels: &PodLabels) -> Option<Found> {
    let data = data.map(Path::to_owned).unwrap_or_else(|| configured(root));
    let directory = data.join("containers");
    let below = below(root, directory.to_str()?);
    let found = in_directories(&below, ENTRIES_MAX, |id, directory| container(id, directory, labels).into())?;
    Some(Found { runtime: "docker".to_owned(), directory, ..found })
}

fn configured(root: &Path) -> PathBuf {
    let text = file_of_root(&below(root, CONFIGURATION)).map(|(text, _)| text).unwrap_or_default();
    let read = serde_json::from_slice::<Configuration>(&text).ok();
    let data = read.and_then(|read| read.data_root.or(read.graph)).filter(|data| data.is_absolute());
    data.unwrap_or_else(|| DATA_ROOT.into())
}

/// As dockerd itself would answer an inspect.
fn container(id: &str, directory: &Path, labels: &PodLabels) -> Option<Written> {
    let (text, _) = file_of_root(&directory.join("config.v2.json"))?;
    let config: Config = serde_json::from_slice(&text).ok()?;
    let host_config = file_of_root(&directory.join("hostconfig.json"))
        .and_then(|(text, _)| serde_json::from_slice(&text).ok());
    let networks = config.network_settings.and_then(|settings| settings.networks);
    let state = config.state;
    let status = state.status();
    let answer = api::ContainerInspectResponse {
        id: Some(config.id).filter(|written| written == id),
        name: config.name,
        created: config.created,
        image: config.image,
        config: config.config,
        host_config,
        network_settings: Some(api::NetworkSettings { networks, sandbox_key: None }),
        graph_driver: None,
        state: Some(api::ContainerState {
            status: Some(status),
            pid: Some(state.pid),
            exit_code: Some(state.exit_code),
            oom_killed: Some(state.oom_killed),
            error: Some(state.error),
            started_at: Some(state.started_at),
            finished_at: Some(state.finished_at),
        }),
    };
    let Inspection { facts, since } = from_inspect(answer, labels, None)?;
    Some(Written { facts, since })
}
