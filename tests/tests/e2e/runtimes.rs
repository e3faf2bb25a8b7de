//! Several sockets of runtimes: each is a source of its own, and a container is one however many report it.

use std::io;
use std::net::Shutdown;
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, Launch, launch};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::fake_dockerd::FakeDockerd;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::netns::NetnsPath;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::podman::Podman;
use kevtmon_tests::process::run;
use kevtmon_tests::reaper::Cleanup;

/// A socket that leads to another one.
struct Proxy {
    path: PathBuf,
    connections: Arc<Mutex<Vec<UnixStream>>>,
}

impl Proxy {
    fn start(path: PathBuf, target: PathBuf) -> Self {
        let listener = UnixListener::bind(&path).expect("a socket can be made");
        let connections = Arc::<Mutex<Vec<UnixStream>>>::default();
        let kept = Arc::clone(&connections);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = UnixStream::connect(&target) else { continue };
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut to) = (clone(from), clone(to));
                    std::thread::spawn(move || {
                        // Whichever end is closed, the other one follows.
                        drop(io::copy(&mut from, &mut to));
                        drop(to.shutdown(Shutdown::Both));
                    });
                }
                kept.push(client);
            }
        });
        Self { path, connections }
    }

    /// Takes the socket away and cuts all connections.
    fn cut(&self) {
        std::fs::remove_file(&self.path).expect("the socket is there");
        for connection in self.connections.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            drop(connection.shutdown(Shutdown::Both));
        }
    }
}

fn clone(stream: &UnixStream) -> UnixStream {
    stream.try_clone().expect("a descriptor is free")
}

fn watching(sockets: &[&Path]) -> Launch {
    let (first, others) = sockets.split_first().expect("a socket");
    let runtime = |socket: &Path| format!("docker={}", socket.display());
    others.iter().fold(launch().runtime(runtime(first)), |launch, socket| {
        launch.argument("--runtime").argument(runtime(socket))
    })
}

fn up(daemon: &Daemon, source: &str) -> Option<f64> {
    daemon.metrics().sum("kevtmon_source_up", &[("source", source)])
}

fn running(daemon: &Daemon) -> f64 {
    daemon.metrics().count("kevtmon_containers", &[("state", "running")])
}

/// What was reported of the life of a container, in order.
fn life(events: &[Event], id: &str) -> Vec<String> {
    let of_it = events.iter().filter(|event| event.has("/target/container/id"));
    let of_it = of_it.filter(|event| event.text("/target/container/id") == id);
    of_it.map(|event| event.kind().to_owned()).filter(|kind| kind.starts_with("container.")).collect()
}

/// Waits until the daemon has reported the start of a container.
fn wait_for_start(daemon: &mut Daemon, id: &str) -> Event {
    daemon.wait_for("container.started", |event| {
        event.kind() == "container.started" && event.text("/target/container/id") == id
    })
}

/// Waits until the daemon has reported a container's removal.
fn wait_for_removal(daemon: &mut Daemon, id: &str) {
    daemon.wait_for("container.removed", |event| {
        event.kind() == "container.removed" && event.text("/target/container/id") == id
    });
}

/// Whether the daemon shows a container as stale.
fn is_stale(daemon: &Daemon, id: &str) -> bool {
    let state = daemon.find(&["state"]);
    let container = state[0].list("/containers").iter().find(|container| container["id"] == id);
    container.expect("the container is known")["stale"] == true
}

#[test]
fn two_docker_daemons_do_not_wipe_each_others_containers() {
    let (first, second) = (Dockerd::start(), Dockerd::start());
    let [of_first, of_second] =
        [&first, &second].map(|dockerd| Container::idle(dockerd, &["--network", "none"]));
    let mut daemon = watching(&[&first.socket(), &second.socket()]).start();
    for source in ["docker", "docker-2"] {
        daemon.wait_for_source(source);
    }
    assert_eq!(running(&daemon), 2.0);

    second.kill();
    eventually!(up(&daemon, "docker-2") == Some(0.0), "the loss of the second one is seen");
    assert_eq!((up(&daemon, "docker"), running(&daemon)), (Some(1.0), 2.0), "what is known stays");
    assert!(is_stale(&daemon, of_second.id()) && !is_stale(&daemon, of_first.id()));
    let name = format!("docker:{}", second.socket().display());
    let lost = daemon.wait_for("daemon.degraded", |event| {
        event.kind() == "daemon.degraded" && event.text("/message").contains(&name)
    });
    assert!(!lost.text("/message").contains(&*first.socket().to_string_lossy()), "{lost}");

    // Its list is read again, without the others' containers.
    second.launch();
    eventually!(up(&daemon, "docker-2") == Some(1.0), "the second one is back");
    daemon.wait_for("daemon.recovered", |event| {
        event.kind() == "daemon.recovered" && event.text("/message") == format!("{name} is back")
    });
    let mut late = Container::idle(&second, &["--network", "none"]);
    late.end(&["rm", "-f"]);
    wait_for_removal(&mut daemon, late.id());
    assert_eq!(running(&daemon), 2.0);
    let events = daemon.events();
    for container in [&of_first, &of_second] {
        assert_eq!(life(&events, container.id()), [""; 0], "it ran all the time");
    }
}

#[test]
fn the_life_of_a_container_of_podman_is_reported_by_what_it_calls_it() {
    let Some(podman) = Podman::start() else { return };
    let runtime = format!("docker={}", podman.socket().display());
    let mut daemon = launch().runtime(runtime).start();
    let id = podman.start_container(&[], &["sleep", "1000000"]);
    let started = wait_for_start(&mut daemon, &id);
    started.expect("/target/container/runtime", "podman");
    started.expect("/target/container/pid", podman.pid(&id));
    let _ = podman.run(&["rm", "--force", "--time", "0", &id]).succeeded("podman rm");
    wait_for_removal(&mut daemon, &id);
    assert!(life(&daemon.events(), &id).contains(&"container.exited".to_owned()));
    let exited = daemon.wait_for("container.exited", |event| event.kind() == "container.exited");
    exited.expect("/target/container/exit_code", 137);
}

#[test]
fn a_restart_of_podmans_service_changes_nothing_for_its_containers() {
    let Some(podman) = Podman::start() else { return };
    let early = podman.start_container(&[], &["sleep", "1000000"]);
    let mut daemon = launch().runtime(format!("docker={}", podman.socket().display())).start();
    daemon.wait_for_source("docker");
    podman.stop();
    eventually!(up(&daemon, "docker") == Some(0.0), "the loss of the service is seen");
    assert!(is_stale(&daemon, &early));
    let _ = podman.run(&["rm", "--force", "--time", "0", &podman.start_container(&[], &["true"])]);
    let late = podman.start_container(&[], &["sleep", "1000000"]);
    podman.launch();
    eventually!(up(&daemon, "docker") == Some(1.0), "the service is back");
    eventually!(running(&daemon) == 2.0, "what was started meanwhile is known");
    assert!(!is_stale(&daemon, &early) && !is_stale(&daemon, &late));
    let _ = podman.run(&["rm", "--force", "--time", "0", &late]).succeeded("podman rm");
    wait_for_removal(&mut daemon, &late);
    assert_eq!(life(&daemon.events(), &early), [""; 0], "it ran all the time");
}

#[test]
fn the_containers_of_a_pod_of_podman_share_a_network_and_go_with_it() {
    let Some(podman) = Podman::start() else { return };
    let mut daemon = launch().runtime(format!("docker={}", podman.socket().display())).start();
    let pod = podman.start_pod(&["sleep", "1000000"]);
    for id in [&pod.infra, &pod.container] {
        let started = wait_for_start(&mut daemon, id);
        started.expect("/target/container/runtime", "podman");
        started.expect("/target/container/pid", podman.pid(id));
        started.expect_none("/target/pod");
    }
    let network = Pod::at(NetnsPath::of_process(podman.pid(&pod.infra)));
    assert_eq!(NetnsPath::of_process(podman.pid(&pod.container)).inum(), network.inum(), "it is shared");
    daemon.wait_for_gateway(network.inum(), GATEWAY);
    let ip = network.delete_gateway();
    let deleted = daemon.wait_for_deletion_by(ip.pid, network.inum(), GATEWAY);
    deleted.expect("/neighbor/gateway", true);
    deleted.expect("/target/container/runtime", "podman");
    let owner = deleted.text("/target/container/id");
    assert!([&*pod.infra, &*pod.container].contains(&owner), "{deleted}");
    let lost = daemon.wait_for("the lost gateway", |event| {
        event.is_incident("incident.opened", "gateway-neighbor-lost") && event.is_in(network.inum())
    });
    lost.expect("/target/container/id", owner);

    let _ = podman.run(&["pod", "rm", "--force", "--time", "0", &pod.id]).succeeded("podman pod rm");
    for id in [&pod.infra, &pod.container] {
        wait_for_removal(&mut daemon, id);
    }
    let closed = daemon.wait_for("its end", |event| {
        event.kind() == "incident.closed" && event.text("/incident/id") == lost.text("/incident/id")
    });
    closed.expect("/incident/close_reason", "subject-gone");
    let is_other = |event: &&Event| {
        event.kind() == "incident.opened" && event.text("/incident/id") != lost.text("/incident/id")
    };
    let of_pod = |event: &&Event| {
        [&pod.infra, &pod.container].iter().any(|id| event.text("/target/container/id") == **id)
    };
    let events = daemon.events();
    assert!(!events.iter().filter(is_other).any(|event| of_pod(&event)), "its removal is no fault");
}

/// Where podman's service of root listens as Debian has it.
const PODMAN: &str = "/run/podman/podman.sock";

#[test]
fn podman_is_found_by_itself() {
    let Some(podman) = Podman::start() else { return };
    let id = podman.start_container(&[], &["sleep", "1000000"]);
    let usual = Path::new(PODMAN);
    assert!(!usual.exists(), "{PODMAN} is in use on this machine: its podman would be found");
    let _cleanup = Cleanup::script(&format!("rm -f {PODMAN}; rmdir /run/podman 2>/dev/null\n"));
    let mut daemon = launch().runtime("auto").start();
    std::fs::create_dir_all("/run/podman").expect("a directory can be made");
    symlink(podman.socket(), usual).expect("a link can be made");
    let source = || {
        let state = daemon.find(&["state"]);
        let sources = state[0].list("/sources");
        let found = sources.iter().find(|source| source["source"] == format!("docker:{PODMAN}"));
        found.map(|source| source["up"] == true)
    };
    eventually!(source() == Some(true), "podman is found");
    let late = podman.start_container(&[], &["sleep", "1000000"]);
    let started = wait_for_start(&mut daemon, &late);
    started.expect("/target/container/runtime", "podman");
    let network = Pod::at(NetnsPath::of_process(podman.pid(&id)));
    daemon.wait_for_gateway(network.inum(), GATEWAY);
    let ip = network.delete_gateway();
    let deleted = daemon.wait_for_deletion_by(ip.pid, network.inum(), GATEWAY);
    deleted.expect("/target/container/id", id.as_str());
}

#[test]
fn labels_of_a_container_of_podman_are_a_claim() {
    let Some(podman) = Podman::start() else { return };
    let mut daemon = launch().joining(format!("docker={}", podman.socket().display())).start();
    let labels = [
        "--label=io.kubernetes.pod.namespace=shop",
        "--label=io.kubernetes.pod.name=web-0",
        "--label=io.kubernetes.pod.uid=0f7e8a52-6e3b-11e8-9a2c-525400c5d0aa",
        "--label=io.kubernetes.container.name=POD",
        "--label=io.kubernetes.docker.type=podsandbox",
    ];
    let id = podman.start_container(&labels, &["sleep", "1000000"]);
    wait_for_start(&mut daemon, &id).expect("/target/pod/claimed", true);
    let network = Pod::at(NetnsPath::of_process(podman.pid(&id)));
    daemon.wait_for_gateway(network.inum(), GATEWAY);
    let ip = network.delete_gateway();
    let deleted = daemon.wait_for_deletion_by(ip.pid, network.inum(), GATEWAY);
    let opened = daemon.wait_for("the lost gateway", |event| {
        // The number of the namespace may have been another one's before.
        let is_later = event.number("/seq") > deleted.number("/seq");
        event.is_incident("incident.opened", "gateway-neighbor-lost")
            && event.is_in(network.inum())
            && is_later
    });
    for event in [&deleted, &opened] {
        event.expect("/target/container/id", id.as_str());
        event.expect("/target/pod/claimed", true);
        assert!(event.text("/message").contains("(claims to be pod shop/web-0)"), "{event}");
    }
    assert!(daemon.find(&["events", "--pod", "shop/web-0"]).is_empty());
}

#[test]
fn a_container_that_is_seen_through_several_sockets_is_one() {
    let dockerd = Dockerd::start();
    let scratch = Scratch::without_mounts();
    let path = |name: &str| scratch.path().join(name);
    let early = Container::idle(&dockerd, &["--network", "none"]);
    let proxy = Proxy::start(path("proxy.sock"), dockerd.socket());
    symlink(dockerd.socket(), path("link.sock")).expect("a link can be made");
    let sockets = [dockerd.socket(), path("proxy.sock"), path("link.sock"), path("dead.sock")];
    let mut daemon = watching(&sockets.each_ref().map(PathBuf::as_path)).start();
    let labels = ["docker", "docker-2", "docker-3", "docker-4"];
    for label in &labels[..3] {
        daemon.wait_for_source(label);
    }
    assert_eq!(up(&daemon, labels[3]), Some(0.0));
    assert_eq!(running(&daemon), 1.0);

    for _ in 0..3 {
        let mut container = Container::idle(&dockerd, &["--network", "none"]);
        container.end(&["rm", "-f"]);
        wait_for_removal(&mut daemon, container.id());
        let reported = life(&daemon.events(), container.id());
        let once = ["container.created", "container.started", "container.exited", "container.removed"];
        assert_eq!(reported, once);
    }

    proxy.cut();
    eventually!(up(&daemon, "docker-2") == Some(0.0), "the loss of the proxy is seen");
    assert!(!is_stale(&daemon, early.id()), "others still report it");
    let late = Container::idle(&dockerd, &["--network", "none"]);
    eventually!(running(&daemon) == 2.0, "the other sockets are listened to");
    let events = daemon.events();
    assert_eq!(life(&events, early.id()), [""; 0]);
    assert_eq!(events.iter().filter(|event| event.kind() == "container.removed").count(), 3);
    drop(late);
}

#[test]
fn an_engine_that_names_the_process_of_a_container_of_another_one_owns_nothing_of_it() {
    let (dockerd, fake) = (Dockerd::start(), FakeDockerd::start());
    let container = Container::idle(&dockerd, &["--network", "none"]);
    // Of two that are equal otherwise the greater id would win.
    let other = "f".repeat(64);
    fake.put(&other, container.pid());
    let mut daemon = watching(&[&dockerd.socket(), &fake.socket()]).start();
    for source in ["docker", "docker-2"] {
        daemon.wait_for_source(source);
    }
    let network = Pod::at(container.netns());
    daemon.wait_for_gateway(network.inum(), GATEWAY);
    let ip = network.delete_gateway();
    let deleted = daemon.wait_for_deletion_by(ip.pid, network.inum(), GATEWAY);
    let lost = daemon.wait_for("the lost gateway", |event| {
        event.is_incident("incident.opened", "gateway-neighbor-lost") && event.is_in(network.inum())
    });
    for event in [&deleted, &lost] {
        event.expect("/target/container/id", container.id());
    }
    let state = daemon.find(&["state"]).remove(0);
    let known = state.list("/containers").iter().find(|known| known["id"] == *other).expect("it is listed");
    assert_eq!((known.get("pid"), known.get("netns")), (None, None), "{known}");
    let malformed = |source| daemon.metrics().count("kevtmon_malformed_total", &[("source", source)]);
    assert!(malformed("docker") == 0.0 && malformed("docker-2") >= 1.0);
}

#[test]
fn while_its_socket_does_not_answer_containers_are_known_by_dockers_files() {
    let dockerd = Dockerd::start();
    let scratch = Scratch::without_mounts();
    let early = Container::idle(&dockerd, &["--network", "none"]);
    let proxy = Proxy::start(scratch.path().join("proxy.sock"), dockerd.socket());
    let mut daemon = watching(&[&proxy.path]).start();
    daemon.wait_for_source("docker");
    proxy.cut();
    eventually!(up(&daemon, "docker") == Some(0.0), "the loss of the socket is seen");
    let labels = ["--label", "io.kubernetes.pod.name=web-0", "--label", "io.kubernetes.pod.namespace=shop"];
    let others = ["--label", "io.kubernetes.pod.uid=u-1", "--network", "none"];
    let mut late = Container::idle(&dockerd, &[labels, others].concat());
    let is_late = |event: &Event| {
        event.kind() == "container.started" && event.text("/target/container/id") == late.id()
    };
    let started = daemon.wait_for("container.started", is_late);
    started.expect("/target/container/name", late.name());
    started.expect("/target/container/pid", late.pid());
    started.expect("/target/pod/name", "web-0");
    started.expect("/target/pod/claimed", true);
    let degraded = daemon.wait_for("daemon.degraded", |event| event.kind() == "daemon.degraded");
    assert!(degraded.text("/message").contains("its containers are read from"), "{degraded}");
    let id = late.id().to_owned();
    late.end(&["rm", "-f"]);
    wait_for_removal(&mut daemon, &id);
    assert_eq!(life(&daemon.events(), early.id()), [""; 0], "it ran all the time");
}

/// A directory of another user's into which nobody else may look, as systemd-logind makes one when that user logs in.
fn log_in(directory: &Path) {
    std::fs::create_dir(directory).expect("a directory can be made");
    run(&format!("chown 1234:1234 {}", directory.display()));
    run(&format!("chmod 700 {}", directory.display()));
}

/// A socket in it that leads to a Docker daemon, and is that user's.
fn serve(socket: &Path, dockerd: &Dockerd) -> Proxy {
    let proxy = Proxy::start(socket.to_owned(), dockerd.socket());
    run(&format!("chown 1234:1234 {}", socket.display()));
    run(&format!("chmod 600 {}", socket.display()));
    proxy
}

/// What `doctor` says of a part.
fn part(daemon: &Daemon, name: &str) -> serde_json::Value {
    let report: serde_json::Value =
        serde_json::from_str(&daemon.ask(&["doctor", "--json"]).stdout).expect("JSON");
    let mut parts = report["parts"].as_array().expect("parts").iter();
    parts.find(|part| part["name"] == name).cloned().unwrap_or_else(|| panic!("no {name} in {report:#}"))
}

#[test]
fn a_socket_of_a_user_who_logs_in_after_the_start_is_reached() {
    let dockerd = Dockerd::shared();
    let container = Container::idle(dockerd, &["--network", "none"]);
    let scratch = Scratch::without_mounts();
    let (directory, socket) = (scratch.path().join("1234"), scratch.path().join("1234/podman.sock"));
    let mut daemon = watching(&[&socket]).start();
    assert_eq!(up(&daemon, "docker"), Some(0.0));
    log_in(&directory);
    let _proxy = serve(&socket, dockerd);
    daemon.wait_for_source("docker");
    assert!(running(&daemon) >= 1.0, "{} is known", container.id());
    let confinement = part(&daemon, "confinement");
    assert_eq!(confinement["state"], "ok");
    assert!(
        confinement["found"].as_str().is_some_and(|has| has.contains("CAP_DAC_OVERRIDE")),
        "{confinement}"
    );
    daemon.stop();
}

#[test]
fn where_it_lacks_the_capability_for_that_it_says_so_at_the_start_and_in_doctor() {
    let dockerd = Dockerd::shared();
    let scratch = Scratch::without_mounts();
    let (directory, socket) = (scratch.path().join("1234"), scratch.path().join("1234/podman.sock"));
    let launch = watching(&[&socket]).through(&["setpriv", "--bounding-set=-chown,-dac_override"]);
    let mut daemon = launch.start();
    let said = |text: &str| daemon.log().lines().filter(|line| line.contains(text)).count();
    assert_eq!(
        said(&format!("{} belongs to another user, or may do so", socket.display())),
        1,
        "{}",
        daemon.log()
    );
    log_in(&directory);
    let _proxy = serve(&socket, dockerd);
    let name = format!("docker:{}", socket.display());
    eventually!(
        part(&daemon, &name)["remedy"].as_str().is_some_and(|remedy| remedy.contains("CAP_DAC_OVERRIDE")),
        "doctor tells which capability is missing"
    );
    assert_eq!(up(&daemon, "docker"), Some(0.0));
    daemon.stop();
}
