//! What a file server does, by its threads: stopped, waiting, or neither.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use kevtmon_observation::ServerState;
use kevtmon_sources::procfs::dir::{Buffer, Dir, NumberName};
use kevtmon_sources::procfs::readers::WAITS;

/// Threads that are looked at. Of a process with more it is not said what they all do.
const THREADS_MAX: usize = 256;
/// Threads wait uninterruptibly for a moment all the time, as for a disk. One that has not run for so long is told.
const PAUSE: Duration = Duration::from_millis(50);

/// What the process does, and the kind of file systems for which a thread waits; `leader`: the state of its first thread.
#[expect(clippy::disallowed_methods, reason = "nothing announces that a thread goes on waiting")]
pub(super) fn state(process: &Dir, leader: char) -> (ServerState, Option<String>) {
    // A signal stops all threads, or each as soon as it returns from the kernel.
    if leader == 'T' {
        return (ServerState::Stopped, None);
    }
    let threads = Threads::of(process);
    let are_all = |states: &[char]| {
        threads.are_all
            && !threads.states.is_empty()
            && threads.states.iter().all(|state| states.contains(state))
    };
    if are_all(&['T']) {
        return (ServerState::Stopped, None);
    }
    if are_all(&['T', 't']) {
        return (ServerState::Traced, None);
    }
    if threads.waiting.is_empty() {
        return (ServerState::Running, None);
    }
    sleep(PAUSE);
    let now = Threads::of(process);
    let waits = |(tid, waiting): &(&u32, &Waiting)| {
        threads.waiting.get(*tid).is_some_and(|before| before == *waiting)
    };
    let mut still = now.waiting.iter().filter(waits).map(|(_, waiting)| waiting).peekable();
    if still.peek().is_none() {
        return (ServerState::Running, None);
    }
    let kind = still.find_map(|waiting| WAITS.iter().find(|kind| kind.is_in(&waiting.function)));
    (ServerState::Waiting, kind.map(|kind| kind.name.to_owned()))
}

#[derive(Debug, Default)]
struct Threads {
    states: Vec<char>,
    waiting: BTreeMap<u32, Waiting>,
    are_all: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Waiting {
    /// How often it has left the processor: where that is the same, it has not run in between.
    switches: Vec<String>,
    /// The function of the kernel in which it waits.
    function: String,
}

impl Threads {
    fn of(process: &Dir) -> Self {
        Self::read(process).unwrap_or_default()
    }

    fn read(process: &Dir) -> Option<Self> {
        let tasks = process.at(c"task").ok()?;
        let (mut links, mut text, mut tids) = (Buffer::default(), Vec::new(), Vec::new());
        while tids.len() <= THREADS_MAX && tasks.more_numbers(&mut links, &mut tids).ok()? {}
        let mut threads = Self { are_all: tids.len() <= THREADS_MAX, ..Self::default() };
        for tid in tids.into_iter().take(THREADS_MAX) {
            let Ok(thread) = tasks.at(NumberName::new(tid).as_c_str()) else { continue };
            let state = thread.text(c"stat", &mut text).ok().and_then(|stat| state_in(&stat));
            let Some(state) = state.filter(|state| !matches!(state, 'Z' | 'X')) else { continue };
            threads.states.push(state);
            if state == 'D' {
                let Ok(switches) = thread.text(c"status", &mut text).map(|status| switches(&status)) else {
                    continue;
                };
                let function = thread.text(c"wchan", &mut text).map(|function| function.into_owned());
                threads.waiting.insert(tid, Waiting { switches, function: function.unwrap_or_default() });
            }
        }
        Some(threads)
    }
}

/// What follows the name, which may have anything in it.
fn state_in(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

fn switches(status: &str) -> Vec<String> {
    status.lines().filter(|line| line.contains("voluntary_ctxt_switches:")).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::sync::mpsc::sync_channel;
    use std::time::Instant;

    use kevtmon_sources::procfs::Proc;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn told(pid: u32) -> ServerState {
        let proc = Proc::default();
        state(&proc.dir(pid).unwrap(), proc.stat(pid).unwrap().state).0
    }

    #[track_caller]
    fn wait_for(pid: u32, expected: ServerState) {
        let end = Instant::now() + PATIENCE;
        while told(pid) != expected {
            assert!(Instant::now() < end, "{:?} instead of {expected:?}", told(pid));
            std::thread::yield_now();
        }
    }

    struct Process(Child);

    impl Process {
        fn start() -> Self {
            Self(Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap())
        }

        fn pid(&self) -> libc::pid_t {
            self.0.id().try_into().unwrap()
        }

        fn signal(&self, signal: libc::c_int) {
            // SAFETY: a child that was not waited for yet, so the id is still its own.
            assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
        }
    }

    impl Drop for Process {
        fn drop(&mut self) {
            drop(self.0.kill());
            drop(self.0.wait());
        }
    }

    #[test]
    fn one_that_is_stopped_is_told_until_it_goes_on() {
        let process = Process::start();
        process.signal(libc::SIGSTOP);
        wait_for(process.0.id(), ServerState::Stopped);
        process.signal(libc::SIGCONT);
        wait_for(process.0.id(), ServerState::Running);
    }

    #[test]
    fn one_that_a_tracer_holds_is_told_from_one_that_a_signal_has_stopped() {
        let process = Process::start();
        let trace = |request: libc::c_uint| {
            let nothing = std::ptr::null_mut::<libc::c_void>();
            // SAFETY: these requests read and write no memory of this process.
            assert_eq!(unsafe { libc::ptrace(request, process.pid(), nothing, nothing) }, 0);
        };
        trace(libc::PTRACE_SEIZE);
        trace(libc::PTRACE_INTERRUPT);
        wait_for(process.0.id(), ServerState::Traced);
        let mut status = 0;
        // SAFETY: a status that outlives the call. It is stopped, so nothing is waited for.
        assert_eq!(unsafe { libc::waitpid(process.pid(), &raw mut status, 0) }, process.pid());
        trace(libc::PTRACE_DETACH);
        wait_for(process.0.id(), ServerState::Running);
    }

    #[test]
    fn one_with_a_thread_that_waits_uninterruptibly_is_told() {
        let (tell, tid) = sync_channel(1);
        let thread = std::thread::spawn(move || {
            // SAFETY: a system call without arguments.
            tell.send(unsafe { libc::gettid() }).unwrap();
            // Whoever has cloned so waits until the child ends, which it does by itself if the test fails.
            let flags = libc::c_long::from(libc::CLONE_VFORK | libc::SIGCHLD);
            // SAFETY: the child only makes system calls; nobody else waits for it.
            unsafe {
                let child = libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0);
                if child == 0 {
                    libc::alarm(60);
                    libc::pause();
                    libc::_exit(0);
                }
                libc::waitpid(child.try_into().unwrap(), std::ptr::null_mut(), 0);
            }
        });
        wait_for(std::process::id(), ServerState::Waiting);
        let children = format!("/proc/self/task/{}/children", tid.recv().unwrap());
        let child = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
        // SAFETY: it was not waited for yet, so the id is still its own.
        assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
        thread.join().unwrap();
    }
}
