//! Containers whose removal fails, of which no event tells.

use serde_json::{Value, json};

use super::fake::{Answer, entry};
use super::*;

const REASON: &str = "unable to remove filesystem: unlinkat /d/containers/a/shm: device or resource busy";

fn of_state(state: &str) -> Value {
    json!({
        "Id": id('a'), "Name": "/web", "Image": "sha256:0", "State": {"Status": state, "Error": REASON},
        "Config": {"Image": "busybox:1"},
        "GraphDriver": {"Name": "overlay2", "Data": {"MergedDir": "/d/overlay2/353abb/merged"}},
    })
}

#[tokio::test]
async fn one_that_the_list_goes_on_to_call_removing_is_dead() {
    let fake = FakeDocker::started();
    fake.put_inspected(of_state("dead"));
    fake.spoil(Answer::List, json!([entry(of_state("removing"))]).to_string().into_bytes());
    let reconcile = Duration::from_millis(50);
    let mut reports = Reports::with(&fake, Options { reconcile, timeout: PATIENCE, ..Options::default() });
    for _ in 0..3 {
        let found = reports.snapshot().await.remove(0);
        assert_eq!((found.state, found.removal_error.as_deref()), (ContainerState::Dead, Some(REASON)));
        assert_eq!(found.own_mounts.rootfs.as_deref(), Some("/d/overlay2/353abb/merged"));
    }
}

#[tokio::test]
async fn what_has_become_of_one_is_read_when_somebody_asks() {
    let fake = FakeDocker::started();
    fake.put_inspected(of_state("exited"));
    let options = Options { reconcile: LONG, timeout: PATIENCE, ..Options::default() };
    let wanted = options.wanted.clone();
    let mut reports = Reports::with(&fake, options);
    reports.up().await;
    fake.put_inspected(of_state("dead"));
    wanted.send(id('b')).unwrap();
    wanted.send(id('a')).unwrap();
    assert_eq!(reports.container().await.state, ContainerState::Dead);
    assert_eq!(fake.inspects(), 1, "of one that nobody knows nothing is asked");
}
