//! The kubelet and the runtimes of the node as processes: which run, since when, in which version, and how they end.
//!
//! Found by state: all processes are looked at when the daemon starts, from time to time, and often after one of these has
//! ended, since it is about to be started again. The hook `exec` tells at once which process to look at. The end is told by the kernel (pidfd_open(2)): such a descriptor pins no
//! more than the process id. What is taken for such a process, see [`programs`](super::programs).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use kevtmon_observation::{BootNs, ComponentExit, ComponentFacts, Fact, NsInum};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::kubelet::{host_namespaces, remote_runtime};
use super::procfs::pidfd::{PidFd, is_running};
use super::procfs::readers::{Job, Readers};
use super::procfs::{Proc, pidfd};
use super::programs::{Buffers, Program};
use super::{Sender, spawn_until_closed, tell};
use crate::beat::at_look;

mod as_daemon;
mod kubernetes;
mod plugin_dirs;
mod version;

const PROGRAMS: [(&str, &str); 9] = [
    ("kubelet", "kubelet"),
    ("hyperkube", "kubelet"),
    ("dockerd", "dockerd"),
    ("containerd", "containerd"),
    ("docker-containerd", "containerd"),
    // Also the containerd that it starts.
    ("k3s", "containerd"),
    ("crio", "crio"),
    ("cri-dockerd", "cri-dockerd"),
    ("podman", "podman"),
];
const NAMES: [&str; 9] = {
    let mut names = [""; 9];
    let mut index = 0;
    while index < names.len() {
        names[index] = PROGRAMS[index].0;
        index += 1;
    }
    names
};
const PATIENCE: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_secs(60);
/// Pauses between the looks after one has ended; the last one several times.
const PAUSES_MS: [u64; 3] = [250, 1_000, 2_000];
const LOOKS: usize = 17;
/// Components that are followed; a node has a handful, and only root adds to them.
const FOLLOWED_MAX: usize = 64;
/// Processes that wait to be looked at; what there is no room for is found with all others.
const EXECUTED_MAX: usize = 64;
/// After a look at single processes there is a rest of so many times its length: whoever can execute programs under
/// these names makes the daemon look for a twentieth of the time, at most.
const RESTS: u32 = 19;

/// Follows the components of this node until the receiver of observations is gone. What is sent to it are processes that
/// have executed a program with the name of one: they are looked at at once.
pub fn start(readers: Readers, tx: Sender) -> mpsc::Sender<u32> {
    let (executed_tx, executed) = mpsc::channel(EXECUTED_MAX);
    spawn_until_closed(tx.clone(), follow(readers, executed, tx));
    executed_tx
}

/// Has a process looked at. One for which there is no room is found with the next look at all of them.
pub fn look_at(components: Option<&mpsc::Sender<u32>>, tgid: u32) {
    let _ = components.map(|components| components.try_send(tgid));
}

async fn follow(readers: Readers, mut executed: mpsc::Receiver<u32>, tx: Sender) {
    let (ended_tx, mut ended) = mpsc::channel(FOLLOWED_MAX);
    let mut follower = Follower { readers, tx, ended: ended_tx, known: BTreeMap::new(), is_told: false };
    let mut looks = LOOKS;
    let mut next_look = Instant::now();
    loop {
        follower.look(None).await;
        let next = match PAUSES_MS.get(looks).or(PAUSES_MS.last()) {
            Some(ms) if looks < LOOKS => Instant::now() + Duration::from_millis(*ms),
            _ => at_look(INTERVAL),
        };
        looks = looks.saturating_add(1);
        let mut rest = std::pin::pin!(sleep_until(next));
        loop {
            let mut processes = Vec::new();
            tokio::select! {
                () = &mut rest => break,
                Some(exit) = ended.recv() => {
                    follower.ended(exit).await;
                    // Its successor may run already.
                    looks = 0;
                    rest.set(sleep_until(Instant::now() + Duration::from_millis(PAUSES_MS[0])));
                }
                // Before the first whole look there is nothing that one process could be added to.
                1.. = async {
                    sleep_until(next_look).await;
                    executed.recv_many(&mut processes, EXECUTED_MAX).await
                }, if follower.is_told => {
                    let began = Instant::now();
                    follower.look(which(processes)).await;
                    next_look = after_rest(began, Instant::now());
                }
            }
        }
    }
}

/// Which processes to look at, of those that have told: all, where some may have found no room.
fn which(told: Vec<u32>) -> Option<Vec<u32>> {
    (told.len() < EXECUTED_MAX).then_some(told)
}

fn after_rest(began: Instant, ended: Instant) -> Instant {
    ended + (ended.saturating_duration_since(began) * RESTS).min(INTERVAL)
}

/// What is known of components.
struct Follower {
    readers: Readers,
    tx: Sender,
    ended: mpsc::Sender<ComponentExit>,
    known: BTreeMap<(u32, BootNs), ComponentFacts>,
    is_told: bool,
}

impl Follower {
    /// Looks at these processes, or at all, and sends the list if it has grown.
    async fn look(&mut self, processes: Option<Vec<u32>>) {
        let look = Look { known: self.known.values().cloned().collect(), processes };
        let found = self.readers.reply(look, PATIENCE, "cannot look for the kubelet and runtimes").await;
        let Some(found) = found else { return };
        let before = self.known.len();
        for facts in found {
            if self.known.len() < FOLLOWED_MAX && !self.known.contains_key(&facts.key()) {
                tokio::spawn(await_end(facts.key(), self.ended.clone()));
                self.known.insert(facts.key(), facts);
            }
        }
        if self.is_told && self.known.len() == before {
            return;
        }
        self.is_told = true;
        let components = self.known.values().cloned().collect();
        tell(&self.tx, Fact::Components { components }).await;
    }

    async fn ended(&mut self, exit: ComponentExit) {
        self.known.remove(&(exit.tgid, exit.started_ns));
        tell(&self.tx, Fact::ComponentExited(exit)).await;
    }
}

/// Waits until a process has ended, and sends how.
async fn await_end((tgid, started_ns): (u32, BootNs), ended: mpsc::Sender<ComponentExit>) {
    let waited = match PidFd::open(tgid) {
        Ok(process) => pidfd::ended(process).await,
        Err(error) => Err(error),
    };
    let (code, signal) = match waited {
        Ok(Some(status)) if status & 0x7f == 0 => (Some((status >> 8) & 0xff), None),
        Ok(Some(status)) => (None, Some(status & 0x7f)),
        Ok(None) => (None, None),
        Err(error) => {
            // Before 5.3, or without a descriptor to spare.
            while error.raw_os_error() != Some(libc::ESRCH) && is_running(tgid) {
                sleep(Duration::from_secs(1)).await;
            }
            (None, None)
        }
    };
    // The receiver is gone when the daemon ends.
    let _ = ended.send(ComponentExit { tgid, started_ns, code, signal }).await;
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Look {
    /// What was found before: their programs are not read again.
    known: Vec<ComponentFacts>,
    /// Which ones may be one; all of them if there is no list.
    processes: Option<Vec<u32>>,
}

impl Job for Look {
    const NAME: &'static str = "components";
    type Reply = Vec<ComponentFacts>;
    const WAITS_FOR_DISK: bool = true;

    fn run(&self, proc: &Proc) -> Self::Reply {
        let hosts = host_namespaces(proc, std::process::id());
        let mut buffers = Buffers::default();
        let pids = self.processes.clone().unwrap_or_else(|| proc.pids().unwrap_or_default());
        pids.into_iter().filter_map(|tgid| self.component(proc, tgid, &hosts, &mut buffers)).collect()
    }
}

impl Look {
    fn component(
        &self,
        proc: &Proc,
        tgid: u32,
        hosts: &[(NsInum, std::path::PathBuf)],
        buffers: &mut Buffers,
    ) -> Option<ComponentFacts> {
        let program = Program::of(proc, tgid, &NAMES, buffers)?;
        let (_, name) = PROGRAMS.into_iter().find(|(file, _)| *file == program.name)?;
        if !as_daemon::is_run(program.name, &program.arguments) {
            return None;
        }
        let stat = proc.stat(tgid)?;
        // One of them is about to execute another program, such as umount or runc: the child is none, and its end not its parent's.
        if stat.is_forked() {
            return None;
        }
        let started_ns = stat.start_ns;
        if let Some(known) = self.known.iter().find(|known| known.key() == (tgid, started_ns)) {
            return Some(known.clone());
        }
        let is_hosts = hosts.iter().any(|(mntns, _)| *mntns == program.mntns);
        let exe = is_hosts || hosts.iter().any(|(_, root)| is_there(root, &program));
        let mut cni_dirs = plugin_dirs::of(name, &program.arguments, &proc.path(tgid, "root"));
        // Other programs lie beside its own, as in k3s before it had a directory for plugins.
        cni_dirs.retain(|directory| program.exe.rsplit_once('/').is_none_or(|(own, _)| own != directory));
        let facts = ComponentFacts {
            name: name.to_owned(),
            tgid,
            started_ns,
            exe: exe.then(|| program.exe.clone()),
            // That of k3s is not that of the containerd in it.
            version: (program.name != "k3s")
                .then(|| version::of_file(&proc.path(tgid, "exe"), name == "kubelet"))
                .flatten(),
            remote_runtime: (name == "kubelet").then(|| remote_runtime(&program.arguments)).flatten(),
            cni_dirs,
        };
        program.dir.is_there(&mut Vec::new()).then_some(facts)
    }
}

/// Whether the file that a process runs has the same path below a root directory.
fn is_there(root: &Path, program: &Program) -> bool {
    let path = root.join(program.exe.trim_start_matches('/'));
    fs::metadata(path)
        .is_ok_and(|there| (there.dev(), there.ino()) == (program.file.dev(), program.file.ino()))
}

#[cfg(test)]
mod tests {
    use kevtmon_ebpf::exec::COMPONENT_COMMS;
    use kevtmon_ebpf::task::COMM_LEN;

    use super::*;

    #[test]
    fn a_process_that_is_no_component_is_none() {
        let found = Look { known: Vec::new(), processes: None }.run(&Proc::default());
        assert!(found.iter().all(|facts| facts.tgid != std::process::id()), "{found:?}");
        assert!(found.iter().all(|facts| PROGRAMS.iter().any(|(_, name)| *name == facts.name)), "{found:?}");
    }

    #[test]
    fn the_kernel_programs_look_for_the_same_names() {
        let kept = NAMES.map(|name| {
            let mut comm = [0; COMM_LEN];
            let len = name.len().min(COMM_LEN - 1);
            comm[..len].copy_from_slice(&name.as_bytes()[..len]);
            [&comm[..8], &comm[8..]].map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
        });
        assert_eq!(kept, COMPONENT_COMMS);
    }

    #[test]
    fn only_the_processes_that_are_asked_for_are_looked_at() {
        let all = Look { known: Vec::new(), processes: Some(Vec::new()) };
        assert_eq!(all.run(&Proc::default()), []);
    }

    #[test]
    fn looks_at_what_is_executed_without_end_take_a_twentieth_of_the_time_and_miss_none() {
        let began = Instant::now();
        let mut now = began;
        for _ in 0..100 {
            now = after_rest(now, now + Duration::from_millis(30));
        }
        assert_eq!(now - began, Duration::from_millis(30 * 20 * 100));
        assert_eq!(after_rest(began, began + PATIENCE), began + PATIENCE + INTERVAL);
        assert_eq!(which(vec![7]), Some(vec![7]));
        assert_eq!(which(vec![7; EXECUTED_MAX]), None, "the next one may have found no room");
    }

    #[tokio::test]
    async fn the_end_of_a_process_is_told_with_how_it_ended_where_the_kernel_does() {
        let (tx, mut ended) = mpsc::channel(1);
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "read word; exit 7"]).stdin(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let key = (child.id(), 5);
        let waiting = tokio::spawn(await_end(key, tx));
        tokio::task::yield_now().await;
        drop(child.stdin.take());
        tokio::task::spawn_blocking(move || child.wait()).await.unwrap().unwrap();
        let exit = ended.recv().await.unwrap();
        waiting.await.unwrap();
        assert_eq!((exit.tgid, exit.started_ns, exit.signal), (key.0, key.1, None));
        assert!(matches!(exit.code, None | Some(7)), "{exit:?}");
    }
}
