//! What the kernel's NFS server exports, in any network namespace that a process is in.
//!
//! It keeps an entry for each path and client, and one for each handle of a file system. Each entry keeps the mount of its path in use
//! until it is removed (`svc_export_init` and `expkey_update`, fs/nfsd/export.c), also one that has expired, or that denies the path to
//! the client. /proc/fs/nfs/exports has neither of these, nor what other network namespaces have.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::io;
use std::ops::ControlFlow;

use kevtmon_observation::{Access, Holder};
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::dir::is_gone;
use kevtmon_sources::procfs::mountinfo::unescape;

use super::HOLDERS_MAX;
use crate::{Deadline, own_tgid};

/// Below /proc. Is there if the kernel has the server.
const SERVER: &str = "fs/nfs/exports";
/// The entries in the network namespace of a process, below its directory.
const ENTRIES: [&CStr; 2] = [c"net/rpc/nfsd.export/content", c"net/rpc/nfsd.fh/content"];
/// Of a list and of a line: the kernel limits neither.
const LIST_MAX: (u64, usize) = (1 << 20, 64 << 10);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Export {
    path: String,
    /// The network namespace, if it is another one than that of this process.
    netns: Option<String>,
}

impl Export {
    /// The mount that it keeps in use is not known.
    pub(super) fn holder(self) -> Holder {
        Holder { possible: true, source: self.netns, ..Holder::of_kernel(Access::Export, self.path) }
    }

    pub(super) fn is_of(&self, holder: &Holder) -> bool {
        (holder.path.as_ref(), &holder.source) == (Some(&self.path), &self.netns)
    }
}

/// Returns those with a wanted path, each once, and whether these are all: root of a user namespace may make any number of entries.
pub(super) fn exports(
    proc: &Proc,
    deadline: &Deadline,
    wanted: impl Fn(&str) -> bool,
) -> (BTreeSet<Export>, bool) {
    let mut found = BTreeSet::new();
    if !proc.root().join(SERVER).exists() {
        return (found, true);
    }
    let Ok(tgids) = proc.pids() else { return (found, false) };
    let own = own_tgid(proc).and_then(|own| proc.ns(own, "net"));
    let (mut read, mut refused, mut is_all) = (BTreeSet::new(), BTreeSet::new(), true);
    for tgid in tgids {
        if deadline.is_over() {
            return (found, false);
        }
        let Some(netns) = proc.ns(tgid, "net") else {
            is_all &= !proc.is_aside(tgid);
            continue;
        };
        if read.contains(&netns) {
            continue;
        }
        let other = Some(netns).filter(|netns| Some(*netns) != own).map(|netns| format!("net:[{netns}]"));
        let add = |path: String| {
            let export = Export { path, netns: other.clone() };
            let is_new = wanted(&export.path) && !found.contains(&export);
            if deadline.is_over() || is_new && found.len() >= HOLDERS_MAX {
                is_all = false;
                return ControlFlow::Break(());
            }
            if is_new {
                found.insert(export);
            }
            ControlFlow::Continue(())
        };
        match add_paths(proc, tgid, add) {
            Ok(has_all) => {
                is_all &= has_all;
                read.insert(netns);
            }
            Err(error) if is_gone(&error) => {}
            Err(_) => {
                refused.insert(netns);
            }
        }
    }
    (found, is_all && refused.is_subset(&read))
}

/// Adds the paths of the entries in the network namespace of a process, until no more are taken; returns whether none was too long.
fn add_paths(proc: &Proc, tgid: u32, mut add: impl FnMut(String) -> ControlFlow<()>) -> io::Result<bool> {
    let (process, mut is_all) = (proc.dir(tgid)?, true);
    for entries in ENTRIES {
        let has_all = process.lines(entries, LIST_MAX, |line, is_cut| {
            is_all &= !is_cut;
            match path(line).filter(|_| !is_cut) {
                Some(path) => add(unescape(path).into_owned()),
                None => ControlFlow::Continue(()),
            }
        })?;
        is_all &= has_all;
    }
    Ok(is_all)
}

/// The path in a line: `/v/a\040b<tab>*(rw,sync)`, of one that is no longer or not exported `# /v<tab>10.0.0.1()`, and of a handle
/// `* 6 0x0123 /v`.
fn path(line: &str) -> Option<&str> {
    let line = line.strip_prefix("# ").unwrap_or(line);
    let path = line.split_once('\t').map_or_else(|| line.rsplit(' ').next(), |(path, _)| Some(path));
    path.filter(|path| path.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use super::*;

    /// A /proc in which these processes are each in a network namespace with such entries.
    fn proc(processes: &[(u32, u32, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("fs/nfs")).unwrap();
        fs::write(root.path().join(SERVER), "").unwrap();
        for (tgid, netns, exports) in processes {
            let process = root.path().join(tgid.to_string());
            for directory in ["ns", "net/rpc/nfsd.export", "net/rpc/nfsd.fh"] {
                fs::create_dir_all(process.join(directory)).unwrap();
            }
            symlink(format!("net:[{netns}]"), process.join("ns/net")).unwrap();
            fs::write(process.join("net/rpc/nfsd.export/content"), exports).unwrap();
            let handles = "#domain fsidtype fsid [path]\n* 6 0x0123 /of\\040handle\n* 1 0x00000007\n";
            fs::write(process.join("net/rpc/nfsd.fh/content"), handles).unwrap();
        }
        root
    }

    fn found(root: &tempfile::TempDir) -> (Vec<(String, Option<String>)>, bool) {
        let deadline = Deadline::after(Duration::from_secs(60));
        let (found, is_all) = exports(&Proc::new(root.path()), &deadline, |path| path != "/elsewhere");
        (found.into_iter().map(|export| (export.path, export.netns)).collect(), is_all)
    }

    #[test]
    fn entries_that_are_denied_or_expired_and_those_of_other_namespaces_are_found() {
        let own = "#path domain(flags)\n/v/a\\040b\t*(rw,sync)\n# /denied\t10.0.0.1()\n/elsewhere\t*(rw)\n";
        let root = proc(&[(7, 1, own), (8, 1, "/never read\t*()\n"), (9, 2, "/v/a\\040b\t*(ro)\n")]);
        symlink("7", root.path().join("self")).unwrap();
        let other = || Some("net:[2]".to_owned());
        let expected = [
            ("/denied", None),
            ("/of handle", None),
            ("/of handle", other()),
            ("/v/a b", None),
            ("/v/a b", other()),
        ];
        let expected = expected.map(|(path, netns)| (path.to_owned(), netns));
        assert_eq!(found(&root), (expected.to_vec(), true));
    }

    #[test]
    fn what_could_not_be_read_or_is_too_long_or_too_many_is_told() {
        let unreadable = proc(&[(7, 1, ""), (8, 2, "")]);
        let list = unreadable.path().join("8/net/rpc/nfsd.export/content");
        fs::remove_file(&list).unwrap();
        // A read of a directory fails.
        fs::create_dir(&list).unwrap();
        assert!(!found(&unreadable).1);
        let long = format!("/v\t{}\n", "client,".repeat(LIST_MAX.1));
        assert!(!found(&proc(&[(7, 1, &long)])).1);
        let many: Vec<String> = (0..HOLDERS_MAX).map(|number| format!("/v/{number}\t*()\n")).collect();
        let (found_there, is_all) = found(&proc(&[(7, 1, &many.concat())]));
        assert_eq!((found_there.len(), is_all), (HOLDERS_MAX, false), "and that of the handle");
        let none = tempfile::tempdir().unwrap();
        assert_eq!(found(&none), (Vec::new(), true), "the kernel has no such server");
    }
}
