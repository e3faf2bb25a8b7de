//! The daemon as a service: what it tells a service manager, and its entries in a journal. Both are sockets of the test.

use std::os::unix::net::UnixDatagram;

use kevtmon_tests::daemon::{Daemon, Launch, launch};
use kevtmon_tests::patience::patience;
use kevtmon_tests::pod::{GATEWAY, Pod};
use nix::sys::signal::Signal;

/// A datagram socket in the directory of the daemon.
fn listen(launch: &Launch, name: &str) -> UnixDatagram {
    let listener = UnixDatagram::bind(launch.directory().join(name)).expect("a socket can be made");
    listener.set_read_timeout(Some(patience())).expect("a timeout can be set");
    listener
}

fn next(listener: &UnixDatagram) -> String {
    let mut buffer = vec![0; 1 << 20];
    let length = listener.recv(&mut buffer).expect("a message comes");
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

/// Reads until a message begins so.
fn wait_for(listener: &UnixDatagram, beginning: &str) -> String {
    loop {
        let message = next(listener);
        if message.starts_with(beginning) {
            return message;
        }
    }
}

#[test]
fn the_service_manager_is_told_of_start_reload_and_end_and_its_watchdog_is_fed() {
    let launch = launch();
    let listener = listen(&launch, "notify");
    let socket = format!("NOTIFY_SOCKET={}", launch.directory().join("notify").display());
    let mut daemon = launch.through(&["env", &socket, "WATCHDOG_USEC=2000000"]).spawn();
    wait_for(&listener, "READY=1");
    assert!(daemon.get("/readyz").is_some_and(|answer| answer.status == 200), "it is told when it is so");
    let status = wait_for(&listener, "STATUS=");
    assert!(status.contains(" sources"), "{status}");
    for _ in 0..2 {
        assert_eq!(wait_for(&listener, "WATCHDOG="), "WATCHDOG=1\n");
    }
    daemon.signal(Signal::SIGHUP);
    assert!(wait_for(&listener, "RELOADING=1").contains("MONOTONIC_USEC="));
    wait_for(&listener, "READY=1");
    daemon.stop();
    wait_for(&listener, "STOPPING=1");
}

#[test]
fn a_watchdog_of_another_process_is_not_fed() {
    let launch = launch();
    let listener = listen(&launch, "notify");
    let socket = format!("NOTIFY_SOCKET={}", launch.directory().join("notify").display());
    let mut daemon = launch.through(&["env", &socket, "WATCHDOG_USEC=1000", "WATCHDOG_PID=1"]).start();
    daemon.stop();
    loop {
        let message = next(&listener);
        assert!(!message.starts_with("WATCHDOG"), "{message}");
        if message.starts_with("STOPPING") {
            break;
        }
    }
}

/// With a journal that is a socket of the test.
fn journal(configuration: &str) -> (Launch, UnixDatagram) {
    let launch = launch();
    let listener = listen(&launch, "journal");
    let socket = launch.directory().join("journal");
    let launch =
        launch.config(&format!("[journald]\nsocket = {:?}\n{configuration}", socket.display().to_string()));
    (launch, listener)
}

fn has(entry: &str, field: &str) -> bool {
    entry.lines().any(|line| line == field)
}

/// The entry of the deletion of a pod's gateway by `ip`.
fn check_entry(daemon: &mut Daemon, listener: &UnixDatagram, pod: &Pod) {
    pod.delete_gateway();
    let event = daemon.wait_for_deletion(pod.inum(), GATEWAY);
    let seq = event.number("/seq").expect("a number");
    let entry = loop {
        let entry = next(listener);
        if has(&entry, &format!("KEVTMON_SEQ={seq}")) {
            break entry;
        }
    };
    for (field, pointer) in [
        ("MESSAGE", "/message"),
        ("KEVTMON_KIND", "/kind"),
        ("ACTOR_EXE", "/actor/exe"),
        ("KEVTMON_TIME", "/time"),
    ] {
        assert!(has(&entry, &format!("{field}={}", event.text(pointer))), "{field} in {entry}");
    }
    let pid = event.number("/actor/pid").expect("an actor");
    assert!(has(&entry, &format!("ACTOR_PID={pid}")) && has(&entry, "PRIORITY=4"), "{entry}");
    assert!(
        entry.lines().any(|line| line.starts_with("MESSAGE_ID=") && line.len() == "MESSAGE_ID=".len() + 32)
    );
}

#[test]
fn events_reach_the_journal_where_standard_error_is_it() {
    let pod = Pod::new();
    let (launch, listener) = journal("");
    // The file that the test has it log to is taken for the journal.
    let script = "JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2) exec \"$@\"";
    let mut daemon = launch.through(&["sh", "-c", script, "sh"]).start();
    // What other tests do meanwhile may come before it.
    let ready = loop {
        let entry = next(&listener);
        if has(&entry, "KEVTMON_KIND=daemon.ready") {
            break entry;
        }
    };
    assert!(has(&ready, "PRIORITY=6"), "{ready}");
    check_entry(&mut daemon, &listener, &pod);
    daemon.stop();
    let events = daemon.wait_for_end_of_output();
    let degraded = events.iter().any(|event| event.kind() == "daemon.degraded");
    assert!(!degraded, "{events:?}");
}

#[test]
fn a_journal_that_is_restarted_gets_what_comes_then() {
    let pod = Pod::new();
    let (launch, first) = journal("enabled = \"yes\"\n");
    let path = launch.directory().join("journal");
    let mut daemon = launch.start();
    check_entry(&mut daemon, &first, &pod);
    pod.set_gateway();
    // At no time is there none: what comes then would be discarded.
    let next_path = path.with_extension("new");
    let second = UnixDatagram::bind(&next_path).expect("a socket can be made");
    std::fs::rename(&next_path, &path).expect("a socket can be renamed");
    drop(first);
    second.set_read_timeout(Some(patience())).expect("a timeout can be set");
    let other = Pod::new();
    other.delete_gateway();
    let seq = daemon.wait_for_deletion(other.inum(), GATEWAY).number("/seq").expect("a number");
    while !has(&next(&second), &format!("KEVTMON_SEQ={seq}")) {}
    daemon.stop();
}

#[test]
fn nothing_reaches_a_journal_that_is_not_wanted() {
    let (launch, listener) = journal("");
    let mut daemon = launch.start();
    daemon.stop();
    listener.set_nonblocking(true).expect("a socket can be made non-blocking");
    assert!(listener.recv(&mut [0; 64]).is_err(), "standard error is no journal");
}
