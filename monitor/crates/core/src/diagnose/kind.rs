//! What is the same of all incidents of a kind.

use kevtmon_event::Severity;
use kevtmon_types::settings::{Threshold, Thresholds};

use super::Diagnosis;

/// A kind of incident, described once: lists of kinds, series, settings, the journal catalog, docs/incidents.md, the table of
/// README.md and most alerts follow from it.
#[derive(Debug)]
pub struct IncidentKind {
    /// As users filter and alert on it.
    pub name: &'static str,
    /// What is wrong, in one line.
    pub title: &'static str,
    /// What an operator sees, in README.md: the same text for all kinds of one symptom.
    pub symptom: &'static str,
    /// What its incidents name, in README.md.
    pub names: &'static str,
    /// When an incident opens, in one sentence.
    pub opens: &'static str,
    pub alert: Alert,
    /// What it means, and how it comes.
    pub meaning: &'static str,
    pub remedy: &'static str,
    /// Severities that it usually has: each has a series from the start, of which there is room for few. Others appear with the
    /// first of them.
    pub severities: &'static [Severity],
    /// What its count counts, in the plural.
    pub counted: &'static str,
    pub thresholds: &'static [&'static Threshold],
    /// What shows that it is over.
    pub watched_by: Watch,
    /// Whether there is no series before the first one: few nodes have such a one, or it takes a source that is off unless the
    /// configuration names it.
    pub is_optional: bool,
    pub(super) start: fn(&Thresholds) -> Box<dyn Diagnosis>,
}

/// How an alert of deploy/prometheus/kevtmon.rules.yaml comes of open incidents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alert {
    /// Generated: fires once an incident, of whatever severity, has been open for so many minutes.
    Open { severity: Severity, minutes: u32 },
    /// Written by hand, for example since only some severities are to alert.
    ByHand,
}

/// A source that shows that an incident is over: while it is down, that is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    Netlink,
    /// The hook `exec`.
    Executions,
    /// The runtime of its container.
    Runtime,
    None,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::{KINDS, kind};

    #[test]
    fn every_kind_is_explained_in_whole_sentences() {
        for IncidentKind { name, title, names, opens, meaning, remedy, .. } in KINDS {
            assert!(!title.ends_with('.') && title.len() < 80 && !names.ends_with('.'), "{name}");
            assert!([opens, meaning, remedy].iter().all(|text| text.ends_with('.')), "{name}");
        }
        assert!(kind("no-such-kind").is_none());
    }

    #[test]
    fn a_kind_is_that_of_its_diagnosis() {
        for kind in KINDS {
            assert_eq!((kind.start)(&Thresholds::default()).kind(), kind.name);
        }
    }

    #[test]
    fn forms_are_offered_by_kinds_that_there_are() {
        let kinds = kevtmon_event::form::ALL.iter().flat_map(|form| form.kinds);
        let unknown: Vec<_> = kinds.filter(|name| kind(name).is_none()).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
