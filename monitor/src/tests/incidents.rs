//! docs/incidents.md, made from the kinds of incidents.

use std::fs;
use std::path::Path;

use kevtmon_core::diagnose::{IncidentKind, KINDS};
use kevtmon_types::settings::{Description as _, Unit};

/// The text of the document.
fn text() -> String {
    let mut text = "# Incidents\n\n\
        Each kind of incident in plain words. [events.md](events.md#incidents) defines when each opens and closes,\n\
        [runbooks.md](runbooks.md) says what to do on an alert. This page is generated from the code.\n\n\
        | incident | what is wrong |\n|---|---|\n"
        .to_owned();
    for IncidentKind { name, title, .. } in KINDS {
        text.push_str(&format!("| [`{name}`](#{name}) | {title} |\n"));
    }
    for kind in KINDS {
        text.push_str(&section(kind));
    }
    text
}

fn section(kind: &IncidentKind) -> String {
    let IncidentKind { name, title, meaning, remedy, severities, thresholds, counted, .. } = kind;
    let severities: Vec<&str> = severities.iter().map(|severity| severity.name()).collect();
    let mut text = format!(
        "\n## {name}\n\n**{title}.**\n\n{meaning}\n\n**What to do:** {remedy}\n\n\
         - Severity: usually {}\n- Its count counts {counted}.\n",
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

#[test]
fn the_document_is_that_of_the_kinds() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/incidents.md");
    if std::env::var_os("KEVTMON_BLESS").is_some() {
        fs::write(&path, text()).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap_or_default(), text(), "KEVTMON_BLESS=1 writes it again");
}
