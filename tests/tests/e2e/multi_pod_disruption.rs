//! One actor that disrupts the network of several pods: one incident that is the cause of theirs.

use kevtmon_tests::advice::{carry_out, incident, resolved};
use kevtmon_tests::daemon::launch;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::pod::Pod;
use kevtmon_tests::pod_sandbox::PodSandbox;

const KIND: &str = "multi-pod-disruption";
const EFFECT: &str = "gateway-neighbor-lost";

#[test]
fn pods_that_one_program_cuts_off_within_seconds_have_one_cause_until_all_are_well() {
    let pods = [Pod::new(), Pod::new(), Pod::new()];
    let sandboxes: Vec<PodSandbox> = pods.iter().map(PodSandbox::of).collect();
    // On a machine that is busy it may take long.
    let mut daemon = launch().config("[incidents]\nmulti_pod_disruption_seconds = 600\n").start();
    pods.iter().for_each(|pod| daemon.wait_for_gateway(pod.inum(), "169.254.1.1"));
    for pod in &pods {
        pod.delete_gateway();
    }
    // Other tests on this machine may do the same to theirs.
    let is_ours = |event: &Event| event.text("/message").contains(sandboxes[0].uid());
    let found = daemon.wait_for(KIND, |event| event.is_incident("incident.opened", KIND) && is_ours(event));
    found.expect("/incident/count", 3);
    // Each was another process, run by this one.
    found.expect("/actor/comm", "ip");
    for sandbox in &sandboxes {
        assert!(found.text("/message").contains(sandbox.uid()), "{} in {found}", sandbox.uid());
    }
    let id = found.text("/incident/id").to_owned();
    let of_pods = |events: &[Event]| {
        let is_one = |event: &&Event| {
            let uid = event.text("/target/pod/uid");
            event.has("/incident")
                && event.text("/incident/kind") == EFFECT
                && sandboxes.iter().any(|sandbox| sandbox.uid() == uid)
                && event.list("/incident/caused_by").iter().any(|cause| *cause == *id)
        };
        let mut uids: Vec<String> =
            events.iter().filter(is_one).map(|event| event.text("/target/pod/uid").to_owned()).collect();
        uids.sort_unstable();
        uids.dedup();
        uids.len()
    };
    eventually!(of_pods(&daemon.events()) == pods.len(), "each incident of a pod names its cause");
    let listed = carry_out(&daemon, &id, "multi-pod-disruption/list-effects").stdout;
    assert!(sandboxes.iter().all(|sandbox| listed.contains(sandbox.uid())), "{listed}");

    pods.iter().take(2).for_each(Pod::set_gateway);
    let is_closed = |event: &Event, number: usize| {
        event.is_incident("incident.closed", EFFECT)
            && event.text("/target/pod/uid") == sandboxes[number].uid()
    };
    for number in 0..2 {
        eventually!(daemon.events().iter().any(|event| is_closed(event, number)), "it is well");
    }
    assert!(!incident(&daemon, &id).has("/closed"), "the third is not");
    pods[2].set_gateway();
    resolved(&mut daemon, &id);
}
