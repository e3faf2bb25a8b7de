//! Random holders of random mounts: whom the daemon names is compared with what the test has made, and with whom fuser(1), lsof(8)
//! and lsfd(1) find. On file systems of several kinds, of which others use other mounts, some in mount namespaces of their own.
//!
//! `KEVTMON_TEST_SEED` is another seed (`random`: another one each time, which is printed), `KEVTMON_TEST_ROUNDS` makes it
//! longer.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kevtmon_tests::actor::{self, Actor};
use kevtmon_tests::daemon::{Daemon, held, launch};
use kevtmon_tests::eventually;
use kevtmon_tests::file_systems::{FileSystems, Kind, clear};
use kevtmon_tests::mount::{Mount, Scratch, is_about};
use kevtmon_tests::process::{
    Running, attempt, comm, copy_program, hold_by_cwd, hold_by_fd, is_installed, run,
};
use kevtmon_tests::random::{Random, rounds, seeds};
use serde_json::Value;

const SEEDS: [u64; 1] = [20_261_124];
/// Situations of each.
const ROUNDS: u64 = 200;

/// What others use to see who uses a mount. Not all machines have the last one.
const OTHERS: [&str; 3] = ["fuser", "lsof", "lsfd"];

/// Names of mount points and of directories in them: what mountinfo and the links of /proc escape, or seem to say.
const NAMES: [&str; 6] = ["vol", "pod volume", "back\\slash", "old (deleted)", "v:[4711]", "größe"];

/// An act of [`Actor`] with a file or directory in the mount, and how the daemon calls what it holds by that.
const ACTS: [(&str, &str); 11] = [
    ("open FILE", "fd"),
    ("locate DIR", "fd"),
    ("apart open FILE", "fd"),
    ("cd DIR", "cwd"),
    ("cd-apart DIR", "cwd"),
    ("map FILE", "mmap"),
    ("bind FILE", "socket"),
    ("bind-relative NAME DIR", "socket"),
    ("accept FILE", "socket"),
    ("apart bind FILE", "socket"),
    // The last one: other paths mean nothing after it.
    ("chroot DIR", "root"),
];

/// How the mounts of another namespace are related to those of the host. Of a shared mount all copies but private ones go with
/// it, and refuse its unmount while they are in use.
const PROPAGATIONS: [&str; 3] = ["private", "slave", "shared"];

/// A process that holds the mount, or did until it went into a mount namespace of its own.
struct Holder {
    process: Process,
    acts: Vec<String>,
    /// How.
    ways: BTreeSet<&'static str>,
    /// In a mount namespace of its own, which neither has the mount nor a copy that goes with it. Where others explain a refusal,
    /// the daemon looks at none of those.
    is_far: bool,
}

enum Process {
    Actor(Actor),
    Elsewhere(Running),
}

/// Where a mount is to be.
struct Place {
    above: PathBuf,
    name: &'static str,
    /// Whether what is mounted there is mounted in other namespaces as well.
    is_shared: bool,
}

/// A mount, who holds it, and who does not.
struct Situation {
    kind: Kind,
    mount: Mount,
    holders: Vec<Holder>,
    innocents: Vec<Running>,
    other: Option<PathBuf>,
}

impl Situation {
    fn new(random: &mut Random, systems: &FileSystems, (place, number): (&Place, usize)) -> Self {
        let Place { above, name, is_shared } = place;
        let point = above.join(name);
        let mut innocents = Vec::new();
        if random.one_in(3) {
            // What is mounted there covers the directory that it is in.
            innocents.push(hold_by_cwd(&point));
        }
        let kind = *random.pick(systems.kinds());
        let mount = systems.mount(kind, &number.to_string(), &point);
        let other = above.join("other");
        let other = random.one_in(3).then(|| {
            let bind: [&OsStr; 4] = ["mount".as_ref(), "--bind".as_ref(), point.as_ref(), other.as_ref()];
            let _ = attempt(&bind).succeeded("mount");
            innocents.push(hold_by_cwd(&other));
            innocents.push(hold_by_fd(&other.join("file")));
            other
        });
        let mut holders: Vec<Holder> =
            (0..1 + random.below(3)).map(|number| Holder::new(random, &point, number)).collect();
        if random.one_in(3) {
            let propagation = *random.pick(&PROPAGATIONS);
            let elsewhere = elsewhere(propagation, &point);
            if *is_shared && propagation != "private" {
                holders.push(Holder::in_copy(elsewhere, propagation));
            } else {
                innocents.push(elsewhere);
            }
        }
        Self { kind, mount, holders, innocents, other }
    }

    fn shown(&self) -> String {
        let holder = |holder: &Holder| format!("{}: {}", holder.pid(), holder.acts.join("; "));
        let innocents: Vec<u32> = self.innocents.iter().map(Running::pid).collect();
        let holders: Vec<String> = self.holders.iter().map(holder).collect();
        format!(
            "{:?} at {}\nnot by {innocents:?}, but by\n{}",
            self.kind,
            self.mount.point().display(),
            holders.join("\n")
        )
    }

    /// Whom one of these finds.
    fn found_by(&self, program: &str) -> BTreeSet<u32> {
        let point = self.mount.point();
        let filter = format!("DEV == \"{}\"", device(point));
        let arguments: Vec<&OsStr> = match program {
            "fuser" => vec!["-m".as_ref(), point.as_ref()],
            "lsof" => vec!["-w".as_ref(), "-t".as_ref(), "--".as_ref(), point.as_ref()],
            _ => ["--noheadings", "--raw", "--output", "PID", "--filter", filter.as_str()]
                .map(OsStr::new)
                .to_vec(),
        };
        let found = attempt(&[&[OsStr::new(program)][..], &arguments[..]].concat()).stdout;
        let pids = found.split_ascii_whitespace().filter_map(|word| word.parse().ok());
        // By the number of the file system they find those of other mounts of it, too.
        let is_innocent = |pid: &u32| self.innocents.iter().any(|innocent| innocent.pid() == *pid);
        pids.filter(|pid| !is_innocent(pid) && is_here(*pid)).collect()
    }

    /// Returns how many each of the others has found.
    fn check(&self, daemon: &mut Daemon, others: &[&str]) -> Vec<usize> {
        let theirs: Vec<_> = others.iter().map(|program| self.found_by(program)).collect();
        self.mount.umount_refused();
        // On a busy machine the scan goes on after its first event.
        let what = format!("the holders of {}", self.shown());
        let event = daemon.wait_for(&what, |event| {
            let mut near = self.holders.iter().filter(|holder| !holder.is_far);
            is_about(event, "mount.busy", self.mount.point())
                && near.all(|holder| holder.is_told(event.list("/holders")))
        });
        event.expect("/holders_verdict", "processes");
        self.is_true(event.list("/holders"), &theirs);
        if self.holders.iter().any(|holder| holder.is_far) {
            let answer = held(self.mount.point());
            let told = answer["holders"].as_array().expect("a list");
            let is_all = self.holders.iter().all(|holder| holder.is_told(told));
            assert!(is_all, "{answer:#}\nis not all of {}", self.shown());
            self.is_true(told, &theirs);
        }
        theirs.iter().map(BTreeSet::len).collect()
    }

    /// Panics unless nothing else is told than what is so, and nobody is missing whom others find.
    fn is_true(&self, told: &[Value], theirs: &[BTreeSet<u32>]) {
        let named = |pid: u32| ways(told, pid);
        for holder in &self.holders {
            let found = named(holder.pid());
            let is_true = |way: &String| holder.ways.contains(&**way);
            assert!(found.iter().all(is_true), "{found:?} in {told:#?}\nof {}", self.shown());
        }
        for pid in theirs.iter().flatten() {
            assert!(!named(*pid).is_empty(), "{pid} of {theirs:?} in {told:#?}\nof {}", self.shown());
        }
        for innocent in &self.innocents {
            assert!(named(innocent.pid()).is_empty(), "{told:#?}\nof {}", self.shown());
        }
    }
}

impl Drop for Situation {
    fn drop(&mut self) {
        self.holders.clear();
        self.innocents.clear();
        clear(self.mount.point());
        for point in self.other.iter().map(PathBuf::as_path).chain([self.mount.point()]) {
            let detach: [&OsStr; 3] = ["umount".as_ref(), "-l".as_ref(), point.as_ref()];
            drop(attempt(&detach));
        }
    }
}

impl Holder {
    fn new(random: &mut Random, point: &Path, number: usize) -> Self {
        let inside = point.join(random.pick(&NAMES)).join(random.pick(&NAMES));
        std::fs::create_dir_all(&inside).expect("a directory can be made");
        let (mut acts, mut ways) = (Vec::new(), BTreeSet::new());
        let mut actor = if random.one_in(5) {
            let program = inside.join(format!("actor{number}"));
            copy_program(&actor::program(), &program);
            ways.insert("exe");
            acts.push("run".to_owned());
            Actor::run(program)
        } else {
            Actor::start()
        };
        let mut act = |act: String| {
            actor.act(&act);
            acts.push(act);
        };
        if random.one_in(4) {
            act("unshare net".to_owned());
        }
        let mut chosen: Vec<usize> = (0..1 + random.below(3)).map(|_| random.below(ACTS.len())).collect();
        chosen.sort_unstable();
        chosen.dedup();
        for (place, chosen) in chosen.into_iter().enumerate() {
            let (what, way) = ACTS[chosen];
            let name = format!("held{number}.{place}");
            let file = inside.join(&name);
            let what = what.replace("FILE", &file.to_string_lossy()).replace("NAME", &name);
            act(what.replace("DIR", &inside.to_string_lossy()));
            ways.insert(way);
            if random.one_in(4) {
                // There is none of a directory.
                let _ = std::fs::remove_file(file);
            }
        }
        // The first one stays where it is, and refuses the unmount. Elsewhere the root directory means another one.
        let is_confined = ways.contains("root");
        let is_far = number > 0 && !is_confined && random.one_in(3);
        if is_far {
            actor.act("unshare mnt-private");
            // Its directory is one of its own copy there; other threads stay where they are, and keep what they shared with it.
            if !acts.iter().any(|act| act.contains("apart ")) {
                ways.remove("cwd");
            }
            acts.push("unshare mnt-private".to_owned());
        }
        Self { process: Process::Actor(actor), acts, ways, is_far }
    }

    /// One that uses a copy which goes with the mount.
    fn in_copy(process: Running, propagation: &str) -> Self {
        let acts = vec![format!("cd in a copy that is {propagation}")];
        Self { process: Process::Elsewhere(process), acts, ways: ["cwd"].into(), is_far: false }
    }

    fn pid(&self) -> u32 {
        match &self.process {
            Process::Actor(actor) => actor.pid(),
            Process::Elsewhere(process) => process.pid(),
        }
    }

    /// Whether all ways are told in which it holds the mount.
    fn is_told(&self, holders: &[Value]) -> bool {
        let told = ways(holders, self.pid());
        // Behind a descriptor that holds the mount, others of the process are not looked at.
        let is_beside = |way: &str| way == "socket" && told.contains("fd");
        self.ways.iter().all(|way| told.contains(*way) || is_beside(way))
    }
}

/// A process in a mount namespace of its own, and there in the copy of the mount.
fn elsewhere(propagation: &str, point: &Path) -> Running {
    let mut command = Command::new("unshare");
    let script = "cd \"$1\" && exec sleep 1000000";
    command.args(["--mount", "--propagation", propagation, "sh", "-c", script, "sh"]);
    let process = Running::spawn(command.arg(point).stdin(Stdio::null()));
    eventually!(comm(process.pid()).as_deref() == Some("sleep"), "it is in its copy");
    process
}

/// How a process is told to hold a mount.
fn ways(holders: &[Value], pid: u32) -> BTreeSet<String> {
    let holders = holders.iter().filter(|holder| holder["pid"] == pid);
    let ways = holders.filter_map(|holder| holder["access"].as_str());
    ways.filter(|access| *access != "mount").map(str::to_owned).collect()
}

/// `major:minor` of a file system, as its files show it.
fn device(point: &Path) -> String {
    let number = std::fs::metadata(point).expect("it is mounted").dev();
    format!("{}:{}", nix::sys::stat::major(number), nix::sys::stat::minor(number))
}

/// Whether it lives in the mount namespace of the test: one elsewhere has a copy of the mount.
fn is_here(pid: u32) -> bool {
    let of = |pid: &str| Some(std::fs::metadata(format!("/proc/{pid}/ns/mnt")).ok()?.ino());
    of(&pid.to_string()).is_some_and(|ns| of("self") == Some(ns))
}

#[test]
fn whoever_holds_a_mount_is_named_and_nobody_else() {
    let others: Vec<&str> = OTHERS.into_iter().filter(|program| is_installed(program)).collect();
    for mut random in seeds(&SEEDS) {
        let scratch = Scratch::new();
        let systems = FileSystems::below(scratch.path());
        let bases = ["private", "shared"].map(|name| Mount::at(&scratch.path().join(name)));
        for base in &bases {
            let name = base.point().file_name().expect("a name").to_string_lossy();
            run(&format!("mount --make-{name} {}", base.point().display()));
        }
        let places: Vec<Place> = (0..rounds(ROUNDS))
            .map(|number| {
                let is_shared = random.one_in(2);
                let above = bases[usize::from(is_shared)].point().join(number.to_string());
                Place { above, name: NAMES[random.below(NAMES.len())], is_shared }
            })
            .collect();
        // All at once: what was changed of late makes it uncertain where a path leads.
        for Place { above, name, .. } in &places {
            for directory in [name, "other"] {
                std::fs::create_dir_all(above.join(directory)).expect("a directory can be made");
            }
        }
        let mut daemon = launch().start();
        let mut found = vec![0; others.len()];
        for (number, place) in places.iter().enumerate() {
            let situation = Situation::new(&mut random, &systems, (place, number));
            let theirs = situation.check(&mut daemon, &others);
            found.iter_mut().zip(theirs).for_each(|(found, more)| *found += more);
        }
        assert!(found.iter().all(|found| *found > 0), "{others:?} found {found:?}");
        println!("{others:?} found {found:?}");
    }
}
