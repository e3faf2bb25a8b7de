//! The alerts: each fires where it should and says what to do, and those of the fleet silence those of nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use kevtmon_tests::delivered::{document, list, path, string, text};
use kevtmon_tests::process::finish;
use serde_json::Value;

const RULES: &str = "deploy/prometheus/kevtmon.rules.yaml";
const TESTS: &str = "deploy/prometheus/kevtmon.test.yaml";
/// The group of the alerts that are generated. All have one form.
const GENERATED: &str = "kevtmon.incidents";

fn promtool(arguments: &[&str]) {
    let mut command = Command::new("promtool");
    command.args(arguments).current_dir(path("deploy/prometheus")).stdin(Stdio::null());
    let ran = finish(&mut command, "promtool".as_ref()).succeeded(&arguments.join(" "));
    assert!(!ran.stdout.contains("FAILED") && !ran.stderr.contains("FAILED"), "{}{}", ran.stdout, ran.stderr);
}

/// The alerts of the groups with such names, by their own names.
fn alerts(is_meant: impl Fn(&str) -> bool) -> BTreeMap<String, Value> {
    let all = document(RULES);
    let groups = list(&all, "groups").iter().filter(|group| is_meant(string(group, "name")));
    let alerts = groups.flat_map(|group| list(group, "rules")).filter(|rule| rule["alert"].is_string());
    alerts.map(|alert| (string(alert, "alert").to_owned(), alert.clone())).collect()
}

/// What the tests of the rules expect of alerts: the name of each, and the labels of those that fire.
fn expected() -> Vec<(String, Vec<BTreeMap<String, String>>)> {
    let tests = document(TESTS);
    let checks = list(&tests, "tests").iter().flat_map(|test| list(test, "alert_rule_test"));
    let labels = |firing: &Value| {
        let labels = firing["exp_labels"].as_object().expect("labels are a map");
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        labels.iter().map(|(name, value)| (name.clone(), text(value))).collect()
    };
    let expected = checks.map(|check| {
        let firing = list(check, "exp_alerts").iter().map(labels).collect();
        (string(check, "alertname").to_owned(), firing)
    });
    expected.collect()
}

#[test]
fn promtool_accepts_the_rules_their_tests_and_the_configuration_beside_them() {
    promtool(&["check", "rules", "kevtmon.rules.yaml"]);
    promtool(&["test", "rules", "kevtmon.test.yaml"]);
    promtool(&["check", "config", "prometheus.yaml"]);
}

#[test]
fn each_form_of_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() {
    let expected = expected();
    let tested = |fires: bool| -> BTreeSet<String> {
        let fits = expected.iter().filter(|(_, firing)| firing.is_empty() != fires);
        fits.map(|(name, _)| name.clone()).collect()
    };
    let by_hand: BTreeSet<String> = alerts(|group| group != GENERATED).into_keys().collect();
    let generated: BTreeSet<String> = alerts(|group| group == GENERATED).into_keys().collect();
    assert!(by_hand.len() > 20, "{by_hand:?}");
    for fires in [true, false] {
        let tested = tested(fires);
        assert_eq!(&tested - &generated, by_hand);
        assert!(!tested.is_disjoint(&generated));
    }
}

/// Whether an expression or a label selects incidents of a kind.
fn is_about(alert: &Value, kind: &str) -> bool {
    alert["labels"]["incident"] == kind || string(alert, "expr").contains(&format!("incident=\"{kind}\""))
}

#[test]
fn every_alert_says_what_it_means_and_has_a_section_that_says_what_to_do() {
    let sections = |page: &str| -> BTreeSet<String> {
        let headings = text(page);
        headings.lines().filter_map(|line| line.strip_prefix("## ")).map(str::to_lowercase).collect()
    };
    let (kinds, runbooks) = (sections("docs/incidents.md"), sections("docs/runbooks.md"));
    let mut followed = BTreeSet::new();
    for (name, alert) in &alerts(|_| true) {
        let annotations = &alert["annotations"];
        let summary = string(annotations, "summary");
        assert!(
            summary.ends_with('.') && !summary.contains("{{"),
            "{name}: a summary is one static sentence"
        );
        assert!(string(annotations, "description").ends_with('.'), "{name}");
        let url = string(annotations, "runbook_url");
        if let Some(kind) = url.strip_prefix("docs/incidents.md#") {
            assert!(kinds.contains(kind) && is_about(alert, kind), "{name}: {url}");
        } else {
            assert_eq!(url, format!("docs/runbooks.md#{}", name.to_lowercase()));
            followed.insert(name.to_lowercase());
        }
        assert!(["critical", "warning", "info"].contains(&string(&alert["labels"], "severity")), "{name}");
        assert!(["node", "fleet", "agent"].contains(&string(&alert["labels"], "scope")), "{name}");
    }
    assert_eq!(runbooks, followed, "one section for each alert that is about no kind");
}

#[test]
fn alerts_of_nodes_and_of_the_fleet_tell_the_kind_of_incident() {
    for (name, firing) in expected() {
        for labels in firing {
            assert_eq!(labels["scope"] != "agent", labels.contains_key("incident"), "{name}: {labels:?}");
            assert_eq!(
                labels["scope"] == "node",
                labels.contains_key("incident") && labels.contains_key("instance")
            );
        }
    }
}

/// Whether labels fulfil the matchers of Alertmanager: `name = "value"` or `name =~ "prefix.+"`.
fn fits(labels: &BTreeMap<String, String>, matchers: &[Value]) -> bool {
    matchers.iter().all(|matcher| {
        let words: Vec<&str> = matcher.as_str().expect("a matcher is a text").split(' ').collect();
        let [name, operator, value] = words[..] else { panic!("{matcher}") };
        let (value, is) = (value.trim_matches('"'), labels.get(name).map_or("", String::as_str));
        match operator {
            "=" => is == value,
            "=~" => is.starts_with(value.strip_suffix(".+").expect("a prefix")),
            _ => panic!("{matcher}"),
        }
    })
}

#[test]
fn what_many_nodes_have_in_common_silences_the_alerts_of_the_nodes() {
    let firing: Vec<BTreeMap<String, String>> = expected()
        .into_iter()
        .flat_map(|(name, firing)| {
            firing.into_iter().map(move |mut labels| {
                labels.insert("alertname".to_owned(), name.clone());
                labels
            })
        })
        .collect();
    let alertmanager = document("deploy/prometheus/alertmanager.yaml");
    let inhibited = |by: &str, alert: &str| {
        let source = firing.iter().find(|labels| labels["alertname"] == by).expect("it fires in a test");
        let target = firing.iter().find(|labels| labels["alertname"] == alert).expect("it fires in a test");
        list(&alertmanager, "inhibit_rules").iter().any(|rule| {
            // Alertmanager takes a label that both lack for equal: each has to be there.
            let mut equal = list(rule, "equal").iter().map(|label| label.as_str().expect("a label"));
            fits(source, list(rule, "source_matchers"))
                && fits(target, list(rule, "target_matchers"))
                && equal.all(|label| source.contains_key(label) && source.get(label) == target.get(label))
        })
    };
    assert!(inhibited("KevtmonSpecHashStormOnNodes", "KevtmonSpecHashStorm"));
    assert!(inhibited("KevtmonIncidentOnManyNodes", "KevtmonVolumeStuck"), "both of volume-busy");
    assert!(!inhibited("KevtmonIncidentOnManyNodes", "KevtmonPodNetworkBroken"), "of another kind");
    assert!(inhibited("KevtmonDown", "KevtmonTooHungry"));
    assert!(!inhibited("KevtmonDown", "KevtmonPodNetworkBroken"), "the pod is broken all the same");
}
