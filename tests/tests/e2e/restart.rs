//! A daemon that is killed and started again: open incidents continue, changes meanwhile are noticed, and emitted
//! incidents are in the store.

use std::collections::{BTreeMap, BTreeSet};

use kevtmon_tests::balance::stop_and_account;
use kevtmon_tests::daemon::{Daemon, WITHOUT_BUDGETS, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::lock::Exclusive;
use kevtmon_tests::network::NeighbourState;
use kevtmon_tests::patience::wait_until;
use kevtmon_tests::pod::{GATEWAY, GATEWAY_LLADDR, Pod};
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::storm::{Storm, address, storm};
use nix::sys::signal::Signal;

const KIND: &str = "gateway-neighbor-lost";

/// Waits for a transition of the incident of this sandbox.
fn wait_for(daemon: &mut Daemon, transition: &str, sandbox: &PodSandbox) -> Event {
    daemon.wait_for(&format!("{transition} of {}", sandbox.id()), |event| is_of(event, transition, sandbox))
}

fn is_of(event: &Event, transition: &str, sandbox: &PodSandbox) -> bool {
    event.is_incident(transition, KIND) && event.text("/target/container/id") == sandbox.id()
}

/// The incident of this sandbox, as the commands show it.
fn incident(daemon: &Daemon, question: &[&str], sandbox: &PodSandbox) -> Option<Event> {
    let found = daemon.find(question);
    let mut found =
        found.into_iter().filter(|incident| incident.text("/target/container/id") == sandbox.id());
    let first = found.next();
    assert_eq!(found.next().map(|second| second.to_string()), None, "it is there once");
    first
}

/// Kills it at once, and reads all that it had printed.
fn kill(daemon: &mut Daemon) -> Vec<Event> {
    daemon.signal(Signal::SIGKILL);
    assert_eq!(daemon.wait(), None, "the exit code of who was killed");
    daemon.wait_for_end_of_output()
}

/// Bursts, each after the one before was emitted, until a hundred of their deletions are committed; how many entries that
/// were, and the committed events.
fn bursts(daemon: &mut Daemon, pod: &Pod) -> (u32, Vec<Event>) {
    const COUNT: u32 = 50;
    let mut entries = 0;
    wait_until("a hundred events are committed", || {
        storm(pod, entries..entries + COUNT);
        entries += COUNT;
        daemon.wait_for_deletion(pod.inum(), &address(entries - 1));
        let committed = daemon.find_committed(&["events", "--since", "1h"]);
        let count = committed.iter().filter(|event| event.is_in(pod.inum())).count();
        (count >= 100).then_some((entries, committed))
    })
}

#[test]
fn an_incident_that_is_open_when_the_daemon_is_killed_in_a_burst_goes_on() {
    let (pod, other) = (Pod::new(), Pod::new());
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().config(WITHOUT_BUDGETS).start();
    pod.delete_gateway();
    let opened = wait_for(&mut daemon, "incident.opened", &sandbox);
    opened.expect("/target/pod/uid", sandbox.uid());
    let (id, since) = (opened.text("/incident/id"), opened.text("/incident/opened"));

    let (entries, committed) = bursts(&mut daemon, &other);
    let storm = Storm::of(&other, entries..entries + 50);
    daemon.wait_for_deletion(other.inum(), &address(entries + 20));
    let emitted = kill(&mut daemon);
    drop(storm);

    let kept = daemon.find(&["events", "--since", "1h"]);
    let kept = kept.iter().map(|event| (event.number("/seq"), event)).collect::<BTreeMap<_, _>>();
    let (last, _) = kept.last_key_value().expect("something was committed");
    // What was not committed yet is at the end. What the standard output lost is reported there only.
    let emitted = emitted
        .iter()
        .filter(|event| event.number("/seq") <= *last && event.text("/lost/source") != "sink.stdout");
    for event in committed.iter().chain(emitted) {
        let kept = kept.get(&event.number("/seq")).unwrap_or_else(|| panic!("it is lost: {event}"));
        assert_eq!(kept.to_string(), event.to_string());
    }
    let left = incident(&daemon, &["incidents"], &sandbox).unwrap_or_else(|| panic!("{id} is open"));
    left.expect("/id", id);

    let mut again = launch().on_state_of(&daemon).start();
    let lost = again.wait_for("the gap", |event| event.text("/lost/source") == "daemon");
    lost.expect("/kind", "events.lost");
    lost.expect("/lost/reason", "restart");
    assert!(lost.text("/lost/from") < lost.text("/lost/to"), "{lost}");
    let open = incident(&again, &["incidents"], &sandbox).unwrap_or_else(|| panic!("{id} is open again"));
    open.expect("/id", id);
    open.expect("/opened", since);
    open.expect_none("/closed");

    // It is looked after as before.
    pod.set_gateway();
    let closed = wait_for(&mut again, "incident.closed", &sandbox);
    closed.expect("/incident/id", id);
    closed.expect("/incident/opened", since);
    closed.expect("/incident/close_reason", "resolved");
    let events = again.events();
    let announced = events.iter().filter(|event| is_of(event, "incident.opened", &sandbox));
    assert_eq!(announced.count(), 0, "it was announced once");
    stop_and_account(again);
}

#[test]
fn what_was_repaired_while_no_daemon_ran_is_resolved() {
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().start();
    pod.delete_gateway();
    let opened = wait_for(&mut daemon, "incident.opened", &sandbox);
    kill(&mut daemon);
    pod.set_gateway();

    let mut again = launch().on_state_of(&daemon).start();
    let closed = wait_for(&mut again, "incident.closed", &sandbox);
    closed.expect("/incident/id", opened.text("/incident/id"));
    closed.expect("/incident/opened", opened.text("/incident/opened"));
    closed.expect("/incident/close_reason", "resolved");
    assert!(closed.text("/incident/closed") > opened.text("/incident/opened"), "{closed}");
    let events = again.events();
    assert!(
        !events.iter().any(|event| is_of(event, "incident.opened", &sandbox)),
        "it is not announced again"
    );
    assert_eq!(incident(&again, &["incidents"], &sandbox), None);
    let past = incident(&again, &["incidents", "--all"], &sandbox).unwrap_or_else(|| panic!("it was open"));
    past.expect("/close_reason", "resolved");
    stop_and_account(again);
}

#[test]
fn what_was_deleted_while_no_daemon_ran_is_found_without_a_culprit() {
    let (pod, moved) = (Pod::new(), Pod::new());
    let (sandbox, other) = (PodSandbox::of(&pod), PodSandbox::of(&moved));
    let mut daemon = launch().start();
    for pod in [&pod, &moved] {
        daemon.wait_for_gateway(pod.inum(), GATEWAY);
    }
    daemon.fence(&pod);
    daemon.stop();
    pod.delete_gateway();
    // This one does without its gateway from now on.
    moved.ip("route del default");
    moved.delete_gateway();

    let mut again = launch().on_state_of(&daemon).start();
    let opened = wait_for(&mut again, "incident.opened", &sandbox);
    opened.expect("/incident/found_at_start", true);
    opened.expect("/neighbor/reason", "missing");
    opened.expect_none("/actor");
    assert!(!again.events().iter().any(|event| is_of(event, "incident.opened", &other)));
    pod.set_gateway();
    wait_for(&mut again, "incident.closed", &sandbox).expect("/incident/close_reason", "resolved");
    stop_and_account(&mut again);
    // Nothing of it is left for the next one.
    let last = launch().on_state_of(&again).start();
    assert_eq!(incident(&last, &["incidents"], &sandbox), None);
    stop_and_account(last);
}

#[test]
fn an_interface_that_was_deleted_while_no_daemon_ran_is_missed_without_a_culprit() {
    const IMPATIENT: &str = "[incidents]\ngateway_teardown_seconds = 1\n";
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().config(IMPATIENT).start();
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    daemon.fence(&pod);
    daemon.stop();
    pod.ip("link del eth0");

    let mut again = launch().config(IMPATIENT).on_state_of(&daemon).start();
    let opened = wait_for(&mut again, "incident.opened", &sandbox);
    opened.expect("/incident/found_at_start", true);
    opened.expect("/neighbor/reason", "missing");
    opened.expect("/neighbor/ifname", "eth0");
    opened.expect_none("/actor");
    stop_and_account(again);
}

#[test]
fn a_loss_that_is_only_suspected_is_not_forgotten_by_a_restart() {
    const PATIENT: &str = "[incidents]\ngateway_teardown_seconds = 15\n";
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().config(PATIENT).start();
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    let ip = pod.ip("link del eth0");
    daemon.wait_for("the end of the interface", |event| {
        event.kind() == "neighbor.deleted" && event.is_in(pod.inum())
    });
    daemon.stop();
    assert_eq!(incident(&daemon, &["incidents"], &sandbox), None, "it may be a teardown");

    let mut again = launch().config(PATIENT).on_state_of(&daemon).start();
    let opened = wait_for(&mut again, "incident.opened", &sandbox);
    opened.expect_actor(ip.pid, "ip");
    opened.expect("/neighbor/cause", "link-deleted");
    opened.expect_none("/incident/found_at_start");
    stop_and_account(again);
}

#[test]
fn what_ended_while_no_daemon_ran_is_over() {
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().start();
    pod.delete_gateway();
    let opened = wait_for(&mut daemon, "incident.opened", &sandbox);
    kill(&mut daemon);
    let id = sandbox.id().to_owned();
    drop((sandbox, pod));

    let mut again = launch().on_state_of(&daemon).start();
    let closed = again.wait_for("the end of the incident", |event| {
        event.is_incident("incident.closed", KIND) && event.text("/target/container/id") == id
    });
    closed.expect("/incident/id", opened.text("/incident/id"));
    closed.expect("/incident/close_reason", "subject-gone");
    stop_and_account(again);
}

/// The gateways that this sandbox has lost, as a run of the daemon has told.
fn lost(daemon: &Daemon, sandbox: &PodSandbox) -> Vec<String> {
    let events = daemon.events();
    let opened = events.iter().filter(|event| is_of(event, "incident.opened", sandbox));
    opened.map(|event| event.text("/neighbor/address").to_owned()).collect()
}

#[test]
fn a_former_gateway_is_missed_neither_before_nor_after_a_restart() {
    const IMPATIENT: &str = "[incidents]\ngateway_teardown_seconds = 1\ngateway_confirm_seconds = 1\n";
    const OTHER: &str = "169.254.1.2";
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    pod.set_neighbor(OTHER, GATEWAY_LLADDR, NeighbourState::Permanent);
    let mut daemon = launch().config(IMPATIENT).start();
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    pod.ip(&format!("route replace default via {OTHER} dev eth0 onlink"));
    daemon.wait_for_gateway(pod.inum(), OTHER);
    let ip = pod.delete_gateway();
    daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY).expect("/neighbor/gateway", false);
    daemon.stop();

    let mut again = launch().config(IMPATIENT).on_state_of(&daemon).start();
    again.wait_for_gateway(pod.inum(), OTHER);
    // The first incident is that of the right one.
    pod.ip(&format!("neigh del {OTHER} dev eth0"));
    wait_for(&mut again, "incident.opened", &sandbox).expect("/neighbor/address", OTHER);
    pod.set_neighbor(OTHER, GATEWAY_LLADDR, NeighbourState::Permanent);
    wait_for(&mut again, "incident.closed", &sandbox).expect("/incident/close_reason", "resolved");
    again.stop();

    // Now it becomes a former one while nobody looks.
    pod.set_gateway();
    pod.ip(&format!("route replace default via {GATEWAY} dev eth0 onlink"));
    pod.ip(&format!("neigh del {OTHER} dev eth0"));
    let mut last = launch().config(IMPATIENT).on_state_of(&again).start();
    last.wait_for_gateway(pod.inum(), GATEWAY);
    pod.delete_gateway();
    wait_for(&mut last, "incident.opened", &sandbox).expect("/neighbor/address", GATEWAY);
    assert_eq!((lost(&again, &sandbox), lost(&last, &sandbox)), (vec![OTHER.into()], vec![GATEWAY.into()]));
}

#[test]
fn after_three_starts_that_were_killed_the_next_is_without_programs_until_one_is_stopped() {
    const REASON: &str = "three or more starts in a row ended within a minute each";
    let pod = Pod::new();
    // The state directory is that of the first, whose files live as long as it is not dropped.
    let mut daemons = vec![launch().start()];
    for _ in 0..3 {
        let daemon = daemons.last_mut().unwrap_or_else(|| unreachable!("one was started"));
        let ready = daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
        ready.expect("/daemon/sources/hook.neighbor", "tp_btf");
        kill(daemon);
        let next = launch().on_state_of(daemon).start();
        daemons.push(next);
    }
    let mut without = daemons.pop().unwrap_or_else(|| unreachable!("one was started"));
    let ready = without.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
    ready.expect("/daemon/sources/hook.neighbor", "netlink");
    for hook in ["neighbor", "umount", "remove", "link", "sysctl", "exec"] {
        let degraded = without.wait_for(&format!("that {hook} is degraded"), |event| {
            event.kind() == "daemon.degraded" && event.has(&format!("/daemon/degraded/hook.{hook}"))
        });
        let reason = degraded.text(&format!("/daemon/degraded/hook.{hook}"));
        assert!(reason.contains(REASON), "{degraded}");
    }
    without.wait_for_gateway(pod.inum(), GATEWAY);
    pod.delete_gateway();
    without.wait_for_deletion(pod.inum(), GATEWAY).expect_none("/actor/pid");
    let doctor = without.ask(&["doctor", "--json"]);
    assert!(doctor.stdout.contains(REASON) && !doctor.stdout.contains("= \\\"auto"), "{}", doctor.stdout);
    without.stop();

    let mut again = launch().on_state_of(&without).start();
    let ready = again.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
    ready.expect("/daemon/sources/hook.neighbor", "tp_btf");
    ready.expect_none("/daemon/degraded/hook.neighbor");
    stop_and_account(again);
}

/// What counts all that the kernel does, or needs a quiet machine.
mod alone {
    use super::*;

    #[test]
    fn a_transition_that_was_announced_survives_the_death_of_the_daemon_at_that_moment() {
        // A storm of others would keep the store from being in time.
        let _exclusive = Exclusive::take();
        let pod = Pod::new();
        let sandbox = PodSandbox::of(&pod);
        // The state directory is that of the first, whose files live as long as it is not dropped.
        let mut daemons = vec![launch().start()];
        let mut announced = Vec::new();
        for round in 0..4 {
            let daemon = daemons.last_mut().unwrap_or_else(|| unreachable!("one was started"));
            let opens = round % 2 == 0;
            let emitted = if opens {
                pod.delete_gateway();
                wait_for(daemon, "incident.opened", &sandbox)
            } else {
                pod.set_gateway();
                wait_for(daemon, "incident.closed", &sandbox)
            };
            kill(daemon);
            if daemon.log().contains("reported before it is stored") {
                // The other sinks do not wait for a store that gets no processor time; this is logged then.
                return;
            }
            let open = incident(daemon, &["incidents"], &sandbox);
            assert_eq!(open.is_some(), opens, "it was killed as soon as it had said {emitted}");
            announced.push(emitted);
            let kept = daemon.find(&["events", "--since", "1h", "--kind", "incident."]);
            for emitted in &announced {
                assert!(
                    kept.iter().any(|event| event.to_string() == emitted.to_string()),
                    "it is lost: {emitted}"
                );
            }
            let next = launch().on_state_of(daemon).start();
            daemons.push(next);
        }
        let ids = announced.iter().map(|event| event.text("/incident/id")).collect::<BTreeSet<_>>();
        assert_eq!(ids.len(), 1, "{ids:?}");
    }
}
