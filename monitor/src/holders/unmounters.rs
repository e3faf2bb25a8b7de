//! Processes of the node that unmount something and wait in the kernel for a file system.
//!
//! Found by state: all processes are looked at from time to time. A wait for a file server need not be an uninterruptible
//! one, so the function of the kernel tells, too. What runs under such a name may be anything; that it is root of the node
//! and waits there is what the kernel says.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::file_server::server_of;
use crate::observation::{Ancestor, Fact, TaskFacts, TaskKey, TaskPlace, UnmountedMount, Unmounter};
use crate::sources::procfs::Proc;
use crate::sources::procfs::dir::{Buffer, Dir};
use crate::sources::procfs::mountinfo::{Mount, MountTable, is_fuse};
use crate::sources::procfs::readers::{Answer, Job, Readers, WAITS};
use crate::sources::procfs::root::is_root_of_node;
use crate::sources::programs::named;
use crate::sources::{Sender, observed_now};

/// Programs that unmount where they are called so: those of util-linux, FUSE and NFS, and those of many names.
const NAMES: [&str; 7] =
    ["umount", "fusermount", "fusermount3", "mount.nfs", "mount.nfs4", "busybox", "toybox"];
/// Longest wait for a reader.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often all processes are looked at.
const INTERVAL: Duration = Duration::from_secs(20);
/// How often while one waits.
const OFTEN: Duration = Duration::from_secs(2);
/// Processes that are told at a time; only root of the node adds to them.
const MOST: usize = 64;
/// Longest search for the server of one file system.
const SEARCH: Duration = Duration::from_millis(200);

/// Follows such processes until the receiver of observations is gone.
pub fn start(readers: Readers, tx: Sender) {
    tokio::spawn(follow(readers, tx));
}

async fn follow(readers: Readers, tx: Sender) {
    let mut told: Option<Vec<Unmounter>> = None;
    loop {
        match readers.ask(Look, PATIENCE).await {
            Ok(Answer { reply, .. }) if told.as_ref() != Some(&reply) => {
                told = Some(reply.clone());
                if tx.send(observed_now(Fact::Unmounters { unmounters: reply })).await.is_err() {
                    return;
                }
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "cannot look for processes that unmount"),
        }
        let pause = if told.as_ref().is_some_and(|told| !told.is_empty()) { OFTEN } else { INTERVAL };
        tokio::select! {
            () = sleep(pause) => {}
            () = tx.closed() => return,
        }
    }
}

/// Looks for such processes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Look;

impl Job for Look {
    const NAME: &'static str = "unmounters";
    type Reply = Vec<Unmounter>;

    fn in_background(&self) -> bool {
        true
    }

    fn run(&self, proc: &Proc) -> Answer<Self::Reply> {
        let mut buffers = (Buffer::default(), Vec::new());
        let pids = proc.pids().unwrap_or_default();
        let found = pids.into_iter().filter_map(|tgid| unmounter(proc, tgid, &mut buffers));
        found.take(MOST).collect::<Vec<_>>().into()
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
    if !is_unmounting(&stat.comm, &dir.text(c"cmdline", text).ok()?) {
        return None;
    }
    let function = dir.text(c"wchan", text).ok()?.into_owned();
    let waits = WAITS.iter().find(|kind| kind.is_in(&function));
    if waits.is_none() && stat.state != 'D' {
        return None;
    }
    let mntns = proc.ns(tgid, "mnt")?;
    let key = TaskKey { tgid, start_ns: stat.start_ns, exec_id: 0 };
    let task = TaskFacts {
        key,
        place: TaskPlace::default(),
        uid: proc.uid(tgid)?,
        exe: Some(exe),
        cmdline: proc.cmdline(tgid),
        netns: proc.ns(tgid, "net").unwrap_or_default(),
        mntns,
        cgroup: proc.cgroup(tgid),
        ancestors: parent(proc, stat.ppid).into_iter().collect(),
    };
    let mount = mount(proc, &dir, text);
    // Much was read by its number.
    dir.is_there(text).then_some(Unmounter {
        task,
        comm: stat.comm,
        waits_for: waits.map(|kind| kind.name.to_owned()),
        mount,
    })
}

/// Whether a program of that name unmounts. The same ones mount: those of NFS by another name, that of FUSE with other
/// arguments.
fn is_unmounting(comm: &str, arguments: &str) -> bool {
    let mut arguments = arguments.split('\0').skip(1);
    match comm {
        "umount" => true,
        "fusermount" | "fusermount3" => arguments.any(|argument| {
            // What follows an `o` is its value.
            let mut short = argument.strip_prefix('-').unwrap_or_default().chars().take_while(|c| *c != 'o');
            argument == "--unmount" || !argument.starts_with("--") && short.any(|c| c == 'u')
        }),
        _ => comm.starts_with("umount."),
    }
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

/// What is mounted at the last of its arguments that is a mount point.
fn mount(proc: &Proc, dir: &Dir, text: &mut Vec<u8>) -> Option<UnmountedMount> {
    let table = MountTable::parse(&dir.text(c"mountinfo", text).ok()?, "/");
    let arguments = dir.text(c"cmdline", text).ok()?;
    let mount = meant(&arguments, &table)?;
    let server = is_fuse(&mount.fstype).then(|| server_of(proc, mount, SEARCH)).flatten();
    Some(UnmountedMount {
        mountpoint: mount.mountpoint.clone(),
        fstype: mount.fstype.clone(),
        source: mount.source.clone(),
        server,
    })
}

fn meant<'t>(arguments: &str, table: &'t MountTable) -> Option<&'t Mount> {
    let paths = arguments.split('\0').skip(1).filter(|argument| argument.starts_with('/'));
    paths.filter_map(|path| table.at(path.trim_end_matches('/'))).last()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_meant_is_the_last_argument_at_which_something_is_mounted() {
        let table = MountTable::parse(
            "1 0 8:1 / / rw - ext4 d rw\n2 1 0:9 / /v rw - fuse.x g rw\n3 1 0:8 / /w rw - tmpfs t rw",
            "/",
        );
        let meant = |arguments: &str| meant(arguments, &table).map(|mount| mount.mountpoint.as_str());
        assert_eq!(meant("umount\0-f\0/v/\0"), Some("/v"));
        assert_eq!(meant("umount\0/v\0/w\0/none\0"), Some("/w"));
        assert_eq!(meant("/v\0w\0"), None);
    }

    #[test]
    fn what_mounts_is_not_taken_to_unmount() {
        for (comm, arguments, expected) in [
            ("umount", "umount\0/v\0", true),
            ("umount.nfs4", "umount.nfs4\0/v\0", true),
            ("mount.nfs", "mount.nfs\0server:/x\0/v\0", false),
            ("fusermount3", "fusermount3\0-u\0-z\0/v\0", true),
            ("fusermount", "fusermount\0-uz\0/v\0", true),
            ("fusermount", "fusermount\0-o\0rw\0--\0/mnt/u\0", false),
            ("fusermount", "fusermount\0-ouser=a\0/v\0", false),
            ("busybox", "busybox\0mount\0", false),
        ] {
            assert_eq!(is_unmounting(comm, arguments), expected, "{arguments:?}");
        }
    }

    #[test]
    fn a_process_that_waits_for_nothing_is_none() {
        let found = Look.run(&Proc::default()).reply;
        assert!(found.iter().all(|found| found.task.key.tgid != std::process::id()), "{found:?}");
    }
}
