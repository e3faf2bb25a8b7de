//! Calls of `rbd` that map and unmap images: who the kernel's own message of that does not name.

use kevtmon_event::{Actor, AncestorRef, Shared};
use kevtmon_observation::{BootNs, CniExit, RbdCommand, RbdExec, RbdImage};
use serde::{Deserialize, Serialize};

/// What a call did is told within this time.
const WINDOW_NS: BootNs = 60 * 1_000_000_000;
/// Calls at most. Where one was forgotten before its time, nobody is named until that is over.
const CALLS_MAX: usize = 64;

/// Those of late, the oldest first.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MapCalls {
    calls: Vec<RbdCall>,
    /// When the last of those began that were forgotten before their time.
    forgotten: Option<BootNs>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RbdCall {
    /// What it was made for.
    pub exec: RbdExec,
    pub actor: Shared<Actor>,
    #[serde(alias = "at")]
    pub started: BootNs,
}

impl MapCalls {
    /// A call began. Where a process executes another `rbd` after the first, or starts one for the same, as scripts around it do,
    /// that is the same call.
    pub fn started(&mut self, at: BootNs, exec: &RbdExec, actor: &Actor) {
        if !matches!(exec.command, RbdCommand::Map | RbdCommand::Unmap) {
            return;
        }
        self.calls.retain(|call| !goes_on(&call.exec, exec, actor));
        if self.calls.len() >= CALLS_MAX {
            self.forgotten = Some(self.calls.remove(0).started);
        }
        self.calls.push(RbdCall { exec: exec.clone(), actor: Shared::new(actor.clone()), started: at });
    }

    /// A process ended. A call that failed did nothing.
    pub fn ended(&mut self, exit: &CniExit) {
        self.calls.retain(|call| exit.status == 0 || !call.is_of(exit));
    }

    /// Who mapped or unmapped an image, as was told now, if exactly one call of late was for that. It is of nothing else then.
    pub fn take(&mut self, now: BootNs, command: RbdCommand, image: &RbdImage) -> Option<Shared<Actor>> {
        self.expire(now);
        let fits = |call: &RbdCall| call.started <= now && call.exec.command == command && call.is_for(image);
        let mut fitting = self.calls.iter().enumerate().filter(|(_, call)| fits(call)).map(|(at, _)| at);
        let only = fitting.next().filter(|_| fitting.next().is_none() && self.forgotten.is_none())?;
        Some(self.calls.remove(only).actor)
    }

    pub fn expire(&mut self, now: BootNs) {
        let is_recent = |at: BootNs| at.saturating_add(WINDOW_NS) >= now;
        self.calls.retain(|call| is_recent(call.started));
        self.forgotten = self.forgotten.filter(|at| is_recent(*at));
    }
}

/// Whether a call is an earlier one, made by the same process or by one of those above it.
pub(super) fn goes_on(earlier: &RbdExec, exec: &RbdExec, actor: &Actor) -> bool {
    let (caller, process) = (earlier.actor.key, exec.actor.key);
    if (caller.tgid, caller.start_ns) == (process.tgid, process.start_ns) {
        return true;
    }
    let start = caller.start_ns.to_string();
    let is_caller =
        |above: &AncestorRef| above.pid == caller.tgid && above.start_time_ns.as_ref() == Some(&start);
    exec.is_for_same_as(earlier) && actor.ancestors.iter().any(is_caller)
}

impl RbdCall {
    pub(super) fn is_of(&self, exit: &CniExit) -> bool {
        (self.exec.actor.key.tgid, self.exec.actor.key.start_ns) == (exit.tgid, exit.start_ns)
    }

    fn is_for(&self, image: &RbdImage) -> bool {
        match self.exec.device {
            Some(number) => number == image.number,
            None => {
                let RbdExec { pool, namespace, image: name, snapshot, .. } = &self.exec;
                (pool, namespace, name, snapshot)
                    == (&image.pool, &image.namespace, &image.image, &image.snapshot)
                    && self.exec.nbd == image.number.is_nbd()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_observation::{RbdNumber, TaskKey, TaskRef};
    use kevtmon_types::clock::SECOND as S;

    use super::*;

    fn exec(tgid: u32, command: RbdCommand, image: &str) -> RbdExec {
        let key = TaskKey { tgid, start_ns: 5, exec_id: 1 };
        RbdExec {
            actor: TaskRef { key, tid: tgid, comm: "rbd".into(), context: None },
            command,
            pool: "kube".into(),
            namespace: None,
            image: image.into(),
            snapshot: None,
            device: None,
            nbd: false,
            lock: None,
            shared: false,
        }
    }

    fn image(number: u32, image: &str) -> RbdImage {
        RbdImage { number: number.into(), pool: "kube".into(), image: image.into(), ..RbdImage::default() }
    }

    fn after(calls: &[(BootNs, RbdExec)]) -> MapCalls {
        let mut all = MapCalls::default();
        for (at, exec) in calls {
            let actor = kevtmon_testing::sample::deletion().actor.unwrap().into_inner();
            all.started(*at, exec, &Actor { pid: exec.actor.key.tgid, ..actor });
        }
        all
    }

    /// A call of a process that another one has started.
    fn below(calls: &mut MapCalls, at: BootNs, exec: &RbdExec, parent: (u32, Option<BootNs>)) {
        let (pid, start) = parent;
        let shell = AncestorRef { pid: 90, start_time_ns: Some("7".into()), ..AncestorRef::default() };
        let start_time_ns = start.map(|start| start.to_string());
        let wrapper = AncestorRef { pid, start_time_ns, ..AncestorRef::default() };
        let actor = kevtmon_testing::sample::deletion().actor.unwrap().into_inner();
        calls.started(
            at,
            exec,
            &Actor { pid: exec.actor.key.tgid, ancestors: vec![shell, wrapper], ..actor },
        );
    }

    fn taken(calls: &mut MapCalls, now: BootNs, command: RbdCommand, of: &RbdImage) -> Option<u32> {
        calls.take(now, command, of).map(|actor| actor.pid)
    }

    #[test]
    fn the_only_call_that_fits_is_named_once() {
        let a = image(0, "a");
        let mut calls = after(&[(S, exec(1, RbdCommand::Map, "a")), (S, exec(2, RbdCommand::Map, "b"))]);
        assert_eq!(taken(&mut calls, S - 1, RbdCommand::Map, &a), None, "it came later");
        assert_eq!(taken(&mut calls, 2 * S, RbdCommand::Unmap, &a), None);
        let snapshot = RbdImage { snapshot: Some("nightly".into()), ..a.clone() };
        assert_eq!(taken(&mut calls, 2 * S, RbdCommand::Map, &snapshot), None);
        assert_eq!(taken(&mut calls, 2 * S, RbdCommand::Map, &a), Some(1));
        assert_eq!(taken(&mut calls, 2 * S, RbdCommand::Map, &a), None);
        assert_eq!(taken(&mut calls, 62 * S, RbdCommand::Map, &image(1, "b")), None, "it is too long ago");
    }

    #[test]
    fn of_two_that_fit_nobody_is_named_and_one_process_is_one_call() {
        let a = image(0, "a");
        let mut two = after(&[(S, exec(1, RbdCommand::Map, "a")), (S, exec(2, RbdCommand::Map, "a"))]);
        assert_eq!(taken(&mut two, S, RbdCommand::Map, &a), None);
        let mut one = after(&[(S, exec(1, RbdCommand::Map, "a")), (S, exec(1, RbdCommand::Map, "a"))]);
        assert_eq!(taken(&mut one, S, RbdCommand::Map, &a), Some(1));
        let mut failed = after(&[(S, exec(1, RbdCommand::Map, "a")), (S, exec(2, RbdCommand::Map, "a"))]);
        failed.ended(&CniExit { tgid: 2, start_ns: 5, status: 0 });
        failed.ended(&CniExit { tgid: 1, start_ns: 5, status: 16 << 8 });
        assert_eq!(taken(&mut failed, S, RbdCommand::Map, &a), Some(2));
    }

    #[test]
    fn a_wrapper_and_what_it_starts_for_the_same_are_one_call_where_it_is_known_to_be_its_parent() {
        let (a, map) = (image(0, "a"), |tgid| exec(tgid, RbdCommand::Map, "a"));
        let mut one = after(&[(S, map(1))]);
        below(&mut one, S, &map(2), (1, Some(5)));
        assert_eq!(taken(&mut one, S, RbdCommand::Map, &a), Some(2));
        // It tries again.
        let mut again = after(&[(S, map(1))]);
        for tgid in [2, 3] {
            below(&mut again, S, &map(tgid), (1, Some(5)));
            again.ended(&CniExit { tgid, start_ns: 5, status: u32::from(tgid == 2) << 8 });
        }
        again.ended(&CniExit { tgid: 1, start_ns: 5, status: 1 << 8 });
        assert_eq!(taken(&mut again, S, RbdCommand::Map, &a), Some(3));
        for parent in [(1, Some(6)), (1, None), (4, Some(5))] {
            let mut two = after(&[(S, map(1))]);
            below(&mut two, S, &map(2), parent);
            assert_eq!(taken(&mut two, S, RbdCommand::Map, &a), None, "another process: {parent:?}");
        }
        let mut other = after(&[(S, map(1))]);
        below(&mut other, S, &exec(2, RbdCommand::Map, "b"), (1, Some(5)));
        assert_eq!(taken(&mut other, S, RbdCommand::Map, &a), Some(1), "it is for something else");
    }

    #[test]
    fn an_unmap_names_the_image_or_its_device() {
        let by_device =
            RbdExec { device: Some(3.into()), image: String::new(), ..exec(1, RbdCommand::Unmap, "") };
        let mut calls = after(&[(S, by_device), (S, exec(2, RbdCommand::Unmap, "b"))]);
        assert_eq!(taken(&mut calls, S, RbdCommand::Unmap, &image(0, "a")), None);
        assert_eq!(taken(&mut calls, S, RbdCommand::Unmap, &image(3, "a")), Some(1));
        assert_eq!(taken(&mut calls, S, RbdCommand::Unmap, &image(4, "b")), Some(2));
    }

    #[test]
    fn a_call_is_for_the_driver_that_it_names() {
        let by_nbd = RbdExec { nbd: true, ..exec(1, RbdCommand::Map, "a") };
        let mut calls = after(&[(S, by_nbd), (S, exec(2, RbdCommand::Map, "a"))]);
        let mapped = RbdImage { number: RbdNumber::Nbd(0), ..image(0, "a") };
        assert_eq!(taken(&mut calls, S, RbdCommand::Map, &mapped), Some(1));
        assert_eq!(taken(&mut calls, S, RbdCommand::Map, &image(0, "a")), Some(2));
    }

    #[test]
    fn where_a_call_was_forgotten_nobody_is_named_for_a_while() {
        let many = |tgid: u32| (u64::from(tgid) * S / 10, exec(tgid, RbdCommand::Map, &format!("{tgid}")));
        let mut calls = after(&(1..=65).map(many).collect::<Vec<_>>());
        assert_eq!(calls.calls.len(), CALLS_MAX);
        assert_eq!(taken(&mut calls, 7 * S, RbdCommand::Map, &image(0, "65")), None);
        assert_eq!(taken(&mut calls, 61 * S, RbdCommand::Map, &image(0, "65")), Some(65));
    }
}
