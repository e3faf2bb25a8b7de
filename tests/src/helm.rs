//! The Helm chart, rendered by Go's text/template and sprig, of which Helm is made, since Debian has no Helm.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::delivered::{document, parse, path};
use crate::mount::Scratch;
use crate::process::{Finished, attempt_with_input, finish};

/// Directory of the chart.
pub const CHART: &str = "deploy/helm/kevtmon";

/// What it is installed into.
pub const NAMESPACE: &str = "kevtmon";

/// The renderer, made of Debian's sources once a process; what Go has compiled before, it keeps.
fn renderer() -> PathBuf {
    static COMPILED: OnceLock<Scratch> = OnceLock::new();
    let scratch = COMPILED.get_or_init(|| {
        let scratch = Scratch::without_mounts();
        let mut go = Command::new("go");
        go.args(["build", "-o"]).arg(scratch.path().join("render")).arg(path("tests/src/helm/render.go"));
        go.env("GOPATH", "/usr/share/gocode");
        if std::env::var_os("HOME").is_none() && std::env::var_os("GOCACHE").is_none() {
            go.env("GOCACHE", scratch.path().join("cache"));
        }
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
    scratch.path().join("render")
}

/// The chart's own values, but for these.
#[must_use]
pub fn values(changed: &Value) -> Value {
    let mut values = document(&format!("{CHART}/values.yaml"));
    for (name, value) in changed.as_object().expect("values") {
        values[name] = value.clone();
    }
    values
}

/// Renders the chart with these values instead of its own, which the schema has not judged.
#[must_use]
pub fn render(changed: &Value) -> Finished {
    let chart = document(&format!("{CHART}/Chart.yaml"));
    let data = json!({
        "Values": values(changed),
        "Release": {"Namespace": NAMESPACE},
        "Chart": {"AppVersion": chart["appVersion"]},
    });
    attempt_with_input(Command::new(renderer()).arg(path(CHART)), data.to_string())
}

/// The objects that it makes with these values.
#[must_use]
pub fn rendered(changed: &Value) -> Vec<Value> {
    parse(&render(changed).succeeded("rendering").stdout, CHART)
}

/// The only object of a kind, if there is one.
#[must_use]
pub fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Option<&'a Value> {
    let mut all = objects.iter().filter(|object| object["kind"] == kind);
    let first = all.next();
    assert!(all.next().is_none(), "one {kind}: {objects:?}");
    first
}
