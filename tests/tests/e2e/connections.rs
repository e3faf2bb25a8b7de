//! Connections to the running daemon: whoever may not ask is turned away, and whoever asks nothing, or does not read what it
//! asked for, keeps nobody else from an answer.

use std::fs::{Permissions, set_permissions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Command;

use kevtmon_tests::actor::{self, Actor};
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::eventually;
use kevtmon_tests::process::copy_program;

/// More connections than any socket of the daemon has places for.
const MANY: usize = 600;

/// Most connections of the socket for queries at once.
const PLACES: usize = 512;

/// A process of a user without any rights, who may run nothing below the build directory.
fn nobody(daemon: &Daemon) -> Actor {
    let program = daemon.directory().join("actor");
    copy_program(&actor::program(), &program);
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
    Actor::spawn(&mut command)
}

#[track_caller]
fn expect_health(daemon: &Daemon) {
    for path in ["/healthz", "/readyz"] {
        let answer = daemon.get(path).expect("it answers");
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
}

fn is_closed(mut connection: &UnixStream) -> bool {
    connection.set_nonblocking(true).expect("a flag can be set");
    !connection.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn a_user_without_access_is_turned_away_as_it_connects_and_keeps_no_place() {
    let daemon = launch().start();
    let mut nobody = nobody(&daemon);
    // Neither the mode of the file nor a descriptor that was passed on gives access.
    set_permissions(daemon.socket(), Permissions::from_mode(0o666)).expect("a mode can be set");
    nobody.act(&format!("turned-away {MANY} {}", daemon.socket().display()));
    let _ = daemon.ask(&["state"]).succeeded("state");
}

#[test]
fn connections_that_ask_nothing_make_room_for_those_that_ask() {
    let daemon = launch().start();
    let idle: Vec<UnixStream> =
        (0..MANY).map(|_| UnixStream::connect(daemon.socket()).expect("the daemon listens")).collect();
    for question in [&["state"][..], &["incidents", "--all"], &["events", "--severity", "critical"]] {
        let ran = daemon.ask(question);
        assert!(matches!(ran.status.code(), Some(0 | 1)), "{question:?}: {}", ran.stderr);
        assert!(!ran.stderr.contains("no daemon"), "it was answered from files: {}", ran.stderr);
    }
    eventually!(
        idle.iter().filter(|idle| is_closed(idle)).count() >= MANY - PLACES,
        "those for which there was no place are closed"
    );
}

#[test]
fn another_users_idle_connections_and_unread_scrapes_keep_no_health_check_waiting() {
    let daemon = launch().start();
    let mut nobody = nobody(&daemon);
    nobody.act(&format!("idle {MANY} {}", daemon.address()));
    expect_health(&daemon);
    nobody.act(&format!("scrape-unread {MANY} {}", daemon.address()));
    expect_health(&daemon);
    nobody.act(&format!("idle {MANY} {}", daemon.address()));
    expect_health(&daemon);
    drop(nobody);
    eventually!(
        daemon.get("/metrics").is_some_and(|answer| answer.status == 200),
        "the places of scrapes are free again"
    );
}
