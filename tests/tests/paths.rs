//! Random trees of directories, links, mounts, bind mounts and covers, in the namespace of the host and in others, and
//! random ways to name a mount in them: what an event says of a refused unmount is what the kernel did.
//!
//! The caller asks the kernel which mount its path leads to, and ends with the call. `KEVTMON_TEST_SEED` repeats a run,
//! `KEVTMON_TEST_ROUNDS` makes it longer.

#![allow(clippy::expect_used, reason = "a test whose set-up fails must fail")]

use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use kevtmon_tests::cgroup::{Cgroup, Hierarchy};
use kevtmon_tests::daemon::{Daemon, WITHOUT_BUDGETS, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::process::{Running, comm, hold_by_cwd};
use kevtmon_tests::random::{Random, rounds};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

/// Trees, unless `KEVTMON_TEST_ROUNDS` says otherwise.
const ROUNDS: u64 = 4;
/// Unmounts in each.
const CALLS: usize = 4;

/// A line of the mount table of this thread's namespace.
#[derive(Debug, Clone)]
struct Line {
    id: u64,
    device: String,
    point: String,
}

fn table() -> Vec<Line> {
    let text = std::fs::read_to_string("/proc/thread-self/mountinfo").expect("a mount table");
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let id = fields[0].parse().expect("an id");
        Line { id, device: fields[2].to_owned(), point: fields[4].to_owned() }
    };
    text.lines().map(line).collect()
}

/// A directory tree below a base.
struct Tree<'r> {
    random: &'r mut Random,
    base: PathBuf,
    directories: Vec<PathBuf>,
    named: usize,
    /// They stay where they are while others cover it.
    holders: Vec<Running>,
}

impl Tree<'_> {
    fn name(&mut self, prefix: &str) -> String {
        self.named += 1;
        format!("{prefix}{}", self.named)
    }

    fn directory(&mut self) -> PathBuf {
        self.directories.retain(|path| path.is_dir());
        self.random.pick(&self.directories).clone()
    }

    fn grow(&mut self) {
        let at = self.directory();
        match self.random.below(6) {
            0 | 1 => {
                let path = at.join(self.name("d"));
                std::fs::create_dir(&path).expect("a directory can be made");
                self.directories.push(path);
            }
            2 if at != self.base => {
                let other = self.directory();
                // A directory that is bound below itself, or above, is a tree without end to look at.
                if !at.starts_with(&other) && !other.starts_with(&at) {
                    bind(&other, &at);
                }
            }
            _ if at != self.base => self.mount(&at),
            _ => {}
        }
    }

    /// Mounts a tmpfs, often on top of another one, with some directories in it.
    fn mount(&mut self, at: &Path) {
        let none = MsFlags::empty();
        mount(Some("kevtmon"), at, Some("tmpfs"), none, None::<&str>).expect("a tmpfs can be mounted");
        for _ in 0..2 {
            let path = at.join(self.name("d"));
            std::fs::create_dir(&path).expect("a directory can be made");
            self.directories.push(path);
        }
    }

    /// Some way to write an absolute path, as seen from a root directory.
    fn spell(&mut self, target: &Path, root: &Path, links: usize) -> String {
        let below = target.strip_prefix(root).expect("a root above");
        let mut text = String::new();
        let mut at = root.to_owned();
        let names: Vec<&OsStr> = below.iter().collect();
        for (index, name) in names.iter().enumerate() {
            at.push(name);
            let is_last = index + 1 == names.len();
            if links > 0 && self.random.one_in(3) {
                text = self.link(&at, root, links);
                continue;
            }
            match self.random.below(6) {
                0 => text.push_str("/."),
                1 => text.push('/'),
                2 if !is_last => write!(text, "/{}/..", name.display()).expect("a string"),
                _ => {}
            }
            write!(text, "/{}", name.display()).expect("a string");
        }
        text
    }

    /// A new link to a directory, itself named through links, as seen from a root directory.
    fn link(&mut self, target: &Path, root: &Path, links: usize) -> String {
        let name = self.name("l");
        let mut places = self.directories.clone();
        places.retain(|place| place.is_dir() && place.starts_with(root) && !place.starts_with(target));
        if places.is_empty() {
            return format!("/{}", target.strip_prefix(root).expect("a root above").display());
        }
        let place = self.random.pick(&places).clone();
        let to = if self.random.one_in(2) {
            self.spell(target, root, links - 1)
        } else {
            relative(target, &place)
        };
        symlink(to, place.join(&name)).expect("a link can be made");
        format!("/{}/{name}", place.strip_prefix(root).expect("a root above").display())
    }
}

fn bind(from: &Path, to: &Path) {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("a bind mount can be made");
}

/// The way from one directory to another, both without links.
fn relative(to: &Path, from: &Path) -> String {
    let shared = to.iter().zip(from.iter()).take_while(|(one, other)| one == other).count();
    let mut way: Vec<String> = vec!["..".to_owned(); from.iter().count() - shared];
    way.extend(to.iter().skip(shared).map(|name| name.to_string_lossy().into_owned()));
    if way.is_empty() { ".".to_owned() } else { way.join("/") }
}

/// What the caller of an unmount found out from the kernel.
#[derive(Debug, Clone, Copy)]
struct Truth {
    pid: u32,
    /// The mount that its path leads to; 0 if to none.
    mount: u64,
    errno: i32,
}

/// Unmounts in a process that has this root and current directory and is in this control group, and ends at once.
fn umount(path: &str, root: &Path, cwd: &Path, group: &Cgroup) -> Truth {
    let c = |text: &[u8]| CString::new(text).expect("no NUL");
    let below = Path::new("/").join(cwd.strip_prefix(root).unwrap_or(Path::new("")));
    let (path, root) = (c(path.as_bytes()), c(root.as_os_str().as_bytes()));
    let cwd = c(below.as_os_str().as_bytes());
    let procs = OpenOptions::new().write(true).open(group.procs()).expect("a control group");
    let mut ends = [0; 2];
    // SAFETY: writes two descriptors.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: just made, and owned by nothing else.
    let [mut read, write] = ends.map(|end| unsafe { File::from_raw_fd(end) });
    // SAFETY: the child only makes system calls, with what was prepared before.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: as above; every pointer is to something alive.
        unsafe {
            let mut found = MaybeUninit::<libc::statx>::zeroed().assume_init();
            let mut answer = [0_u64; 2];
            let is_grouped = libc::write(procs.as_raw_fd(), c"0".as_ptr().cast(), 1) == 1;
            if is_grouped && libc::chroot(root.as_ptr()) == 0 && libc::chdir(cwd.as_ptr()) == 0 {
                libc::statx(libc::AT_FDCWD, path.as_ptr(), 0, libc::STATX_MNT_ID, &raw mut found);
                if found.stx_attributes & libc::STATX_ATTR_MOUNT_ROOT as u64 != 0 {
                    answer[0] = found.stx_mnt_id;
                }
                let result = libc::umount2(path.as_ptr(), 0);
                answer[1] =
                    if result == 0 { 0 } else { u64::from((*libc::__errno_location()).unsigned_abs()) };
            } else {
                answer[1] = u64::from(libc::ENODATA.unsigned_abs());
            }
            libc::write(write.as_raw_fd(), answer.as_ptr().cast(), size_of_val(&answer));
            libc::_exit(0);
        }
    }
    drop(write);
    let mut bytes = [0; 16];
    read.read_exact(&mut bytes).expect("the caller answers");
    // SAFETY: a child of this process, waited for once.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let pid = u32::try_from(pid).expect("a child was made");
    Truth { pid, mount: word(0), errno: i32::try_from(word(8)).expect("an errno") }
}

/// A refused unmount, and what is true about it.
struct Refused {
    truth: Truth,
    line: Line,
    holders: BTreeSet<u64>,
    text: String,
}

/// Everything refused in one tree. Runs in a thread of its own, whose namespace it may change.
fn round(random: &mut Random, daemon: &mut Daemon) -> (usize, usize) {
    let scratch = Scratch::new();
    let base = scratch.path().canonicalize().expect("a directory");
    let namespace = random.one_in(2).then(|| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sleep", "1000000"]);
        let keeper = Running::spawn(&mut command);
        eventually!(comm(keeper.pid()).as_deref() == Some("sleep"), "the namespace is there");
        let handle = File::open(format!("/proc/{}/ns/mnt", keeper.pid())).expect("a namespace");
        setns(handle, CloneFlags::CLONE_NEWNS).expect("a namespace can be entered");
        keeper
    });
    let mut tree =
        Tree { random, base: base.clone(), directories: vec![base.clone()], named: 0, holders: Vec::new() };
    tree.mount(&base);
    for _ in 0..16 {
        tree.grow();
    }
    // Of one account only so many mounts are looked at; other tests have their part of that of the whole machine.
    let hierarchies = Hierarchy::all();
    let group = Cgroup::new(*hierarchies.first().expect("a hierarchy"));
    let (mut resolved, mut refused) = (0, 0);
    for _ in 0..CALLS {
        let Some(call) = refuse(&mut tree, &group) else { continue };
        refused += 1;
        let what = format!("mount.busy of {}", call.text);
        let event = daemon.wait_for(&what, |event| {
            event.kind() == "mount.busy" && event.number("/actor/pid") == Some(call.truth.pid.into())
        });
        match is_true(&call, &event) {
            Some(is_resolved) => resolved += usize::from(is_resolved),
            // The scan did not come to its turn in time: nothing is said.
            None => refused -= 1,
        }
    }
    drop(namespace);
    (resolved, refused)
}

/// Makes one unmount, of a mount that is held, by a random path.
fn refuse(tree: &mut Tree<'_>, group: &Cgroup) -> Option<Refused> {
    let base = tree.base.clone();
    let at = tree.directory();
    if at == base {
        return None;
    }
    tree.mount(&at);
    let holder = hold_by_cwd(&at);
    let mut roots = vec![PathBuf::from("/"), PathBuf::from("/"), base.clone()];
    roots.extend(at.ancestors().skip(1).filter(|above| above.starts_with(&base)).map(Path::to_owned));
    let root = tree.random.pick(&roots).clone();
    let mut places = tree.directories.clone();
    places.retain(|place| place.is_dir() && place.starts_with(&root) && !place.starts_with(&at));
    places.push(root.clone());
    let cwd = tree.random.pick(&places).clone();
    let path = match tree.random.below(3) {
        0 => relative(&at, &cwd),
        1 => relative(&at, &cwd).replacen("../", ".././", 1) + "/",
        _ => tree.spell(&at, &root, 3),
    };
    // Sometimes what is above is covered meanwhile, so the path leads to another mount or to none.
    if tree.random.one_in(6) && at.parent().is_some_and(|above| above != base) {
        let above = at.parent().expect("a directory above").to_owned();
        tree.mount(&above);
        std::fs::create_dir_all(&at).expect("a directory can be made");
        if tree.random.one_in(2) {
            tree.mount(&at);
        }
    }
    let truth = umount(&path, &root, &cwd, group);
    let text = format!("{path:?} from {} below {}: {truth:?}", cwd.display(), root.display());
    let line = table().into_iter().find(|line| line.id == truth.mount);
    tree.holders.push(holder);
    let pids = tree.holders.iter().map(Running::pid);
    let holders = pids.filter(|pid| held_mount(&format!("/proc/{pid}/cwd")) == truth.mount);
    let holders = holders.map(u64::from).collect();
    let refused = truth.errno == libc::EBUSY;
    refused.then(|| Refused { truth, line: line.expect("a mount"), holders, text })
}

/// The mount that a path leads to.
fn held_mount(path: &str) -> u64 {
    let path = CString::new(path).expect("no NUL");
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path ends with NUL, and the kernel writes one structure; zeros are a valid one.
    unsafe {
        libc::statx(libc::AT_FDCWD, path.as_ptr(), 0, libc::STATX_MNT_ID, found.as_mut_ptr());
        found.assume_init().stx_mnt_id
    }
}

/// Whether an event says which mount it was, if it was looked up; panics if it says something false.
fn is_true(call: &Refused, event: &Event) -> Option<bool> {
    let Refused { truth, line, holders, text, .. } = call;
    assert_eq!(truth.mount, line.id);
    let verdict = event.text("/holders_verdict");
    if !event.has("/mount/device") {
        assert_eq!(event.get("/holders_complete"), Some(&false.into()), "{text}: {event}");
        if verdict == "skipped" {
            return None;
        }
        assert!(matches!(verdict, "incomplete" | "not-a-mount"), "{text}: {event}");
        assert!(event.has("/holders_unreadable/0/reason"), "{text}: {event}");
        return Some(false);
    }
    assert_eq!(event.text("/mount/path"), line.point, "{text}: {event}");
    assert_eq!(event.text("/mount/device"), line.device, "{text}: {event}");
    let listed = event.list("/holders").iter().filter(|holder| holder["access"] == "cwd");
    let listed: BTreeSet<u64> = listed.filter_map(|holder| holder["pid"].as_u64()).collect();
    assert_eq!(listed, *holders, "{text}: {event}");
    Some(true)
}

#[test]
fn whatever_path_leads_to_a_mount_the_event_is_about_that_mount() {
    let rounds = rounds(ROUNDS);
    let mut random = Random::new();
    let mut daemon = launch().config(WITHOUT_BUDGETS).start();
    let (mut resolved, mut refused) = (0, 0);
    for _ in 0..rounds {
        let (round_resolved, round_refused) = thread::scope(|scope| {
            let round = scope.spawn(|| {
                unshare(CloneFlags::CLONE_FS).expect("a thread can have directories of its own");
                round(&mut random, &mut daemon)
            });
            round.join().expect("what the events say is true")
        });
        resolved += round_resolved;
        refused += round_refused;
    }
    // A current directory below very many others and mounts is not captured.
    assert!(refused > 0 && resolved * 10 >= refused * 8, "{resolved} of {refused} were resolved");
}
