//! What operators look at: the dashboard and the rules name what exists, are explained, and give data after real faults.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use jsonschema::Validator;
use kevtmon_tests::daemon::{kubelet_roots, launch};
use kevtmon_tests::delivered::{document, list, string, text};
use kevtmon_tests::eventually;
use kevtmon_tests::lock::Exclusive;
use kevtmon_tests::mount::Mount;
use kevtmon_tests::pod::Pod;
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::hold_by_cwd;
use kevtmon_tests::prometheus::{Prometheus, value};
use serde_json::{Value, json};

const RULES: &str = "deploy/prometheus/kevtmon.rules.yaml";

/// Panels, or series of them, that have data only after other faults than those of these tests, or with a runtime.
const WITHOUT_DATA: [(&str, &str); 6] = [
    ("Containers", "A"),
    ("Sources that are down", "A"),
    ("Lost, discarded, beyond the budget", "A"),
    ("Lost, discarded, beyond the budget", "B"),
    ("Lost, discarded, beyond the budget", "C"),
    ("Store", "B"),
];

fn dashboard() -> Value {
    serde_json::from_str(&text("deploy/grafana/kevtmon.json")).expect("the dashboard is JSON")
}

/// Every panel with queries, those in closed rows too.
fn panels(dashboard: &Value) -> Vec<&Value> {
    let inner = |panel: &Value| panel["type"] == "row";
    let all = list(dashboard, "panels");
    let rows = all.iter().filter(|panel| inner(panel)).flat_map(|row| list(row, "panels"));
    all.iter().filter(|panel| !inner(panel)).chain(rows).collect()
}

/// Title, letter and query of each series of each panel, as Prometheus gets it.
fn queries(dashboard: &Value) -> Vec<(String, String, String)> {
    let of = |panel: &Value| {
        let title = string(panel, "title").to_owned();
        let targets = list(panel, "targets").iter().map(move |target| {
            let query = string(target, "expr").replace("$node", ".*").replace("$__rate_interval", "1m");
            (title.clone(), string(target, "refId").to_owned(), query.replace("$__range", "1m"))
        });
        targets.collect::<Vec<_>>()
    };
    panels(dashboard).into_iter().flat_map(of).collect()
}

/// Name and expression of each rule.
fn rules() -> Vec<(String, String)> {
    let groups = document(RULES);
    let rules = list(&groups, "groups").iter().flat_map(|group| list(group, "rules"));
    let name = |rule: &Value| {
        ["alert", "record"].into_iter().find_map(|kind| rule[kind].as_str()).map(str::to_owned)
    };
    rules.map(|rule| (name(rule).expect("a rule has a name"), string(rule, "expr").to_owned())).collect()
}

/// The metrics of docs/metrics.md, with the labels of each.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let manual = text("docs/metrics.md");
    let ticked = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let rows = manual
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.split(" | ").collect::<Vec<_>>());
    let four = rows.filter(|cells| cells.len() >= 4 && ["counter", "gauge", "histogram"].contains(&cells[1]));
    four.map(|cells| (ticked(cells[0])[0].clone(), ticked(cells[2]).into_iter().collect())).collect()
}

/// Name of the metric without what a histogram adds.
fn base(name: &str) -> &str {
    let suffix = ["_bucket", "_sum", "_count"].into_iter().find_map(|suffix| name.strip_suffix(suffix));
    suffix.unwrap_or(name)
}

/// Each metric that an expression selects, with the labels by which it does.
fn selected(expression: &str) -> Vec<(String, Vec<String>)> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "_:".contains(letter);
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(start) = rest.find(is_name) {
        rest = &rest[start..];
        let end = rest.find(|letter: char| !is_name(letter)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        rest = after;
        if ["kevtmon_", "process_", "job_", "job:"].iter().any(|prefix| name.starts_with(prefix)) {
            let matchers = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
            let labels = matchers.map_or("", |(inside, _)| inside).split(", ").filter_map(|matcher| {
                let end = matcher.find(['=', '!'])?;
                Some(matcher[..end].trim().to_owned())
            });
            found.push((name.to_owned(), labels.collect()));
        }
        if let Some((_, after)) = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            rest = after;
        }
    }
    found
}

#[test]
fn the_dashboard_can_be_imported_anywhere() {
    let dashboard = dashboard();
    assert!(dashboard["id"].is_null() && dashboard["uid"] == "kevtmon");
    assert!(dashboard.get("__inputs").is_none() && !dashboard.to_string().contains("\"current\""));
    let variables = list(&dashboard["templating"], "list");
    let names: Vec<&str> = variables.iter().map(|variable| string(variable, "name")).collect();
    assert_eq!(names, ["datasource", "node"]);
    let mut ids = BTreeSet::new();
    for panel in panels(&dashboard) {
        let title = string(panel, "title");
        assert!(ids.insert(panel["id"].as_u64()), "{title}: its id is taken");
        for target in std::iter::once(panel).chain(list(panel, "targets")) {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
        }
        assert!(string(panel, "description").ends_with('.'), "{title}");
        let has_unit = panel["fieldConfig"]["defaults"]["unit"].is_string() || panel["type"] == "table";
        assert!(has_unit, "{title} has no unit");
    }
}

/// What is wrong with a dashboard by the schema that Grafana publishes.
fn against_schema(dashboard: &Value) -> Vec<String> {
    static SCHEMA: LazyLock<Validator> = LazyLock::new(|| {
        let schema =
            serde_json::from_str(&text("tests/fixtures/grafana/dashboard.schema.json")).expect("JSON");
        jsonschema::draft202012::new(&schema).expect("a schema")
    });
    SCHEMA.iter_errors(dashboard).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

#[test]
fn the_dashboard_keeps_the_schema_that_grafana_publishes() {
    let dashboard = dashboard();
    assert_eq!(against_schema(&dashboard), [""; 0]);
    // A wrong name, value or type anywhere is noticed.
    for (place, value) in [
        ("/schemaVersoin", json!(39)),
        ("/graphTooltip", json!("shared")),
        ("/panels/0/gridPos/x", json!(24)),
        ("/panels/0/targets/0/refID", json!("A")),
        ("/panels/0/targets/0/format", json!("tabel")),
        ("/panels/0/options/colormode", json!("value")),
        ("/panels/0/fieldConfig/defaults/thresholds/steps/0/color", json!(7)),
        ("/templating/list/0/type", json!("data source")),
    ] {
        let mut wrong = dashboard.clone();
        let (above, name) = place.rsplit_once('/').expect("a path");
        wrong.pointer_mut(above).expect("something to change")[name] = value;
        assert!(!against_schema(&wrong).is_empty(), "{place} is not noticed");
    }
}

#[test]
fn no_panel_of_the_dashboard_covers_another() {
    let dashboard = dashboard();
    let rows = list(&dashboard, "panels").iter().filter(|panel| panel["type"] == "row");
    let screens = std::iter::once(list(&dashboard, "panels")).chain(rows.map(|row| list(row, "panels")));
    for screen in screens {
        let mut cells = BTreeSet::new();
        for panel in screen.iter() {
            let at = |side: &str| panel["gridPos"][side].as_u64().expect("a number");
            assert!(at("x") + at("w") <= 24, "{panel}");
            for (x, y) in
                (at("x")..at("x") + at("w")).flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y)))
            {
                assert!(cells.insert((x, y)), "{} covers another", string(panel, "title"));
            }
        }
    }
}

#[test]
fn each_panel_answers_a_question_in_the_documentation() {
    let manual = text("docs/dashboard.md");
    let rows = manual.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let rows = rows.filter(|(title, _)| *title != "panel");
    let questions: BTreeMap<&str, &str> = rows.collect();
    let dashboard = dashboard();
    let titles: BTreeSet<&str> = panels(&dashboard).into_iter().map(|panel| string(panel, "title")).collect();
    assert_eq!(titles, questions.keys().copied().collect::<BTreeSet<_>>());
    assert!(questions.values().all(|question| question.contains('?')), "{questions:?}");
}

#[test]
fn rules_and_dashboard_select_metrics_and_labels_that_exist() {
    let documented = documented();
    assert!(documented.len() > 40, "{documented:?}");
    let rules = rules();
    let recorded: BTreeSet<&str> =
        rules.iter().map(|(name, _)| name.as_str()).filter(|name| name.contains(':')).collect();
    let dashboard = dashboard();
    let panels = queries(&dashboard).into_iter().map(|(title, _, query)| (title, query));
    let annotations = list(&dashboard["annotations"], "list").iter().filter_map(|one| one["expr"].as_str());
    let annotations = annotations.map(|query| ("annotations".to_owned(), query.to_owned()));
    let expressions = rules.iter().cloned().chain(panels).chain(annotations);
    let mut used = BTreeSet::new();
    for (where_, expression) in expressions {
        for (name, labels) in selected(&expression) {
            if name.contains(':') {
                assert!(recorded.contains(name.as_str()), "{where_}: {name} is not recorded");
                continue;
            }
            let known = documented.get(base(&name)).or_else(|| documented.get(&name));
            let known = known.unwrap_or_else(|| panic!("{where_}: there is no {name}"));
            for label in labels {
                let exists = known.contains(&label) || ["job", "instance"].contains(&label.as_str());
                assert!(exists, "{where_}: {name} has no label {label}");
            }
            used.insert(base(&name).to_owned());
        }
    }
    assert!(
        used.contains("kevtmon_incident_info") && used.contains("kevtmon_event_latency_seconds"),
        "{used:?}"
    );
    // A loss that nobody sees is none that can be relied on.
    for (name, _) in documented.iter().filter(|(name, _)| name.contains("lost") || name.contains("discarded"))
    {
        assert!(used.contains(name), "{name} is neither shown nor alerted on");
    }
}

#[test]
fn all_that_a_daemon_exports_is_documented() {
    let pod = Pod::new();
    let mut daemon = launch().start();
    pod.delete_gateway();
    daemon.fence(&pod);
    let metrics = daemon.metrics();
    let documented = documented();
    for sample in &metrics.samples {
        let known = documented.get(&sample.name).or_else(|| documented.get(base(&sample.name)));
        let known = known.unwrap_or_else(|| panic!("{} is not in docs/metrics.md", sample.name));
        let added = ["le".to_owned()];
        let unknown: Vec<_> =
            sample.labels.keys().filter(|label| !known.contains(*label) && !added.contains(label)).collect();
        assert!(unknown.is_empty(), "{} has labels that are not documented: {unknown:?}", sample.name);
    }
}

fn pages_for_that_pod_only(prometheus: &Prometheus, uid: &str) {
    let is_broken = |alert: &Value| alert["labels"]["alertname"] == "KevtmonPodNetworkBroken";
    eventually!(prometheus.firing().iter().any(is_broken), "the lost gateway pages");
    let firing = prometheus.firing();
    let page = firing.iter().find(|alert| is_broken(alert)).expect("it fires");
    assert_eq!(page["labels"]["pod_uid"], uid);
    let description = page["annotations"]["description"].as_str().unwrap_or_default();
    assert!(description.contains(uid) && description.contains("ip did it"), "{description}");
    let mut critical = firing.iter().filter(|alert| alert["labels"]["severity"] == "critical");
    assert!(critical.all(is_broken), "nothing else pages: {firing:?}");
}

fn evaluates_every_rule(prometheus: &Prometheus) {
    let judged = || prometheus.rules().iter().all(|rule| rule["health"] != "unknown");
    eventually!(judged(), "every rule was evaluated");
    for rule in prometheus.rules() {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
    for (name, expression) in rules() {
        let series = prometheus.query(&expression);
        assert!(series.is_ok(), "{name}: {series:?}");
    }
    let nodes = prometheus.query("job:kevtmon_nodes:count").expect("a query");
    assert_eq!(nodes.iter().map(value).sum::<f64>(), 1.0);
    let share = "job_incident:kevtmon_nodes_affected:ratio{incident=\"gateway-neighbor-lost\"}";
    let affected = prometheus.query(share).expect("a query");
    assert_eq!(affected.iter().map(value).sum::<f64>(), 1.0, "the only node has it");
}

/// What needs a machine on which no other test has incidents.
mod alone {
    use super::*;

    #[test]
    fn a_real_prometheus_shows_a_lost_gateway_and_a_busy_volume_in_every_panel_and_pages() {
        // Nothing else is to page meanwhile.
        let _exclusive = Exclusive::take();
        let pod = Pod::new();
        let sandbox = PodSandbox::of(&pod);
        let volume = Mount::volume();
        let config =
            format!("{}[incidents]\ngateway_critical_seconds = 1\n", kubelet_roots(volume.kubelet_root()));
        let mut daemon = launch().config(&config).start();
        let prometheus = Prometheus::of(&daemon, "node-1");

        pod.delete_gateway();
        daemon.wait_for_incident(sandbox.id());
        let holder = hold_by_cwd(volume.point());
        volume.umount_refused();
        let path = volume.point().to_string_lossy().into_owned();
        daemon.wait_for("the busy volume", |event| {
            event.kind() == "incident.opened" && event.text("/mount/path") == path
        });

        let dashboard = dashboard();
        let ask = |query: &str| prometheus.query(query).unwrap_or_else(|error| panic!("{query}: {error}"));
        for (title, letter, query) in queries(&dashboard) {
            let series = ask(&query);
            if !WITHOUT_DATA.contains(&(title.as_str(), letter.as_str())) {
                eventually!(!series.is_empty() || !ask(&query).is_empty(), "{title} has data: {query}");
            }
        }
        for annotation in
            list(&dashboard["annotations"], "list").iter().filter_map(|one| one["expr"].as_str())
        {
            assert_eq!(ask(&annotation.replace("$node", ".*")).len(), 1, "the version came just now");
        }

        let of = |title: &str| {
            let all = queries(&dashboard);
            ask(&all.iter().find(|(is, ..)| is == title).unwrap_or_else(|| panic!("no panel {title}")).2)
        };
        let sum = |title: &str, label: &str, is: &str| -> f64 {
            of(title).iter().filter(|series| series["metric"][label] == is).map(value).sum()
        };
        let total = |title: &str| -> f64 { of(title).iter().map(value).sum() };
        eventually!(
            sum("Gateway entries deleted, by cause", "cause", "admin") > 0.0,
            "the deletion shows with its cause"
        );
        eventually!(
            sum("Busy mounts, by call", "syscall", "umount2") > 0.0,
            "the refusal shows with its call"
        );
        eventually!(sum("Incidents per hour", "incident", "volume-busy") > 0.0, "the incident shows");
        eventually!(total("Open: critical") >= 1.0, "the lost gateway has become critical");
        eventually!(total("Trust: own pins") == 0.0, "kevtmon pins nothing");
        let table = of("Who did it");
        let row = |kind: &str| {
            table.iter().map(|series| &series["metric"]).find(|labels| labels["incident"] == kind)
        };
        let gateway = row("gateway-neighbor-lost").expect("the lost gateway is in the table");
        assert!(gateway["pod_uid"] == sandbox.uid() && gateway["actor"] == "ip", "{gateway}");
        assert!(row("volume-busy").is_some(), "{table:?}");

        pages_for_that_pod_only(&prometheus, sandbox.uid());
        evaluates_every_rule(&prometheus);
        drop(holder);
    }
}
