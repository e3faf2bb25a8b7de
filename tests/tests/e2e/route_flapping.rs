//! A route that one program removes and another one restores: both are named, once.

use kevtmon_tests::advice::carry_out;
use kevtmon_tests::daemon::launch;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::pod_sandbox::PodSandbox;

#[test]
fn a_route_that_is_deleted_and_added_again_and_again_is_one_incident() {
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().start();
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    for _ in 0..4 {
        for (change, kind) in [("del", "route.deleted"), ("add", "route.added")] {
            let of_it =
                |event: &Event| event.kind() == kind && event.number("/route/netns") == Some(pod.inum());
            let count = || daemon.events().iter().filter(|event| of_it(event)).count();
            let before = count();
            pod.ip(&format!("route {change} default via {GATEWAY} dev eth0"));
            eventually!(count() > before, "the change is told");
        }
    }
    let opened =
        daemon.wait_for("the incident", |event| event.is_incident("incident.opened", "route-flapping"));
    opened.expect("/target/pod/uid", sandbox.uid());
    opened.expect("/route/destination", "default");
    assert!(opened.text("/message").contains(" again and again, about every "), "{opened}");
    opened.expect("/incident/count", 3);
    let id = opened.text("/incident/id").to_owned();
    carry_out(&daemon, &id, "route-flapping/tell-pod");
    let incidents = daemon.find(&["incidents"]);
    let of_it = incidents.iter().filter(|event| event.kind() == "route-flapping");
    assert_eq!(of_it.count(), 1, "{incidents:?}");
}
