//! Calls of CNI plugins, as runtimes and kubelets make them, and what others than root of the node execute.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use kevtmon_tests::advice::carry_out;
use kevtmon_tests::balance::stop_and_account;
use kevtmon_tests::cni_call::{OK, PLUGINS, args, call, finished, plugins, wait_for_end};
use kevtmon_tests::component::{Component, Program, start_as};
use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::lock::Exclusive;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::netns::Netns;
use kevtmon_tests::patience::wait_until;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::pod_sandbox::{PodSandbox, uuid};
use kevtmon_tests::process::{Running, finish_with_input, write_script};
use kevtmon_tests::unique;
use nix::sys::signal::Signal;

/// Stands in every secret, and nowhere else.
const SECRET: &str = "s3cr3t";
/// Of the pod that calls are for.
const UID: &str = "0f7e8a52-6e3b-11e8-9a2c-525400c5d0aa";

fn of(events: &[Event], id: &str) -> Vec<Event> {
    let is_its = |event: &&Event| event.kind().starts_with("cni.") && event.text("/cni/container_id") == id;
    events.iter().filter(is_its).cloned().collect()
}

/// A call that is seen by all that came before it is seen, too.
fn fence(daemon: &mut Daemon, scratch: &Scratch) -> Vec<Event> {
    let id = unique::container_id();
    let _ = finished(call(scratch.path().join("fence"), "CHECK", &id)).succeeded("fence");
    wait_for_end(daemon, &id, "CHECK");
    daemon.events()
}

#[test]
fn a_call_of_a_real_plugin_and_its_delegates_is_one_event() {
    let mut daemon = launch().start();
    let (netns, id) = (Netns::new(), unique::container_id());
    let data = Scratch::without_mounts();
    let config = format!(
        r#"{{"cniVersion":"0.4.0","name":"{}","type":"ptp","ipam":{{"type":"host-local","subnet":"10.199.0.0/24",
            "dataDir":"{}"}}}}"#,
        unique::name("net"),
        data.path().display()
    );
    let path = netns.path().path().to_string_lossy().into_owned();
    for command in ["ADD", "DEL"] {
        let mut ptp = call(Path::new(PLUGINS).join("ptp"), command, &id);
        ptp.env("CNI_NETNS", &path);
        let _ = finish_with_input(&mut ptp, &config);
        let end = wait_for_end(&mut daemon, &id, command);
        end.expect("/cni/exit_code", 0);
        end.expect("/cni/plugin", "/usr/lib/cni/ptp");
        end.expect_none("/cni/plugins");
        end.expect("/cni/netns", path.as_str());
        end.expect("/cni/netns_inode", netns.path().inum());
        end.expect("/cni/ifname", "eth0");
        end.expect("/cni/namespace", "lijiaob");
        end.expect("/cni/pod", "etcd1-0");
        end.expect("/target/container/id", id.as_str());
        end.expect("/target/pod/uid", UID);
        end.expect("/actor/comm", "ptp");
        end.expect("/actor/exe", "/usr/lib/cni/ptp");
        end.expect("/actor/confidence", "certain");
        end.expect("/actor/ancestors/0/pid", std::process::id());
        assert!(end.has("/cni/duration_ms"), "{end}");
        assert_eq!(end.severity(), "info");
    }
    let kinds: Vec<String> = of(&daemon.events(), &id).iter().map(|event| event.kind().to_owned()).collect();
    assert_eq!(kinds, ["cni.started", "cni.finished", "cni.started", "cni.finished"]);
    for command in ["ADD", "DEL"] {
        let labels = [("command", command), ("result", "ok")];
        assert!(daemon.metrics().sum("kevtmon_cni_invocations_total", &labels) >= Some(1.0));
    }
}

#[test]
fn plugins_of_a_chain_are_one_call_and_a_failure_ends_it_at_once() {
    let scratch = Scratch::without_mounts();
    let plugins = [("first", OK), ("second", OK), ("third", "#!/bin/sh\nexit 7\n"), ("fence", OK)];
    let mut daemon = plugins_with(&scratch, &plugins);
    let id = unique::container_id();
    let path = |name: &str| scratch.path().join(name);
    for name in ["first", "second", "third"] {
        let _ = finished(call(path(name), "ADD", &id));
    }
    let end = wait_for_end(&mut daemon, &id, "ADD");
    let all: Vec<PathBuf> = ["first", "second", "third"].map(path).to_vec();
    let shown: Vec<&str> = end.list("/cni/plugins").iter().filter_map(|plugin| plugin.as_str()).collect();
    assert_eq!(shown.iter().map(PathBuf::from).collect::<Vec<_>>(), all, "{end}");
    end.expect("/cni/plugin", path("third").to_string_lossy().as_ref());
    end.expect("/cni/exit_code", 7);
    assert_eq!(end.severity(), "notice");
    let message = end.text("/message");
    assert!(
        message.contains("CNI ADD of sandbox") && message.contains("failed, plugin third exited with code 7")
    );
    // Again, so it is another call.
    finished(call(path("first"), "ADD", &id));
    fence(&mut daemon, &scratch);
    eventually!(of(&daemon.events(), &id).len() == 4, "both calls are seen, each as one");
}

fn plugins_with(scratch: &Scratch, all: &[(&str, &str)]) -> Daemon {
    plugins(scratch, all).start()
}

/// All files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("a directory can be read");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn a_large_environment_is_read_to_its_end_and_its_secrets_stay_where_they_are() {
    let scratch = Scratch::without_mounts();
    let launch = plugins(&scratch, &[("plugin", OK), ("fence", OK)]);
    let record = launch.directory().join("record.ndjson");
    let mut daemon = launch.argument("--record").argument(&record).start();
    let id = unique::container_id();
    let mut plugin = call(scratch.path().join("plugin"), "DEL", &id);
    // In the order of their names: these come before those of the call, which go on in another part.
    for number in 0..62 {
        plugin.env(format!("A{number:03}_TOKEN"), format!("{SECRET}{}", "x".repeat(1000)));
    }
    plugin.env("CNI_ARGS", format!("{};TOKEN={SECRET}2", args("etcd1-0", UID, &id)));
    plugin.env("CNI_NETNS_TOKEN", format!("{SECRET}3")).env("K8S_API_TOKEN", format!("{SECRET}4"));
    plugin.arg("--token").arg(format!("{SECRET}5"));
    finished(plugin);
    let end = wait_for_end(&mut daemon, &id, "DEL");
    end.expect("/cni/pod", "etcd1-0");
    end.expect_none("/cni/truncated");
    fence(&mut daemon, &scratch);
    let state = daemon.state();
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0), "{}", daemon.log());
    let written = files(&state).into_iter().chain([record]).chain(files(daemon.directory()));
    let is_in = |bytes: &[u8]| bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
    let mut looked = 0;
    for path in written {
        let bytes = std::fs::read(&path).unwrap_or_default();
        looked += bytes.len();
        assert!(!is_in(&bytes), "{}", path.display());
    }
    assert!(looked > 4096, "{looked} bytes");
    assert!(daemon.events().iter().all(|event| !event.to_string().contains(SECRET)));
}

#[test]
fn what_is_beyond_what_is_read_of_an_environment_is_said_to_be_cut() {
    let scratch = Scratch::without_mounts();
    let mut daemon = plugins_with(&scratch, &[("plugin", OK), ("fence", OK)]);
    let lost = |daemon: &Daemon| {
        let labels = [("source", "bpf"), ("reason", "exec-environment-cut")];
        daemon.metrics().sum("kevtmon_events_lost_total", &labels).unwrap_or(0.0)
    };
    let before = lost(&daemon);
    // In the order of their names: behind the call, or before it.
    let ids = ["Z", "A"].map(|first| {
        let id = unique::container_id();
        let mut plugin = call(scratch.path().join("plugin"), "DEL", &id);
        for number in 0..140 {
            plugin.env(format!("{first}{number:03}"), "x".repeat(1000));
        }
        finished(plugin);
        id
    });
    let end = wait_for_end(&mut daemon, &ids[0], "DEL");
    end.expect("/cni/truncated", true);
    end.expect("/cni/pod", "etcd1-0");
    let events = fence(&mut daemon, &scratch);
    assert_eq!(of(&events, &ids[1]).len(), 0);
    eventually!(lost(&daemon) >= before + 1.0, "a call of which nothing was read is counted");
}

#[test]
fn what_a_container_executes_inside_itself_says_nothing() {
    let scratch = Scratch::without_mounts();
    let mut daemon = plugins_with(&scratch, &[("plugin", OK), ("fence", OK)]);
    let volume = format!("{0}:{0}", scratch.path().display());
    let container = Container::idle(Dockerd::shared(), &["--network", "none", "--volume", &volume]);
    let ignored =
        |daemon: &Daemon| daemon.metrics().sum("kevtmon_kernel_cni_ignored_total", &[]).unwrap_or(0.0);
    let (before, id) = (ignored(&daemon), unique::container_id());
    let args = args("etcd1-0", UID, &id);
    let words = format!(
        "CNI_COMMAND=DEL CNI_CONTAINERID={id} CNI_NETNS=/proc/1/ns/net CNI_IFNAME=eth0 CNI_ARGS='{args}' exec {}",
        scratch.path().join("plugin").display()
    );
    let ran = container.exec(&[], &["sh", "-c", &words]);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    let events = fence(&mut daemon, &scratch);
    assert_eq!(of(&events, &id).len(), 0);
    eventually!(ignored(&daemon) > before, "it is counted");
    let is_about = |event: &Event| event.alarms() && event.text("/cni/container_id") == id;
    assert!(!events.iter().any(is_about), "{events:?}");
}

#[test]
fn what_others_than_root_of_the_node_execute_is_counted_and_says_nothing() {
    let scratch = Scratch::without_mounts();
    let mut daemon = plugins_with(&scratch, &[("fence", OK)]);
    let ids = [(); 4].map(|()| unique::container_id());
    let before = daemon.metrics().sum("kevtmon_kernel_cni_ignored_total", &[]).unwrap_or(0.0);
    let ways: [&[&str]; 4] = [
        &["setpriv", "--reuid=65534", "--clear-groups"],
        &["setpriv", "--reuid=65534", "--clear-groups", "unshare", "--user", "--map-root-user"],
        &["unshare", "--mount"],
        &["setpriv", "--ruid=65534"],
    ];
    for (way, id) in ways.iter().zip(&ids) {
        let mut plugin = call(way[0], "DEL", id);
        plugin.args(&way[1..]).arg(scratch.path().join("fence"));
        plugin.env("CNI_NETNS", "/proc/1/ns/net");
        finished(plugin);
    }
    let events = fence(&mut daemon, &scratch);
    for id in &ids {
        assert_eq!(of(&events, id).len(), 0, "{id}");
    }
    let alarms = |event: &&Event| event.has("/cni/container_id") && event.alarms();
    let alarms =
        events.iter().filter(alarms).any(|event| ids.iter().any(|id| event.text("/cni/container_id") == id));
    assert!(!alarms, "{events:?}");
    eventually!(
        daemon.metrics().sum("kevtmon_kernel_cni_ignored_total", &[]).unwrap_or(0.0) >= before + 4.0,
        "they are counted"
    );
}

#[test]
fn a_malformed_call_is_counted_and_one_about_the_plugin_itself_is_none() {
    let scratch = Scratch::without_mounts();
    let mut daemon = plugins_with(&scratch, &[("plugin", OK), ("fence", OK)]);
    let id = unique::container_id();
    let plugin = scratch.path().join("plugin");
    let mut without = call(&plugin, "DEL", &id);
    without.env_remove("CNI_COMMAND");
    let mut no_list = call(&plugin, "DEL", &id);
    no_list.env("CNI_ARGS", "K8S_POD_NAMESPACE");
    let unknown = call(&plugin, "REMOVE", &id);
    let no_id = call(&plugin, "DEL", "../../etc/passwd");
    let other = call(&plugin, "DEL", &"0".repeat(64));
    let count = |daemon: &Daemon| {
        daemon.metrics().sum("kevtmon_malformed_total", &[("source", "hook.exec")]).unwrap_or(0.0)
    };
    let before = count(&daemon);
    let mut args_of_another = other;
    args_of_another.env("CNI_ARGS", args("etcd1-0", UID, &id));
    for wrong in [without, no_list, unknown, no_id, args_of_another] {
        finished(wrong);
    }
    for command in ["VERSION", "STATUS"] {
        finished(call(&plugin, command, ""));
    }
    let events = fence(&mut daemon, &scratch);
    assert!(count(&daemon) >= before + 5.0, "{}", daemon.metrics().text);
    assert_eq!(of(&events, &id).len(), 0);
    let of_plugin = events.iter().filter(|event| event.has("/cni"));
    let of_plugin = of_plugin.filter(|event| event.text("/cni/plugin") == plugin.to_string_lossy());
    assert_eq!(of_plugin.count(), 0);
}

/// What a plugin like Calico's does: a `DEL` fails as long as a file is there, and then it removes the endpoint by the name
/// of the pod, whoever that is now.
const BY_NAME: &str = r#"#!/bin/sh
here=$(dirname "$0")
[ "$CNI_COMMAND" = DEL ] || exit 0
[ ! -e "$here/missing" ] || exit 1
exec ip -n "$(cat "$here/endpoint")" neigh del "$(cat "$here/gateway")" dev eth0
"#;

#[test]
fn a_stale_call_is_told_before_it_harms_and_is_the_cause_of_what_it_does() {
    let scratch = Scratch::without_mounts();
    let write = |name: &str, text: &str| std::fs::write(scratch.path().join(name), text).expect("a file");
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    write("missing", "");
    write("endpoint", pod.netns_name());
    write("gateway", GATEWAY);
    let mut daemon = plugins_with(&scratch, &[("calico", BY_NAME), ("fence", OK)]);
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    let plugin = scratch.path().join("calico");
    let (old, new) = (unique::container_id(), sandbox.id().to_owned());
    let name = unique::name("etcd1");
    let call = |command: &str, id: &str| {
        let mut call = call(&plugin, command, id);
        let uid = if id == new { sandbox.uid().to_owned() } else { uuid() };
        call.env("CNI_ARGS", args(&name, &uid, id));
        if id == new {
            call.env("CNI_NETNS", format!("/proc/{}/ns/net", sandbox.pid()));
        }
        finished(call)
    };
    assert_eq!(call("ADD", &old).status.code(), Some(0));
    wait_for_end(&mut daemon, &old, "ADD");
    assert!(!call("DEL", &old).status.success());
    let failed = wait_for_end(&mut daemon, &old, "DEL");
    failed.expect("/cni/stale", false);
    assert_eq!(call("ADD", &new).status.code(), Some(0));
    let opened = daemon.wait_for("the stale call, before any harm", |event| {
        event.is_incident("incident.opened", "stale-cni-del") && event.text("/cni/container_id") == old
    });
    assert_eq!((opened.severity(), opened.text("/incident/confidence")), ("warning", "certain"));
    let is_harm = |event: &Event| {
        event.is_incident("incident.opened", "gateway-neighbor-lost") && event.is_in(pod.inum())
    };
    assert!(!daemon.events().iter().any(is_harm), "none is done yet");
    let calls = carry_out(&daemon, opened.text("/incident/id"), "stale-cni-del/show-calls").stdout;
    assert!(calls.contains("cni.finished") && calls.contains("exited with code 1"), "{calls}");

    std::fs::remove_file(scratch.path().join("missing")).expect("the endpoint is there again");
    assert_eq!(call("DEL", &old).status.code(), Some(0));
    let deleted = daemon.wait_for_deletion(pod.inum(), GATEWAY);
    deleted.expect("/actor/comm", "ip");
    let id = opened.text("/incident/id").to_owned();
    let lost = daemon.wait_for("its consequence", |event| {
        event.has("/incident/caused_by/0")
            && event.text("/incident/kind") == "gateway-neighbor-lost"
            && event.is_in(pod.inum())
    });
    lost.expect("/incident/caused_by/0", id.as_str());
    lost.expect("/target/pod/uid", sandbox.uid());
    lost.expect("/target/pod/name", name.as_str());
}

/// A command line of the shell that executes a plugin; `by` becomes it.
fn line(by: &str, plugin: &Path, id: &str) -> String {
    format!(
        "env -i PATH=/usr/bin:/bin CNI_COMMAND=CHECK CNI_CONTAINERID={id} CNI_NETNS=\"$netns\" {by} {} </dev/null",
        plugin.display()
    )
}

/// Has a component call a plugin until the daemon sees that.
fn is_seen_of(daemon: &Daemon, component: &mut Component, plugin: &Path) -> Event {
    let id = unique::container_id();
    let seen = |kind| of(&daemon.events(), &id).into_iter().find(|event| event.kind() == kind);
    wait_until("its call is seen", || {
        // Until the daemon has found it there is nothing to see.
        if seen("cni.started").is_none() {
            component.run(&line("", plugin, &id));
        }
        seen("cni.finished")
    })
}

#[test]
fn plugins_are_where_the_kubelet_that_runs_has_them() {
    let scratch = Scratch::without_mounts();
    let directories = ["first", "second"].map(|name| scratch.path().join(name));
    for directory in &directories {
        std::fs::create_dir(directory).expect("a directory can be made");
        write_script(&directory.join("plugin"), OK);
    }
    let kubelet = Program::new(&scratch, "kubelet", None);
    let given = directories.each_ref().map(|directory| format!("--cni-bin-dir={}", directory.display()));
    let mut first = start_as(&["env"], &kubelet, &[&given[0]]);
    let daemon = launch().start();
    is_seen_of(&daemon, &mut first, &directories[0].join("plugin"));
    first.end_with("0");
    let mut second = start_as(&["env"], &kubelet, &[&given[1]]);
    is_seen_of(&daemon, &mut second, &directories[1].join("plugin"));
    is_seen_of(&daemon, &mut second, &directories[0].join("plugin"));
}

#[test]
fn a_runtime_in_a_mount_namespace_of_its_own_is_believed_and_nobody_else_in_such_a_one() {
    let (scratch, netns) = (Scratch::without_mounts(), Netns::new());
    let directory = scratch.path().join("bin");
    let plugin = directory.join("plugin");
    std::fs::create_dir(&directory).expect("a directory can be made");
    write_script(&plugin, OK);
    let config = scratch.path().join("config.toml");
    let cri = format!("[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir = '{}'\n", directory.display());
    std::fs::write(&config, cri).expect("a file can be written");
    let name = scratch.path().join("ns");
    std::fs::write(&name, "").expect("a file can be written");
    let containerd = Program::new(&scratch, "containerd", None);
    let given = format!("--config={}", config.display());
    let mut runtime = start_as(&["unshare", "--mount"], &containerd, &[&given]);
    runtime.run(&format!("mount --bind {} {}", netns.path().path().display(), name.display()));
    runtime.run(&format!("netns={}", name.display()));
    let daemon = launch().start();
    eventually!(
        is_seen_of(&daemon, &mut runtime, &plugin).number("/cni/netns_inode") == Some(netns.path().inum()),
        "where only the runtime's mounts lead to"
    );
    // In another namespace below it; in its namespace and not below it; below another program of root's, and of another name.
    let others = [(); 3].map(|()| unique::container_id());
    let before = daemon.metrics().sum("kevtmon_kernel_cni_ignored_total", &[]).unwrap_or(0.0);
    runtime.run(&line("unshare --mount", &plugin, &others[0]));
    let way = format!("--mount=/proc/{}/ns/mnt", runtime.pid());
    let mut entered = call("nsenter", "CHECK", &others[1]);
    finished({
        entered.arg(way).arg(&plugin);
        entered
    });
    let mut other = start_as(&["unshare", "--mount"], &Program::new(&scratch, "some-daemon", None), &[]);
    other.run(&line("", &plugin, &others[2]));
    other.end_with("0");
    eventually!(
        daemon.metrics().sum("kevtmon_kernel_cni_ignored_total", &[]).unwrap_or(0.0) >= before + 3.0,
        "they are counted"
    );
    is_seen_of(&daemon, &mut runtime, &plugin);
    for id in &others {
        assert_eq!(of(&daemon.events(), id).len(), 0, "{id}");
    }
}

/// What counts all that the kernel does, or needs a quiet machine.
mod alone {
    use super::*;

    #[test]
    fn the_end_of_a_call_is_kept_where_the_beginning_of_others_has_no_room() {
        let _exclusive = Exclusive::take();
        let scratch = Scratch::without_mounts();
        let mut daemon =
            plugins_with(&scratch, &[("plugin", OK), ("waits", "#!/bin/sh\nread -r line\nexit 7\n")]);
        let id = unique::container_id();
        let mut waits = call(scratch.path().join("waits"), "ADD", &id);
        let mut waits = Running::spawn(waits.stdin(Stdio::piped()));
        daemon.wait_for("its beginning", |event| {
            event.kind() == "cni.started" && event.text("/cni/container_id") == id
        });
        daemon.signal(Signal::SIGSTOP);
        for _ in 0..12 {
            let mut plugin = call(scratch.path().join("plugin"), "CHECK", &unique::container_id());
            plugin.env("LARGE", "x".repeat(100_000));
            finished(plugin);
        }
        drop(waits.child().stdin.take());
        waits.child().wait().expect("a child can be waited for");
        daemon.signal(Signal::SIGCONT);
        let end = wait_for_end(&mut daemon, &id, "ADD");
        end.expect("/cni/exit_code", 7);
        eventually!(
            daemon.metrics().count("kevtmon_events_lost_total", &[("reason", "exec-ring-full")]) > 0.0,
            "others had no room"
        );
        stop_and_account(daemon);
    }
}
