//! What is generated from the kinds of incidents: the facts of docs/incidents.md, the table of README.md, and most alerts.

use std::fs;
use std::path::Path;

use kevtmon_core::diagnose::{Alert, IncidentKind, KINDS, kind};
use kevtmon_event::Severity;
use kevtmon_types::settings::{Description as _, Unit};

const INCIDENTS: &str = "docs/incidents.md";
const README: &str = "README.md";
const RULES: &str = "deploy/prometheus/kevtmon.rules.yaml";

/// Lines around what is generated. All else is written by hand, and kept.
const OF_DOCUMENTS: [&str; 2] = ["<!-- generated -->\n", "<!-- end -->\n"];
const OF_RULES: [&str; 2] =
    ["      # Generated from the kinds of incidents.\n", "      # The end of what is generated.\n"];

/// The text with another content between its first marks.
fn renewed(text: &str, [begin, end]: [&str; 2], content: &str) -> String {
    let (before, rest) =
        text.split_once(begin).unwrap_or_else(|| panic!("{} is missing in {text}", begin.trim()));
    let (_, after) = rest.split_once(end).unwrap_or_else(|| panic!("{} is missing in {text}", end.trim()));
    format!("{before}{begin}{content}{end}{after}")
}

/// The kinds in the order of the sections, in which those of one symptom stand together.
fn kinds(document: &str) -> Vec<&'static IncidentKind> {
    let names = document.lines().filter_map(|line| line.strip_prefix("## "));
    names.map(|name| kind(name).unwrap_or_else(|| panic!("there is no kind {name}"))).collect()
}

/// The alerts about a kind, generated or not: those that link to its section.
fn alerts(rules: &str, kind: &IncidentKind) -> String {
    let link = format!("runbook_url: {INCIDENTS}#{}\n", kind.name);
    let about = rules.split("- alert: ").skip(1).filter(|rule| rule.contains(&link));
    let names: Vec<String> = about.map(|rule| format!("`{}`", rule.lines().next().unwrap())).collect();
    assert!(!names.is_empty(), "{RULES} has no alert about {}", kind.name);
    names.join(", ")
}

/// What is generated of a section.
fn facts(kind: &IncidentKind, alerts: &str) -> String {
    let IncidentKind { title, opens, meaning, remedy, severities, thresholds, counted, .. } = kind;
    let severities: Vec<&str> = severities.iter().map(|severity| severity.name()).collect();
    let mut text = format!(
        "**{title}.**\n\n{meaning}\n\n**Opens when:** {opens}\n\n**What to do:** {remedy}\n\n\
         - Severity: usually {}\n- Its count counts {counted}.\n- Alerts: {alerts}\n",
        severities.join(" or ")
    );
    for threshold in *thresholds {
        let unit = match threshold.unit {
            Unit::Seconds => " s",
            Unit::Count => "",
            Unit::Percent => " %",
        };
        let doc = threshold.doc();
        text.push_str(&format!(
            "- `{}` (default {}{unit}): {}\n",
            threshold.key,
            threshold.default,
            doc.trim()
        ));
    }
    text
}

/// docs/incidents.md, with the table of all kinds and the facts of each.
fn incidents(document: &str, rules: &str) -> String {
    let kinds = kinds(document);
    let mut table = "| incident | opens when | alerts |\n|---|---|---|\n".to_owned();
    for kind in &kinds {
        let IncidentKind { name, opens, .. } = kind;
        table.push_str(&format!("| [`{name}`](#{name}) | {opens} | {} |\n", alerts(rules, kind)));
    }
    let mut parts = document.split("\n## ");
    let mut text = renewed(parts.next().unwrap(), OF_DOCUMENTS, &table);
    for (section, kind) in parts.zip(kinds) {
        text.push_str("\n## ");
        text.push_str(&renewed(section, OF_DOCUMENTS, &facts(kind, &alerts(rules, kind))));
    }
    text
}

/// What an operator sees, and what the incident behind it names.
fn symptoms(kinds: &[&IncidentKind]) -> String {
    let mut table = "| you see | incident | it names |\n|---|---|---|\n".to_owned();
    let mut previous = "";
    for IncidentKind { name, symptom, names, .. } in kinds {
        let first = if *symptom == previous { String::new() } else { format!(" {symptom}") };
        table.push_str(&format!("|{first} | `{name}` | {names} |\n"));
        previous = *symptom;
    }
    table
}

/// `ipam-drift` as `IpamDrift`.
fn camel_case(name: &str) -> String {
    let words = name.split('-').map(|word| {
        let (first, rest) = word.split_at(1);
        first.to_uppercase() + rest
    });
    words.collect()
}

/// The alert on a kind, if it is generated.
fn rule(kind: &IncidentKind) -> Option<String> {
    let Alert::Open { severity, minutes } = kind.alert else { return None };
    let IncidentKind { name, title, meaning, severities, .. } = kind;
    let hold = if minutes == 0 { String::new() } else { format!("        for: {minutes}m\n") };
    let open = match severities {
        // Less severe is only what a pod claims of itself.
        [Severity::Critical] => {
            format!("kevtmon_incidents_open{{incident=\"{name}\", severity=\"critical\"}}")
        }
        _ => format!("sum without (severity) (kevtmon_incidents_open{{incident=\"{name}\"}})"),
    };
    let (alert, severity) = (camel_case(name), severity.name());
    let rule = format!(
        "      - alert: Kevtmon{alert}
        expr: {open} > 0
{hold}        labels:
          severity: {severity}
          scope: node
        annotations:
          summary: {title}.
          description: >-
            {{{{ $value }}}} open on {{{{ $labels.instance }}}}: {title}. {meaning}
            `kevtmon incidents --kind {name}` there shows them.
          runbook_url: {INCIDENTS}#{name}
"
    );
    Some(rule)
}

#[test]
fn documents_and_alerts_are_those_of_the_kinds() {
    let read = |file: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file));
    let document = read(INCIDENTS).unwrap();
    let kinds = kinds(&document);
    let mut names = kinds.iter().map(|kind| kind.name).collect::<Vec<_>>();
    let mut all = KINDS.map(|kind| kind.name);
    names.sort_unstable();
    all.sort_unstable();
    assert_eq!(names, all, "{INCIDENTS} has one section for each kind");

    let generated: Vec<String> = kinds.iter().filter_map(|kind| rule(kind)).collect();
    let rules = renewed(&read(RULES).unwrap(), OF_RULES, &generated.join("\n"));
    let readme = renewed(&read(README).unwrap(), OF_DOCUMENTS, &symptoms(&kinds));
    for (file, expected) in [(INCIDENTS, incidents(&document, &rules)), (README, readme), (RULES, rules)] {
        if std::env::var_os("KEVTMON_BLESS").is_some() {
            fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file), &expected).unwrap();
        }
        assert_eq!(read(file).unwrap(), expected, "{file}: KEVTMON_BLESS=1 writes it again");
    }
}
