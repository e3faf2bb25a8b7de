//! Calls of `rbd` that take or remove a lock of an image, until they end: only then is it known whether they succeeded.

use std::collections::VecDeque;

use kevtmon_event::{Actor, Shared};
use kevtmon_observation::{BootNs, CniExit, RbdCommand, RbdExec};
use serde::{Deserialize, Serialize};

use super::rbd_calls::{RbdCall, goes_on};

/// Calls under way at most; then the oldest one is forgotten.
const RUNNING_MAX: usize = 64;
/// A call whose end was not seen is forgotten after this time.
const FORGOTTEN_NS: BootNs = 3600 * 1_000_000_000;

/// Those that are under way, the oldest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockCalls {
    running: VecDeque<RbdCall>,
}

impl LockCalls {
    /// A call began. Where a process executes another `rbd` after the first, or starts one for the same, as scripts around it do,
    /// the later one counts.
    pub fn started(&mut self, at: BootNs, exec: RbdExec, actor: Actor) {
        if matches!(exec.command, RbdCommand::Map | RbdCommand::Unmap | RbdCommand::Status) {
            return;
        }
        self.running.retain(|call| !goes_on(&call.exec, &exec, &actor));
        let call = RbdCall { exec, actor: Shared::new(actor), started: at };
        crate::bounded::push(&mut self.running, RUNNING_MAX, call);
    }

    /// A process ended; the call, if that was its end and it succeeded.
    pub fn ended(&mut self, exit: &CniExit) -> Option<RbdCall> {
        let index = self.running.iter().position(|call| call.is_of(exit))?;
        let call = self.running.remove(index)?;
        (exit.status == 0).then_some(call)
    }

    pub fn expire(&mut self, now: BootNs) {
        self.running.retain(|call| call.started.saturating_add(FORGOTTEN_NS) > now);
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_event::AncestorRef;
    use kevtmon_observation::{TaskKey, TaskRef};

    use super::*;

    fn exec(tgid: u32, command: RbdCommand) -> RbdExec {
        let key = TaskKey { tgid, start_ns: 5, exec_id: 1 };
        let actor = TaskRef { key, tid: tgid, comm: "rbd".into(), context: None };
        RbdExec {
            actor,
            command,
            pool: "kube".into(),
            namespace: None,
            image: "index".into(),
            snapshot: None,
            device: None,
            nbd: false,
            lock: Some("a".into()),
            shared: false,
        }
    }

    fn actor() -> Actor {
        kevtmon_testing::sample::deletion().actor.unwrap().into_inner()
    }

    fn exit(tgid: u32, status: u32) -> CniExit {
        CniExit { tgid, start_ns: 5, status }
    }

    #[test]
    fn a_call_counts_once_it_has_succeeded() {
        let mut calls = LockCalls::default();
        for tgid in 1..=3 {
            calls.started(u64::from(tgid), exec(tgid, RbdCommand::LockAdd), actor());
        }
        assert_eq!(calls.ended(&exit(9, 0)), None);
        assert_eq!(calls.ended(&CniExit { start_ns: 6, ..exit(1, 0) }), None, "another process of that id");
        assert_eq!(calls.ended(&exit(1, 2 << 8)), None, "it failed");
        assert_eq!(calls.ended(&exit(2, 9)), None, "a signal ended it");
        assert_eq!(calls.ended(&exit(3, 0)).map(|call| call.started), Some(3));
        assert_eq!(calls, LockCalls::default());
    }

    #[test]
    fn of_a_process_the_last_call_counts_and_of_mappings_none() {
        let mut calls = LockCalls::default();
        calls.started(1, exec(1, RbdCommand::LockAdd), actor());
        calls.started(2, exec(1, RbdCommand::LockRemove), actor());
        calls.started(3, exec(2, RbdCommand::Map), actor());
        assert_eq!(calls.ended(&exit(1, 0)).map(|call| call.exec.command), Some(RbdCommand::LockRemove));
        assert_eq!(calls.ended(&exit(2, 0)), None);
    }

    #[test]
    fn of_a_wrapper_what_it_has_started_counts() {
        let mut calls = LockCalls::default();
        calls.started(1, exec(1, RbdCommand::LockAdd), actor());
        let wrapper = AncestorRef { pid: 1, start_time_ns: Some("5".into()), ..AncestorRef::default() };
        let started = Actor { ancestors: vec![wrapper], ..actor() };
        calls.started(2, exec(2, RbdCommand::LockAdd), started);
        assert_eq!(calls.ended(&exit(2, 16 << 8)), None, "it failed");
        assert_eq!(calls.ended(&exit(1, 0)), None, "whatever the wrapper makes of that");
    }

    #[test]
    fn many_calls_without_an_end_are_forgotten() {
        let mut calls = LockCalls::default();
        for tgid in 1..=100 {
            calls.started(u64::from(tgid), exec(tgid, RbdCommand::LockAdd), actor());
        }
        assert_eq!(calls.running.len(), RUNNING_MAX);
        assert_eq!(calls.ended(&exit(36, 0)), None);
        assert!(calls.ended(&exit(37, 0)).is_some());
        calls.expire(FORGOTTEN_NS + 99);
        assert_eq!(calls.running.len(), 1);
    }
}
