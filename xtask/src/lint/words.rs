//! Names for which the field has a standard term; the glossary in `monitor/ARCHITECTURE.md` has the terms.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::workspace;

/// Identifiers that are not used, and what is used instead.
const RETIRED: [(&str, &str); 28] = [
    ("Aside", "Quarantined"),
    ("Desk", "Output"),
    ("House", "Registrar"),
    ("Left", "PreviousRun"),
    ("Reel", "SegmentWriter"),
    ("Tape", "RecordQueue"),
    ("Told", "SharedEvent"),
    ("Weather", "StormDetector"),
    ("govern", "apply_to"),
    ("grown_up", "past_grace_period"),
    ("knock", "probe_listener"),
    ("remains", "offline_state"),
    ("strangers", "unclaimed"),
    ("Rung", "AttachMode"),
    ("rung", "attach_mode"),
    ("ladder", "fallback"),
    ("Standing", "Priority"),
    ("Charge", "Tenant"),
    ("Lull", "QuietPeriod"),
    ("Gist", "ReportedScan"),
    ("Doubt", "Uncertainty"),
    ("Fate", "KubeletImpact"),
    ("Harm", "Impact"),
    ("Judgement", "Assessment"),
    ("Crowd", "NamespaceQuota"),
    ("Places", "ScanQueue"),
    ("Room", "TableMemory"),
    ("Lane", "BudgetClass"),
];

/// Searches the sources of daemon and kernel programs, but for comments and text in quotes.
pub(super) fn check() -> Result<()> {
    let mut git = Command::new("git");
    git.args(["grep", "--untracked", "--line-number", "--word-regexp"]).current_dir(workspace::root());
    git.args(RETIRED.iter().flat_map(|(word, _)| ["-e", word])).args(["--", "monitor", "monitor-ebpf"]);
    let found = git.output().context("cannot start git")?;
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    let complaints: Vec<String> = found.lines().filter_map(complaint).collect();
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    if !complaints.is_empty() {
        bail!("{} found", complaints.len());
    }
    Ok(())
}

/// What is wrong with `PATH:LINE:TEXT`.
fn complaint(line: &str) -> Option<String> {
    let mut parts = line.splitn(3, ':');
    let (path, number, text) = (parts.next()?, parts.next()?, parts.next()?);
    if !path.ends_with(".rs") {
        return None;
    }
    let code: String = text.split("//").next()?.split('"').step_by(2).collect();
    let mut names = code.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let (word, term) = names.find_map(|name| RETIRED.iter().find(|(word, _)| *word == name))?;
    Some(format!("{path}:{number}: `{word}` is called `{term}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retired_name_does_not_come_back() {
        assert_eq!(
            complaint("monitor/src/a.rs:7:use event::Told;").as_deref(),
            Some("monitor/src/a.rs:7: `Told` is called `SharedEvent`")
        );
        for line in [
            "monitor/src/a.rs:7:/// What remains.",
            "monitor/src/a.rs:7:told.remaining(\"what remains\") // knock",
            "monitor/ARCHITECTURE.md:7:what remains",
        ] {
            assert_eq!(complaint(line), None, "{line}");
        }
    }
}
