//! What happens at the place of a mount between a refused unmount and the look at it: covers, mounts that go, are moved
//! there, are detached. Nothing that is said of the refused mount for certain is about another one.
//!
//! `KEVTMON_TEST_SEED` repeats a random run, `KEVTMON_TEST_ROUNDS` makes it longer.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use kevtmon_tests::daemon::{Daemon, WITHOUT_BUDGETS, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::kernel;
use kevtmon_tests::mount::{Mount, Scratch, settle};
use kevtmon_tests::process::{Finished, Running, attempt, hold_by_cwd};
use kevtmon_tests::random::{Random, rounds};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;

/// A refused unmount, and what happens before the daemon can look.
fn refused_before(daemon: &Daemon, mount: &Mount, meanwhile: impl FnOnce()) -> Finished {
    daemon.signal(Signal::SIGSTOP);
    let refused = mount.umount_refused();
    meanwhile();
    daemon.signal(Signal::SIGCONT);
    refused
}

fn busy_by(daemon: &mut Daemon, caller: &Finished) -> Event {
    daemon.wait_for_holders("the refusal", |event| is_refusal_of(event, caller.pid))
}

fn is_refusal_of(event: &Event, caller: u32) -> bool {
    event.kind() == "mount.busy" && event.number("/actor/pid") == Some(caller.into())
}

/// Who is said to use the mount itself, not a copy of it.
fn users(event: &Event) -> BTreeSet<u64> {
    let users = event.list("/holders").iter().filter(|holder| holder["access"] != "mount");
    users.filter_map(|holder| holder["pid"].as_u64()).collect()
}

#[test]
fn what_is_mounted_on_top_after_the_refusal_has_refused_nothing() {
    let mount = Mount::volume();
    let mut daemon = launch().kubelet(&mount).start();
    let culprit = hold_by_cwd(mount.point());
    let mut above = Vec::new();
    let refused = refused_before(&daemon, &mount, || {
        for _ in 0..2 {
            let cover = Mount::at(mount.point());
            above.push((hold_by_cwd(cover.point()), cover));
        }
    });
    let busy = busy_by(&mut daemon, &refused);
    if busy.has("/mount/identity/unique") {
        // Not that it lies below others now.
        assert_eq!(users(&busy), BTreeSet::from([culprit.pid().into()]), "{busy}");
    } else {
        // Before 6.8 nothing tells which one is newer.
        busy.expect("/holders_complete", false);
        busy.expect("/mount/confidence", "likely");
    }
    drop(culprit);
}

#[test]
fn where_other_mounts_went_it_is_certain_only_by_the_kernels_word_which_one_was_meant() {
    let mount = Mount::volume();
    let elsewhere = Mount::new();
    let mut daemon = launch().kubelet(&mount).start();
    let culprit = hold_by_cwd(mount.point());
    // Without that word, the daemon only sees that one has gone, and not which.
    let refused = refused_before(&daemon, &mount, || assert!(elsewhere.umount().status.success()));
    let busy = busy_by(&mut daemon, &refused);
    assert_eq!(users(&busy), BTreeSet::from([culprit.pid().into()]), "{busy}");
    let opened =
        daemon.wait_for("incident.opened", |event| event.is_incident("incident.opened", "volume-busy"));
    let is_likely = busy.has("/mount/confidence");
    assert_eq!(busy.text("/message").contains("umount of what is likely volume "), is_likely, "{busy}");
    assert_eq!(opened.text("/incident/summary").starts_with("what is likely "), is_likely, "{opened}");
    busy.expect("/holders_complete", !is_likely);
    opened.expect("/incident/confidence", if is_likely { "likely" } else { "certain" });
    drop(culprit);
}

#[test]
fn what_is_mounted_on_it_after_the_refusal_has_not_refused_it() {
    let mount = Mount::volume();
    let mut daemon = launch().kubelet(&mount).start();
    let culprit = hold_by_cwd(mount.point());
    let inside = mount.point().join("inside");
    std::fs::create_dir(&inside).expect("a directory can be made");
    let mut child = None;
    let refused = refused_before(&daemon, &mount, || {
        child = Some(Mount::at(&inside));
        drop(culprit);
    });
    let busy = busy_by(&mut daemon, &refused);
    assert!(users(&busy).is_empty(), "{busy}");
    busy.expect("/holders_complete", false);
    let opened =
        daemon.wait_for("incident.opened", |event| event.is_incident("incident.opened", "volume-busy"));
    opened.expect("/incident/confidence", "likely");
}

#[test]
fn a_mount_that_was_moved_is_named_by_the_place_where_it_is_now() {
    let mount = Mount::volume();
    let root = mount.kubelet_root();
    // Out of what is shared, nothing can be moved.
    bind_private(root);
    let again = Mount::at(mount.point());
    let mut daemon = launch().kubelet(&mount).start();
    let culprit = hold_by_cwd(again.point());
    let refused = again.umount_refused();
    let busy = busy_by(&mut daemon, &refused);
    busy.expect("/mount/path", again.point().to_string_lossy().as_ref());
    assert!(busy.has("/mount/volume"), "{busy}");
    if !busy.has("/mount/identity/unique") {
        // It is another one for all that anybody can see.
        let is_older = !kernel::is_since(6, 8);
        return kernel::skip("mounts have no identity before Linux 6.8", is_older);
    }
    let aside = root.join("aside");
    std::fs::create_dir(&aside).expect("a directory can be made");
    move_mount(again.point(), &aside);
    let refused = attempt(&["umount".as_ref(), aside.as_os_str()]);
    assert!(!refused.status.success());
    let busy = busy_by(&mut daemon, &refused);
    busy.expect("/mount/path", aside.to_string_lossy().as_ref());
    assert!(!busy.has("/mount/volume"), "{busy}");
    assert_eq!(users(&busy), BTreeSet::from([culprit.pid().into()]), "{busy}");
    let updated = daemon.wait_for("the incident of the volume", |event| {
        event.is_incident("incident.updated", "volume-busy")
            && event.text("/incident/summary").contains("moved to ")
    });
    let advice = updated.list("/incident/advice").iter().map(|step| step["command"].as_str());
    let advice: Vec<&str> = advice.map(Option::unwrap_or_default).collect();
    let lazily = format!("umount --lazy {}", aside.display());
    assert!(advice.contains(&lazily.as_str()), "{updated}");
    drop(culprit);
    eventually!(attempt(&["umount".as_ref(), aside.as_os_str()]).status.success(), "the mount is free");
    daemon.wait_for("its end", |event| event.is_incident("incident.closed", "volume-busy"));
}

/// Calls, unless `KEVTMON_TEST_ROUNDS` says otherwise.
const ROUNDS: u64 = 24;

/// Id of the mount that a path leads to.
fn mount_id(path: &Path) -> u64 {
    let file = File::options().read(true).custom_flags(libc::O_PATH).open(path).expect("a directory");
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).expect("its facts");
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")).expect("a mount");
    id.trim().parse().expect("an id")
}

/// A place where several mounts may lie on each other, and who uses them.
struct Place {
    point: PathBuf,
    /// To be moved there.
    spare: PathBuf,
    /// Where what is there may be moved to.
    aside: PathBuf,
    elsewhere: PathBuf,
    processes: Vec<Running>,
    _scratch: Scratch,
}

/// Makes a directory a mount of its own whose mounts can be moved.
fn bind_private(at: &Path) {
    for (source, flags) in [(Some(at), MsFlags::MS_BIND), (None, MsFlags::MS_PRIVATE)] {
        mount(source, at, None::<&str>, flags, None::<&str>).expect("it can be bound");
    }
}

fn move_mount(from: &Path, to: &Path) {
    mount(Some(from), to, None::<&str>, MsFlags::MS_MOVE, None::<&str>).expect("it can be moved");
}

fn tmpfs(at: &Path) {
    mount(Some("kevtmon"), at, Some("tmpfs"), MsFlags::empty(), None::<&str>)
        .expect("a tmpfs can be mounted");
}

impl Place {
    fn new() -> Self {
        let scratch = Scratch::new();
        let base = scratch.path().join("base");
        let [point, spare, aside, elsewhere] =
            ["in/point", "spare", "aside", "elsewhere"].map(|name| base.join(name));
        std::fs::create_dir(&base).expect("a directory can be made");
        tmpfs(&base);
        // Out of what is shared, nothing can be moved.
        mount(None::<&str>, &base, None::<&str>, MsFlags::MS_PRIVATE, None::<&str>)
            .expect("it can be private");
        for path in [&point, &spare, &elsewhere] {
            std::fs::create_dir_all(path).expect("directories can be made");
            tmpfs(path);
        }
        std::fs::create_dir(&aside).expect("a directory can be made");
        Self { point, spare, aside, elsewhere, processes: Vec::new(), _scratch: scratch }
    }

    fn hold(&mut self, path: &Path) {
        self.processes.push(hold_by_cwd(path));
    }

    /// Changes something, and names it.
    fn change(&mut self, random: &mut Random) -> &'static str {
        let point = self.point.clone();
        let detach = |path: &Path| {
            // All that was there may be gone by now.
            if mount_id(path) != mount_id(path.parent().expect("a directory above")) {
                umount2(path, MntFlags::MNT_DETACH).expect("it can be detached");
            }
        };
        let is_mount = mount_id(&point) != mount_id(point.parent().expect("a directory above"));
        match random.below(9) {
            0 => {
                tmpfs(&point);
                "cover"
            }
            1 => {
                tmpfs(&point);
                self.hold(&point);
                "cover that is used"
            }
            2 => {
                tmpfs(&point);
                detach(&point);
                "cover that goes again"
            }
            3 if self.spare.exists() => {
                self.hold(&self.spare.clone());
                move_mount(&self.spare, &point);
                std::fs::remove_dir(&self.spare).expect("it is a mount point no more");
                "older mount moved there"
            }
            7 if is_mount => {
                move_mount(&point, &self.aside);
                "moved away"
            }
            4 => {
                detach(&point);
                "detached"
            }
            5 => {
                detach(&point);
                tmpfs(&point);
                self.hold(&point);
                "replaced by another one"
            }
            6 if self.elsewhere.exists() => {
                detach(&self.elsewhere);
                std::fs::remove_dir(&self.elsewhere).expect("it is a mount point no more");
                "unmounted elsewhere"
            }
            _ => {
                mount(Some(&point), &point, None::<&str>, MsFlags::MS_BIND, None::<&str>)
                    .expect("it can be bound on itself");
                "bound on itself"
            }
        }
    }
}

/// A refused unmount, and what is true about it.
struct Refused {
    caller: u32,
    mount: u64,
    holders: BTreeSet<u64>,
    text: String,
}

/// Has one unmount refused, and some changes made before the daemon has looked, or while it does.
fn refused(random: &mut Random, daemon: &Daemon, mut place: Place) -> (Refused, Place) {
    let mut text = String::new();
    for _ in 0..random.below(3) {
        tmpfs(&place.point);
        text += "on another one; ";
        if random.below(2) == 0 {
            place.hold(&place.point.clone());
        }
    }
    place.hold(&place.point.clone());
    let mount = mount_id(&place.point);
    let pids = place.processes.iter().map(Running::pid);
    let holders = pids.filter(|pid| mount_id(format!("/proc/{pid}/cwd").as_ref()) == mount);
    let holders = holders.map(u64::from).collect();
    let is_stopped = random.below(2) == 0;
    if is_stopped {
        daemon.signal(Signal::SIGSTOP);
    }
    let call = attempt(&["umount".as_ref(), place.point.as_os_str()]);
    assert!(!call.status.success(), "{text}");
    for _ in 0..random.below(50_000) {
        std::hint::spin_loop();
    }
    for _ in 0..random.below(4) {
        text += place.change(random);
        text += "; ";
    }
    daemon.signal(Signal::SIGCONT);
    text += if is_stopped { "all before the look" } else { "meanwhile" };
    (Refused { caller: call.pid, mount, holders, text }, place)
}

/// Tries the same mount again where it is now, if it can be seen there; returns the caller and the place.
fn refused_again(refused: &Refused, place: &Place) -> Option<(u32, String)> {
    let at = [&place.point, &place.aside].into_iter().find(|at| mount_id(at) == refused.mount)?;
    let call = attempt(&["umount".as_ref(), at.as_os_str()]);
    (!call.status.success()).then(|| (call.pid, at.to_string_lossy().into_owned()))
}

/// Panics if an event says for certain what is false; returns whether it says which mount it was.
fn is_certain(refused: &Refused, event: &Event) -> bool {
    let Refused { mount, holders, text, .. } = refused;
    let users = users(event);
    if !event.has("/mount/identity") {
        assert!(users.is_empty(), "{text}: {event}");
        event.expect("/holders_complete", false);
        return false;
    }
    if event.has("/mount/confidence") {
        assert_eq!(event.text("/mount/confidence"), "likely", "{text}: {event}");
        assert!(event.text("/message").contains("what is likely "), "{text}: {event}");
        event.expect("/holders_complete", false);
        return false;
    }
    assert_eq!(event.number("/mount/identity/mount_id"), Some(*mount), "{text}: {event}");
    assert!(users.is_subset(holders), "{text}: {event}");
    true
}

#[test]
fn whatever_happens_before_the_look_nothing_false_is_said_for_certain() {
    let mut random = Random::new();
    let mut daemon = launch().config(WITHOUT_BUDGETS).start();
    let mut certain = 0;
    // All at once, so that no round has to wait until its directories are older.
    let places: Vec<Place> = (0..rounds(ROUNDS)).map(|_| Place::new()).collect();
    for place in places {
        settle(place.point.parent().expect("a directory above"));
        let (refused, place) = refused(&mut random, &daemon, place);
        daemon.wait_for(&refused.text, |event| is_refusal_of(event, refused.caller));
        let again = refused_again(&refused, &place);
        if let Some((caller, _)) = &again {
            daemon.wait_for(&refused.text, |event| is_refusal_of(event, *caller));
        }
        // More may be found later.
        let events = daemon.mount_fence();
        let told = events.iter().filter(|event| is_refusal_of(event, refused.caller));
        certain += told.filter(|event| is_certain(&refused, event)).count();
        if let Some((caller, point)) = again {
            let refused = Refused { caller, ..refused };
            let told = events.iter().filter(|event| is_refusal_of(event, caller));
            for event in told.filter(|event| is_certain(&refused, event)) {
                assert_eq!(event.text("/mount/path"), point, "{}: {event}", refused.text);
            }
        }
        drop(place);
    }
    // Nothing changes before many of the looks.
    assert_ne!(certain, 0, "nothing is ever certain");
}
