//! The processes that serve the file system of a mount, and what a sentence says of them.

use kevtmon_observation::ServerState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::wording::process_phrase;
use super::{Confidence, Container, Details, Pod};

/// A process that serves a FUSE file system.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MountServer {
    /// Process id.
    pub pid: u32,
    /// Real user id, in the initial user namespace.
    pub uid: Option<u32>,
    /// Command name.
    pub comm: String,
    /// What it does, as it was seen when the holders were looked for.
    pub state: ServerState,
    /// The kind of file systems for which a thread of it waits in the kernel, where the kernel shows that: `NFS`, `FUSE`, …
    pub waits_for: Option<String>,
    /// systemd unit.
    pub unit: Option<String>,
    /// Its container.
    pub container: Option<Container>,
    /// Its pod.
    pub pod: Option<Pod>,
    /// `certain` where the kernel shows that it has the connection of this file system open, and no other process has; `likely`
    /// where others have, too, or may have, and where only its arguments tell.
    pub confidence: Confidence,
}

impl MountServer {
    /// Whether it is known not to do what it is there for, or not all of it.
    pub fn is_troubled(&self) -> bool {
        self.state != ServerState::Running
    }

    /// What it does, as the end of a sentence about it.
    pub fn state_phrase(&self) -> String {
        match (self.state, &self.waits_for) {
            (ServerState::Running, _) => "is running".to_owned(),
            (ServerState::Ended, _) => "has ended".to_owned(),
            (ServerState::Stopped, _) => "is stopped".to_owned(),
            (ServerState::Traced, _) => "is held by a tracer".to_owned(),
            (ServerState::Waiting, Some(kind)) => format!("waits in the kernel for {kind}"),
            (ServerState::Waiting, None) => "waits in the kernel uninterruptibly".to_owned(),
        }
    }

    /// By command name and id, with its pod or container.
    pub fn label(&self) -> String {
        process_phrase(self.uid, &self.comm, self.pid, self.container.as_ref(), self.pod.as_ref())
    }
}

/// What a sentence about a mount adds of servers that are not running.
pub fn servers_phrase(servers: &[MountServer]) -> Option<String> {
    let troubled: Vec<&MountServer> = servers.iter().filter(|server| server.is_troubled()).collect();
    let first = troubled.first()?;
    let (label, state) = (first.label(), first.state_phrase());
    Some(match (servers.len(), troubled.len()) {
        (1, _) if first.confidence == Confidence::Certain => {
            format!("the file server of that mount, {label}, {state}")
        }
        (1, _) => format!("what is likely the file server of that mount, {label}, {state}"),
        (all, 1) => format!("of {all} processes that may serve it, {label} {state}"),
        (all, more) => format!("{more} of {all} processes that may serve it do not run: {label} {state}"),
    })
}

/// One line for each.
pub(super) fn describe(servers: &[MountServer], details: &mut dyn Details) {
    for server in servers {
        let likely = if server.confidence == Confidence::Certain { "" } else { "likely " };
        details.line("server", &format!("{likely}{} {}", server.label(), server.state_phrase()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(pid: u32, state: ServerState, confidence: Confidence) -> MountServer {
        MountServer {
            pid,
            uid: Some(0),
            comm: "glusterfs".into(),
            state,
            waits_for: None,
            unit: None,
            container: None,
            pod: None,
            confidence,
        }
    }

    #[test]
    fn servers_are_told_that_do_not_run() {
        use Confidence::{Certain, Likely};
        use ServerState::{Running, Stopped, Traced, Waiting};
        let waiting = MountServer { waits_for: Some("NFS".into()), ..server(7, Waiting, Certain) };
        let user = MountServer { uid: Some(1000), ..server(7, Stopped, Certain) };
        for (servers, expected) in [
            (vec![], None),
            (vec![server(7, Running, Certain)], None),
            (
                vec![server(7, Stopped, Certain)],
                Some("the file server of that mount, glusterfs (pid 7), is stopped"),
            ),
            (
                vec![server(7, Traced, Certain)],
                Some("the file server of that mount, glusterfs (pid 7), is held by a tracer"),
            ),
            (
                vec![server(7, Stopped, Likely)],
                Some("what is likely the file server of that mount, glusterfs (pid 7), is stopped"),
            ),
            (
                vec![waiting],
                Some("the file server of that mount, glusterfs (pid 7), waits in the kernel for NFS"),
            ),
            (
                vec![user],
                Some(
                    "the file server of that mount, a process of uid 1000 called glusterfs (pid 7), is stopped",
                ),
            ),
            (
                vec![server(6, Running, Likely), server(7, Stopped, Likely)],
                Some("of 2 processes that may serve it, glusterfs (pid 7) is stopped"),
            ),
            (
                vec![server(6, Stopped, Likely), server(7, Waiting, Likely)],
                Some("2 of 2 processes that may serve it do not run: glusterfs (pid 6) is stopped"),
            ),
        ] {
            assert_eq!(servers_phrase(&servers).as_deref(), expected);
        }
    }
}
