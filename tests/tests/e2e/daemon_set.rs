//! The pod of the DaemonSet, run as its manifests say by a real Docker: it names who broke a gateway or holds a volume, and
//! pins nothing.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{kubelet_roots, own_address, program};
use kevtmon_tests::daemon_set::{CAPABILITIES, Form, PRIVILEGED, container, daemon_set, image, pod};
use kevtmon_tests::delivered::{list, string, text};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::helm::{of_kind, rendered};
use kevtmon_tests::http;
use kevtmon_tests::mount::{Mount, Scratch, is_about};
use kevtmon_tests::patience::within_patience;
use kevtmon_tests::pod::Pod;
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::{Finished, attempt, finish, hold_by_cwd};
use kevtmon_tests::runc;
use kevtmon_tests::scrape::Scrape;
use serde_json::{Value, json};

const FORMS: [&str; 2] = [CAPABILITIES, PRIVILEGED];

#[test]
fn the_pod_runs_on_every_node_and_gets_nothing_of_the_node_but_directories_of_its_own() {
    for set in FORMS.map(daemon_set) {
        let (pod, container) = (pod(&set), container(&set));
        assert_eq!(pod["tolerations"], json!([{"operator": "Exists"}]));
        assert_eq!(pod["automountServiceAccountToken"], false);
        for volume in list(pod, "volumes").iter().filter(|volume| volume.get("hostPath").is_some()) {
            let place = string(&volume["hostPath"], "path");
            assert!(place.ends_with("/kevtmon"), "{place} may have other mounts below it");
        }
        let mounted: BTreeSet<&str> =
            list(container, "volumeMounts").iter().map(|mount| string(mount, "name")).collect();
        let volumes: BTreeSet<&str> =
            list(pod, "volumes").iter().map(|volume| string(volume, "name")).collect();
        assert_eq!(mounted, volumes);
        assert!(
            container["resources"]["limits"].get("cpu").is_none(),
            "a daemon that has to wait loses events"
        );
        for (probe, path) in
            [("startupProbe", "/readyz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")]
        {
            let get = &container[probe]["httpGet"];
            let address = format!("--listen={}:{}", string(get, "host"), get["port"]);
            assert!(
                list(container, "args").iter().any(|word| *word == address.as_str()),
                "{probe}: {address}"
            );
            assert_eq!(get["path"], path);
        }
    }
}

#[test]
fn each_capability_has_a_comment_with_the_call_that_needs_it() {
    let manifest = text(CAPABILITIES);
    let lines: Vec<&str> = manifest.lines().map(str::trim).collect();
    let set = daemon_set(CAPABILITIES);
    let context = &container(&set)["securityContext"];
    assert_eq!(context["capabilities"]["drop"], json!(["ALL"]));
    assert!(context["privileged"] == false && context["allowPrivilegeEscalation"] == false);
    for name in list(&context["capabilities"], "add") {
        let at = lines
            .iter()
            .position(|line| line.strip_prefix("- ") == name.as_str())
            .expect("a line of its own");
        let above: Vec<&str> =
            lines[..at].iter().rev().copied().take_while(|line| line.starts_with('#')).collect();
        assert!(above.iter().any(|line| line.contains("(2)")), "{name} has no call");
    }
}

/// The container of a DaemonSet.
struct Deployed<'d> {
    dockerd: &'d Dockerd,
    container: Container<'d>,
    set: Value,
    address: SocketAddr,
    /// Its directories on the node.
    state: PathBuf,
    run: PathBuf,
}

impl<'d> Deployed<'d> {
    fn start(dockerd: &'d Dockerd, set: Value, scratch: &Scratch, config: &str) -> Self {
        let (image, address) = (image(dockerd), own_address());
        let Form { options, arguments, state, run } = Form::of(&set, scratch.path(), address, config);
        let container = Container::of_image(dockerd, &image, &borrowed(&options), &borrowed(&arguments));
        Self { dockerd, container, set, address, state, run }
    }

    fn wait_for(&self, what: &str, fits: impl Fn(&Event) -> bool) -> Event {
        let logs = || self.dockerd.attempt(&["logs", self.container.name()]);
        let event = |line: &str| Event::parse(line).expect("standard output has events and nothing else");
        let found = within_patience(|| logs().stdout.lines().map(event).find(|event| fits(event)));
        found.unwrap_or_else(|| panic!("no {what} in\n{}{}", logs().stdout, logs().stderr))
    }

    fn pins(&self) -> f64 {
        let answer = http::get(self.address, "/metrics").expect("metrics");
        Scrape::parse(answer.body).count("kevtmon_self_pins", &[])
    }

    /// The gateways that it knows in a namespace, as a kevtmon of the node itself shows them.
    fn gateways(&self, netns: u64) -> Option<usize> {
        let mut command = Command::new(program());
        command.args(["state", "--json", "--socket"]).arg(self.run.join("kevtmon.sock")).stdin(Stdio::null());
        let model: Value = serde_json::from_str(&finish(&mut command, "kevtmon".as_ref()).stdout).ok()?;
        let mut namespaces = model["namespaces"].as_array()?.iter();
        let own = namespaces.find(|namespace| namespace["netns"].as_u64() == Some(netns))?;
        own["gateways"].as_array().map(Vec::len)
    }

    fn is_ready_and_lacks_nothing(&self) {
        let ready = self.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
        assert_eq!(ready.text("/node"), "node-1");
        assert_eq!(ready.text("/daemon/sources/netlink"), "all-nsid", "{ready}");
        for hook in ["neighbor", "umount", "remove", "link", "sysctl", "exec"] {
            assert!(ready.has(&format!("/daemon/sources/hook.{hook}")), "{hook}: {ready}");
        }
        for lacks in ["own-mounts", "own-cgroups", "store", "recorder"] {
            assert!(!ready.has(&format!("/daemon/degraded/{lacks}")), "{ready}");
        }
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            let path = string(&container(&self.set)[probe]["httpGet"], "path");
            let is_well = || http::get(self.address, path).is_some_and(|answer| answer.status == 200);
            eventually!(is_well(), "{probe} finds it well");
        }
        assert!(std::fs::read_dir(&self.state).expect("a directory").count() > 0, "its state is on the node");
        // As by `kubectl exec`.
        let asked = self.container.exec(&[], &["kevtmon", "state", "--json"]);
        assert!(asked.stdout.contains("\"namespaces\""), "{}", asked.stdout);
    }
}

fn borrowed(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// Starts the pod of a manifest, has a gateway deleted and an unmount refused, and looks at what it says.
fn names_who_did_it(dockerd: &Dockerd, manifest: &str) {
    let scratch = Scratch::new();
    let (network, volume) = (Pod::new(), Mount::volume());
    let sandbox = PodSandbox::of(&network);
    let config = format!("\n{}", kubelet_roots(volume.kubelet_root()));
    let daemon = Deployed::start(dockerd, daemon_set(manifest), &scratch, &config);
    daemon.is_ready_and_lacks_nothing();

    eventually!(daemon.gateways(network.inum()) == Some(1), "the gateway of the pod is known");
    let _ = network.delete_gateway();
    let deleted = daemon.wait_for("neighbor.deleted", |event| {
        event.kind() == "neighbor.deleted" && event.is_in(network.inum())
    });
    assert_eq!((deleted.text("/actor/comm"), deleted.text("/actor/source")), ("ip", "kernel"), "{deleted}");
    assert!(deleted.number("/actor/pid").is_some(), "{deleted}");
    assert_eq!(deleted.text("/target/pod/uid"), sandbox.uid(), "{deleted}");

    let holder = hold_by_cwd(volume.point());
    volume.umount_refused();
    let path = volume.point().to_string_lossy().into_owned();
    let is_holder = |holds: &Value| holds["pid"].as_u64() == Some(holder.pid().into());
    let busy = daemon.wait_for("mount.busy with its holder", |event| {
        is_about(event, "mount.busy", volume.point()) && event.list("/holders").iter().any(is_holder)
    });
    assert!(busy.has("/mount/volume/pod_uid"), "{busy}");
    let held = dockerd.attempt(&["exec", daemon.container.name(), "kevtmon", "holders", &path]);
    assert_eq!(held.status.code(), Some(0), "{} {}", held.stdout, held.stderr);
    assert!(held.stdout.contains(&holder.pid().to_string()), "{}", held.stdout);
    drop(holder);
    eventually!(volume.umount().status.success(), "kevtmon does not hold it");
    eventually!(daemon.pins() == 0.0, "it pins nothing");
}

#[test]
fn with_five_capabilities_it_names_who_broke_a_gateway_and_who_holds_a_volume() {
    names_who_did_it(Dockerd::shared(), CAPABILITIES);
}

#[test]
fn a_privileged_pod_does_so_as_well() {
    let dockerd = Dockerd::prepare();
    let runtime = runc::install(dockerd.directory(), &[]);
    let dockerd = dockerd.through::<&str>(&[], &runtime.each_ref().map(String::as_str));
    dockerd.launch();
    names_who_did_it(&dockerd, PRIVILEGED);
}

/// The Secret of a web configuration as the kubelet writes it: links to a directory that a link leads to, which is replaced by
/// another one with all files at once.
struct Secret {
    directory: PathBuf,
}

impl Secret {
    /// Makes it, with a certificate for the name by which the PodMonitor knows all nodes, and the hash of a password.
    fn new(directory: PathBuf, hash: &str) -> Self {
        let first = directory.join("..1");
        std::fs::create_dir_all(&first).expect("a directory can be made");
        let file = |name: &str| first.join(name).to_string_lossy().into_owned();
        let (key, certificate) = (file("tls.key"), file("tls.crt"));
        let _ = attempt(
            &[
                &["openssl", "req", "-x509", "-nodes", "-days", "3650", "-newkey", "ec"][..],
                &["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=kevtmon"],
                &["-addext", "subjectAltName=DNS:kevtmon", "-keyout", &key, "-out", &certificate],
            ]
            .concat(),
        )
        .succeeded("openssl req");
        std::fs::copy(certificate, first.join("ca.crt")).expect("a file can be copied");
        let secret = Self { directory };
        secret.write("..1", hash);
        for name in ["tls.key", "tls.crt", "ca.crt", "web.yml"] {
            symlink(Path::new("..data").join(name), secret.directory.join(name)).expect("a link can be made");
        }
        secret
    }

    fn write(&self, version: &str, hash: &str) {
        let text = format!(
            "tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\nbasic_auth_users:\n  prometheus: {hash}\n"
        );
        std::fs::write(self.directory.join(version).join("web.yml"), text).expect("a file can be written");
        let link = self.directory.join("..data_tmp");
        symlink(version, &link).expect("a link can be made");
        std::fs::rename(link, self.directory.join("..data")).expect("it can be renamed");
    }

    /// Writes it again with the hash of another password.
    fn replace(&self, hash: &str) {
        let second = self.directory.join("..2");
        std::fs::create_dir(&second).expect("a directory can be made");
        for name in ["tls.key", "tls.crt", "ca.crt"] {
            std::fs::copy(self.directory.join("..1").join(name), second.join(name))
                .expect("a file can be copied");
        }
        self.write("..2", hash);
    }
}

/// What curl gets of a path, and the status of HTTP in a line of its own.
fn curl(options: &[&str], url: &str) -> Finished {
    let fixed = ["curl", "--silent", "--show-error", "--noproxy", "*", "--write-out", "\n%{http_code}"];
    attempt(&[&fixed[..], options, &[url]].concat())
}

#[test]
fn with_a_web_configuration_it_is_probed_and_read_by_tls_and_sees_that_its_secret_changes() {
    const OLD: (&str, &str) = ("right", "$2b$04$J1rVmDn8nWIvGDo.EJb0POYcnCLJtWG6WLLHx2BLQODFaLFQcl0ee");
    const NEW: (&str, &str) = ("rotated", "$2b$04$CT4nO3dbRwXP562gR43Q5e/.FNo0ii9V0k/C.nyXWbBl1L6f6dFp.");
    let (dockerd, scratch) = (Dockerd::shared(), Scratch::without_mounts());
    let secret = Secret::new(scratch.path().join("web"), OLD.1);
    let web = json!({"secret": "kevtmon-web", "clientSecret": "kevtmon-web-client"});
    let objects = rendered(&json!({"webConfig": web}));
    let set = of_kind(&objects, "DaemonSet").expect("a DaemonSet").clone();
    let daemon = Deployed::start(dockerd, set, &scratch, "");
    daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        // The kubelet checks no certificate.
        let get = &container(&daemon.set)[probe]["httpGet"];
        let scheme = string(get, "scheme").to_lowercase();
        let url = format!("{scheme}://{}{}", daemon.address, string(get, "path"));
        eventually!(curl(&["--insecure"], &url).stdout.ends_with("\n200"), "{probe} finds it well");
    }
    // As the PodMonitor has Prometheus read it.
    let objects = rendered(&json!({"podMonitor": true, "webConfig": web}));
    let monitor = of_kind(&objects, "PodMonitor").expect("a PodMonitor");
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    let (scheme, tls) = (string(endpoint, "scheme"), &endpoint["tlsConfig"]);
    let authority = secret.directory.join(string(&tls["ca"]["secret"], "key"));
    let (name, port) = (string(tls, "serverName"), daemon.address.port());
    let place = format!("{name}:{port}:{}", daemon.address.ip());
    let read = |password: &str| {
        let user = format!("prometheus:{password}");
        let options = ["--cacert", &authority.to_string_lossy(), "--resolve", &place, "--user", &user];
        curl(&options, &format!("{scheme}://{name}:{port}/metrics"))
    };
    let found = read(OLD.0);
    assert!(found.stdout.contains("\nkevtmon_build_info{"), "{} {}", found.stdout, found.stderr);
    assert!(read("wrong").stdout.ends_with("\n401"), "who does not know it reads nothing");
    secret.replace(NEW.1);
    eventually!(read(NEW.0).stdout.ends_with("\n200"), "the new password is right");
    assert!(read(OLD.0).stdout.ends_with("\n401"), "and the old one no longer");
}

#[test]
fn each_required_capability_is_missed_by_its_name() {
    let dockerd = Dockerd::shared();
    let image = image(dockerd);
    let set = daemon_set(CAPABILITIES);
    let without = |missing: &str| {
        let scratch = Scratch::new();
        let Form { mut options, arguments, .. } = Form::of(&set, scratch.path(), own_address(), "");
        let all = options.len();
        options.retain(|option| *option != format!("--cap-add={missing}"));
        assert_eq!(options.len(), all - 1, "{missing} is added");
        let words =
            [&["run".to_owned(), "--rm".to_owned()][..], &options, std::slice::from_ref(&image), &arguments]
                .concat();
        dockerd.attempt(&words)
    };
    for capability in ["SYS_ADMIN", "SYS_PTRACE", "DAC_READ_SEARCH", "NET_ADMIN"] {
        let ran = without(capability);
        assert_eq!(ran.status.code(), Some(77), "{capability}: {}", ran.stderr);
        assert!(ran.stderr.contains(&format!("CAP_{capability}")), "{}", ran.stderr);
    }
}
