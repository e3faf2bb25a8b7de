//! Drops advice about a process that has ended, whose id another one has by now, or that has let go of what the step is for.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use kevtmon_event::{Advice, NamedProcess};
use kevtmon_sources::procfs::Proc;

/// A file of another process can hang for as long as that one likes. What is not known by then is not shown.
const LOOK: Duration = Duration::from_secs(1);

/// Keeps the steps that are about no process, or about one that still runs and is where it was seen. Returns the other
/// processes.
pub(in crate::cli) fn retain_current<'a>(
    advice: impl IntoIterator<Item = &'a mut Vec<Advice>>,
) -> BTreeSet<u32> {
    let mut all: Vec<&mut Vec<Advice>> = advice.into_iter().collect();
    let mut wanted: Vec<NamedProcess> = Vec::new();
    for process in all.iter().flat_map(|steps| steps.iter()).filter_map(|step| step.process.as_ref()) {
        if !wanted.contains(process) {
            wanted.push(process.clone());
        }
    }
    if wanted.is_empty() {
        return BTreeSet::new();
    }
    let (sent, seen) = mpsc::sync_channel(wanted.len());
    thread::spawn(move || {
        let proc = Proc::default();
        for process in wanted {
            let is_current = is_current(&proc, &process);
            if sent.send((process, is_current)).is_err() {
                return;
            }
        }
    });
    let mut current = Vec::new();
    while let Ok((process, is_current)) = seen.recv_timeout(LOOK) {
        current.extend(is_current.then_some(process));
    }
    let mut others = BTreeSet::new();
    for steps in &mut all {
        steps.retain(|step| {
            let other = step.process.as_ref().filter(|process| !current.contains(process));
            others.extend(other.map(|process| process.pid));
            other.is_none()
        });
    }
    others
}

/// A process with this id that started later is another one.
fn is_current(proc: &Proc, process: &NamedProcess) -> bool {
    let NamedProcess { pid, seen_ns, links } = process;
    let is_same = || {
        let at = seen_ns.parse::<u64>().ok()?;
        Some(proc.is_alive(*pid) && proc.stat(*pid)?.start_ns <= at)
    };
    let is_as_it_was =
        || links.iter().any(|link| proc.link(*pid, &link.link).is_some_and(|now| link.leads_to(&now)));
    // The process of the links is the one that was looked at, if it is that before and after.
    is_same() == Some(true) && (links.is_empty() || is_as_it_was() && is_same() == Some(true))
}

#[cfg(test)]
mod tests {
    use kevtmon_event::{Action, ProcessLink, Risk};

    use super::*;

    fn step(pid: u32, seen_ns: u64) -> Advice {
        let process = Some(NamedProcess { pid, seen_ns: seen_ns.to_string(), links: Vec::new() });
        Advice {
            text: "end it".into(),
            form: String::new(),
            command: format!("kill {pid}"),
            risk: Risk::Destructive,
            action: Action::KillHolder,
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
        let others = retain_current([&mut steps]);
        assert_eq!(steps, [plain, step(me, started)]);
        assert_eq!(others, BTreeSet::from([me, child.id()]));
    }

    #[test]
    fn a_step_is_shown_only_while_its_process_is_where_it_was_seen() {
        let me = std::process::id();
        let proc = Proc::default();
        let started = proc.stat(me).unwrap().start_ns;
        let with = |links: &[(&str, &str)]| {
            let links = links
                .iter()
                .map(|(link, target)| ProcessLink { link: (*link).to_owned(), target: (*target).to_owned() });
            let process = NamedProcess { pid: me, seen_ns: started.to_string(), links: links.collect() };
            is_current(&proc, &process)
        };
        let (cwd, net) = (proc.link(me, "cwd").unwrap(), proc.link(me, "ns/net").unwrap());
        let above = cwd.rsplit_once('/').unwrap().0;
        assert!(with(&[]) && with(&[("cwd", &cwd)]) && with(&[("cwd", above)]) && with(&[("ns/net", &net)]));
        assert!(with(&[("cwd", "/nowhere"), ("cwd", &cwd)]), "one is enough");
        let beside = &cwd[..cwd.len() - 1];
        for (link, target) in [("cwd", "/nowhere"), ("cwd", beside), ("ns/net", "net:[1]"), ("fd/9999", &cwd)]
        {
            assert!(!with(&[(link, target)]), "{link} {target}");
        }
    }
}
