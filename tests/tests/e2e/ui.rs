//! `kevtmon ui`: a gateway that is really deleted, by HTTP and in a browser.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use kevtmon_tests::daemon::{Daemon, launch, program};
use kevtmon_tests::event::Event;
use kevtmon_tests::http::{self, Answer};
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::patience::{patience, wait_until};
use kevtmon_tests::pod::Pod;
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::{Running, attempt, finish};
use nix::sys::signal::Signal;

/// Exit code where no daemon answers.
const NO_DAEMON: i32 = 2;

struct Ui {
    process: Running,
    url: String,
}

impl Ui {
    fn of(daemon: &Daemon) -> Self {
        let mut command = Command::new(program());
        command.arg("ui").arg("--socket").arg(daemon.socket()).arg("--state-dir").arg(daemon.state());
        let mut process = Running::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()));
        let stdout = process.child().stdout.take().expect("standard output is a pipe");
        let mut url = String::new();
        BufReader::new(stdout).read_line(&mut url).expect("it prints its address");
        Self { process, url: url.trim_end().to_owned() }
    }

    fn get(&self, target: &str) -> Answer {
        let (address, token) = self.url.split_once("/?token=").expect("the address has a token");
        let address = address.strip_prefix("http://").expect("it is an address of HTTP");
        let mut stream = TcpStream::connect(address).expect("it listens");
        let request = format!("GET {target} HTTP/1.1\r\nHost: {address}\r\nx-kevtmon-token: {token}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("it answers");
        http::parse(bytes).expect("an answer of HTTP")
    }

    /// The summary of an open incident.
    fn summary(&self, id: &str) -> String {
        let answer = Event::parse(&self.get("/v1/incidents").body).expect("a JSON object");
        let all = answer.get("/incidents").and_then(|all| all.as_array()).expect("a list of incidents");
        let incident = all.iter().find(|incident| incident["id"] == id).expect("the incident is open");
        incident["summary"].as_str().expect("it has a summary").to_owned()
    }
}

/// `ip` is a tool: this test is who used it.
fn culprit() -> String {
    format!("(pid {})", std::process::id())
}

#[test]
fn a_deleted_gateway_is_answered_with_the_page_until_a_signal() {
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().start();
    let mut ui = Ui::of(&daemon);
    pod.delete_gateway();
    let opened = daemon.wait_for_incident(sandbox.id());
    let id = opened.text("/incident/id");

    let query = ui.url.split_once('?').expect("the address has a query").1.to_owned();
    let page = ui.get(&format!("/?{query}"));
    assert!(page.status == 200 && page.body.contains("<title>kevtmon</title>"), "{}", page.head);
    assert_eq!(ui.get("/").status, 403);
    let summary = ui.summary(id);
    assert!(summary.contains(&culprit()), "{summary}");
    for (target, words) in [
        (format!("/v1/why?subject=incident:{id}"), "neighbor.deleted"),
        ("/v1/state".to_owned(), "its static neighbor entry is gone"),
    ] {
        let answer = ui.get(&target);
        assert!(answer.status == 200 && answer.body.contains(words), "{target}: {}", answer.body);
    }

    daemon.stop();
    let answer = ui.get("/v1/incidents");
    assert!(answer.status == 502 && answer.body.contains("no daemon listens"), "{}", answer.body);
    ui.process.signal(Signal::SIGINT);
    let ended = wait_until("it ends", || ui.process.ended());
    assert_eq!(ended.code(), Some(0));
}

#[test]
fn in_a_browser_the_deleted_gateway_is_drawn_with_its_culprit() {
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().start();
    let ui = Ui::of(&daemon);
    pod.delete_gateway();
    let opened = daemon.wait_for_incident(sandbox.id());
    let id = opened.text("/incident/id");
    let scratch = Scratch::without_mounts();
    let (limit, address) = (patience().as_secs().to_string(), format!("{}#{id}", ui.url));
    let profile = format!("--user-data-dir={}", scratch.path().display());
    let browser = ["timeout", &limit, "chromium", "--headless", "--no-sandbox", "--disable-gpu"];
    let options = [
        "--disable-dev-shm-usage", &profile, "--lang=en", "--virtual-time-budget=10000", "--dump-dom",
        &address,
    ];
    let wanted = ["class=\"box broken\"", "its static neighbor entry is gone", "class=\"dot incident "];
    wait_until("the page shows the incident", || {
        let sentence = format!("<h2 class=\"sentence\">{}</h2>", ui.summary(id));
        assert!(sentence.contains(&culprit()), "{sentence}");
        let ran = attempt(&[&browser[..], &options[..]].concat()).succeeded("chromium");
        let shows = |words: &str| ran.stdout.contains(words);
        (shows(&sentence) && wanted.into_iter().all(shows)).then_some(())
    });
}

#[test]
fn without_a_daemon_it_says_so() {
    let scratch = Scratch::without_mounts();
    let socket = scratch.path().join("no.sock");
    let mut command = Command::new(program());
    command.arg("ui").arg("--socket").arg(&socket).arg("--state-dir").arg(scratch.path());
    let ran = finish(command.stdin(Stdio::null()), "kevtmon".as_ref());
    assert_eq!((ran.status.code(), ran.stdout.as_str()), (Some(NO_DAEMON), ""));
    assert_eq!(ran.stderr, format!("kevtmon: no daemon listens on {}\n", socket.display()));
}
