//! Processes of the node that unmount something and wait in the kernel for a file system: programs that are there for that,
//! and calls of any other program (`calls.rs`).
//!
//! Found by state: all processes are looked at from time to time. A wait for a file server need not be an uninterruptible
//! one, so the function of the kernel tells, too. What runs under such a name may be anything; that it is root of the node
//! and waits there is what the kernel says.

use std::time::Duration;

use calls::Call;
pub(super) use calls::path as path_of_call;
use kevtmon_observation::{Ancestor, Fact, TaskFacts, TaskKey, TaskPlace, UnmountedMount, Unmounter};
use kevtmon_sources::beat::at_look;
use kevtmon_sources::procfs::dir::{Buffer, Dir};
use kevtmon_sources::procfs::mountinfo::{Mount, MountTable, is_fuse};
use kevtmon_sources::procfs::readers::{Job, Readers, WAITS, Waits};
use kevtmon_sources::procfs::root::is_root_of_node;
use kevtmon_sources::procfs::{Proc, Stat};
use kevtmon_sources::programs::named;
use kevtmon_sources::{Sender, spawn_until_closed, tell};
use kevtmon_types::clock::boot_now;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};

use super::file_server::server_of;

mod arguments;
mod calls;

/// Programs that unmount where they are called so: those of util-linux, FUSE and NFS, and those of many names.
const NAMES: [&str; 7] =
    ["umount", "fusermount", "fusermount3", "mount.nfs", "mount.nfs4", "busybox", "toybox"];
const PATIENCE: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_secs(20);
/// How often all threads are looked at, of which there are many.
const CALLS_INTERVAL: Duration = Duration::from_secs(60);
/// How often while one waits.
const OFTEN: Duration = Duration::from_secs(2);
/// Processes that are told at a time; only root of the node adds to them.
const MOST: usize = 64;
const SEARCH: Duration = Duration::from_millis(200);

pub fn start(readers: Readers, tx: Sender) {
    spawn_until_closed(tx.clone(), follow(readers, tx));
}

async fn follow(readers: Readers, tx: Sender) {
    let mut told: Option<Vec<Unmounter>> = None;
    let mut calls: Vec<Call> = Vec::new();
    let mut looked: Option<Instant> = None;
    loop {
        let is_due = looked.is_none_or(|at| at.elapsed() >= CALLS_INTERVAL);
        let known = || calls.iter().map(|call| (call.unmounter.task.key.tgid, call.tid)).collect();
        let look = Look { only: (!is_due).then(known) };
        let found = readers.reply(look, PATIENCE, "cannot look for processes that unmount").await;
        if let Some(Found { programs, calls: found }) = found {
            if is_due {
                looked = Some(Instant::now());
            }
            calls = going_on(&calls, found);
            let unmounters = all(programs, &calls);
            if told.as_ref() != Some(&unmounters) {
                told = Some(unmounters.clone());
                tell(&tx, Fact::Unmounters { unmounters }).await;
            }
        }
        let pause = if told.as_ref().is_some_and(|told| !told.is_empty()) { OFTEN } else { INTERVAL };
        sleep_until(at_look(pause)).await;
    }
}

/// Calls that were found, each since it was seen first.
fn going_on(known: &[Call], mut found: Vec<Call>) -> Vec<Call> {
    for call in &mut found {
        if let Some(before) = known.iter().find(|before| before.is_same(call))
            && let (Some(call), Some(before)) = (&mut call.unmounter.call, &before.unmounter.call)
        {
            call.since = before.since;
        }
    }
    found
}

fn all(programs: Vec<Unmounter>, calls: &[Call]) -> Vec<Unmounter> {
    let mut all = programs;
    for call in calls {
        if all.len() < MOST && !all.iter().any(|known| known.key() == call.unmounter.key()) {
            all.push(call.unmounter.clone());
        }
    }
    all
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Look {
    /// The threads, with their processes before them, that are looked at for calls; all, where it is absent.
    only: Option<Vec<(u32, u32)>>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Found {
    programs: Vec<Unmounter>,
    calls: Vec<Call>,
}

impl Job for Look {
    const NAME: &'static str = "unmounters";
    type Reply = Found;
    const IN_BACKGROUND: bool = true;

    fn run(&self, proc: &Proc) -> Self::Reply {
        let mut buffers = (Buffer::default(), Vec::new());
        let pids = proc.pids().unwrap_or_default();
        let found = pids.into_iter().filter_map(|tgid| unmounter(proc, tgid, &mut buffers));
        let programs = found.take(MOST).collect();
        Found { programs, calls: calls::look(proc, boot_now(), self.only.as_deref()) }
    }
}

fn unmounter(proc: &Proc, tgid: u32, (links, text): &mut (Buffer, Vec<u8>)) -> Option<Unmounter> {
    let dir = proc.dir(tgid).ok()?;
    let exe = dir.link(c"exe", links).ok()?;
    named(&exe, &NAMES)?;
    let exe = exe.into_owned();
    if !is_root_of_node(&dir, links, text) {
        return None;
    }
    let stat = proc.stat(tgid)?;
    if !arguments::is_unmounting(&stat.comm, &dir.text(c"cmdline", text).ok()?) {
        return None;
    }
    let function = dir.text(c"wchan", text).ok()?.into_owned();
    let waits = WAITS.iter().find(|kind| kind.is_in(&function));
    if waits.is_none() && stat.state != 'D' {
        return None;
    }
    let task = task(proc, tgid, exe, &stat)?;
    let mount = mount(proc, &dir, waits, text);
    // Much was read by its number.
    dir.is_there(text).then_some(Unmounter {
        task,
        comm: stat.comm,
        waits_for: waits.map(|kind| kind.name.to_owned()),
        mount,
        call: None,
    })
}

fn task(proc: &Proc, tgid: u32, exe: String, stat: &Stat) -> Option<TaskFacts> {
    Some(TaskFacts {
        key: TaskKey { tgid, start_ns: stat.start_ns, exec_id: 0 },
        place: TaskPlace::default(),
        uid: proc.uid(tgid)?,
        exe: Some(exe),
        cmdline: proc.cmdline(tgid),
        netns: proc.ns(tgid, "net").unwrap_or_default(),
        mntns: proc.ns(tgid, "mnt")?,
        cgroup: proc.cgroup(tgid),
        ancestors: parent(proc, stat.ppid).into_iter().collect(),
    })
}

/// Its parent, which need not have started it.
fn parent(proc: &Proc, ppid: u32) -> Option<Ancestor> {
    let stat = proc.stat(ppid)?;
    Some(Ancestor {
        tgid: ppid,
        start_ns: stat.start_ns,
        comm: stat.comm,
        exe: proc.exe(ppid),
        uid: proc.uid(ppid),
        cgroup: proc.cgroup(ppid),
        ..Ancestor::default()
    })
}

/// What it is to unmount by its arguments: of several, the one that is the path of the call in which it waits.
fn mount(proc: &Proc, dir: &Dir, waits: Option<&Waits>, text: &mut Vec<u8>) -> Option<UnmountedMount> {
    let table = dir.mount_table("/", |_| true).ok().filter(|table| !table.is_cut())?;
    let arguments = dir.text(c"cmdline", text).ok()?.into_owned();
    let mount = meant(&arguments, &table, || calls::path(dir, text))?;
    Some(server_of_mount(proc, mount, waits))
}

/// A mount, with who serves it, unless the wait is for another kind of file systems.
fn server_of_mount(proc: &Proc, mount: &Mount, waits: Option<&Waits>) -> UnmountedMount {
    let is_asked = is_fuse(&mount.fstype) && waits.is_none_or(|kind| kind.is_of(&mount.fstype));
    UnmountedMount {
        mountpoint: mount.mountpoint.clone(),
        fstype: mount.fstype.clone(),
        source: mount.source.clone(),
        server: is_asked.then(|| server_of(proc, mount, SEARCH)).flatten(),
    }
}

fn meant<'t>(
    arguments: &str,
    table: &'t MountTable,
    waits_at: impl FnOnce() -> Option<String>,
) -> Option<&'t Mount> {
    let at = |path: &str| table.at(path.trim_end_matches('/'));
    match *arguments::operands(arguments) {
        [] => None,
        [path] => at(path),
        // It unmounts one after the other, and any may be its turn.
        ref paths => waits_at().filter(|path| paths.contains(&path.as_str())).and_then(|path| at(&path)),
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_observation::UmountCall;

    use super::*;

    #[test]
    fn of_several_arguments_the_one_is_meant_in_whose_call_it_waits_and_else_none() {
        let table = MountTable::parse(
            "1 0 8:1 / / rw - ext4 d rw\n2 1 0:9 / /v rw - fuse.x g rw\n3 1 0:8 / /w rw - tmpfs t rw",
            "/",
        );
        let meant = |arguments: &str, waits_at: Option<&str>| {
            meant(arguments, &table, || waits_at.map(str::to_owned)).map(|mount| mount.mountpoint.as_str())
        };
        assert_eq!(meant("umount\0-f\0/v/\0", None), Some("/v"));
        for (waits_at, expected) in [(None, None), (Some("/v"), Some("/v")), (Some("/other"), None)] {
            for arguments in
                ["umount\0/v\0/w\0", "umount\0/w\0/v\0", "umount\0/v\0w\0", "umount\0/v\0/dev/b\0"]
            {
                assert_eq!(meant(arguments, waits_at), expected, "{arguments:?} {waits_at:?}");
            }
        }
        for arguments in ["umount\0/dev/b\0", "umount\0w\0", "umount\0-a\0/v\0", "umount\0/v\0/none\0"] {
            assert_eq!(meant(arguments, None), None, "{arguments:?}");
        }
    }

    #[test]
    fn a_process_that_waits_for_nothing_is_none() {
        let Found { programs, calls } = Look { only: None }.run(&Proc::default());
        let found = all(programs, &calls);
        // Threads of other tests may unmount just now.
        let own = u32::try_from(nix::unistd::gettid().as_raw()).unwrap();
        let is_other = |found: &Unmounter| found.call.as_ref().is_some_and(|call| call.tid != own);
        let is_ours = |found: &&Unmounter| found.task.key.tgid == std::process::id();
        assert!(found.iter().filter(is_ours).all(is_other), "{found:?}");
    }

    fn call(tgid: u32, switches: u64, since: u64) -> Call {
        let task = TaskFacts {
            key: TaskKey { tgid, start_ns: 1, exec_id: 0 },
            netns: 1,
            mntns: 2,
            ..TaskFacts::default()
        };
        let call = Some(UmountCall { tid: tgid + 1, path: None, since });
        let unmounter = Unmounter { task, comm: "csi".into(), waits_for: None, mount: None, call };
        Call { tid: tgid + 1, switches, unmounter }
    }

    #[test]
    fn a_call_lasts_as_long_as_its_thread_does_nothing_else() {
        let since = |calls: &[Call]| calls[0].unmounter.call.as_ref().map(|call| call.since);
        let first = going_on(&[], vec![call(50, 7, 100)]);
        let same = going_on(&first, vec![call(50, 7, 160)]);
        assert_eq!(since(&same), Some(100));
        assert_eq!(since(&going_on(&same, vec![call(50, 8, 220)])), Some(220), "it has run since");
        assert_eq!(since(&going_on(&same, vec![call(60, 7, 220)])), Some(220));
        assert_eq!(going_on(&same, Vec::new()), []);
    }

    #[test]
    fn a_program_that_unmounts_is_not_told_as_a_call_as_well() {
        let program = Unmounter { call: None, ..call(50, 7, 100).unmounter };
        let told = all(vec![program.clone()], &[call(50, 7, 100), call(60, 7, 100)]);
        assert_eq!(told, [program, call(60, 7, 100).unmounter]);
    }
}
