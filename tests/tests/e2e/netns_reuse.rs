//! Numbers that the kernel gives again, of network namespaces and of processes: what happens in the next namespace of a number, and
//! what the next process of a number does, is not of the container that had the former one.
//!
//! `KEVTMON_TEST_SEED` is another seed, `KEVTMON_TEST_ROUNDS` makes it longer.

use std::io::Write as _;
use std::process::{Command, Stdio};

use kevtmon_tests::container::Container;
use kevtmon_tests::containerd::Containerd;
use kevtmon_tests::daemon::launch;
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::patience::wait_until;
use kevtmon_tests::pod::{GATEWAY, GATEWAY_LLADDR, Pod};
use kevtmon_tests::process::Running;
use kevtmon_tests::random::{Random, rounds};

/// What the next one does in its namespace, and the event of it.
const ACTS: [(&str, &str); 2] =
    [("neigh del 169.254.1.1 dev eth0", "neighbor.deleted"), ("link set eth0 down", "link.changed")];

/// A process with this number, which becomes `ip` with these words in a network namespace when it reads a line.
fn prepared(pid: u32, pod: &Pod, words: &str) -> Running {
    let script = format!("read -r go; exec nsenter --net={} ip {words}", pod.netns().path().display());
    wait_until("the number of the process is given again", || {
        // Others may start processes meanwhile.
        std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).expect("root may set it");
        let mut command = Command::new("sh");
        let process = Running::spawn(command.args(["-c", &script]).stdin(Stdio::piped()));
        Some(process).filter(|process| process.pid() == pid)
    })
}

/// Waits until the kernel gives this number to the next namespace of whatever type: all have numbers of one series, the lowest
/// first. What is lower is held by the processes that are returned.
fn lowest_free(number: u64) -> Vec<Running> {
    let uts = |pid: u32| {
        let link = std::fs::read_link(format!("/proc/{pid}/ns/uts")).ok()?;
        link.to_str()?.strip_prefix("uts:[")?.strip_suffix(']')?.parse::<u64>().ok()
    };
    let own = uts(std::process::id());
    let mut holding = Vec::new();
    wait_until("the number is free", || {
        let process = Running::spawn(Command::new("unshare").args(["--uts", "sleep", "1000000"]));
        let has = wait_until("it has a namespace", || uts(process.pid()).filter(|has| Some(*has) != own));
        if has < number {
            holding.push(process);
        }
        (has == number).then_some(())
    });
    holding
}

/// Where others make namespaces, a number is given to one of theirs.
mod alone {
    use super::*;

    #[test]
    fn nothing_in_the_next_namespace_of_a_number_is_of_the_container_that_had_the_former_one() {
        let mut random = Random::new();
        let dockerd = Dockerd::shared();
        let daemon = launch().joining(dockerd.runtime()).start();
        for round in 0..rounds(10) {
            let mut former = Container::idle(dockerd, &[]);
            former.set_gateway(GATEWAY_LLADDR);
            let (number, pid, gateway) = (former.netns().inum(), former.pid(), former.gateway());
            daemon.wait_for_gateway(number, &gateway);
            // One that has only ended is still known.
            former.end(if random.one_in(2) { &["rm", "-f"] } else { &["kill"] });
            // Made by a runtime that is not watched.
            let next = wait_until("the number is given to another one", || {
                Some(Pod::new()).filter(|pod| pod.inum() == number)
            });
            let mut command = Command::new("nsenter");
            command.arg(format!("--net={}", next.netns().path().display())).args(["sleep", "1000000"]);
            let _lives = Running::spawn(command.stdin(Stdio::null()));
            let (words, kind) = random.pick(&ACTS);
            // What the daemon has not read yet has no author.
            daemon.wait_for_gateway(number, GATEWAY);
            let before = daemon.events().len();
            let mut actor = prepared(pid, &next, words);
            actor.child().stdin.take().expect("a pipe").write_all(b"go\n").expect("it reads");
            let happened = wait_until("what it did is reported", || {
                let mut since = daemon.events().into_iter().skip(before);
                since.find(|event| {
                    event.kind() == *kind
                        && event.is_in(number)
                        && event.number("/actor/pid") == Some(pid.into())
                })
            });
            assert_eq!(happened.text("/actor/comm"), "ip", "round {round}: {happened}");
            for absent in ["/target/container", "/actor/container", "/actor/pod"] {
                happened.expect_none(absent);
            }
            let is_lost = |event: &Event| {
                event.is_incident("incident.opened", "gateway-neighbor-lost")
                    && event.is_in(number)
                    && event.text("/neighbor/address") == GATEWAY
            };
            if *kind == "neighbor.deleted" {
                let lost = wait_until("the loss of who lives there", || {
                    daemon.events().into_iter().skip(before).find(is_lost)
                });
                lost.expect_none("/target/container");
            }
            let of_former = |event: &Event| {
                let is_its = |at: &str| event.has(at) && event.text(at) == former.id();
                is_its("/actor/container/id") || event.is_in(number) && is_its("/target/container/id")
            };
            let wrong: Vec<Event> = daemon.events().into_iter().filter(of_former).collect();
            assert!(wrong.is_empty(), "round {round}: {wrong:?}");
        }
    }

    #[test]
    fn nothing_during_the_add_of_a_pod_is_of_the_pod_that_had_its_number_of_a_namespace() {
        let containerd = Containerd::start();
        let mut daemon = launch().runtime(containerd.runtime()).start();
        let of = |id: &str, kind: &'static str| {
            let id = id.to_owned();
            move |event: &Event| event.kind() == kind && event.text("/target/container/id") == id
        };
        for round in 0..3 {
            let former = containerd.run_pod();
            let (number, sandbox) = (former.netns().inum(), former.sandbox().to_owned());
            daemon.wait_for("the former pod", of(&sandbox, "container.started"));
            former.remove();
            daemon.wait_for("its end", of(&sandbox, "container.removed"));
            let before = daemon.events().len();
            let _holding = lowest_free(number);
            let next = containerd.run_pod();
            assert_eq!(next.netns().inum(), number, "round {round}");
            daemon.wait_for("the next pod", of(next.sandbox(), "container.started"));
            let is_there = |event: &Event| {
                let places = ["link", "link/peer", "address", "neighbor", "route"];
                places.iter().any(|place| event.number(&format!("/{place}/netns")) == Some(number))
            };
            wait_until("its interface is reported", || {
                daemon.events().into_iter().skip(before).find(is_there)
            });
            let is_of_former = |event: &Event| {
                event.text("/target/pod/sandbox_id") == sandbox
                    || event.text("/target/container/id") == sandbox
            };
            let since = daemon.events().split_off(before);
            let wrong: Vec<Event> =
                since.into_iter().filter(|event| is_there(event) && is_of_former(event)).collect();
            assert!(wrong.is_empty(), "round {round}: {wrong:?}");
            next.remove();
        }
    }
}
