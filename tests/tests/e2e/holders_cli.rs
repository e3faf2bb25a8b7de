//! `kevtmon holders`: who holds a mount, or uses what lies below a path; without a daemon, and with one for the names.

use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{launch, program};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::eventually;
use kevtmon_tests::file_systems::{SIZE, has_btrfs};
use kevtmon_tests::fuse::{mount_halting, mount_unserved_by};
use kevtmon_tests::kernel;
use kevtmon_tests::lock::HOST_PID;
use kevtmon_tests::loop_device::LoopDevice;
use kevtmon_tests::mount::{Mount, Scratch};
use kevtmon_tests::process::{Finished, apart, attempt, comm, finish, hold_by_cwd, hold_by_fd, run};
use serde_json::Value;

/// Asks without a daemon.
fn holders<S: AsRef<OsStr>>(arguments: &[S]) -> Finished {
    let mut command = Command::new(program());
    command.arg("holders").args(arguments).stdin(Stdio::null());
    command.args(["--socket", "/nonexistent/kevtmon.sock", "--state-dir", "/nonexistent"]);
    finish(&mut command, "kevtmon".as_ref())
}

fn json(ran: &Finished) -> Value {
    serde_json::from_str(&ran.stdout)
        .unwrap_or_else(|error| unreachable!("{error}: {}{}", ran.stdout, ran.stderr))
}

/// That a holder was found. Process 1 of this machine may be out of reach of root, and then no answer is complete.
#[track_caller]
fn expect_found(ran: &Finished, answer: &Value) {
    let is_complete = answer["holders_complete"].as_bool().expect("it says so");
    assert_eq!(ran.status.code(), Some(0), "{answer} {}", ran.stderr);
    assert_eq!(answer["holders_unreadable"].is_null(), is_complete, "{answer}");
}

#[track_caller]
fn holder(answer: &Value, pid: u32, access: &str) -> Value {
    let holders = answer["holders"].as_array().expect("a list");
    let found = holders.iter().find(|holder| holder["pid"] == pid && holder["access"] == access);
    found.unwrap_or_else(|| unreachable!("{access} of {pid} among the holders of {answer}")).clone()
}

/// What a shell prints, where all processes can be read: in a process namespace of its own, and in a mount namespace. `$1`
/// is a tmpfs in it, `$2` the program.
fn alone(script: &str) -> Finished {
    let scratch = Scratch::new();
    let script = format!(
        "set -e\n\
         mount -t tmpfs kevtmon \"$1\"\n\
         holders() {{ \"$kevtmon\" holders \"$@\" --socket /none --state-dir /none && code=0 || code=$?; }}\n\
         in_it() {{ (cd \"$1\" && exec sleep 1000000) & pid=$!; \
         until [ \"$(readlink /proc/$pid/cwd)\" = \"$1\" ] && grep -q sleep /proc/$pid/comm; do :; done; }}\n\
         {script}"
    );
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", &script, "sh"]);
    // Process 1 is one of theirs.
    command.arg(scratch.path()).env("kevtmon", program()).env_remove(HOST_PID).stdin(Stdio::null());
    finish(&mut command, "unshare".as_ref()).succeeded("the script")
}

#[test]
fn each_process_that_holds_a_mount_has_a_line() {
    let ran = alone(
        "in_it \"$1\"; first=$pid; exec 7>\"$1/file\"\n\
         holders \"$1\"; echo \"code $code of $first and $$\"",
    );
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines[0].contains(": tmpfs kevtmon, in the mount namespace of process 1 (mnt:["), "{lines:?}");
    assert!(lines[1].starts_with("USER  PID  ACCESS  COMMAND"), "{lines:?}");
    let (first, own) = (lines[4].split(' ').nth(3).expect("a pid"), lines[4].rsplit(' ').next());
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    // The shell has the other namespace as its own.
    assert_eq!(words(lines[2])[..4], ["root", own.expect("a pid"), "fd", "sh"], "{lines:?}");
    assert_eq!(words(lines[3])[..4], ["root", first, "cwd", "sleep"], "{lines:?}");
    assert!(lines[4].starts_with("code 0 "), "{lines:?}");
    assert_eq!(ran.stderr, "");
}

#[test]
fn a_mount_that_nobody_holds_has_no_holders() {
    let ran = alone("holders \"$1\"; echo code $code\nholders --json \"$1\"; echo code $code");
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines[1].starts_with("no holder found: no process, "), "{lines:?}");
    assert_eq!(lines[2], "code 1");
    let answer: Value = serde_json::from_str(lines[3]).expect("JSON");
    assert_eq!((&answer["holders_verdict"], &answer["holders_complete"]), (&"none".into(), &true.into()));
    assert_eq!((answer["holders"].as_array().map(Vec::len), lines[4]), (Some(0), "code 1"));
}

#[test]
fn what_is_mounted_below_holds_a_mount() {
    let ran = alone(
        "mkdir \"$1/below\"; mount -t tmpfs other \"$1/below\"\n\
         holders \"$1\"; echo code $code",
    );
    assert!(
        ran.stdout.contains("\nmounted below it: ") && ran.stdout.ends_with("\ncode 0\n"),
        "{}",
        ran.stdout
    );
}

#[test]
fn of_a_path_that_is_no_mount_point_the_users_of_what_lies_below_are_listed() {
    let ran = alone(
        "mkdir \"$1/a\" \"$1/ab\"; in_it \"$1/ab\"\n\
         holders \"$1/a\"; echo code $code\n\
         in_it \"$1/a\"; holders \"$1/a\"; echo code $code of $pid",
    );
    let (before, after) = ran.stdout.split_once("code 1\n").expect("nobody is in it at first");
    for part in [before, after] {
        assert!(
            part.contains(" is no mount point; it is on ") && part.contains(" (tmpfs kevtmon) "),
            "{part}"
        );
    }
    assert!(before.contains("no holder found: no process"), "{before}");
    let lines: Vec<&str> = after.lines().collect();
    let pid = lines.last().and_then(|line| line.strip_prefix("code 0 of ")).expect("it is used");
    assert_eq!(lines.len(), 4, "who is beside it is not in it: {lines:?}");
    assert!(lines[2].contains(&format!(" {pid}  cwd ")), "{lines:?}");
}

#[test]
fn who_holds_a_mount_of_huge_pages_or_of_message_queues_is_found() {
    for kind in ["hugetlbfs", "mqueue"] {
        let ran = alone(&format!(
            "umount \"$1\"; mount -t {kind} none \"$1\"\n\
             in_it \"$1\"; holders \"$1\"; echo code $code of $pid"
        ));
        let pid = ran.stdout.rsplit("code 0 of ").next().expect("a pid").trim();
        assert!(ran.stdout.contains(&format!(" {pid}  cwd ")), "{kind}: {}", ran.stdout);
    }
}

#[test]
fn who_uses_a_directory_through_another_mount_of_it_is_found() {
    let ran = alone(
        "mkdir \"$1/a\" \"$1/a/b\" \"$1/volume\"; mount --bind \"$1/a\" \"$1/volume\"\n\
         in_it \"$1/volume/b\"; holders \"$1/a\"; echo code $code of $pid",
    );
    let pid = ran.stdout.rsplit("code 0 of ").next().expect("a pid").trim();
    assert!(ran.stdout.contains(&format!(" {pid}  cwd ")), "{}", ran.stdout);
}

#[test]
fn a_path_that_does_not_exist_is_an_error_and_none_a_wrong_usage() {
    let scratch = Scratch::new();
    let missing = scratch.path().join("none/at all");
    let ran = holders(&[&missing]);
    assert_eq!((ran.status.code(), ran.stdout.as_str()), (Some(2), ""));
    assert_eq!(ran.stderr, format!("kevtmon: \"{}\" does not exist\n", missing.display()));
    assert_eq!(json(&holders(&["--json".as_ref(), missing.as_os_str()]))["exists"], false);
    assert_eq!(holders(&[""]).status.code(), Some(64));
    assert_eq!(holders::<&str>(&[]).status.code(), Some(64), "no path");
}

#[test]
fn a_relative_path_and_a_link_lead_to_the_mount() {
    let ran = alone(
        "in_it \"$1\"; cd \"$1/..\"; holders \"${1##*/}/.\"; echo code $code; \
         mount -t tmpfs links /mnt; ln -s \"$1\" /mnt/link; holders /mnt/link; echo code $code; \
         cd \"$1\"; holders .; echo code $code",
    );
    assert_eq!(ran.stdout.matches("\ncode 0\n").count(), 3, "{}", ran.stdout);
    assert_eq!(ran.stdout.matches(": tmpfs kevtmon, in ").count(), 3, "{}", ran.stdout);
}

#[test]
fn a_path_is_that_of_process_1_unless_it_is_asked_for_here() {
    let ran = alone(
        "mkdir \"$1/a\"; export code\n\
         unshare --mount sh -c '\n\
         mount -t tmpfs inner \"$1\"; (cd \"$1\" && exec sleep 1000000) & pid=$!\n\
         until [ \"$(readlink /proc/$pid/cwd)\" = \"$1\" ]; do :; done\n\
         \"$kevtmon\" holders \"$1\" --socket /none --state-dir /none; echo code $?\n\
         \"$kevtmon\" holders \"$1\" --here --socket /none --state-dir /none; echo code $? of $pid\n\
         cd \"$1\"; \"$kevtmon\" holders . 2>&1; echo code $?' sh \"$1/a\"",
    );
    let (outside, rest) = ran.stdout.split_once("code 1\n").expect("there it is no mount point");
    assert!(outside.contains(" is no mount point; it is on "), "{outside}");
    let (here, relative) = rest.split_once("code 0 of ").expect("here it is one");
    let pid = relative.lines().next().expect("a pid");
    assert!(here.contains(": tmpfs inner, in the mount namespace of this process (mnt:["), "{here}");
    assert!(here.contains(&format!(" {pid}  cwd ")), "{here}");
    assert!(
        relative.contains("give an absolute path, or --here") && relative.ends_with("code 2\n"),
        "{relative}"
    );
}

#[test]
fn who_holds_it_from_another_namespace_is_found_and_left_out_where_those_suffice_who_see_it() {
    let ran = alone(
        "touch \"$1/file\"; (exec 7<\"$1/file\"; exec unshare --mount sh -c 'umount \"$1\"; exec sleep 1000000' sh \"$1\") & far=$!\n\
         until grep -q sleep /proc/$far/comm; do :; done\n\
         holders --near \"$1\"; echo \"code $code: $far\"\n\
         in_it \"$1\"; holders \"$1\"; echo \"code $code: $far and $pid\"\n\
         holders --near \"$1\"; echo \"code $code: $pid\"",
    );
    let lines: Vec<&str> = ran.stdout.lines().collect();
    let parts: Vec<&[&str]> = lines.split_inclusive(|line| line.starts_with("code ")).collect();
    let [alone, all, near] = parts[..] else { unreachable!("{lines:?}") };
    for (part, is_all) in [(alone, true), (all, true), (near, false)] {
        let (end, answer) = part.split_last().expect("a code");
        let pids = end.strip_prefix("code 0: ").unwrap_or_else(|| unreachable!("{part:?}"));
        for pid in pids.split(" and ") {
            assert!(answer.iter().any(|line| line.contains(&format!("  {pid}  "))), "{pid} in {answer:?}");
        }
        let incomplete = answer.iter().filter(|line| line.starts_with("incomplete: ")).count();
        assert_eq!(incomplete, usize::from(!is_all), "{answer:?}");
        assert_eq!(answer.len(), 2 + pids.split(" and ").count() + incomplete, "{answer:?}");
    }
}

#[test]
fn the_json_has_the_holders_as_events_have_them() {
    let mount = Mount::new();
    let (first, second) = (hold_by_cwd(mount.point()), hold_by_fd(&mount.file()));
    let ran = holders(&["--json".as_ref(), mount.point().as_os_str()]);
    let answer = json(&ran);
    expect_found(&ran, &answer);
    let found = holder(&answer, first.pid(), "cwd");
    assert_eq!((&found["comm"], &found["cmdline"]), (&"sleep".into(), &"sleep 1000000".into()), "{answer}");
    let found = holder(&answer, second.pid(), "fd");
    assert_eq!(
        (&found["fd"], &found["path"]),
        (&7.into(), &(*mount.file().to_string_lossy()).into()),
        "{answer}"
    );
    assert_eq!(answer["holders_verdict"], "processes");
    let path = mount.point().to_string_lossy();
    assert_eq!((&answer["path"], &answer["mount"]["path"]), (&(*path).into(), &(*path).into()));
    assert_eq!(
        (&answer["mount"]["fstype"], &answer["mount"]["source"]),
        (&"tmpfs".into(), &"kevtmon".into())
    );
    // Asking held nothing.
    drop((first, second));
    eventually!(mount.umount().status.success(), "the mount is free");
}

#[test]
fn a_user_who_may_not_look_is_told_that_the_answer_is_incomplete() {
    let mount = Mount::new();
    let held = hold_by_cwd(mount.point());
    let copy = mount.point().parent().expect("a directory above").join("kevtmon");
    kevtmon_tests::process::copy_program(&program(), &copy);
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"].map(OsStr::new);
    let asked = [copy.as_os_str(), "holders".as_ref(), mount.point().as_os_str()];
    let ran = attempt(&[&user[..], &asked[..]].concat());
    assert_eq!(ran.status.code(), Some(2), "{} {}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains("missing capabilities: CAP_SYS_PTRACE"), "{}", ran.stderr);
    assert!(ran.stdout.contains("incomplete: "), "{}", ran.stdout);
    drop(held);
}

#[test]
fn a_container_has_its_id_without_a_daemon_and_its_name_with_one() {
    let dockerd = Dockerd::shared();
    let scratch = Scratch::new();
    let root = Mount::at(&scratch.path().join("root"));
    run(&format!("mount --make-shared {}", root.point().display()));
    let volume = Mount::at(&root.point().join("volume"));
    let bind = format!("{}:/root-of-it:rslave", root.point().display());
    let script = "cd /root-of-it/volume && exec sleep 1000000";
    let container = Container::start(dockerd, &["-v", &bind], &["sh", "-c", script]);
    eventually!(comm(container.pid()).as_deref() == Some("sleep"), "the container is in the volume");

    let ran = holders(&["--json".as_ref(), volume.point().as_os_str()]);
    let answer = json(&ran);
    expect_found(&ran, &answer);
    let found = holder(&answer, container.pid(), "cwd");
    assert_eq!(
        (&found["container"]["id"], &found["container"]["name"]),
        (&container.id().into(), &Value::Null)
    );
    assert!(ran.stderr.contains("containers and pods have no names here: "), "{}", ran.stderr);

    let daemon = launch().joining(dockerd.runtime()).start();
    let path = volume.point().to_string_lossy();
    let named = json(&daemon.ask(&["holders", &path, "--json"]));
    let found = holder(&named, container.pid(), "cwd");
    assert_eq!(
        (&found["container"]["id"], &found["container"]["name"]),
        (&container.id().into(), &container.name().into())
    );
    let text = daemon.ask(&["holders", &path]).stdout;
    let label = format!("{} ({})", container.name(), &container.id()[..12]);
    assert!(text.contains(&label), "{text}");
}

#[test]
fn a_file_server_that_does_not_answer_is_not_asked() {
    let scratch = Scratch::new();
    let path = scratch.path().join("served");
    let server = mount_halting(&path);
    let held = hold_by_cwd(&path);
    server.halt();
    let ran = holders(&["--json".as_ref(), path.as_os_str()]);
    let answer = json(&ran);
    expect_found(&ran, &answer);
    holder(&answer, held.pid(), "cwd");
    let inside = holders(&[path.join("file")]);
    assert_eq!(inside.status.code(), Some(2), "{} {}", inside.stdout, inside.stderr);
    assert!(inside.stderr.contains("the path cannot be resolved"), "{}", inside.stderr);
    assert!(inside.stdout.is_empty());
    assert_eq!(server.asked_in_vain(), 0, "somebody waited for the server");
    server.resume();
    drop(held);
}

#[test]
fn the_server_of_a_file_system_is_known_by_its_connection_though_the_device_is_in_no_directory() {
    let scratch = Scratch::new();
    let devices = Mount::at(&scratch.path().join("dev"));
    let (device, point) = (devices.point().join("fuse"), scratch.path().join("served"));
    run(&format!("mknod {} c 10 229", device.display()));
    let server = mount_unserved_by(&device, &point);
    // Then it is in no directory.
    run(&format!("umount --lazy {}", devices.point().display()));
    let ran = holders(&["--json".as_ref(), point.as_os_str()]);
    let answer = json(&ran);
    let info = format!("/proc/self/fdinfo/{}", server.as_raw_fd());
    let is_shown = std::fs::read_to_string(info).expect("a descriptor").contains("fuse_connection");
    assert_eq!(answer["mount"]["unserved"], Value::Null, "{answer}");
    let servers = answer["mount"]["servers"].as_array().cloned().unwrap_or_default();
    let pids: Vec<&Value> = servers.iter().map(|server| &server["pid"]).collect();
    match is_shown {
        true => assert_eq!(pids, [&Value::from(std::process::id())], "{answer}"),
        false => assert_eq!(pids, [&Value::Null; 0], "{answer}"),
    }
}

/// Where other daemons have files in flight, each of them may hold the mount.
mod alone {
    use super::*;

    #[test]
    fn a_copy_in_a_container_is_not_said_to_hold_the_mount() {
        let dockerd = Dockerd::shared();
        let mount = Mount::new();
        let bind = format!("type=bind,source={},target=/copy", mount.point().display());
        let container = Container::idle(dockerd, &["--mount", &bind]);
        let ran = holders(&[mount.point()]);
        let line = ran.stdout.lines().find(|line| line.contains(&container.id()[..12]));
        assert!(line.is_some_and(|line| line.contains("copy, refuses no unmount")), "{}", ran.stdout);
        assert!(ran.stdout.contains("no user found; a copy keeps"), "{}", ran.stdout);
        assert!(mount.umount().status.success(), "it does not");
    }
}

#[test]
fn who_keeps_a_block_device_is_named_in_all_mount_namespaces() {
    let scratch = Scratch::new();
    let (file, point) = (scratch.path().join("image"), scratch.path().join("point"));
    let device = LoopDevice::on(&file, 16);
    device.mount(&point);
    let other = apart();
    run(&format!("umount {}", point.display()));
    // A node may have any name.
    let node = scratch.path().join("node");
    let number = attempt(&["stat", "--format", "%Hr %Lr", device.name()]).succeeded("stat").stdout;
    run(&format!("mknod {} b {number}", node.display()));
    let opener = hold_by_fd(&node);
    let ran = holders(&["--json", device.name()]);
    let answer = json(&ran);
    expect_found(&ran, &answer);
    let copy = holder(&answer, other.pid(), "mount");
    assert_eq!(copy["path"], *point.to_string_lossy(), "{answer}");
    assert_eq!(holder(&answer, opener.pid(), "fd")["path"], *node.to_string_lossy(), "{answer}");
    assert_eq!(answer["device"]["backing_file"], *file.to_string_lossy(), "{answer}");
    assert_eq!(answer["holders_verdict"], "processes", "{answer}");
    drop(opener);
    let text = holders(&[device.name()]).stdout;
    let line = format!("mounted at {} in mnt:[", point.display());
    assert!(text.contains(&line) && text.contains(&format!("sleep (pid {})", other.pid())), "{text}");
    drop(other);
    let answer = json(&holders(&["--json", device.name()]));
    assert_eq!(answer["holders"], serde_json::json!([]), "{answer}");
}

#[test]
fn each_device_of_a_btrfs_is_told_with_its_mounts_and_without_one_as_in_use() {
    if !has_btrfs() {
        kernel::skip("there is no btrfs here", true);
        return;
    }
    let scratch = Scratch::new();
    let point = scratch.path().join("point");
    std::fs::create_dir(&point).expect("a directory can be made");
    let devices = ["one", "two"].map(|name| LoopDevice::on(&scratch.path().join(name), SIZE));
    let [one, two] = &devices;
    run(&format!("mkfs.btrfs -q -f {} {}", one.name(), two.name()));
    run(&format!("mount {} {}", one.name(), point.display()));
    for device in &devices {
        let ran = holders(&["--json", device.name()]);
        let answer = json(&ran);
        expect_found(&ran, &answer);
        assert_eq!(answer["holders_verdict"], "child-mount", "{answer}");
        let found = answer["holders"].as_array().expect("a list");
        let is_it =
            |holder: &Value| holder["access"] == "mount" && holder["path"] == *point.to_string_lossy();
        assert!(found.iter().any(is_it), "{answer}");
    }
    let holder = hold_by_cwd(&point);
    run(&format!("umount --lazy {}", point.display()));
    for device in &devices {
        let answer = json(&holders(&["--json", device.name()]));
        assert_eq!(
            (&answer["device"]["unlocated"], &answer["holders_verdict"]),
            (&true.into(), &"kernel".into()),
            "{answer}"
        );
    }
    drop(holder);
    let device = || json(&holders(&["--json", two.name()]))["device"].clone();
    eventually!(device()["unlocated"].is_null(), "it is in use no more");
}
