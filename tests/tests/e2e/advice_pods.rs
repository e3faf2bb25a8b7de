//! The advice on pods whose sandboxes do not start, carried out as it is printed.

use kevtmon_tests::advice::{carry_out, opened};
use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::launch;
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::pod_sandbox::uuid;

#[test]
fn what_is_known_of_a_pod_whose_sandboxes_do_not_start_is_shown() {
    let dockerd = Dockerd::shared();
    let uid = uuid();
    let name = format!("etcd-{}", &uid[..8]);
    let mut daemon = launch().joining(dockerd.runtime()).start();
    let sandboxes: Vec<Container<'_>> =
        (0..5).map(|_| Container::sandbox_of(dockerd, &name, &uid, &[], "exec sleep 1000000")).collect();
    let id = opened(&mut daemon, "sandbox-crash-loop", |event| event.text("/target/pod/uid") == uid);
    let told = carry_out(&daemon, &id, "sandbox-crash-loop/tell-pod").stdout;
    assert!(told.contains("sandbox-crash-loop") && told.contains(&id), "{told}");
    drop(sandboxes);
}
