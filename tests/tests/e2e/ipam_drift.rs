//! Addresses of pods that host-local no longer has reserved, by its own files, on a node without any runtime: the pods are
//! processes in control groups as a kubelet makes them, in network namespaces of their own.
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use kevtmon_tests::advice::{carry_out, opened, resolved};
use kevtmon_tests::daemon::{Daemon, Launch, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::pod::Pod;
use kevtmon_tests::pod_sandbox::{PodSandbox, uuid};
use kevtmon_tests::process::run;

const KIND: &str = "ipam-drift";

/// A pod and its process.
struct Living {
    pod: Pod,
    sandbox: PodSandbox,
}

impl Living {
    fn new() -> Self {
        let pod = Pod::new();
        Self { sandbox: PodSandbox::of(&pod), pod }
    }

    fn address(&self) -> &str {
        self.pod.address()
    }
}

/// The files of host-local and of libcni.
struct Files(Scratch);

impl Files {
    fn new() -> Self {
        let files = Self(Scratch::without_mounts());
        for directory in ["networks/cbr0", "results"] {
            fs::create_dir_all(files.0.path().join(directory)).expect("a directory can be made");
        }
        files
    }

    fn reservation(&self, address: &str) -> PathBuf {
        self.0.path().join("networks/cbr0").join(address)
    }

    fn reserve(&self, address: &str, sandbox: &str) {
        fs::write(self.reservation(address), format!("{sandbox}\r\neth0")).expect("a file can be written");
    }

    fn free(&self, address: &str) {
        fs::remove_file(self.reservation(address)).expect("it is reserved");
    }

    /// As libcni writes down that host-local gave an address to a sandbox.
    fn give(&self, living: &Living) {
        let (id, networks) = (living.sandbox.id(), self.0.path().join("networks"));
        let config = format!(
            r#"{{"name":"cbr0","plugins":[{{"type":"ptp","ipam":{{"type":"host-local","dataDir":"{}"}}}}]}}"#,
            networks.display()
        );
        let file = self.0.path().join("config");
        fs::write(&file, config).expect("a file can be written");
        let config = run(&format!("base64 --wrap=0 {}", file.display())).stdout;
        let result = format!(
            r#"{{"kind":"cniCacheV1","containerId":"{id}","config":"{config}","ifName":"eth0","networkName":"cbr0","result":{{"cniVersion":"1.0.0","ips":[{{"address":"{}/32"}}]}}}}"#,
            living.address()
        );
        let path = self.0.path().join(format!("results/cbr0-{id}-eth0"));
        fs::write(path, result).expect("a file can be written");
    }

    fn launch(&self) -> Launch {
        let config = format!(
            "[ipam]\ndirectory = \"{}\"\n[incidents]\nipam_drift_seconds = 1\n",
            self.0.path().display()
        );
        launch().config(&config)
    }
}

fn is_of(event: &Event, living: &Living) -> bool {
    event.text("/reservation/address") == living.address()
}

fn wait_for(daemon: &mut Daemon, transition: &str, living: &Living) -> Event {
    daemon.wait_for(transition, |event| event.is_incident(transition, KIND) && is_of(event, living))
}

#[test]
fn an_address_that_was_freed_or_given_away_while_its_pod_lives_is_told_at_once_and_after_the_fact() {
    let files = Files::new();
    let (kept, lost) = (Living::new(), Living::new());
    files.reserve(kept.address(), kept.sandbox.id());
    files.give(&kept);
    // Before the daemon starts: its reservation has gone, and the result of the call is left.
    files.give(&lost);
    let mut daemon = files.launch().start();
    let found = wait_for(&mut daemon, "incident.opened", &lost);
    found.expect("/incident/found_at_start", true);
    found.expect("/incident/confidence", "likely");
    found.expect("/reservation/network", "cbr0");
    found.expect("/reservation/container_id", lost.sandbox.id());
    found.expect("/reservation/netns", lost.pod.inum());
    found.expect("/target/pod/uid", lost.sandbox.uid());

    files.free(kept.address());
    let id = opened(&mut daemon, KIND, |event| is_of(event, &kept));
    let opened = wait_for(&mut daemon, "incident.opened", &kept);
    opened.expect("/incident/confidence", "certain");
    opened.expect_none("/incident/found_at_start");
    opened.expect_none("/reservation/reserved_for");
    opened.expect_none("/actor");
    let told = carry_out(&daemon, &id, "ipam-drift/tell-pod").stdout;
    assert!(told.contains(&id), "{told}");

    let other = uuid().replace('-', "");
    files.reserve(kept.address(), &other);
    let updated = wait_for(&mut daemon, "incident.updated", &kept);
    updated.expect("/reservation/reserved_for", other);
    files.reserve(kept.address(), kept.sandbox.id());
    resolved(&mut daemon, &id);

    // Its process ends, and with it the pod.
    let netns = lost.pod.inum();
    let Living { mut pod, sandbox } = lost;
    drop(sandbox);
    pod.delete_netns();
    let closed = daemon.wait_for("the end of the other one", |event| {
        event.is_incident("incident.closed", KIND) && event.number("/reservation/netns") == Some(netns)
    });
    closed.expect("/incident/close_reason", "subject-gone");
}

#[test]
fn bad_files_hide_no_others_and_what_is_reserved_is_never_told() {
    let files = Files::new();
    let (witness, kept, unread, unmanaged) = (Living::new(), Living::new(), Living::new(), Living::new());
    for living in [&witness, &kept, &unread] {
        files.give(living);
    }
    files.reserve(witness.address(), witness.sandbox.id());
    // In another network of the same name as before.
    let before = files.0.path().join("networks/before");
    fs::create_dir_all(&before).expect("a directory can be made");
    fs::write(before.join(kept.address()), kept.sandbox.id()).expect("a file can be written");
    symlink("/dev/zero", files.reservation(unread.address())).expect("a link can be made");
    // For somebody, by a network that never gave it to this pod.
    files.reserve(unmanaged.address(), &uuid().replace('-', ""));
    for (name, text) in [("lock", ""), ("last_reserved_ip.0", "x"), ("10.0.0.300", "x"), ("10.0.0.7", "")] {
        fs::write(files.reservation(name), text).expect("a file can be written");
    }
    run(&format!(
        "mkfifo {} {}",
        files.reservation("10.0.0.8").display(),
        files.0.path().join("results/fifo").display()
    ));
    fs::write(files.reservation("10.0.0.9"), vec![b'x'; 1 << 20]).expect("a file can be written");
    let mut daemon = files.launch().start();
    let malformed = || daemon.metrics().count("kevtmon_malformed_total", &[("source", "ipam")]);
    eventually!(malformed() > 3.5, "a link, two pipes and a long file are told");
    files.free(witness.address());
    wait_for(&mut daemon, "incident.opened", &witness);
    let told: Vec<Event> =
        daemon.events().into_iter().filter(|event| event.is_incident("incident.opened", KIND)).collect();
    assert_eq!(told.len(), 1, "{told:?}");
}
