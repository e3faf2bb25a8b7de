//! The mounts of servers of NFS that may not answer, and how many replies the kernel has received for each: from `mountstats` of
//! the host, for which the kernel asks no server.

use std::ops::ControlFlow;
use std::time::Duration;

use kevtmon_observation::{Fact, NfsMount, NfsMounts, NsInum, nfs_server};
use kevtmon_types::redact;
use serde::{Deserialize, Serialize};

use super::Sender;
use super::procfs::Proc;
use super::procfs::dir::MAX_TEXT;
use super::procfs::mountinfo::unescape;
use super::procfs::readers::{Job, Readers};

const PATIENCE: Duration = Duration::from_secs(10);
/// Mounts of one server that are reported.
const MOUNTS_MAX: usize = 256;
/// Of a line; those that count have a source and a path.
const LINE: usize = 8 << 10;

pub fn send(readers: &Readers, tx: &Sender, servers: Vec<String>) {
    let job = (Look { servers }, PATIENCE, "cannot look for mounts of NFS");
    readers.tell(tx, job, |found| found.flatten().map(Fact::NfsMounts));
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Look {
    servers: Vec<String>,
}

impl Job for Look {
    const NAME: &'static str = "nfs-mounts";
    /// None where not all could be read.
    type Reply = Option<Vec<NfsMounts>>;

    fn run(&self, proc: &Proc) -> Self::Reply {
        let (mntns, process) = proc.host_dir()?;
        let mut table = Table::new(&self.servers, mntns);
        let is_all = process.lines(c"mountstats", (MAX_TEXT, LINE), |line, _| {
            table.add_line(line);
            ControlFlow::Continue(())
        });
        is_all.ok()?.then_some(table.found)
    }
}

struct Table {
    found: Vec<NfsMounts>,
    /// The mount of which statistics follow, by its server.
    at: Option<usize>,
}

impl Table {
    fn new(servers: &[String], mntns: NsInum) -> Self {
        let of = |server: &String| {
            let (server, mounts) = (server.clone(), Vec::new());
            NfsMounts { server, mntns, mounts, omitted: 0 }
        };
        Self { found: servers.iter().map(of).collect(), at: None }
    }

    fn add_line(&mut self, line: &str) {
        if !line.starts_with('\t') {
            self.at = self.begin(line);
        } else if let Some(more) = replies(line)
            && let Some(mount) = self.at.and_then(|at| self.found.get_mut(at)?.mounts.last_mut())
        {
            mount.replies = mount.replies.saturating_add(more);
        }
    }

    fn begin(&mut self, line: &str) -> Option<usize> {
        let (source, path) = mount(line)?;
        let server = nfs_server(&source)?;
        let at = self.found.iter().position(|of| of.server == server)?;
        let of = self.found.get_mut(at)?;
        if of.mounts.len() >= MOUNTS_MAX {
            of.omitted += 1;
            return None;
        }
        of.mounts.push(NfsMount { source: redact::mount_source(&source), path, replies: 0 });
        Some(at)
    }
}

/// Source and path of a mount of NFS (`show_vfsstat`, fs/proc_namespace.c); blanks in both are escaped.
fn mount(line: &str) -> Option<(String, String)> {
    let (source, rest) = line.strip_prefix("device ")?.split_once(" mounted on ")?;
    let (path, rest) = rest.split_once(" with fstype ")?;
    let fstype = rest.split(' ').next()?;
    matches!(fstype, "nfs" | "nfs4").then(|| (unescape(source).into_owned(), unescape(path).into_owned()))
}

/// The replies that a transport has received (`xs_tcp_print_stats` and `xs_udp_print_stats`, net/sunrpc/xprtsock.c).
fn replies(line: &str) -> Option<u64> {
    let mut fields = line.strip_prefix("\txprt:\t")?.split(' ');
    let before = match fields.next()? {
        "tcp" | "rdma" => 6,
        "udp" => 3,
        _ => return None,
    };
    fields.nth(before)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Linux 6.1 writes it, without what is not read.
    const STATS: &str = "\
device rootfs mounted on / with fstype rootfs
device nas1:/export/a\\040b mounted on /k/pods/u/volumes/kubernetes.io~nfs/data with fstype nfs statvers=1.1
\topts:\trw,vers=3,proto=tcp,timeo=600,retrans=2,sec=sys,mountaddr=10.0.0.9,local_lock=none
\tage:\t4711
\tRPC iostats version: 1.1  p/v: 100003/3 (nfs)
\txprt:\ttcp 0 1 2 0 4 37 36 0 36 0 2 0 0
\txprt:\ttcp 0 1 2 0 4 5 4 0 36 0 2 0 0
\tper-op statistics
\t        NULL: 1 1 0 44 24 8 0 8 0

device [fd00::9]:/ mounted on /srv/six with fstype nfs4 statvers=1.1
\txprt:\tudp 700 1 12 11 0 36 0 2 0 0
device nas2:/ mounted on /srv/other with fstype nfs4 statvers=1.1
\txprt:\ttcp 0 1 2 0 4 37 99 0 36 0 2 0 0
device nas1:/export mounted on /srv/fuse with fstype fuse.x
no device mounted on /srv/none with fstype nfs4 statvers=1.1
\txprt:\ttcp 0 1 2 0 4 37 99 0 36 0 2 0 0
device nas1:/export mounted on /srv/a with fstype nfs4 statvers=1.1
\txprt:\tlocal 1 2 0 4 37 99 0 36 0 2 0 0
\txprt:\ttcp x
";

    fn table(servers: &[&str], text: &str) -> Vec<NfsMounts> {
        let servers: Vec<String> = servers.iter().map(|server| (*server).to_owned()).collect();
        let mut table = Table::new(&servers, 7);
        text.lines().for_each(|line| table.add_line(line));
        table.found
    }

    #[test]
    fn the_mounts_of_the_servers_are_told_with_the_replies_that_came_for_them() {
        let mount = |source: &str, path: &str, replies| NfsMount {
            source: source.to_owned(),
            path: path.to_owned(),
            replies,
        };
        let found = table(&["nas1", "fd00::9", "nas3"], STATS);
        let servers: Vec<&str> = found.iter().map(|of| of.server.as_str()).collect();
        assert_eq!(servers, ["nas1", "fd00::9", "nas3"]);
        let data = mount("nas1:/export/a b", "/k/pods/u/volumes/kubernetes.io~nfs/data", 40);
        assert_eq!(found[0].mounts, [data, mount("nas1:/export", "/srv/a", 0)]);
        assert_eq!(found[1].mounts, [mount("[fd00::9]:/", "/srv/six", 11)]);
        assert!(found[2].mounts.is_empty());
    }

    #[test]
    fn as_many_mounts_as_there_may_be_are_bounded() {
        let line =
            |number| format!("device nas1:/ mounted on /{number} with fstype nfs4\n\txprt:\tudp 0 0 0 1\n");
        let lines = (0..MOUNTS_MAX + 3).map(line);
        let found = table(&["nas1"], &lines.collect::<String>());
        assert_eq!((found[0].mounts.len(), found[0].omitted), (MOUNTS_MAX, 3));
        assert!(found[0].mounts.iter().all(|mount| mount.replies == 1));
    }
}
