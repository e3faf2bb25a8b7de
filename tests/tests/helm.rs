//! The Helm chart: what it renders is what Kustomize makes of the manifests, in each form and with each component. Rendered by
//! Go's text/template and sprig, of which Helm is made, since Debian has no Helm.

#![allow(clippy::expect_used, reason = "a test whose set-up fails must fail")]

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use kevtmon_tests::daemon_set::{DIRECTORY, daemon_set};
use kevtmon_tests::delivered::{document, list, parse, path, string, text};
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::process::{finish, finish_with_input};
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

/// What the chart renders with these values instead of its own.
fn rendered(changed: &Value) -> Vec<Value> {
    let (mut values, chart) =
        (document(&format!("{CHART}/values.yaml")), document(&format!("{CHART}/Chart.yaml")));
    for (name, value) in changed.as_object().expect("values") {
        assert!(values.get(name).is_some(), "{name} is no value of the chart");
        values[name] = value.clone();
    }
    let data = json!({
        "Values": values,
        "Release": {"Namespace": NAMESPACE},
        "Chart": {"AppVersion": chart["appVersion"]},
    });
    let mut render = Command::new(renderer());
    let ran = finish_with_input(render.arg(path(CHART).join("templates")), data.to_string());
    parse(&ran.stdout, CHART)
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

/// Applies a component's patch, all of whose operations add something.
fn patch(set: &mut Value, file: &str) {
    for operation in
        parse(&text(&format!("{DIRECTORY}/components/{file}")), file)[0].as_array().expect("a list")
    {
        assert_eq!(operation["op"], "add");
        let place = string(operation, "path");
        let (above, name) = place.rsplit_once('/').expect("a path");
        let value = operation["value"].clone();
        match set.pointer_mut(above).expect("something to add to") {
            Value::Array(all) if name == "-" => all.push(value),
            other => other[name] = value,
        }
    }
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
fn values_reach_the_pod() {
    let image = json!({"repository": "registry.example.org/kevtmon", "tag": "2", "pullPolicy": "Always"});
    let changed = json!({
        "image": image,
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"role": "worker"},
        "tolerations": [],
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
fn the_chart_is_of_the_version_of_the_workspace() {
    let chart = document(&format!("{CHART}/Chart.yaml"));
    for member in ["version", "appVersion"] {
        assert_eq!(string(&chart, member), env!("CARGO_PKG_VERSION"));
    }
}
