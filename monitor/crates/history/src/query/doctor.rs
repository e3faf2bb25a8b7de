//! What `kevtmon doctor` tells, and what a running daemon tells of itself for it.

use std::path::PathBuf;

use kevtmon_observation::SourceStatus;
use kevtmon_types::names::names;
use serde::{Deserialize, Serialize};

/// What a running daemon tells of itself: answer of `/v1/doctor`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonReport {
    /// Version of the program.
    pub version: String,
    /// Git revision of the program.
    pub revision: String,
    pub node: String,
    /// Process id, in the daemon's own process namespace.
    pub pid: u32,
    /// Its state directory, as it sees it.
    pub state_dir: PathBuf,
    /// Whether every source has reported its status.
    pub ready: bool,
    /// Its effective capabilities, as `CapEff` of proc_pid_status(5); absent where it cannot read them.
    pub capabilities: Option<String>,
    /// Those with which it started: it gives up what it needs no more.
    pub capabilities_at_start: Option<String>,
    /// Whether what it executes can gain no privileges (`NoNewPrivs` of proc_pid_status(5)); absent where that is not known.
    pub no_new_privs: Option<bool>,
    /// Whether its system calls are filtered (`Seccomp` of proc_pid_status(5)); absent where that is not known.
    pub calls_filtered: Option<bool>,
    /// What it pins itself: namespaces, mounts. Scans do so for less than a second.
    pub pins: Vec<String>,
    /// Sources, hooks and sinks with their attach modes and reasons.
    pub sources: Vec<SourceStatus>,
}

names! {
    /// How a part is.
    #[derive(Default)]
    Condition {
        /// It works in the best way there is.
        Ok = "ok",
        /// It works, but not all of it or not in the best way.
        Degraded = "degraded",
        /// It does not work.
        Failed = "failed",
        /// It is not there, and need not be.
        Absent = "absent",
        /// Nothing can be said.
        #[default]
        Unknown = "unknown",
    }
}

/// One thing that kevtmon needs or uses.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// `kernel`, `netlink`, `hook.neighbor`, …
    pub name: String,
    pub state: Condition,
    /// Whether kevtmon cannot run without it.
    pub required: bool,
    /// The attach mode of its list of attach modes, where it has one.
    pub attach_mode: Option<String>,
    pub found: Option<String>,
    /// Why it is not better.
    pub reason: Option<String>,
    pub lost: Option<String>,
    /// How to get it.
    pub remedy: Option<String>,
}

impl Part {
    /// One of which only the name and the state are known.
    pub fn new(name: impl Into<String>, state: Condition) -> Self {
        Self { name: name.into(), state, ..Self::default() }
    }

    pub fn ok(name: impl Into<String>, found: impl Into<String>) -> Self {
        Self { found: Some(found.into()), ..Self::new(name, Condition::Ok) }
    }

    /// Without it kevtmon cannot run.
    pub fn required(self) -> Self {
        Self { required: true, ..self }
    }

    /// Why it is not better, what is lost by that, and how to get it.
    pub fn because(
        self,
        reason: impl Into<String>,
        lost: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let known = |text: String| (!text.is_empty()).then_some(text);
        Self { reason: known(reason.into()), lost: known(lost.into()), remedy: known(remedy.into()), ..self }
    }

    /// Whether kevtmon cannot do its work.
    pub fn prevents_work(&self) -> bool {
        self.required && self.state == Condition::Failed
    }
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorReport {
    /// Whether all required parts work; not yet, while the daemon starts.
    pub works: bool,
    /// Version of the `kevtmon` that was asked.
    pub version: String,
    /// The daemon, if one runs and answers.
    pub daemon: Option<DaemonReport>,
    /// Every part, required ones first.
    pub parts: Vec<Part>,
    /// What became of the self-test, if it was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub self_test: Vec<Step>,
}

impl DoctorReport {
    /// Whether nothing is wrong but that the daemon is not ready yet.
    pub fn is_starting(&self) -> bool {
        let is_ready = self.daemon.as_ref().is_none_or(|daemon| daemon.ready);
        !is_ready && !self.parts.iter().any(Part::prevents_work)
    }
}

/// One thing that the self-test did, and whether the daemon saw it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub what: String,
    /// Whether all went as it is to.
    pub passed: bool,
    /// Number of the event, if there is one.
    pub seq: Option<u64>,
    /// Whether it named who did it.
    pub named: Option<bool>,
    /// From the act to the answer that had the event, in milliseconds.
    pub ms: Option<u64>,
    /// What came of it, or why nothing.
    pub outcome: String,
}
