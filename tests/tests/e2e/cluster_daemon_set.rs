//! The DaemonSet in a whole cluster, by the commands of the guide: rolled out, asked who broke a pod's network and who holds its
//! volume, and removed without a trace. Ignored by a plain `cargo test`, as the tests of [`crate::cluster`].

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use kevtmon_packaging::image;
use kevtmon_tests::bpf::Object;
use kevtmon_tests::cluster::Cluster;
use kevtmon_tests::daemon_set::{CAPABILITIES, LISTEN, PRIVILEGED};
use kevtmon_tests::delivered::{commands, path};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::http;
use kevtmon_tests::kubelet::NodePod;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::patience::{patience, wait_until};
use kevtmon_tests::pod::GATEWAY;
use kevtmon_tests::process::{Finished, attempt, copy_program, run};
use kevtmon_tests::scrape::Scrape;
use serde_json::{Value, json};

use crate::package::release;

const GUIDE: &str = "docs/kubernetes.md";

/// How commands of the guide begin that are not carried out here, and why.
const LEFT_OUT: [(&str, &str); 7] = [
    ("kubectl -n lijiaob describe pod", "it needs Events of Kubernetes, which `cluster.rs` reads"),
    ("kubectl get events", "the same"),
    ("cargo xtask build", "the program under test is built"),
    ("docker push", "there is no registry, and the node has the image"),
    ("helm", "Debian has no Helm; `helm.rs` compares the manifests with what the chart renders"),
    ("kubectl label namespace", "with the manifests it has the label, and kubectl refuses to set it again"),
    ("kubectl -n kevtmon create secret", "`daemon_set.rs` has TLS and passwords"),
];

/// A name of a pod in the guide.
const POD: &str = "kevtmon-x7k2p";

/// An administrator who follows the guide, in a checkout.
struct Guide<'c> {
    cluster: &'c Cluster,
    checkout: Scratch,
    /// The commands, and whether they were carried out.
    commands: BTreeMap<String, bool>,
    /// What differs from the guide.
    replaced: BTreeMap<&'static str, String>,
}

impl<'c> Guide<'c> {
    /// Makes a checkout with the program under test, and what `cargo xtask dist` packs of it.
    fn open(cluster: &'c Cluster) -> Self {
        let checkout = Scratch::without_mounts();
        let (dist, built) = (checkout.path().join("target/dist"), checkout.path().join("target/release"));
        for directory in [&dist, &built] {
            fs::create_dir_all(directory).expect("a directory can be made");
        }
        let release = release(env!("CARGO_PKG_VERSION"));
        copy_program(&release.daemon, &built.join("kevtmon"));
        image::pack(&release, &dist).expect("it is packed");
        run(&format!("cp -r {} {}", path("deploy").display(), checkout.path().display()));
        let commands = commands(GUIDE).into_iter().map(|command| (command, false)).collect();
        let replaced = BTreeMap::from([("x86_64", ARCH.to_owned())]);
        Self { cluster, checkout, commands, replaced }
    }

    /// The only command of the guide with this in it.
    fn command(&mut self, part: &str) -> String {
        let mut all = self.commands.iter_mut().filter(|(command, _)| command.contains(part));
        let (Some((command, is_done)), None) = (all.next(), all.next()) else {
            panic!("{GUIDE} has one command with {part:?}")
        };
        *is_done = true;
        self.replaced.iter().fold(command.clone(), |command, (from, to)| command.replace(from, to))
    }

    fn attempt(&self, command: &str) -> Finished {
        let script = format!(
            "cd {0}\nexport HOME={0} DOCKER_BUILDKIT=0\n{1}{command}",
            self.checkout.path().display(),
            self.cluster.environment()
        );
        attempt(&["timeout", &patience().as_secs().to_string(), "sh", "-c", &script])
    }

    /// Carries out a command of the guide; what it prints.
    fn follow(&mut self, part: &str) -> String {
        let command = self.command(part);
        self.attempt(&command).succeeded(&command).stdout
    }

    /// The same, until it prints all of this, however it breaks lines.
    fn follow_until(&mut self, part: &str, expected: &[&str]) {
        wait_until(&format!("{expected:?} in what {part} prints"), || {
            let command = self.command(part);
            // It fails while there is no answer.
            let printed = self.attempt(&command).stdout;
            let line = printed.split_whitespace().collect::<Vec<_>>().join(" ");
            expected.iter().all(|text| line.contains(text)).then_some(())
        });
    }

    /// Another command of `kevtmon` in the pod; what it prints.
    fn ask(&mut self, words: &str) -> String {
        let command = self.command("kevtmon incidents").replace("incidents", words);
        self.attempt(&command).succeeded(&command).stdout
    }

    fn report(&mut self, words: &str) -> Value {
        serde_json::from_str(&self.ask(words)).expect("JSON")
    }

    /// Waits for an event among what the pod has printed, beside its log.
    fn wait_for(&mut self, what: &str, fits: impl Fn(&Event) -> bool) -> Event {
        let command = self.command(" logs ");
        let (logs, _) = command.split_once(" | ").expect("it is filtered");
        wait_until(what, || {
            let printed = self.attempt(logs).stdout;
            printed.lines().filter_map(|line| Event::parse(line).ok()).find(&fits)
        })
    }

    /// Waits until the DaemonSet is rolled out, and looks at its only pod.
    fn wait_for_roll_out(&mut self) {
        self.follow("rollout status");
        let ready = Event::parse(self.follow("| grep daemon.ready").trim_end()).expect("one event");
        assert_eq!(ready.text("/daemon/sources/netlink"), "all-nsid", "{ready}");
        assert_eq!(ready.text("/daemon/sources/hook.neighbor"), "tp_btf", "{ready}");
        for lacks in ["own-mounts", "own-cgroups", "node-root", "store", "recorder"] {
            assert!(!ready.has(&format!("/daemon/degraded/{lacks}")), "{ready}");
        }
        let doctor = self.follow("kevtmon doctor");
        assert!(doctor.contains("hook.neighbor     ok        by tp_btf"), "{doctor}");
        let pods = self.follow("get pods");
        let mut names = pods.lines().filter_map(|line| line.split(' ').next());
        let name = names.find(|name| name.starts_with("kevtmon-")).expect("a pod");
        self.replaced.insert(POD, name.to_owned());
    }

    /// Has it ask the runtime, whose socket is at no usual place, as the guide says for `kubectl`.
    fn configure(&mut self, manifest: &str) {
        let file = self.checkout.path().join(manifest);
        let text = fs::read_to_string(&file).expect("a manifest");
        let sockets = format!("sockets = [{:?}]", self.cluster.node().dockerd().runtime());
        assert_eq!(text.matches("sockets = \"none\"").count(), 1, "{manifest}");
        fs::write(&file, text.replace("sockets = \"none\"", &sockets)).expect("a file can be written");
    }

    /// Waits until it knows a pod and the gateway of its network.
    fn wait_until_known(&mut self, pod: &NodePod) {
        let is_it =
            |known: &Value| known["sandbox_id"] == pod.sandbox && known["gateways"] == json!([GATEWAY]);
        eventually!(
            self.report("state --json")["pods"].as_array().is_some_and(|pods| pods.iter().any(is_it)),
            "{} is known, with its gateway",
            pod.name
        );
    }
}

impl Drop for Guide<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for what in ["describe pods", "logs daemonset/kevtmon --tail=50"] {
                let shown = self.attempt(&format!("kubectl -n kevtmon {what}"));
                eprintln!("{}{}", shown.stdout, shown.stderr);
            }
        }
    }
}

/// A stale CNI DEL takes the gateway of the pod that has the name now; that pod.
fn lose_gateway(guide: &mut Guide<'_>) -> NodePod {
    let cluster = guide.cluster;
    let network = cluster.node().network();
    let old = cluster.wait_for_pod("etcd1-0", &[]);
    guide.wait_until_known(&old);
    network.refuse_deletions("etcd1-0");
    let _ = cluster.kubectl(&["delete", "pod", "etcd1-0", "--force", "--grace-period=0"]);
    let new = cluster.wait_for_pod("etcd1-0", &[&old.sandbox, &old.app]);
    guide.wait_until_known(&new);
    let of_new = |event: &Event, kind| {
        event.is_incident("incident.opened", kind) && event.text("/target/pod/uid") == new.uid
    };
    let stale = guide.wait_for("the stale call", |event| of_new(event, "stale-cni-del"));
    assert_eq!(stale.text("/actor/comm"), "calico", "{stale}");
    network.accept_deletions("etcd1-0");
    let lost = guide.wait_for("the lost gateway", |event| of_new(event, "gateway-neighbor-lost"));
    lost.expect("/actor/comm", "ip");
    lost.expect("/actor/ancestors/0/comm", "calico");
    let summary = format!("pod {} has lost its gateway {GATEWAY}", new.full_name());
    guide.follow_until("kevtmon incidents", &[&summary, "deleted by calico"]);
    guide.follow_until("kevtmon why", &[&summary, "deleted by calico", "stale-cni-del"]);
    new
}

/// A process of the node holds the volume of a pod that is deleted, until it ends.
fn hold_volume(guide: &mut Guide<'_>, pod: &NodePod) {
    let cluster = guide.cluster;
    let volume = cluster.node().memory_of(pod);
    let holder = cluster.node().hold_by_cwd(&volume);
    let _ = cluster.kubectl(&["delete", "pod", "etcd1-0", "--wait=false"]);
    let of_pod = |event: &Event, transition| {
        event.is_incident(transition, "volume-busy") && event.text("/target/pod/uid") == pod.uid
    };
    let busy = guide.wait_for("the busy volume", |event| of_pod(event, "incident.opened"));
    busy.expect("/mount/path", &*volume.to_string_lossy());
    busy.expect("/target/pod/name", &*pod.name);
    let held = format!("held by sleep (pid {}) as its current directory", holder.pid());
    guide.follow_until("kevtmon incidents", &[&held, &pod.full_name()]);
    let holders = guide.ask(&format!("holders {}", volume.display()));
    assert!(holders.contains(&holder.pid().to_string()), "{holders}");
    drop(holder);
    guide.wait_for("its end", |event| of_pod(event, "incident.closed"));
    let _ = cluster.wait_for_pod("etcd1-0", &[&pod.sandbox, &pod.app]);
}

/// Files of processes that name a pod: they are in its control group, or have a mount of it.
fn traces(uid: &str) -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").expect("a directory").flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        processes.flat_map(|process| ["cgroup", "mountinfo"].map(|file| process.join(file))).collect();
    files.retain(|file| fs::read_to_string(file).is_ok_and(|text| text.contains(uid)));
    files
}

/// Deletes it as the guide says; nothing of it is left but its directories.
fn remove(guide: &mut Guide<'_>) {
    let address: SocketAddr = LISTEN.parse().expect("an address");
    let pins = || {
        let answer = http::get(address, "/metrics").expect("metrics");
        Scrape::parse(answer.body).count("kevtmon_self_pins", &[])
    };
    eventually!(pins() == 0.0, "it pins nothing");
    let doctor = guide.report("doctor --json");
    assert_eq!(doctor["works"], true, "{doctor:#}");
    let pid = doctor["daemon"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    let objects = Object::of_process(pid.expect("a pid"));
    assert!(!objects.is_empty() && objects.iter().all(Object::exists), "{objects:?}");
    let uid = guide.attempt("kubectl -n kevtmon get pods -o 'jsonpath={.items[*].metadata.uid}'").stdout;
    assert!(uid.len() == 36 && !traces(&uid).is_empty(), "{uid}");

    guide.follow("delete -f");
    eventually!(traces(&uid).is_empty(), "no process and no mount of the pod is left");
    eventually!(!objects.iter().any(Object::exists), "no object of eBPF is left");
    for directory in ["var/lib/kevtmon", "run/kevtmon"] {
        assert!(guide.cluster.node().root().join(directory).is_dir(), "{directory} stays");
    }
}

#[test]
#[ignore = "needs a cluster"]
fn each_form_names_culprits_and_is_removed_without_a_trace_by_the_commands_of_the_guide() {
    let cluster = Cluster::start();
    let mut guide = Guide::open(&cluster);
    cluster.run_stateful_set("etcd1", 1);
    for part in ["docker build", "docker load", "docker tag"] {
        guide.follow(part);
    }
    for manifest in [CAPABILITIES, PRIVILEGED] {
        guide.replaced.insert(CAPABILITIES, manifest.to_owned());
        guide.follow("sed ");
        guide.wait_for_roll_out();

        guide.configure(manifest);
        guide.follow("sed ");
        guide.follow("rollout restart");
        guide.wait_for_roll_out();

        let pod = lose_gateway(&mut guide);
        hold_volume(&mut guide, &pod);
        remove(&mut guide);
    }
    let _ = cluster.kubectl(&["delete", "statefulset", "etcd1"]);
    eventually!(cluster.kubectl(&["get", "pods"]).stdout.is_empty(), "the pods of the node are deleted");

    let is_left_out = |command: &str| LEFT_OUT.iter().any(|(start, _)| command.starts_with(start));
    let left = guide.commands.iter().filter(|(command, is_done)| !**is_done && !is_left_out(command));
    assert_eq!(left.map(|(command, _)| &**command).collect::<Vec<_>>(), [""; 0], "each is carried out");
}

#[test]
fn each_command_that_is_left_out_is_in_the_guide() {
    let commands = commands(GUIDE);
    assert!(commands.iter().any(|command| command == "kubectl -n kevtmon rollout status daemonset/kevtmon"));
    for (start, _) in LEFT_OUT {
        assert!(commands.iter().any(|command| command.starts_with(start)), "{start}");
    }
}
