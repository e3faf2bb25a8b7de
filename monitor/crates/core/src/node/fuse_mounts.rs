//! The FUSE file systems of the host, and how their servers end.

use std::collections::VecDeque;

use kevtmon_event::{Actor, Shared};
use kevtmon_observation::{BootNs, CniExit, FuseMount, FuseServer, SignalSent};
use kevtmon_types::clock::SECOND;
use serde::{Deserialize, Serialize};

/// `SIGKILL` of signal(7).
const SIGKILL: u32 = 9;
/// `SIGHUP`, `SIGINT`, `SIGQUIT` and `SIGTERM`: they ask a process to end.
const ASKS: [u32; 4] = [1, 2, 3, 15];
/// How long before a process exits by itself a signal may have asked it to.
const REACTION: BootNs = 30 * SECOND;
/// The unit of a start that was read of /proc.
const TICK: BootNs = 10_000_000;
const REMEMBERED: usize = 256;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FuseMounts {
    pub known: Vec<FuseMount>,
    signals: VecDeque<Signal>,
    ends: VecDeque<ServerEnd>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Signal {
    at: BootNs,
    tgid: u32,
    start_ns: BootNs,
    number: u32,
    sender: Option<Shared<Actor>>,
    /// Whether the process sent it to itself, and whether the kernel did.
    is_own: bool,
    by_kernel: bool,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerEnd {
    /// Process id (thread group).
    pub tgid: u32,
    start_ns: BootNs,
    pub at: BootNs,
    /// As wait(2) has it: the signal in the lowest seven bits, the exit code in the second byte.
    pub status: u32,
    /// The signal by which it ended, or which it got just before.
    pub signal: Option<u32>,
    /// Who sent that, if it was seen and not the kernel itself.
    pub sender: Option<Shared<Actor>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_kernel: bool,
    /// Whether it ended by that very signal, rather than that it caught it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_signal: bool,
}

impl FuseMounts {
    pub fn unserved(&self) -> impl Iterator<Item = &FuseMount> {
        self.known.iter().filter(|mount| mount.unserved)
    }

    /// The servers, by process and its start.
    pub fn servers(&self) -> impl Iterator<Item = (u32, BootNs)> {
        self.known.iter().flat_map(|mount| &mount.servers).map(|server| (server.tgid, server.start_ns))
    }

    /// Of several equal signals the last one counts, but for the one that needs no second. Those that a process sends itself, as
    /// to end by a signal that it has caught, are kept beside those of others.
    pub fn signalled(&mut self, at: BootNs, sent: &SignalSent, sender: Option<Shared<Actor>>) {
        let is_own = sender.as_ref().is_some_and(|actor| actor.pid == sent.tgid);
        let is_same = |signal: &Signal| {
            (signal.tgid, signal.start_ns, signal.number, signal.is_own)
                == (sent.tgid, sent.start_ns, sent.signal, is_own)
        };
        if sent.signal == SIGKILL && self.signals.iter().any(is_same) {
            return;
        }
        self.signals.retain(|signal| !is_same(signal));
        let SignalSent { tgid, start_ns, signal: number, by_kernel, .. } = *sent;
        let signal = Signal { at, tgid, start_ns, number, sender, is_own, by_kernel };
        crate::bounded::push(&mut self.signals, REMEMBERED, signal);
    }

    /// A process has ended; returns whether it was a server.
    pub fn ended(&mut self, at: BootNs, exit: &CniExit) -> bool {
        let process = (exit.tgid, exit.start_ns);
        if !self.servers().any(|server| is_process(server, process)) {
            return false;
        }
        // The last two threads may both tell.
        if self.ends.iter().any(|end| (end.tgid, end.start_ns) == process) {
            return true;
        }
        // 0 where it exited.
        let by = exit.status & 0x7f;
        let is_cause = |signal: &&Signal| {
            let is_due = signal.at.saturating_add(REACTION) >= at;
            (signal.tgid, signal.start_ns) == (exit.tgid, exit.start_ns)
                && (is_due || by == SIGKILL)
                && if by == 0 { ASKS.contains(&signal.number) } else { signal.number == by }
        };
        let mut causes = self.signals.iter().filter(is_cause);
        let is_own = causes.clone().any(|signal| signal.is_own);
        let signal = causes.clone().rfind(|signal| !signal.is_own).or_else(|| causes.next_back());
        let end = ServerEnd {
            tgid: exit.tgid,
            start_ns: exit.start_ns,
            at,
            status: exit.status,
            signal: signal.map(|signal| signal.number).or((by != 0).then_some(by)),
            sender: signal.and_then(|signal| signal.sender.clone()),
            by_kernel: signal.is_some_and(|signal| signal.by_kernel),
            by_signal: by != 0 && !is_own,
        };
        crate::bounded::push(&mut self.ends, REMEMBERED, end);
        true
    }

    /// How the last server of a file system ended.
    pub fn end_of(&self, servers: &[FuseServer]) -> Option<&ServerEnd> {
        let is_its = |end: &&ServerEnd| {
            servers.iter().any(|server| is_process((end.tgid, end.start_ns), (server.tgid, server.start_ns)))
        };
        self.ends.iter().rfind(is_its)
    }
}

impl ServerEnd {
    /// Whether a signal ended it, rather than that it exited.
    pub fn was_killed(&self) -> bool {
        self.status & 0x7f != 0
    }
}

fn is_process(one: (u32, BootNs), other: (u32, BootNs)) -> bool {
    (one.0, one.1 / TICK) == (other.0, other.1 / TICK)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: BootNs = 71 * TICK + 5;

    fn served() -> FuseMounts {
        let server = FuseServer { tgid: 7, start_ns: 71 * TICK, ..FuseServer::default() };
        let mount = FuseMount { servers: vec![server], ..FuseMount::default() };
        FuseMounts { known: vec![mount], ..FuseMounts::default() }
    }

    fn sent(signal: u32) -> SignalSent {
        SignalSent { sender: None, by_kernel: false, tgid: 7, start_ns: START, signal }
    }

    fn sender(pid: u32) -> Option<Shared<Actor>> {
        let actor = kevtmon_testing::sample::deletion().actor.unwrap();
        Some(Shared::new(Actor { pid, ..actor.into_inner() }))
    }

    /// The signal, and the process that sent it, of an exit with this status at 100 s.
    fn end(signals: &[(u64, u32, u32)], status: u32) -> (Option<u32>, Option<u32>) {
        let mut mounts = served();
        for (at, signal, pid) in signals {
            mounts.signalled(at * SECOND, &sent(*signal), sender(*pid));
        }
        let exit = CniExit { tgid: 7, start_ns: START, status };
        assert!(mounts.ended(100 * SECOND, &exit));
        let servers = mounts.known[0].servers.clone();
        let end = mounts.end_of(&servers).unwrap();
        (end.signal, end.sender.as_ref().map(|actor| actor.pid))
    }

    #[test]
    fn who_ended_a_server_is_who_sent_the_signal_that_it_ended_by() {
        assert_eq!(end(&[(98, 9, 1), (99, 9, 2)], 9), (Some(9), Some(1)), "the first one kills");
        assert_eq!(end(&[(80, 15, 1), (99, 15, 2)], 15 << 8), (Some(15), Some(2)));
        assert_eq!(end(&[(60, 15, 1)], 0), (None, None), "long before");
        assert_eq!(end(&[(60, 1, 1)], 1), (Some(1), None), "it caught that one");
        assert_eq!(end(&[(99, 10, 1)], 0), (None, None), "that asks for something else");
        assert_eq!(end(&[(60, 9, 1)], 9), (Some(9), Some(1)), "it waited in the kernel");
        assert_eq!(end(&[(99, 15, 1)], 11), (Some(11), None), "it crashed");
        assert_eq!(end(&[], 9), (Some(9), None));
        assert_eq!(end(&[(99, 15, 1), (99, 9, 2)], 15), (Some(15), Some(1)));
        assert_eq!(
            end(&[(98, 15, 1), (99, 15, 7)], 15),
            (Some(15), Some(1)),
            "it caught that, and ended itself"
        );
        assert_eq!(end(&[(99, 6, 7)], 6), (Some(6), Some(7)));
    }

    #[test]
    fn the_end_of_another_process_is_none_of_a_server() {
        let mut mounts = served();
        for exit in [
            CniExit { tgid: 8, start_ns: START, status: 9 },
            CniExit { tgid: 7, start_ns: START + TICK, status: 9 },
        ] {
            assert!(!mounts.ended(1, &exit));
        }
    }
}
