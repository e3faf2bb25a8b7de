//! The advice on an open incident, carried out as the daemon gives it.
//!
//! A step is called by the kind of the incident and the form of its command, as `volume-busy/detach`: a unit test of the
//! daemon looks for each in the calls of [`carry_out`] and [`is_understood`].

use std::process::{Command, Stdio};

use crate::daemon::{Daemon, program};
use crate::event::Event;
use crate::eventually;
use crate::image::installed;
use crate::netns::NetnsPath;
use crate::process::{Finished, finish, write_script};

/// A cluster that nobody serves.
const NO_CLUSTER: &str = "apiVersion: v1
kind: Config
clusters: [{name: none, cluster: {server: 'http://127.0.0.1:1'}}]
contexts: [{name: none, context: {cluster: none}}]
current-context: none
";

/// The incident as `incidents` shows it now; the newest episode.
#[must_use]
pub fn incident(daemon: &Daemon, id: &str) -> Event {
    let all = daemon.find(&["incidents", "--all"]);
    let found = all.into_iter().rfind(|incident| incident.text("/id") == id);
    found.unwrap_or_else(|| unreachable!("incident {id} is listed"))
}

/// Waits for an incident of this kind to open, and returns its id.
#[must_use]
pub fn opened(daemon: &mut Daemon, kind: &str, fits: impl Fn(&Event) -> bool) -> String {
    let opened = daemon.wait_for(kind, |event| event.is_incident("incident.opened", kind) && fits(event));
    opened.text("/incident/id").to_owned()
}

/// Waits for the end of an incident that was put right: its message says so, and nothing is left to be done.
pub fn resolved(daemon: &mut Daemon, id: &str) -> Event {
    let closed = daemon.wait_for("incident.closed", |event| {
        event.kind() == "incident.closed" && event.text("/incident/id") == id
    });
    closed.expect("/incident/close_reason", "resolved");
    let expected = format!("resolved: {}", closed.text("/incident/summary"));
    closed.expect("/message", expected.as_str());
    assert!(closed.list("/incident/advice").is_empty(), "{closed}");
    // The store may take longer than who prints.
    eventually!(incident(daemon, id).list("/advice").is_empty(), "nothing is left to be done");
    closed
}

/// The command of this step on an incident, if it is offered.
#[must_use]
pub fn offered(incident: &Event, step: &str) -> Option<String> {
    let form = step.strip_prefix(incident.text("/kind"))?.strip_prefix('/')?;
    let found = incident.list("/advice").iter().find(|advice| advice["form"] == form)?;
    found["command"].as_str().map(str::to_owned)
}

/// Waits until this step is offered, and carries it out as an operator does who pastes it into a shell.
#[track_caller]
pub fn carry_out(daemon: &Daemon, id: &str, step: &str) -> Finished {
    let command = wait_for_offer(daemon, id, step);
    answered(in_shell(&command, daemon), &command)
}

/// Panics unless a command succeeded, or says what its answer lacks: where not even root may read process 1, nobody knows
/// all holders of a mount.
#[track_caller]
fn answered(ran: Finished, command: &str) -> Finished {
    let is_partial = ran.status.code() == Some(2) && ran.stdout.contains("\nincomplete: ");
    if is_partial { ran } else { ran.succeeded(command) }
}

/// The same where the tool, or what it talks to, may not be on this machine: if it is installed, it gets as far as looking
/// for that, so the words are right.
#[track_caller]
pub fn is_understood(daemon: &Daemon, id: &str, step: &str, unreachable: &[&str]) -> Option<Finished> {
    let command = wait_for_offer(daemon, id, step);
    let tool = command.split(' ').next().unwrap_or_default();
    if installed(tool).is_none() {
        not_carried_out(&command);
        return None;
    }
    let ran = in_shell(&command, daemon);
    let is_right = ran.status.success() || unreachable.iter().any(|words| ran.stderr.contains(words));
    assert!(is_right, "{command}: {}{}", ran.stdout, ran.stderr);
    Some(ran)
}

/// Says so where a tool is missing.
#[expect(clippy::print_stderr, reason = "the run says what was not carried out")]
pub fn not_carried_out(command: &str) {
    eprintln!("not carried out, for its tool is not installed: {command}");
}

/// Carries out everything that only looks; there is something.
#[track_caller]
pub fn look(daemon: &Daemon, id: &str) {
    let incident = incident(daemon, id);
    let reads = incident.list("/advice").iter().filter(|step| step["risk"] == "read");
    let commands: Vec<&str> = reads.filter_map(|step| step["command"].as_str()).collect();
    assert!(!commands.is_empty(), "{incident}");
    for command in commands {
        let _ = answered(in_shell(command, daemon), command);
    }
}

#[track_caller]
fn wait_for_offer(daemon: &Daemon, id: &str, step: &str) -> String {
    eventually!(
        offered(&incident(daemon, id), step).is_some(),
        "{step} is offered: {}",
        incident(daemon, id)
    );
    let incident = incident(daemon, id);
    offered(&incident, step).unwrap_or_else(|| unreachable!("{step} in {incident}"))
}

/// Runs a command. `kevtmon` is this one, with this daemon.
fn in_shell(command: &str, daemon: &Daemon) -> Finished {
    let tools = daemon.directory().join("tools");
    let kevtmon = tools.join("kevtmon");
    if !kevtmon.exists() {
        std::fs::create_dir(&tools).expect("a directory can be made");
        let script = format!(
            "#!/bin/sh\nexec {} \"$@\" --socket {} --state-dir {}\n",
            program().display(),
            daemon.socket().display(),
            daemon.state().display()
        );
        write_script(&kevtmon, &script);
    }
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap_or_default());
    // No cluster is at hand.
    let cluster = daemon.directory().join("kubeconfig");
    std::fs::write(&cluster, NO_CLUSTER).expect("a file can be written");
    // What only bash understands is the form in which hidden characters are shown.
    let shell = if command.contains("$'") { "bash" } else { "sh" };
    // Where the daemon takes another network for the node's, so does its operator.
    let node = NetnsPath::of_process(daemon.pid());
    let mut run = if node.inum() == NetnsPath::of_process(std::process::id()).inum() {
        Command::new(shell)
    } else {
        let mut run = Command::new("nsenter");
        run.arg(format!("--net={}", node.path().display())).arg(shell);
        run
    };
    run.args(["-c", command]).env("PATH", path).env("KUBECONFIG", cluster).stdin(Stdio::null());
    finish(&mut run, shell.as_ref())
}
