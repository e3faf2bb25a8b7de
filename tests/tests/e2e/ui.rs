//! `kevtmon ui`: a gateway that is really deleted and a volume that is really busy, by HTTP and in a browser.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use kevtmon_tests::advice::opened;
use kevtmon_tests::cni_call::{PLUGINS, args, plugins_and, wait_for_end};
use kevtmon_tests::component::{Component, Program, start};
use kevtmon_tests::daemon::{Daemon, kubelet_roots, launch, program};
use kevtmon_tests::delivered::path;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::http::{self, Answer};
use kevtmon_tests::mount::{Mount, Scratch, settle};
use kevtmon_tests::patience::{patience, wait_until};
use kevtmon_tests::pod::Pod;
use kevtmon_tests::pod_sandbox::{PodSandbox, uuid};
use kevtmon_tests::process::{Finished, Running, attempt, copy_program, finish, run};
use kevtmon_tests::unique;
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
    let address = format!("{}#{id}", ui.url);
    let wanted = ["class=\"box broken\"", "its static neighbor entry is gone", "class=\"dot incident "];
    wait_until("the page shows the incident", || {
        let sentence = format!("<h2 class=\"sentence\">{}</h2>", ui.summary(id));
        assert!(sentence.contains(&culprit()), "{sentence}");
        let shown = browse(&address, &["--dump-dom"]).stdout;
        let shows = |words: &str| shown.contains(words);
        (shows(&sentence) && wanted.into_iter().all(shows)).then_some(())
    });
}

fn browse(address: &str, options: &[&str]) -> Finished {
    let scratch = Scratch::without_mounts();
    let (limit, profile) =
        (patience().as_secs().to_string(), format!("--user-data-dir={}", scratch.path().display()));
    let browser = [
        "timeout", &limit, "chromium", "--headless", "--no-sandbox", "--disable-gpu",
        "--disable-dev-shm-usage", &profile, "--lang=en", "--virtual-time-budget=10000",
    ];
    attempt(&[&browser[..], options, &[address]].concat()).succeeded("chromium")
}

/// As a plugin that finds what it removes by the name of the pod: it takes the network of `VICTIM`, and fails without one.
const CALICO: &str = r#"#!/bin/sh
[ "$CNI_COMMAND" = DEL ] || exit 0
[ -n "$VICTIM" ] || exit 1
ip -n "$VICTIM" neigh del 169.254.1.1 dev eth0
exit
"#;
const VOLUME: &str =
    "kubelet/pods/5c948341-c030-4996-b888-f032577d97b0/volumes/kubernetes.io~glusterfs/cam-pv-50g";

/// A kubelet with a network plugin and a volume. Its parent is the node's first process by its name alone.
struct Node {
    kubelet: Component,
    volume: Mount,
    scratch: Scratch,
}

impl Node {
    fn new() -> Self {
        let scratch = Scratch::new();
        let volume = Mount::at(&scratch.path().join(VOLUME));
        let [systemd, kubelet] =
            ["bin/systemd", "bin/kubelet"].map(|name| Program::new(&scratch, name, None));
        let mut first = start(&systemd);
        first.run(&format!("{} -c 'while read -r line; do eval \"$line\"; done'", kubelet.path().display()));
        Self { kubelet: first, volume, scratch }
    }

    fn start_daemon(&self) -> Daemon {
        let further = kubelet_roots(self.volume.kubelet_root());
        let launch = plugins_and(&self.scratch, &[("calico", CALICO)], &further);
        launch.through(&["env", "KEVTMON_NODE_NAME=slave-197"]).start()
    }

    /// A call of the plugin for a sandbox of a pod.
    fn call(&mut self, command: &str, (pod, uid, id): (&str, &str, &str), netns: &Path, victim: &str) {
        let (args, plugin) = (args(pod, uid, id), self.scratch.path().join("calico"));
        self.kubelet.run(&format!(
            "env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin CNI_COMMAND={command} CNI_CONTAINERID={id} CNI_NETNS={} \
             CNI_IFNAME=eth0 CNI_PATH={PLUGINS} VICTIM={victim} 'CNI_ARGS={args}' {}",
            netns.display(),
            plugin.display()
        ));
    }

    /// A pod of which the plugin has made the network.
    fn add(&mut self, daemon: &mut Daemon, name: &str) -> (Pod, PodSandbox) {
        let pod = Pod::new();
        run(&format!("ip route add {}/32 dev {}", pod.address(), pod.host_end()));
        let sandbox = PodSandbox::of(&pod);
        self.call("ADD", (name, sandbox.uid(), sandbox.id()), pod.netns().path(), "");
        wait_for_end(daemon, sandbox.id(), "ADD");
        (pod, sandbox)
    }

    /// A process in the container of another pod holds the volume; the incident of that, and who does.
    fn hold_volume(&mut self, daemon: &mut Daemon, sandbox: &PodSandbox) -> (String, Running) {
        let program = self.scratch.path().join("bin/glusterfs");
        copy_program(Path::new("/bin/sleep"), &program);
        let mut command = Command::new(&program);
        command.arg("1000000").current_dir(self.volume.point()).stdin(Stdio::null());
        let holder = Running::spawn(&mut command);
        sandbox.take(holder.pid());
        settle(self.volume.point().parent().expect("a directory above"));
        let point = self.volume.point().to_string_lossy().into_owned();
        self.kubelet.run(&format!("umount {point}"));
        (opened(daemon, "volume-busy", |event| event.text("/mount/path") == point), holder)
    }

    /// The removal of an earlier sandbox of a pod fails at first, and then takes the network of the present one.
    fn lose_gateway(&mut self, daemon: &mut Daemon) -> (String, (Pod, PodSandbox)) {
        const NAME: &str = "etcd1-0";
        let (old, uid) = (unique::container_id(), uuid());
        self.call("DEL", (NAME, &uid, &old), Path::new(""), "");
        wait_for_end(daemon, &old, "DEL");
        let (pod, sandbox) = self.add(daemon, NAME);
        self.call("DEL", (NAME, &uid, &old), Path::new(""), pod.netns_name());
        let id = opened(daemon, "gateway-neighbor-lost", |event| {
            event.text("/target/container/id") == sandbox.id()
        });
        (id, (pod, sandbox))
    }
}

/// The pictures of the manual: their names, and the heights of their windows.
const PICTURES: [(&str, u32); 2] = [("docs/ui-incident.png", 1270), ("docs/ui-network.png", 520)];
const WIDTH: u32 = 1200;
const LONGEST: usize = 100 * 1024;

/// Width and height of a PNG: its first chunk is `IHDR`.
fn size(png: &[u8]) -> Option<(u32, u32)> {
    let rest = png.strip_prefix(b"\x89PNG\r\n\x1a\n")?;
    let number = |at: usize| Some(u32::from_be_bytes(rest.get(at..at + 4)?.try_into().ok()?));
    Some((number(8)?, number(12)?))
}

/// Takes a picture once the page shows these words; `KEVTMON_BLESS=1` writes it into the manual, by pngquant of the package of that
/// name.
fn take_picture(ui: &Ui, part: &str, (name, height): (&str, u32), wanted: &[&str]) {
    let scratch = Scratch::without_mounts();
    let file = scratch.path().join("picture.png");
    let address = format!("{}#{part}", ui.url);
    let options = [format!("--screenshot={}", file.display()), format!("--window-size={WIDTH},{height}")];
    let [screenshot, window] = options.each_ref().map(String::as_str);
    wait_until("the page shows it", || {
        let shown = browse(&address, &["--dump-dom", "--hide-scrollbars", screenshot, window]).stdout;
        wanted.iter().all(|words| shown.contains(*words)).then_some(())
    });
    let png = std::fs::read(&file).expect("a picture was taken");
    assert_eq!(size(&png), Some((WIDTH, height)));
    if std::env::var_os("KEVTMON_BLESS").is_some() {
        let (from, to) = (file.to_string_lossy(), path(name));
        let to = to.to_string_lossy();
        let words = ["pngquant", "--speed=1", "--strip", "--force", "--output", &to, "64", &from];
        let _ = attempt(&words).succeeded("pngquant");
    }
}

#[test]
fn in_a_browser_a_stale_del_and_a_busy_volume_are_shown_with_their_culprits() {
    let mut node = Node::new();
    let mut daemon = node.start_daemon();
    let pods = ["mem-0", "web-fddf96444-stxpf"].map(|name| node.add(&mut daemon, name));
    let (busy, holder) = node.hold_volume(&mut daemon, &pods[1].1);
    let (lost, _pod) = node.lose_gateway(&mut daemon);
    let ui = Ui::of(&daemon);
    let by_holder = format!("glusterfs (pid {})", holder.pid());
    eventually!(ui.summary(&busy).contains(&by_holder), "{}", ui.summary(&busy));
    let (summary, listed) = (ui.summary(&lost), ui.summary(&busy));
    assert!(summary.contains(" deleted by calico (pid "), "{summary}");
    let sentence = format!("<h2 class=\"sentence\">{summary}</h2>");
    let wanted =
        [sentence.as_str(), &listed, ">Caused by<", ">stale-cni-del opened: ", "class=\"arrow cause"];
    let [of_incident, of_network] = PICTURES;
    take_picture(&ui, &lost, of_incident, &wanted);
    let wanted = ["class=\"box broken\"", "its static neighbor entry is gone", ">lijiaob/etcd1-0<"];
    take_picture(&ui, "ways", of_network, &wanted);
}

#[test]
fn the_pictures_of_the_manual_are_small() {
    for (name, height) in PICTURES {
        let png = std::fs::read(path(name)).expect("it is checked in");
        assert_eq!(size(&png), Some((WIDTH, height)), "{name}");
        assert!(png.len() <= LONGEST, "{name}: {} bytes", png.len());
    }
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
