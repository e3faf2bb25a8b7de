//! Who holds a mount, by the kernel's own lists of tasks, files and mappings where it has them: the same as by /proc, and without
//! a look at those who hold nothing.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::Instant;

use kevtmon_tests::actor::{self, Actor};
use kevtmon_tests::daemon::{Daemon, launch, program};
use kevtmon_tests::event::Event;
use kevtmon_tests::kernel::{is_guest, is_since};
use kevtmon_tests::lock::Exclusive;
use kevtmon_tests::mount::{Mount, Scratch, wait_for};
use kevtmon_tests::process::{copy_program, crowd, finish, hold_by_fd};
use serde_json::Value;

/// Acts of [`Actor`] with a file or directory on the mount, and how it is held by that.
const ACTS: [(&str, &str); 13] = [
    ("open FILE", "fd"),
    ("locate DIR", "fd"),
    ("apart open FILE", "fd"),
    ("cd DIR", "cwd"),
    ("cd-apart DIR", "cwd"),
    ("map FILE", "mmap"),
    ("bind FILE", "socket"),
    ("bind-relative held DIR", "socket"),
    ("accept FILE", "socket"),
    ("apart bind FILE", "socket"),
    ("send FILE", "in-flight"),
    ("register FILE", "io-uring"),
    ("chroot DIR", "root"),
];

/// Whether the kernel is one that lists them: those of the virtual machines do, and the one that they run on may refuse it.
fn lists() -> bool {
    is_guest() && is_since(5, 12)
}

fn attach_mode(daemon: &mut Daemon) -> String {
    let ready = daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
    ready.text("/daemon/sources/hook.holders").to_owned()
}

/// Whom an event names, how, and by which name. A daemon that looks as well has a copy of each socket for a moment.
fn named(event: &Event) -> BTreeSet<(u64, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let is_other = |it: &&Value| it["comm"] != "reader";
    let holders = event.list("/holders").iter().filter(is_other);
    holders
        .map(|it| (it["pid"].as_u64().unwrap_or_default(), text(&it["access"]), text(&it["path"])))
        .collect()
}

/// What `kevtmon holders` finds with this configuration, without a daemon, and the microseconds that it took.
fn holders(mount: &Mount, config: &str) -> (Value, u128) {
    let scratch = Scratch::without_mounts();
    let file = scratch.path().join("kevtmon.toml");
    std::fs::write(&file, config).expect("it can be written");
    let mut command = Command::new(program());
    command.args(["holders", "--json", "--here", "--socket", "/none", "--state-dir", "/none"]);
    command.arg("--config").arg(&file).arg(mount.point()).stdin(Stdio::null());
    let begun = Instant::now();
    let ran = finish(&mut command, "kevtmon".as_ref());
    let took = begun.elapsed().as_micros();
    (serde_json::from_str(&ran.stdout).expect("JSON"), took)
}

/// What counts all that the kernel does, or needs a quiet machine.
mod alone {
    use super::*;

    #[test]
    fn whoever_holds_a_mount_is_named_alike_by_the_kernels_lists_and_by_proc() {
        // Among very many processes a look at all of /proc does not come to its end in time.
        let _exclusive = Exclusive::take();
        let mut listing = launch().start();
        let mut reading = launch().config("[hooks]\niterators = false\n").start();
        let by_lists = attach_mode(&mut listing);
        assert!(by_lists == "iterators" || !lists() && by_lists == "proc", "{by_lists}: {}", listing.log());
        assert_eq!(attach_mode(&mut reading), "proc");
        let mut innocent = Actor::start();
        innocent.act("open /tmp/kevtmon-iterators");
        innocent.act("map /tmp/kevtmon-iterators");

        // Made at once, they are all settled when the first one is.
        for (act, way, mount) in ACTS.map(|(act, way)| (act, way, Mount::new())) {
            let inside = mount.point().join("a b");
            std::fs::create_dir_all(&inside).expect("a directory can be made");
            let mut holder = Actor::start();
            let act = act.replace("FILE", &inside.join("held").to_string_lossy());
            holder.act(&act.replace("DIR", &inside.to_string_lossy()));
            mount.umount_refused();
            let [of_lists, of_proc] =
                [&mut listing, &mut reading].map(|daemon| wait_for(daemon, "mount.busy", mount.point()));
            assert_eq!(named(&of_lists), named(&of_proc), "{act}: {of_lists}\nby /proc: {of_proc}");
            let same = "/holders_verdict";
            assert_eq!(of_lists.get(same), of_proc.get(same), "{act}: {of_lists}\nby /proc: {of_proc}");
            // The lists also show what /proc refuses, as it does of some processes of the machine that virtual ones run on.
            let is_refused = |unread: &Value| unread["reason"] == "its descriptors may not be read";
            let is_more_complete = !lists()
                && of_lists.get("/holders_complete").and_then(Value::as_bool) == Some(true)
                && of_proc.list("/holders_unreadable").iter().all(is_refused);
            // An emulated processor may not come to the end of all that there is in /proc.
            let was_cut = |unread: &Value| unread["reason"] == "the time for one scan ran out";
            let is_cut =
                [&of_lists, &of_proc].map(|event| event.list("/holders_unreadable").iter().any(was_cut));
            if !is_more_complete && is_cut == [false; 2] {
                let same = "/holders_complete";
                assert_eq!(of_lists.get(same), of_proc.get(same), "{act}: {of_lists}\nby /proc: {of_proc}");
            }
            let is_it =
                |(pid, access, _): &(u64, String, String)| *pid == u64::from(holder.pid()) && access == way;
            // On which mount a socket of a thread with descriptors of its own is, not every kernel tells.
            let is_doubted = || {
                let of_it = |unread: &Value| unread["pid"].as_u64() == Some(u64::from(holder.pid()));
                act.starts_with("apart bind") && of_lists.list("/holders_unreadable").iter().any(of_it)
            };
            assert!(named(&of_lists).iter().any(is_it) || is_doubted(), "{act}: {of_lists}");
            assert!(named(&of_lists).iter().all(|(pid, ..)| *pid != u64::from(innocent.pid())), "{of_lists}");
        }

        let mount = Mount::new();
        let own = mount.point().join("actor");
        copy_program(&actor::program(), &own);
        let holder = Actor::run(&own);
        mount.umount_refused();
        for daemon in [&mut listing, &mut reading] {
            let event = wait_for(daemon, "mount.busy", mount.point());
            let found = named(&event);
            assert!(
                found.iter().any(|(pid, way, _)| *pid == u64::from(holder.pid()) && way == "exe"),
                "{event}"
            );
        }
    }

    #[test]
    fn among_very_many_processes_the_same_holder_is_found_by_both_ways() {
        let _exclusive = Exclusive::take();
        let (listing, reading) = ("", "[hooks]\niterators = false\n");
        let mut daemons = [listing, reading].map(|config| launch().config(config).start());
        let mount = Mount::new();
        let holder = hold_by_fd(&mount.file());
        // An emulated processor takes longer to read more of them in /proc than an answer may take.
        let number = if is_guest() { 400 } else { 1050 };
        let crowd = crowd(number, 2);
        let answers = [listing, reading].map(|config| holders(&mount, config));
        for (answer, took) in &answers {
            let pids: Vec<_> =
                answer["holders"].as_array().expect("a list").iter().map(|it| &it["pid"]).collect();
            assert_eq!(pids, [holder.pid()], "{answer}");
            assert_eq!(answer["holders_verdict"], answers[0].0["holders_verdict"], "{answer}");
            println!("`kevtmon holders` took {took} us");
        }
        mount.umount_refused();
        for daemon in &mut daemons {
            let event = wait_for(daemon, "mount.busy", mount.point());
            assert!(named(&event).iter().any(|(pid, ..)| *pid == u64::from(holder.pid())), "{event}");
            let seconds = daemon.metrics().sum("kevtmon_holders_scan_seconds_sum", &[]);
            println!("the scan of the daemon took {seconds:?} s, by {}", attach_mode(daemon));
        }
        drop(crowd);
    }
}
