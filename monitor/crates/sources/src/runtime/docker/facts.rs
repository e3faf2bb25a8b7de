//! Docker's answers as container facts.
//!
//! In: a list entry, an inspect answer or an event. Out: facts without what only /proc has.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;

use jiff::Timestamp;
use kevtmon_observation::own_mounts;
use kevtmon_observation::{
    ContainerExit, ContainerFacts, ContainerState, Incarnation, OwnMounts, RefusedRemoval, RemovalError,
};
use kevtmon_types::redact;

use super::super::client::Inspection;
use super::super::{is_container_id, kubelet};
use super::api::{
    ContainerInspectResponse, ContainerStateStatusEnum, ContainerSummary, EndpointSettings, GraphDriver,
};
use crate::kubelet::PodLabels;

const SECOND_NS: i64 = 1_000_000_000;
const ERROR_MAX: usize = 300;

/// An entry of the list, which has no pid; `None` without a proper id.
pub(super) fn from_summary(entry: ContainerSummary, wanted: &PodLabels) -> Option<ContainerFacts> {
    let names = entry.names.unwrap_or_default();
    // Legacy links add names of the form `/other/alias`.
    let name = names.iter().find(|name| !bare(name).contains('/')).or(names.first());
    let mode = entry.host_config.and_then(|host| host.network_mode);
    let described = Described {
        name: name.map(|name| bare(name).to_owned()).unwrap_or_default(),
        image: entry.image.unwrap_or_default(),
        labels: entry.labels.unwrap_or_default(),
        network_mode: mode,
        image_id: entry.image_id,
        created_s: entry.created,
        error: None,
    };
    let networks = entry.network_settings.and_then(|settings| settings.networks);
    described.facts(entry.id?, entry.state.map_or(ContainerState::Unknown, state), networks, wanted)
}

/// The answer to an inspect; `None` without a proper id. `data_root`: where the engine keeps its data, if it tells that.
pub(crate) fn from_inspect(
    answer: ContainerInspectResponse,
    wanted: &PodLabels,
    data_root: Option<&Path>,
) -> Option<Inspection> {
    let config = answer.config.unwrap_or_default();
    let state = answer.state.unwrap_or_default();
    let name = state.status.map_or(ContainerState::Unknown, self::state);
    let error = state.error.as_deref().filter(|_| name == ContainerState::Dead);
    let removal_error = error.filter(|error| is_of_removal(error));
    let refused_removal = removal_error.and_then(refused_removal).map(Box::new);
    let removal_error = removal_error.and_then(reason);
    let mut networks = answer.network_settings.unwrap_or_default();
    let own_mounts = OwnMounts {
        rootfs: answer.graph_driver.and_then(|driver| rootfs(driver, data_root)),
        netns: networks.sandbox_key.take().and_then(own_mounts::kept),
    };
    let described = Described {
        name: answer.name.as_deref().map(bare).unwrap_or_default().to_owned(),
        image: config.image.or_else(|| answer.image.clone()).unwrap_or_default(),
        labels: config.labels.unwrap_or_default(),
        network_mode: answer.host_config.and_then(|host| host.network_mode),
        image_id: answer.image,
        created_s: answer.created.and_then(|created| wall(&created)).map(|ns| ns / SECOND_NS),
        error: state.error,
    };
    let mut facts = described.facts(answer.id?, name, networks.networks, wanted)?;
    facts.own_mounts = own_mounts;
    facts.removal_error = removal_error.map(String::into_boxed_str);
    facts.refused_removal = refused_removal;
    facts.tgid = state.pid.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
    if matches!(name, ContainerState::Exited | ContainerState::Dead) {
        let code = state.exit_code.and_then(|code| i32::try_from(code).ok());
        facts.exit = Some(ContainerExit { code, oom_killed: state.oom_killed });
    }
    let since = match name {
        ContainerState::Running => state.started_at,
        ContainerState::Exited | ContainerState::Dead => state.finished_at,
        _ => None,
    };
    Some(Inspection { facts, since: since.and_then(|since| wall(&since)) })
}

/// Where the root file system of a container is mounted, by what keeps it.
fn rootfs(driver: GraphDriver, data_root: Option<&Path>) -> Option<Box<str>> {
    let data = driver.data?;
    match driver.name.as_deref()? {
        // `docker-8:1-1234-LAYER`, mounted at a place that its name tells (daemon/graphdriver/devmapper in moby).
        "devicemapper" => {
            let layer =
                data.device_name.as_deref()?.rsplit('-').next().filter(|layer| is_container_id(layer))?;
            own_mounts::kept(format!("{}/devicemapper/mnt/{layer}", data_root?.to_str()?))
        }
        _ => own_mounts::kept(data.merged_dir?),
    }
}

/// Whether the error of a dead container is about its removal: that of a start that failed stays where no removal has
/// told another one, as after a restart of the engine.
fn is_of_removal(error: &str) -> bool {
    ["remove", "unmount", "release"].iter().any(|word| error.contains(word))
}

/// What could not be removed though it is not in use, by an error of Go's `os.RemoveAll`: `unlinkat PATH: operation not permitted`.
/// Go has these words in English only.
fn refused_removal(error: &str) -> Option<RefusedRemoval> {
    const ERRORS: [(&str, RemovalError); 3] = [
        (": operation not permitted", RemovalError::NotPermitted),
        (": read-only file system", RemovalError::ReadOnly),
        (": input/output error", RemovalError::Io),
    ];
    let of = |(words, why)| Some((error.trim_end().strip_suffix(words)?, why));
    let (failed, error) = ERRORS.into_iter().find_map(of)?;
    // The end of the path is the choice of the container.
    let (call, _) = failed.split_once('/')?;
    let is_removal = call.ends_with("unlinkat ") || call.ends_with("remove ");
    let path = own_mounts::kept(failed[call.len()..].to_owned()).filter(|_| is_removal)?;
    Some(RefusedRemoval { path, error })
}

/// A time on the wall clock, nanoseconds; one that has not come yet is the zero of Go's clock, in the year 1.
fn wall(time: &str) -> Option<i64> {
    let time: Timestamp = time.parse().ok()?;
    i64::try_from(time.as_nanosecond()).ok().filter(|wall| *wall > 0)
}

/// The container of an event from its attributes. The labels are among them, but what the engine adds hides those of the same
/// key.
pub(super) fn from_event(id: &str, attributes: HashMap<String, String>) -> Option<ContainerFacts> {
    let described = Described {
        name: attributes.get("name").map(|name| bare(name).to_owned()).unwrap_or_default(),
        image: attributes.get("image").cloned().unwrap_or_default(),
        labels: attributes,
        network_mode: None,
        image_id: None,
        created_s: None,
        error: None,
    };
    described.facts(id.to_owned(), ContainerState::Unknown, None, &PodLabels::default())
}

struct Described {
    name: String,
    image: String,
    labels: HashMap<String, String>,
    network_mode: Option<String>,
    image_id: Option<String>,
    created_s: Option<i64>,
    error: Option<String>,
}

impl Described {
    fn facts(
        self,
        id: String,
        state: ContainerState,
        networks: Option<HashMap<String, EndpointSettings>>,
        wanted: &PodLabels,
    ) -> Option<ContainerFacts> {
        if !is_container_id(&id) {
            return None;
        }
        let shared = self.network_mode.as_deref().and_then(|mode| mode.strip_prefix("container:"));
        let member = kubelet::pod_member(&id, &self.name, &self.labels, shared, wanted);
        let sandbox = member.as_ref().is_some_and(|member| member.sandbox);
        let incarnation = member.as_ref().map(|_| Incarnation {
            image_id: self.image_id.filter(|id| kubelet::is_name(id)),
            created_s: self.created_s.filter(|created| *created > 0),
            // It may repeat the command line.
            error: self.error.filter(|_| sandbox).and_then(|error| reason(&error)),
            ..kubelet::incarnation(&self.name, &self.labels)
        });
        Some(ContainerFacts {
            id,
            name: self.name,
            image: self.image,
            state,
            addresses: addresses(networks.unwrap_or_default()),
            joined_netns: shared.is_some(),
            incarnation: incarnation.unwrap_or_default(),
            sandbox,
            pod: member.map(|member| member.pod),
            ..ContainerFacts::default()
        })
    }
}

/// An error of the runtime as one line, masked, and without its middle if it is long: what failed in the end comes last. `None`
/// where there is none.
fn reason(error: &str) -> Option<String> {
    let text: String = error.split_whitespace().flat_map(|word| [word, "\0"]).collect();
    let masked = redact::command_line(text.as_bytes())?;
    let length = masked.chars().count();
    if length <= ERROR_MAX {
        return Some(masked);
    }
    let begin: String = masked.chars().take(ERROR_MAX / 3).collect();
    let end: String = masked.chars().skip(length - (ERROR_MAX - ERROR_MAX / 3 - 1)).collect();
    Some(format!("{begin}…{end}"))
}

fn bare(name: &str) -> &str {
    name.strip_prefix('/').unwrap_or(name)
}

/// Of all networks, sorted, because their order in the answer is random. Absent ones are empty strings.
fn addresses(networks: HashMap<String, EndpointSettings>) -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = networks
        .into_values()
        .flat_map(|endpoint| [endpoint.ip_address, endpoint.global_ipv6_address])
        .filter_map(|address| address?.parse().ok())
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn state(of: ContainerStateStatusEnum) -> ContainerState {
    use ContainerStateStatusEnum as Status;
    match of {
        Status::CREATED => ContainerState::Created,
        // It is being stopped: its processes still run.
        Status::RUNNING | Status::STOPPING => ContainerState::Running,
        Status::PAUSED => ContainerState::Paused,
        Status::RESTARTING => ContainerState::Restarting,
        Status::REMOVING => ContainerState::Removing,
        Status::EXITED => ContainerState::Exited,
        Status::DEAD => ContainerState::Dead,
        Status::EMPTY => ContainerState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn from_inspect(answer: ContainerInspectResponse) -> Option<Inspection> {
        super::from_inspect(answer, &PodLabels::default(), Some(Path::new("/d")))
    }

    const ID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn summary(value: Value) -> Option<ContainerFacts> {
        from_summary(serde_json::from_value(value).unwrap(), &PodLabels::default())
    }

    #[test]
    fn a_list_entry_gives_all_but_the_pid() {
        let facts = summary(json!({
            "Id": ID, "Names": ["/other/alias", "/web"], "Image": "nginx:1", "State": "exited", "Labels": {},
            "NetworkSettings": {"Networks": {
                "b": {"IPAddress": "172.18.0.2", "GlobalIPv6Address": "fd00::2"},
                "a": {"IPAddress": "10.0.0.1", "GlobalIPv6Address": ""},
            }},
        }));
        let facts = facts.unwrap();
        assert_eq!((facts.name.as_str(), facts.image.as_str()), ("web", "nginx:1"));
        assert_eq!((facts.state, facts.tgid), (ContainerState::Exited, None));
        let expected: Vec<IpAddr> =
            ["10.0.0.1", "172.18.0.2", "fd00::2"].iter().map(|a| a.parse().unwrap()).collect();
        assert_eq!(facts.addresses, expected);
    }

    #[test]
    fn an_inspect_answer_gives_the_pid_and_the_image_as_it_was_requested() {
        let answer = json!({
            "Id": ID, "Name": "/web", "Image": "sha256:0123", "State": {"Status": "running", "Pid": 42},
            "Config": {"Image": "nginx:1"}, "NetworkSettings": {"Networks": {}},
        });
        let facts = from_inspect(serde_json::from_value(answer).unwrap()).unwrap().facts;
        assert_eq!((facts.state, facts.tgid), (ContainerState::Running, Some(42)));
        assert_eq!((facts.name.as_str(), facts.image.as_str()), ("web", "nginx:1"));
    }

    #[test]
    fn an_inspect_answer_tells_how_a_container_has_ended() {
        let exit = |status: &str| {
            let state = json!({"Status": status, "ExitCode": 137, "OOMKilled": true});
            from_inspect(serde_json::from_value(json!({"Id": ID, "State": state})).unwrap())
                .unwrap()
                .facts
                .exit
        };
        assert_eq!(exit("exited"), Some(ContainerExit { code: Some(137), oom_killed: Some(true) }));
        assert_eq!(exit("running"), None, "it is of the run before");
    }

    #[test]
    fn an_inspect_answer_tells_what_is_mounted_for_the_container() {
        let mounts = |driver: Value| {
            let networks = json!({"SandboxKey": "/var/run/docker/netns/d1ec"});
            let answer = json!({"Id": ID, "GraphDriver": driver, "NetworkSettings": networks});
            from_inspect(serde_json::from_value(answer).unwrap()).unwrap().facts.own_mounts
        };
        let overlay = json!({"Name": "overlay2", "Data": {"MergedDir": "/d/overlay2/353abb/merged"}});
        let found = mounts(overlay);
        assert_eq!(found.rootfs.as_deref(), Some("/d/overlay2/353abb/merged"));
        assert_eq!(found.netns.as_deref(), Some("/var/run/docker/netns/d1ec"));
        let mapper = json!({"Name": "devicemapper", "Data": {"DeviceName": format!("docker-8:1-77-{ID}")}});
        assert_eq!(mounts(mapper).rootfs.as_deref(), Some(&*format!("/d/devicemapper/mnt/{ID}")));
        for nothing in [
            json!({"Name": "overlay2", "Data": null}),
            json!({"Name": "overlay2", "Data": {"MergedDir": "/d/../etc"}}),
            json!({"Name": "devicemapper", "Data": {"DeviceName": "docker-8:1-77-x"}}),
        ] {
            assert_eq!(mounts(nothing.clone()).rootfs, None, "{nothing}");
        }
    }

    #[test]
    fn an_inspect_answer_tells_why_a_removal_has_failed() {
        let said = |status: &str, error: &str| {
            let state = json!({"Status": status, "Error": error});
            from_inspect(serde_json::from_value(json!({"Id": ID, "State": state})).unwrap())
                .unwrap()
                .facts
                .removal_error
        };
        let error = "unable to remove filesystem for x: unlinkat /d: device or resource busy";
        assert_eq!(said("dead", error).as_deref(), Some(error));
        assert_eq!(said("removing", error), None, "it is of an earlier attempt");
        assert_eq!(said("dead", "exec: \"x\": executable file not found in $PATH"), None, "of its start");
        assert_eq!(said("dead", ""), None);
    }

    #[test]
    fn what_could_not_be_removed_without_being_in_use_is_read_from_the_error() {
        let begin = "container 593d: driver \"overlay2\" failed to remove root filesystem: ";
        let of = |end: &str| refused_removal(&format!("{begin}{end}"));
        let known = |path: &str, error| Some(RefusedRemoval { path: path.into(), error });
        for (end, expected) in [
            (
                "unlinkat /d/a/diff/k: operation not permitted",
                known("/d/a/diff/k", RemovalError::NotPermitted),
            ),
            ("remove /d/a/diff/k: read-only file system\n", known("/d/a/diff/k", RemovalError::ReadOnly)),
            ("unlinkat /d/a: input/output error", known("/d/a", RemovalError::Io)),
            // A name that a container chose.
            (
                "unlinkat /d/a/unlinkat /etc/x: operation not permitted: operation not permitted",
                known("/d/a/unlinkat /etc/x: operation not permitted", RemovalError::NotPermitted),
            ),
            ("unlinkat /d/a/diff/k: device or resource busy", None),
            ("unlinkat /d/a/../k: operation not permitted", None),
            ("rename /d/a /d/b: operation not permitted", None),
            ("operation not permitted", None),
        ] {
            assert_eq!(of(end), expected, "{end}");
        }
        let long = format!("unlinkat /{}: operation not permitted", "k/".repeat(200) + "k");
        assert_eq!(
            of(&long).map(|refused| refused.path.len()),
            Some(402),
            "what is shown is cut, this is not"
        );
    }

    #[test]
    fn an_inspect_answer_tells_since_when_it_is_so() {
        let since = |status: &str, started: &str, finished: &str| {
            let state = json!({"Status": status, "StartedAt": started, "FinishedAt": finished});
            let answer = json!({"Id": ID, "State": state});
            from_inspect(serde_json::from_value(answer).unwrap()).unwrap().since
        };
        let (first, never) = ("1970-01-01T00:00:01.000000002Z", "0001-01-01T00:00:00Z");
        assert_eq!(since("running", first, never), Some(1_000_000_002));
        assert_eq!(since("running", "1970-01-01T01:00:02+01:00", first), Some(2_000_000_000), "restarted");
        assert_eq!(since("exited", never, first), Some(1_000_000_002));
        assert_eq!(since("created", never, never), None);
        assert_eq!(since("running", "soon", never), None);
    }

    #[test]
    fn a_container_of_a_pod_finds_its_sandbox_by_the_network_it_shares() {
        let sandbox = "b".repeat(64);
        let facts = summary(json!({
            "Id": ID, "Names": ["/k8s_etcd_etcd1-0_lijiaob_u-1_0"],
            "HostConfig": {"NetworkMode": format!("container:{sandbox}")},
        }));
        assert_eq!(facts.unwrap().pod.unwrap().sandbox_id, Some(sandbox));
    }

    #[test]
    fn list_and_inspect_tell_alike_what_tells_one_container_from_the_next() {
        let labels = json!({"io.kubernetes.pod.name": "etcd1-0", "io.kubernetes.pod.namespace": "lijiaob",
            "io.kubernetes.pod.uid": "u-1", "annotation.io.kubernetes.container.hash": "5cf0cfcf",
            "annotation.io.kubernetes.container.restartCount": "1"});
        let answer = json!({"Id": ID, "Image": "sha256:0", "Created": "2018-06-12T20:21:27.123456789Z",
            "Config": {"Image": "etcd:3", "Labels": labels}});
        let inspected = from_inspect(serde_json::from_value(answer).unwrap()).unwrap().facts.incarnation;
        let listed =
            summary(json!({"Id": ID, "ImageID": "sha256:0", "Created": 1_528_834_887, "Labels": labels}));
        assert_eq!(listed.unwrap().incarnation, inspected);
        let expected = Incarnation {
            attempt: Some(1),
            spec_hash: Some(0x5cf0_cfcf),
            image_id: Some("sha256:0".into()),
            created_s: Some(1_528_834_887),
            error: None,
        };
        assert_eq!(inspected, expected);
    }

    #[test]
    fn why_a_sandbox_did_not_start_is_one_line_without_secrets() {
        let labels = json!({"io.kubernetes.docker.type": "podsandbox", "io.kubernetes.pod.name": "etcd1-0",
            "io.kubernetes.pod.namespace": "lijiaob", "io.kubernetes.pod.uid": "u-1"});
        let state = json!({"Status": "created", "Error": "OCI runtime create failed:\n--token hunter2: EOF"});
        let answer = json!({"Id": ID, "State": state, "Config": {"Labels": labels}});
        let facts = from_inspect(serde_json::from_value(answer).unwrap()).unwrap().facts;
        assert_eq!(facts.incarnation.error.as_deref(), Some("OCI runtime create failed: --token *** EOF"));
    }

    #[test]
    fn of_a_long_error_the_beginning_and_the_end_are_kept() {
        let long = format!("failed to create shim task: {} no such file", "/x".repeat(ERROR_MAX));
        let told = reason(&long).unwrap();
        assert_eq!(told.chars().count(), ERROR_MAX);
        assert!(
            told.starts_with("failed to create shim task: /x") && told.ends_with("/x no such file"),
            "{told}"
        );
        assert!(told.contains('…'));
        let exact = "a".repeat(ERROR_MAX);
        assert_eq!(reason(&exact), Some(exact));
    }

    #[test]
    fn environment_arguments_labels_and_binds_of_a_container_enter_no_fact() {
        let planted = "hunter2";
        let labels = json!({"token": planted, "io.kubernetes.pod.name": "web-0",
            "io.kubernetes.pod.namespace": "web", "io.kubernetes.pod.uid": "u-1",
            "annotation.kubectl.kubernetes.io/last-applied-configuration": planted});
        let answer = json!({
            "Id": ID, "Name": "/web", "Args": [planted], "Path": planted,
            "State": {"Status": "exited", "Error": planted},
            "Config": {"Image": "nginx:1", "Env": [format!("TOKEN={planted}")], "Cmd": [planted],
                "Entrypoint": [planted], "Labels": labels},
            "HostConfig": {"Binds": [planted]},
        });
        let inspected = from_inspect(serde_json::from_value(answer).unwrap()).unwrap().facts;
        let listed = summary(json!({"Id": ID, "Names": ["/web"], "Command": planted, "Labels": labels}));
        let attributes = serde_json::from_value(labels).unwrap();
        let by_event = from_event(ID, attributes).unwrap();
        for facts in [inspected, listed.unwrap(), by_event] {
            assert!(facts.pod.is_some());
            let recorded = serde_json::to_string(&facts).unwrap();
            assert!(!recorded.contains(planted), "{recorded}");
        }
    }

    #[test]
    fn an_entry_without_a_proper_id_is_left_out() {
        assert_eq!(summary(json!({"Id": "../../version", "Names": ["/x"]})), None);
        assert_eq!(summary(json!({"Names": ["/x"]})), None);
    }

    #[test]
    fn an_entry_with_nulls_is_read() {
        let facts =
            summary(json!({"Id": ID, "Names": null, "Labels": null, "NetworkSettings": null})).unwrap();
        assert_eq!((facts.name.as_str(), facts.state), ("", ContainerState::Unknown));
    }
}
