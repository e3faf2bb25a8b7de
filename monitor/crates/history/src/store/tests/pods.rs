//! Names of pods, from one run of the daemon to the next.

use kevtmon_core::node::pods::PodNames;
use kevtmon_types::clock::boot_now;

use super::*;

#[test]
fn the_name_of_a_pod_stays_when_the_pod_has_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    writer.insert(&numbered(sample::deletion(), 1)).unwrap();
    writer.insert(&numbered(Event { kind: Kind::ContainerRemoved, ..sample::deletion() }, 2)).unwrap();
    writer.commit().unwrap();
    let uid = sample::deletion().target.unwrap().into_inner().pod.unwrap().uid;
    let named = |ago: i64, later: u64| {
        writer.connection.execute("UPDATE pods SET gone = ?1", [time::now() - ago * SECOND]).unwrap();
        let boot = boot_now();
        let mut names = writer.pod_names(time::now(), boot).unwrap();
        names.expire(boot + later * 1_000_000_000);
        names.get(&uid).map(|(namespace, name)| format!("{namespace}/{name}"))
    };
    assert_eq!(named(20, 86_390), None, "a day is counted from its end, not from a restart");
    assert_eq!(named(5, 86_390).as_deref(), Some("lijiaob/etcd1-0"));
    writer.stop().unwrap();
    let (mut writer, previous_run) = resume(dir.path(), "another boot");
    assert_eq!(previous_run.pods.get(&uid), Some(("lijiaob", "etcd1-0")));
    writer.connection.execute("UPDATE pods SET gone = gone - ?1", [86_410 * SECOND]).unwrap();
    writer.next_prune = 0;
    writer.stop().unwrap();
    let (_writer, previous_run) = resume(dir.path(), BOOT);
    assert_eq!(previous_run.pods, PodNames::default(), "for a day");
}
