//! The Helm chart: what it renders is what Kustomize makes of the manifests, in each form and with each component. Rendered by
//! Go's text/template and sprig, of which Helm is made, since Debian has no Helm.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use kevtmon_tests::daemon_set::{DIRECTORY, daemon_set, patch};
use kevtmon_tests::delivered::{document, list, parse, path, string, text};
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::process::{Finished, attempt_with_input, finish};
use serde_json::{Value, json};

const CHART: &str = "deploy/helm/kevtmon";
const NAMESPACE: &str = "kevtmon";

/// The renderer, compiled of Debian's sources once a process.
fn renderer() -> &'static Path {
    static COMPILED: OnceLock<Scratch> = OnceLock::new();
    let scratch = COMPILED.get_or_init(|| {
        let scratch = Scratch::without_mounts();
        let mut go = Command::new("go");
        go.args(["build", "-o"]).arg(scratch.path().join("render")).arg(path("tests/src/helm/render.go"));
        go.env("GOPATH", "/usr/share/gocode").env("GOCACHE", scratch.path().join("cache"));
        for (name, value) in [
            ("GO111MODULE", "off"),
            ("GOFLAGS", ""),
            ("GOPROXY", "off"),
            ("GOTOOLCHAIN", "local"),
            ("CGO_ENABLED", "0"),
        ] {
            go.env(name, value);
        }
        let _ = finish(&mut go, "go".as_ref()).succeeded("go build");
        scratch
    });
    Box::leak(Box::new(scratch.path().join("render")))
}

/// The chart's own values, but for these.
fn values(changed: &Value) -> Value {
    let mut values = document(&format!("{CHART}/values.yaml"));
    for (name, value) in changed.as_object().expect("values") {
        values[name] = value.clone();
    }
    values
}

/// What Helm finds wrong with values, before it renders anything.
fn complaints(values: &Value) -> Vec<String> {
    let schema: Value =
        serde_json::from_str(&text(&format!("{CHART}/values.schema.json"))).expect("a schema");
    let schema = jsonschema::draft7::new(&schema).expect("a schema");
    schema.iter_errors(values).map(|error| error.to_string()).collect()
}

/// What the chart renders with these values instead of its own.
fn rendered(changed: &Value) -> Vec<Value> {
    let ran = render(changed).succeeded("rendering");
    parse(&ran.stdout, CHART)
}

fn render(changed: &Value) -> Finished {
    let (values, chart) = (values(changed), document(&format!("{CHART}/Chart.yaml")));
    assert_eq!(complaints(&values), Vec::<String>::new());
    let data = json!({
        "Values": values,
        "Release": {"Namespace": NAMESPACE},
        "Chart": {"AppVersion": chart["appVersion"]},
    });
    let mut render = Command::new(renderer());
    attempt_with_input(render.arg(path(CHART).join("templates")), data.to_string())
}

fn of_kind<'a>(documents: &'a [Value], kind: &str) -> Option<&'a Value> {
    documents.iter().find(|document| document["kind"] == kind)
}

/// The DaemonSet of a rendering, without what only the chart has.
fn set(documents: &[Value]) -> Value {
    let mut set = of_kind(documents, "DaemonSet").expect("a DaemonSet").clone();
    let annotations = &mut set["spec"]["template"]["metadata"]["annotations"];
    let checksum = annotations.as_object_mut().expect("annotations").remove("kevtmon/configuration");
    assert_eq!(checksum.as_ref().and_then(Value::as_str).map(str::len), Some(16));
    set
}

#[test]
fn each_form_is_the_overlay_of_the_same_name() {
    for (privileged, overlay) in [(false, "capabilities"), (true, "privileged")] {
        let documents = rendered(&json!({"privileged": privileged}));
        let kinds: Vec<&str> = documents.iter().map(|document| string(document, "kind")).collect();
        assert_eq!(kinds, ["ConfigMap", "DaemonSet", "ServiceAccount"]);
        assert_eq!(set(&documents), daemon_set(overlay), "{overlay}");
        let mut account = document(&format!("{DIRECTORY}/base/service-account.yaml"));
        account["metadata"]["namespace"] = NAMESPACE.into();
        assert_eq!(of_kind(&documents, "ServiceAccount"), Some(&account));
        let settings = |text: &str| -> Vec<String> {
            let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
            lines.map(str::to_owned).collect()
        };
        let map = of_kind(&documents, "ConfigMap").expect("a ConfigMap");
        let base = text(&format!("{DIRECTORY}/base/kevtmon.toml"));
        assert_eq!(settings(string(&map["data"], "kevtmon.toml")), settings(&base));
    }
}

#[test]
fn what_is_switched_on_is_the_component_of_the_same_name() {
    let documents = rendered(&json!({"runtimeSockets": true, "podMonitor": true}));
    let mut expected = daemon_set("capabilities");
    patch(&mut expected, "runtime-sockets/runtimes.yaml");
    patch(&mut expected, "pod-monitor/listen.yaml");
    assert_eq!(set(&documents), expected);
    let monitor = document(&format!("{DIRECTORY}/components/pod-monitor/pod-monitor.yaml"));
    assert_eq!(of_kind(&documents, "PodMonitor"), Some(&monitor));
}

#[test]
fn a_web_configuration_is_the_components_of_that_name() {
    let web = json!({"secret": "kevtmon-web", "clientSecret": "kevtmon-web-client"});
    let documents = rendered(&json!({"podMonitor": true, "webConfig": web}));
    let mut expected = daemon_set("capabilities");
    patch(&mut expected, "pod-monitor/listen.yaml");
    patch(&mut expected, "web-config/web.yaml");
    assert_eq!(set(&documents), expected);
    let mut monitor = document(&format!("{DIRECTORY}/components/pod-monitor/pod-monitor.yaml"));
    patch(&mut monitor, "pod-monitor-web-config/endpoint.yaml");
    assert_eq!(of_kind(&documents, "PodMonitor"), Some(&monitor));
    // With client certificates, or where no password is wanted.
    let without = json!({"secret": "kevtmon-web", "clientSecret": ""});
    let documents = rendered(&json!({"podMonitor": true, "webConfig": without}));
    let endpoint =
        &of_kind(&documents, "PodMonitor").expect("a PodMonitor")["spec"]["podMetricsEndpoints"][0];
    assert!(endpoint["scheme"] == "https" && endpoint.get("basicAuth").is_none(), "{endpoint}");
}

#[test]
fn values_reach_the_pod() {
    let mount = json!({"name": "kubelet-log", "mountPath": "/var/log/kubelet", "readOnly": true});
    let volume = json!({"name": "kubelet-log", "hostPath": {"path": "/var/log/kubelet"}});
    let image = json!({"repository": "registry.example.org/kevtmon", "tag": "2", "pullPolicy": "Always"});
    let changed = json!({
        "image": image,
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"role": "worker"},
        "tolerations": [],
        "extraVolumes": [volume],
        "extraVolumeMounts": [mount],
        "config": "cmdline = \"off\"\n",
    });
    let documents = rendered(&changed);
    let pod = &of_kind(&documents, "DaemonSet").expect("a DaemonSet")["spec"]["template"]["spec"];
    let container = &list(pod, "containers")[0];
    assert_eq!(container["image"], "registry.example.org/kevtmon:2");
    assert_eq!(container["imagePullPolicy"], "Always");
    for member in ["imagePullSecrets", "nodeSelector", "tolerations"] {
        assert_eq!(pod[member], changed[member], "{member}");
    }
    assert_eq!(list(pod, "volumes").last(), Some(&volume), "after its own");
    assert_eq!(list(container, "volumeMounts").last(), Some(&mount));
    let map = of_kind(&documents, "ConfigMap").expect("a ConfigMap");
    assert_eq!(string(&map["data"], "kevtmon.toml"), "cmdline = \"off\"\n");
    let checksum = |documents: &[Value]| {
        let set = of_kind(documents, "DaemonSet").expect("a DaemonSet");
        set["spec"]["template"]["metadata"]["annotations"]["kevtmon/configuration"].clone()
    };
    assert_ne!(
        checksum(&documents),
        checksum(&rendered(&json!({}))),
        "another configuration restarts the pods"
    );
}

#[test]
fn a_value_that_the_chart_does_not_know_is_refused() {
    for (changed, word) in [
        (json!({"priviledged": true}), "priviledged"),
        (json!({"webConfig": {"secret": "", "clientSecert": "kevtmon"}}), "clientSecert"),
        (json!({"privileged": "yes"}), "yes"),
        (json!({"image": {"repository": "kevtmon", "tag": 2}}), "2"),
        (json!({"tolerations": [{"operator": "Exist"}]}), "Exist"),
    ] {
        let found = complaints(&values(&changed));
        assert!(matches!(&found[..], [one] if one.contains(word)), "{word}: {found:?}");
    }
}

#[test]
fn a_password_is_shown_to_nobody_without_tls() {
    let web = json!({"secret": "", "clientSecret": "kevtmon-web-client"});
    let ran = render(&json!({"podMonitor": true, "webConfig": web}));
    assert!(!ran.status.success() && ran.stderr.contains("webConfig.clientSecret"), "{}", ran.stderr);
}

#[test]
fn the_chart_is_of_the_version_of_the_workspace() {
    let chart = document(&format!("{CHART}/Chart.yaml"));
    for member in ["version", "appVersion"] {
        assert_eq!(string(&chart, member), env!("CARGO_PKG_VERSION"));
    }
}
