//! What a flood displaces: nothing that others did. And every event is delivered or accounted for.

#![allow(clippy::expect_used, reason = "a test whose set-up fails must fail")]

use std::process::{Command, Stdio};

use kevtmon_tests::actor::Actor;
use kevtmon_tests::balance::{Balance, assert_accounted_for, stop_and_account, wait_for_balance};
use kevtmon_tests::cgroup::{Cgroup, Hierarchy};
use kevtmon_tests::daemon::{Daemon, WITHOUT_BUDGETS, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::lock::Exclusive;
use kevtmon_tests::mount::Mount;
use kevtmon_tests::netns::NetnsPath;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::process::{Running, comm, hold_by_cwd};
use kevtmon_tests::storm::ipv4;

/// Times that the pod lost its gateway before the flood.
const LOSSES: usize = 10;
/// Neighbor entries that come and go at once in a flood.
const ROUND: u32 = 500;
/// Events of which a store of 8 MiB can keep no half.
const FLOOD: f64 = 8_000.0;

/// A process in namespaces of its own that nobody in particular has made.
fn user() -> Running {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=64230", "--regid=64230", "--clear-groups"]);
    command.args(["unshare", "-Urn", "sleep", "1000000"]);
    let process = Running::spawn(command.stdin(Stdio::null()));
    eventually!(comm(process.pid()).as_deref() == Some("sleep"), "it has namespaces of its own");
    process
}

fn live_in(pod: &Pod) -> Running {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", pod.netns().path().display())).args(["sleep", "1000000"]);
    Running::spawn(command.stdin(Stdio::null()))
}

fn losses(events: &[Event], pod: &Pod) -> Vec<u64> {
    let of_pod = events.iter().filter(|event| event.is_deletion(pod.inum(), GATEWAY));
    let mut numbers: Vec<u64> = of_pod.filter_map(|event| event.number("/seq")).collect();
    numbers.sort_unstable();
    numbers
}

/// Events that the store was given and has taken.
fn stored(daemon: &Daemon) -> f64 {
    let metrics = daemon.metrics();
    let discarded = metrics.sum("kevtmon_events_discarded_total", &[("sink", "store")]);
    metrics.sum("kevtmon_events_total", &[]).unwrap_or_default() - discarded.unwrap_or_default()
}

#[test]
fn a_flood_in_a_network_of_a_user_displaces_nothing_that_was_before() {
    // Other tests would see the flood, and be counted.
    let _exclusive = Exclusive::take();
    let (pod, user) = (Pod::new(), user());
    let _process = live_in(&pod);
    let flooded = Pod::at(NetnsPath::of_process(user.pid()));
    let mut daemon = launch().config(&format!("{WITHOUT_BUDGETS}[store]\nmax_mib = 8\n")).start();
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    for before in 0..LOSSES {
        pod.delete_gateway();
        eventually!(losses(&daemon.events(), &pod).len() > before, "the loss is told");
        if before + 1 < LOSSES {
            pod.set_gateway();
        }
    }
    let opened = daemon.wait_for("the incident", |event| {
        event.is_incident("incident.opened", "gateway-neighbor-lost") && event.is_in(pod.inum())
    });
    let before = losses(&daemon.events(), &pod);

    let goal = stored(&daemon) + FLOOD;
    eventually!(
        {
            flooded.netns().churn((0..ROUND).map(ipv4));
            stored(&daemon) >= goal
        },
        "the flood is stored"
    );
    wait_for_balance(&daemon, Balance::of_deletions);
    assert_eq!(losses(&daemon.find(&["events", "--since", "1h"]), &pod), before);
    let id = opened.text("/incident/id").to_owned();
    assert!(daemon.ask(&["why", &id]).stdout.contains(GATEWAY), "the open incident is known");
    daemon.stop();
    let stream = daemon.wait_for_end_of_output();
    assert_accounted_for(&stream);
    let kept = daemon.find(&["events", "--since", "1h"]);
    assert_eq!(losses(&kept, &pod), before, "after the end, too");
    let flood = kept.iter().filter(|event| event.is_in(flooded.inum())).count();
    assert!(flood > 100 && (flood as f64) < FLOOD, "{flood} of the flood are left");
}

#[test]
fn users_without_end_use_up_no_budget_of_a_service() {
    /// More than the sources that the programs tell apart, by more than what the rest have together.
    const USERS: u32 = 1_100;
    let (of_users, of_service) = (Mount::new(), Mount::new());
    let _holders = [&of_users, &of_service].map(|mount| hold_by_cwd(mount.point()));
    let mut daemon = launch().config("[hooks]\nuser_rate = 1\nuser_burst = 20\n").start();
    let mut users = Actor::start();
    for uid in 100_000..100_000 + USERS {
        users.act(&format!("uid {uid} {uid}"));
        users.act(&format!("refused {}", of_users.point().display()));
    }
    let mut service = Actor::start();
    let groups = Hierarchy::all().into_iter().map(Cgroup::of_service).collect::<Vec<_>>();
    groups.iter().for_each(|group| group.take(service.pid()));
    service.act(&format!("refused {}", of_service.point().display()));
    daemon.wait_for("what the service tried", |event| {
        event.kind() == "mount.busy" && event.number("/actor/pid") == Some(service.pid().into())
    });
    let throttled = daemon.wait_for("what the users tried", |event| {
        event.kind() == "events.throttled" && event.text("/throttled/lane") == "unknown"
    });
    assert!(!throttled.has("/throttled/uid"), "{throttled}");
    stop_and_account(daemon);
}
