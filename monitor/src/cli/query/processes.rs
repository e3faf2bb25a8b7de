//! Drops advice that names a process whose id another one has by now.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::event::Advice;
use crate::sources::procfs::Proc;

/// A file of another process can hang for as long as that one likes. What is not known by then is not shown.
const LOOK: Duration = Duration::from_secs(1);

/// Keeps the steps that name no process, or one that still runs.
pub(super) fn retain_current<'a>(advice: impl IntoIterator<Item = &'a mut Vec<Advice>>) {
    let mut all: Vec<&mut Vec<Advice>> = advice.into_iter().collect();
    let named =
        |step: &Advice| Some((step.process.as_ref()?.pid, step.process.as_ref()?.seen_ns.parse().ok()?));
    let wanted: Vec<(u32, u64)> = all.iter().flat_map(|steps| steps.iter().filter_map(named)).collect();
    if wanted.is_empty() {
        return;
    }
    let (sent, seen) = mpsc::sync_channel(wanted.len());
    thread::spawn(move || {
        let proc = Proc::default();
        for (pid, at) in wanted {
            // A process with this id that started later is another one.
            let is_same = proc.is_alive(pid) && proc.stat(pid).is_some_and(|stat| stat.start_ns <= at);
            if sent.send(((pid, at), is_same)).is_err() {
                return;
            }
        }
    });
    let mut current = BTreeMap::new();
    while let Ok((process, is_same)) = seen.recv_timeout(LOOK) {
        current.insert(process, is_same);
    }
    let is_current = |step: &Advice| {
        step.process.is_none() || named(step).is_some_and(|process| current.get(&process) == Some(&true))
    };
    all.iter_mut().for_each(|steps| steps.retain(is_current));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{NamedProcess, Risk};

    fn step(pid: u32, seen_ns: u64) -> Advice {
        let process = Some(NamedProcess { pid, seen_ns: seen_ns.to_string() });
        Advice {
            text: "end it".into(),
            form: String::new(),
            command: format!("kill {pid}"),
            risk: Risk::Destructive,
            process,
        }
    }

    #[test]
    fn a_pid_is_shown_only_while_it_is_that_of_the_process_that_was_seen() {
        let me = std::process::id();
        let started = Proc::default().stat(me).unwrap().start_ns;
        let plain = Advice { process: None, ..step(1, 0) };
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let mut steps = vec![
            plain.clone(),
            step(me, started),
            // Seen before this process started: its id was another one's.
            step(me, started - 1),
            step(child.id(), u64::MAX),
        ];
        retain_current([&mut steps]);
        assert_eq!(steps, [plain, step(me, started)]);
    }
}
