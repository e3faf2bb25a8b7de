//! Bad input and a broken environment: fatal errors name their cause, others are reported and survived.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use kevtmon_tests::balance::{stop_and_account, stop_and_account_by_store};
use kevtmon_tests::daemon::{Daemon, WITHOUT_BUDGETS, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::process::{Finished, attempt};
use nix::sys::signal::Signal;

/// Exit codes of the contract.
const USAGE: i32 = 64;
const PRIVILEGE: i32 = 77;

#[track_caller]
fn expect_exit(ran: &Finished, code: i32, words: &[&str]) {
    assert_eq!(ran.status.code(), Some(code), "{}", ran.stderr);
    for word in words {
        assert!(ran.stderr.contains(word), "{word} in {}", ran.stderr);
    }
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
}

/// Panics unless the daemon still reports a deletion.
fn expect_service(daemon: &mut Daemon, pod: &Pod) -> Event {
    pod.set_gateway();
    pod.delete_gateway();
    daemon.wait_for_deletion(pod.inum(), GATEWAY)
}

#[test]
fn without_root_it_ends_and_names_what_is_missing() {
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let ran = launch().copied().through(&nobody).run_to_end();
    expect_exit(&ran, PRIVILEGE, &["CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE"]);
    assert_eq!(ran.stdout, "");
}

#[test]
fn without_a_capability_it_ends_and_names_it() {
    for (dropped, missing) in [
        ("-net_admin", "CAP_NET_ADMIN"),
        ("-sys_admin", "CAP_SYS_ADMIN"),
        ("-sys_ptrace", "CAP_SYS_PTRACE"),
        ("-dac_read_search", "CAP_DAC_READ_SEARCH"),
    ] {
        let bounding = format!("--bounding-set={dropped}");
        let ran = launch().through(&["setpriv", &bounding]).run_to_end();
        expect_exit(&ran, PRIVILEGE, &[missing]);
    }
}

#[test]
fn a_port_in_use_is_said_with_the_address() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("a listener has an address");
    let ran = launch().listen(address).run_to_end();
    assert!(
        ran.status.code().is_some_and(|code| code != 0 && code != 124),
        "{:?} {}",
        ran.status,
        ran.stderr
    );
    assert!(ran.stderr.contains(&address.to_string()), "{}", ran.stderr);
    assert!(ran.stderr.to_lowercase().contains("in use"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
}

/// Serves a fake socket of Docker until the test ends.
fn fake_docker(path: &Path, serve: impl Fn(UnixStream) + Send + 'static) {
    let listener = UnixListener::bind(path).expect("a socket can be made");
    std::thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(serve));
}

#[test]
fn docker_sockets_that_answer_garbage_or_a_strange_body_or_never_are_survived() {
    let scratch = Scratch::without_mounts();
    let socket = |name: &str| scratch.path().join(name);
    fake_docker(&socket("garbage"), |mut stream| {
        drop(stream.write_all(&[0xff, 0x00, b'{', b'\r', b'\n', 0x80].repeat(4096)));
    });
    fake_docker(&socket("strange"), |mut stream| {
        let mut request = [0; 4096];
        let _ = stream.read(&mut request);
        let body = "[{\"Id\": 7, \"Names\": {}}, null";
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close";
        drop(write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    });
    let (keep, kept) = std::sync::mpsc::sync_channel(1024);
    fake_docker(&socket("silent"), move |stream| drop(keep.try_send(stream)));
    let pod = Pod::new();
    let runtime = |name: &str| format!("docker={}", socket(name).display());
    let launch = launch().runtime(runtime("garbage"));
    let launch = launch.argument("--runtime").argument(runtime("strange"));
    let mut daemon = launch.argument("--runtime").argument(runtime("silent")).start();
    let is_down = format!("docker:{} is down: no answer within ", socket("silent").display());
    daemon.wait_for("that one does not answer", |event| {
        event.kind() == "daemon.degraded" && event.text("/message").starts_with(&is_down)
    });
    expect_service(&mut daemon, &pod).expect("/neighbor/cause", "admin");
    assert_eq!(daemon.get("/healthz").map(|answer| answer.status), Some(200));
    stop_and_account(daemon);
    drop(kept);
}

/// Deletes the gateway several times, and waits until that is counted.
fn delete_and_wait(daemon: &Daemon, pod: &Pod, times: u32) {
    let labels = [("state", "permanent"), ("origin", "admin")];
    let count = || daemon.metrics().count("kevtmon_kernel_neighbor_deletions_total", &labels);
    let before = count();
    for _ in 0..times {
        pod.set_gateway();
        pod.delete_gateway();
    }
    eventually!(count() >= before + f64::from(times), "the deletions are counted");
}

#[test]
fn a_reader_that_goes_away_takes_only_its_sink_with_it() {
    let pod = Pod::new();
    let mut daemon = launch().read_later().spawn();
    eventually!(daemon.get("/readyz").is_some_and(|answer| answer.status == 200), "the daemon is ready");
    daemon.close_stdout();
    delete_and_wait(&daemon, &pod, 20);
    assert!(!daemon.has_ended(), "{}", daemon.log());
    assert_eq!(daemon.get("/healthz").map(|answer| answer.status), Some(200));
    eventually!(daemon.log().contains("stdout"), "the loss of the sink is logged");
    assert_eq!(daemon.log().lines().filter(|line| line.contains("stdout")).count(), 1, "{}", daemon.log());
    stop_and_account_by_store(daemon);
}

#[test]
fn what_a_slow_reader_cannot_take_is_discarded_and_counted() {
    const TIMES: u32 = 5_000;
    let pod = Pod::new();
    let mut daemon = launch().config(WITHOUT_BUDGETS).read_later().spawn();
    eventually!(daemon.get("/readyz").is_some_and(|answer| answer.status == 200), "the daemon is ready");
    let address = kevtmon_tests::unique::address(91);
    let entry = address.parse().expect("an address");
    pod.netns().churn((0..TIMES).map(|_| entry));
    let emitted = || daemon.metrics().count("kevtmon_events_total", &[("kind", "neighbor.deleted")]);
    eventually!(emitted() >= f64::from(TIMES), "every deletion becomes an event");
    assert_eq!(daemon.get("/healthz").map(|answer| answer.status), Some(200));
    let discarded = daemon.metrics().count("kevtmon_events_discarded_total", &[]);
    assert!(discarded > 0.0, "a pipe of 64 KiB cannot have taken them all");

    daemon.read();
    daemon.wait_for("a summary of what was discarded", |event| {
        event.kind() == "events.lost" && event.text("/lost/count").parse::<f64>().is_ok_and(|n| n > 0.0)
    });
    stop_and_account(&mut daemon);
    let events = daemon.events();
    let read = events.iter().filter(|event| event.is_deletion(pod.inum(), &address)).count();
    let lost = events.iter().filter(|event| event.kind() == "events.lost");
    let lost = lost.filter_map(|event| event.text("/lost/count").parse::<usize>().ok()).sum::<usize>();
    assert!(read + lost >= TIMES as usize, "{read} read and {lost} discarded of {TIMES}");
}

#[test]
fn a_standard_error_that_takes_nothing_is_survived() {
    let scratch = Scratch::without_mounts();
    let fifo = fifo(&scratch);
    let mut unread =
        File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&fifo).expect("a FIFO");
    while unread.write(&[b'x'; 4096]).is_ok() {}
    // With much to log, the last message that it takes is longer than what is left.
    let terminal = nix::pty::openpty(None, None).expect("a terminal can be made");
    let stopped = nix::unistd::ttyname(&terminal.slave).expect("a terminal has a name");
    for redirection in [
        "2>/dev/full".to_owned(),
        "2> >(exec true)".into(),
        format!("2>{}", fifo.display()),
        format!("2>{}", stopped.display()),
    ] {
        let pod = Pod::new();
        let script = format!("export RUST_LOG=trace; exec \"$@\" {redirection}");
        let mut daemon = launch().through(&["bash", "-c", &script, "bash"]).start();
        // Each is logged.
        for _ in 0..3 {
            daemon.signal(Signal::SIGHUP);
        }
        expect_service(&mut daemon, &pod);
        assert!(!daemon.has_ended(), "{redirection}");
        stop_and_account(daemon);
    }
}

fn fifo(scratch: &Scratch) -> PathBuf {
    let path = scratch.path().join("fifo");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO can be made");
    path
}

#[test]
fn a_file_that_is_no_regular_file_is_a_usage_error() {
    let scratch = Scratch::without_mounts();
    let fifo = fifo(&scratch);
    for path in [fifo.as_path(), scratch.path(), Path::new("/dev/zero")] {
        let name = &*path.to_string_lossy();
        let ran = launch().argument("--config").argument(path).run_to_end();
        expect_exit(&ran, USAGE, &[name, "not a regular file"]);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
        let limit = kevtmon_tests::patience::patience().as_secs().to_string();
        let program = kevtmon_tests::daemon::program();
        let words =
            ["timeout".as_ref(), limit.as_ref(), program.as_os_str(), "replay".as_ref(), path.as_os_str()];
        let ran = attempt(&words);
        expect_exit(&ran, USAGE, &[name, "not a regular file"]);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    }
    let (precious, link) = (scratch.path().join("precious"), scratch.path().join("link"));
    std::fs::write(&precious, "data").expect("a file can be made");
    std::os::unix::fs::symlink(&precious, &link).expect("a link can be made");
    for path in [&link, &fifo] {
        let ran = launch().argument("--record").argument(path).run_to_end();
        expect_exit(&ran, USAGE, &[&path.to_string_lossy(), "not a regular file"]);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    }
    assert_eq!(std::fs::read_to_string(&precious).expect("a file"), "data");
}

#[test]
fn what_a_reload_does_not_change_is_named_in_the_log() {
    let launch = launch().config("cmdline = \"host\"\n");
    let path = launch.directory().join("kevtmon.toml");
    let daemon = launch.start();
    std::fs::write(&path, "cmdline = \"all\"\n[hooks]\nring_kib = 512\n").expect("a file can be made");
    daemon.signal(Signal::SIGHUP);
    eventually!(daemon.log().contains("configuration reloaded"), "it is read again");
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("configuration reloaded")).expect("a line");
    assert!(line.contains("a restart is needed for: hooks.ring_kib"), "{line}");
    assert!(!line.contains("cmdline"), "{line}");
    stop_and_account(daemon);
}

#[test]
fn a_configuration_that_became_unusable_changes_nothing_and_is_reported_until_it_is_mended() {
    let launch = launch().config("cmdline = \"host\"\n");
    let path = launch.directory().join("kevtmon.toml");
    let mut daemon = launch.start();
    std::fs::remove_file(&path).expect("a file can be removed");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO can be made");
    daemon.signal(Signal::SIGHUP);
    let degraded = daemon.wait_for("daemon.degraded", |event| {
        event.kind() == "daemon.degraded" && event.has("/daemon/degraded/configuration")
    });
    assert!(degraded.text("/message").contains("not a regular file"), "{degraded}");
    std::fs::remove_file(&path).expect("a file can be removed");
    std::fs::write(&path, "cmdline = \"all\"\n").expect("a file can be made");
    daemon.signal(Signal::SIGHUP);
    let recovered = daemon.wait_for("daemon.recovered", |event| event.kind() == "daemon.recovered");
    assert!(!recovered.has("/daemon/degraded/configuration"), "{recovered}");
    stop_and_account(daemon);
}
