//! Numbers of network namespaces that the kernel gives again: what happens in the next namespace of a number is not told of the
//! container that had the former one. The next one is made by a runtime that is not watched.

use std::process::{Command, Stdio};

use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::launch;
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::patience::wait_until;
use kevtmon_tests::pod::{GATEWAY, GATEWAY_LLADDR, Pod};
use kevtmon_tests::process::Running;

/// Where others make namespaces, a number is given to one of theirs.
mod alone {
    use super::*;

    #[test]
    fn what_happens_in_the_next_namespace_of_a_number_is_not_told_of_the_container_that_had_the_former_one() {
        const ROUNDS: usize = 10;
        let dockerd = Dockerd::shared();
        let mut daemon = launch().joining(dockerd.runtime()).start();
        for round in 0..ROUNDS {
            let mut former = Container::idle(dockerd, &[]);
            former.set_gateway(GATEWAY_LLADDR);
            let (number, gateway) = (former.netns().inum(), former.gateway());
            daemon.wait_for_gateway(number, &gateway);
            // One that has only ended is still known.
            former.end(if round % 2 == 0 { &["rm", "-f"] } else { &["kill"] });
            let next = wait_until("the number is given to another one", || {
                Some(Pod::new()).filter(|pod| pod.inum() == number)
            });
            let mut command = Command::new("nsenter");
            command.arg(format!("--net={}", next.netns().path().display())).args(["sleep", "1000000"]);
            let _lives = Running::spawn(command.stdin(Stdio::null()));
            let ip = next.delete_gateway();
            let deleted = daemon.wait_for_deletion_by(ip.pid, number, GATEWAY);
            deleted.expect_none("/target/container");
            let is_lost = |event: &Event| {
                event.is_incident("incident.opened", "gateway-neighbor-lost") && event.is_in(number)
            };
            daemon.wait_for("the loss of who lives there", is_lost).expect_none("/target/container");
            let of_next: Vec<Event> =
                daemon.events().into_iter().filter(|event| event.is_in(number)).collect();
            let of_former: Vec<&Event> =
                of_next.iter().filter(|event| event.text("/target/container/id") == former.id()).collect();
            assert!(of_former.is_empty(), "round {round}: {of_former:?}");
        }
    }
}
