//! The DaemonSet as users apply it, and as Docker runs its container: with its namespaces, mounts, capabilities and arguments.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::daemon::program;
use crate::delivered::{list, path, string, yaml};
use crate::dockerd::Dockerd;
use crate::helm::of_kind;
use crate::lock::HOST_PID;
use crate::mount::Scratch;
use crate::process::{attempt, copy_program};
use crate::unique;

/// The manifests with five capabilities.
pub const CAPABILITIES: &str = "deploy/kubernetes/kevtmon-capabilities.yaml";

/// Those with a privileged container.
pub const PRIVILEGED: &str = "deploy/kubernetes/kevtmon.yaml";

/// Where the metrics are served in it.
pub const LISTEN: &str = "127.0.0.1:19809";

/// The DaemonSet of a manifest.
#[must_use]
pub fn daemon_set(manifest: &str) -> Value {
    of_kind(&yaml(manifest), "DaemonSet").unwrap_or_else(|| panic!("{manifest} has no DaemonSet")).clone()
}

/// What the pods are made of.
#[must_use]
pub fn pod(set: &Value) -> &Value {
    &set["spec"]["template"]["spec"]
}

/// Its only container.
#[must_use]
pub fn container(set: &Value) -> &Value {
    let [only] = list(pod(set), "containers") else { panic!("one container: {set}") };
    only
}

/// Builds the image by the Dockerfile, and returns its name. Nothing is pulled: the daemon of the tests has no network.
#[must_use]
pub fn image(dockerd: &Dockerd) -> String {
    let program = program();
    let libraries = attempt(&["ldd".as_ref(), program.as_os_str()]);
    assert!(
        !libraries.stdout.contains("=>"),
        "{} is not static, and an image from scratch has no libraries: `cargo xtask build --release` makes a static one; \
         set KEVTMON_BIN to it",
        program.display()
    );
    build(dockerd, &program)
}

/// Builds the image of any program, which need not run in it.
#[must_use]
pub fn build(dockerd: &Dockerd, program: &Path) -> String {
    let scratch = Scratch::without_mounts();
    copy_program(program, &scratch.path().join("kevtmon"));
    std::fs::copy(path("deploy/docker/Dockerfile"), scratch.path().join("Dockerfile"))
        .expect("the Dockerfile");
    let name = format!("{}:1", unique::name("kvk"));
    let directory = scratch.path().to_string_lossy().into_owned();
    // The builder of Docker itself: the other one is a program of its own.
    let mut words: Vec<OsString> = vec!["env".into(), "DOCKER_BUILDKIT=0".into()];
    words.extend(dockerd.words(&["build", "--network", "none", "--tag", &name, &directory]));
    let _ = attempt(&words).succeeded("docker build");
    name
}

/// How Docker runs the container of a DaemonSet.
#[derive(Debug)]
pub struct Form {
    /// Options of `docker run`.
    pub options: Vec<String>,
    /// Arguments of the program.
    pub arguments: Vec<String>,
    /// What is the state directory on the node.
    pub state: PathBuf,
    /// What is `/run/kevtmon` on the node.
    pub run: PathBuf,
}

impl Form {
    /// Of a DaemonSet, but with directories below `scratch` instead of those of the node, with another address than that of
    /// a kevtmon of the node itself, and with more configuration. Panics at what it does not know how to carry over.
    #[must_use]
    pub fn of(set: &Value, scratch: &Path, address: SocketAddr, config: &str) -> Self {
        let (pod, container) = (pod(set), container(set));
        let (mut options, mut places) = (Vec::new(), BTreeMap::new());
        for (name, value) in pod.as_object().expect("a pod") {
            match (name.as_str(), value) {
                ("hostPID", Value::Bool(true)) => options.push("--pid=host".to_owned()),
                ("hostNetwork", Value::Bool(true)) => options.push("--network=host".to_owned()),
                ("securityContext", context) => {
                    assert_eq!(context, &serde_json::json!({"seccompProfile": {"type": "Unconfined"}}));
                    options.push("--security-opt=seccomp=unconfined".to_owned());
                }
                ("volumes", volumes) => {
                    for volume in volumes.as_array().expect("a list") {
                        let name = string(volume, "name");
                        places.insert(name, place(volume, &scratch.join(name), config));
                    }
                }
                // The scheduler, the kubelet and the API server see to these.
                (
                    "containers"
                    | "nodeSelector"
                    | "tolerations"
                    | "priorityClassName"
                    | "serviceAccountName"
                    | "automountServiceAccountToken"
                    | "enableServiceLinks"
                    | "dnsPolicy"
                    | "terminationGracePeriodSeconds",
                    _,
                ) => {}
                other => panic!("Docker is not told of {other:?}"),
            }
        }
        let annotations = &set["spec"]["template"]["metadata"]["annotations"];
        assert_eq!(annotations["container.apparmor.security.beta.kubernetes.io/kevtmon"], "unconfined");
        options.push("--security-opt=apparmor=unconfined".to_owned());
        for mount in list(container, "volumeMounts") {
            let mode = if mount["readOnly"] == true { ":ro" } else { "" };
            let place = places[string(mount, "name")].display();
            options.push(format!("--volume={place}:{}{mode}", string(mount, "mountPath")));
        }
        for variable in list(container, "env") {
            let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
                Some("spec.nodeName") => "node-1",
                Some(other) => panic!("{other}"),
                None => string(variable, "value"),
            };
            options.push(format!("--env={}={value}", string(variable, "name")));
        }
        options.extend(std::env::var(HOST_PID).ok().map(|pid| format!("--env={HOST_PID}={pid}")));
        options.extend(privileges(&container["securityContext"]));
        let limit = string(&container["resources"]["limits"], "memory").strip_suffix("Mi").expect("in Mi");
        options.push(format!("--memory={limit}m"));
        let arguments = list(container, "args").iter().map(|word| word.as_str().expect("an argument"));
        let arguments = arguments.map(|word| word.replace(LISTEN, &address.to_string())).collect();
        Self { options, arguments, state: places["state"].clone(), run: places["run"].clone() }
    }
}

/// What a volume is on the node. That of a Secret has been written there before.
fn place(volume: &Value, directory: &Path, config: &str) -> PathBuf {
    if volume["secret"].is_object() {
        assert!(directory.is_dir(), "{}", directory.display());
        return directory.to_owned();
    }
    std::fs::create_dir(directory).expect("a directory can be made");
    if volume["configMap"]["name"] == "kevtmon" {
        // Both forms have the same one.
        let objects = yaml(CAPABILITIES);
        let map = of_kind(&objects, "ConfigMap").expect("a ConfigMap");
        let file = string(&map["data"], "kevtmon.toml").to_owned() + config;
        std::fs::write(directory.join("kevtmon.toml"), file).expect("a file can be written");
    } else {
        assert_eq!(volume["hostPath"]["type"], "DirectoryOrCreate", "{volume}");
    }
    directory.to_owned()
}

fn privileges(context: &Value) -> Vec<String> {
    let mut options = Vec::new();
    for (name, value) in context.as_object().expect("a security context") {
        match (name.as_str(), value) {
            ("privileged", Value::Bool(true)) => options.push("--privileged".to_owned()),
            ("privileged", Value::Bool(false)) => {}
            ("allowPrivilegeEscalation", Value::Bool(false)) => {
                options.push("--security-opt=no-new-privileges".to_owned());
            }
            ("readOnlyRootFilesystem", Value::Bool(true)) => options.push("--read-only".to_owned()),
            ("runAsUser", user) => options.push(format!("--user={user}")),
            ("capabilities", capabilities) => {
                let all =
                    |member| list(capabilities, member).iter().map(|name| name.as_str().expect("a name"));
                options.extend(all("drop").map(|name| format!("--cap-drop={name}")));
                options.extend(all("add").map(|name| format!("--cap-add={name}")));
            }
            other => panic!("Docker is not told of {other:?}"),
        }
    }
    options
}
