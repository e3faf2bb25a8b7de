//! Mounts that are detached though no unmount of them was refused: who uses them on is looked for.

use super::mount::{attempt, report};
use super::*;

/// Events, and what is requested about mounts.
fn take(core: &mut Core) -> (Vec<Event>, Vec<Request>) {
    let (emitted, mut requested) = mount::take(core);
    requested.retain(|request| !matches!(request, Request::Netns { .. }));
    (emitted, requested)
}

const UID: &str = "5c948341-c030-4996-b888-f032577d97b0";
const ID: &str = "593d8a89ee37593d8a89ee37593d8a89ee37593d8a89ee37593d8a89ee37aaaa";

fn node() -> Core {
    let mut core = settled();
    let host =
        KubeletNamespace { mntns: 2, roots: vec!["/var/lib/kubelet".into()], of_kubelet: false, pid: None };
    core.observe(at(1, Fact::Kubelet(KubeletFacts { namespaces: vec![host] })));
    let source = "docker:/run/docker.sock".to_owned();
    let facts = ContainerFacts { source: source.clone(), ..model::container(ID) };
    core.observe(at(2, Fact::Container(Box::new(facts))));
    core.observe(at(3, Fact::RuntimeDirectories { source, directories: vec!["/var/lib/docker".into()] }));
    take(&mut core);
    core
}

/// Detached by a call of which the kernel showed the mount.
fn detached(path: &str, id: u64) -> Fact {
    let Fact::Umount(attempt) = attempt(None) else { unreachable!() };
    let target = Some(MeantMount { id, unique: Some(id + 1_000) });
    let root = Some(CallerDirectory { mount_id: 29, path: Some("/".into()) });
    let origin = PathOrigin { root, cwd: None, doubt: None, table: None, target, began: None };
    Fact::Umount(Box::new(UmountAttempt {
        path: path.into(),
        flags: 2,
        origin: Some(Box::new(origin)),
        ..*attempt
    }))
}

fn volume() -> String {
    format!("/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~glusterfs/cam-pv-50g")
}

fn shm() -> String {
    format!("/var/lib/docker/containers/{ID}/mounts/shm")
}

/// The mounts whose users are looked for.
#[track_caller]
fn looked_for(requests: &[Request]) -> (u64, Vec<DetachedMount>) {
    let looks = requests.iter().filter_map(|request| match request {
        Request::DetachedUsers { id, mounts, .. } => Some((*id, mounts.clone())),
        _ => None,
    });
    let looks: Vec<_> = looks.collect();
    assert_eq!(looks.len(), 1, "{requests:?}");
    looks[0].clone()
}

fn used(index: u64) -> HolderReport {
    let Fact::Holders(found) = report(index) else { unreachable!() };
    HolderReport { mount: None, complete: false, ..*found }
}

fn unused(index: u64) -> HolderReport {
    HolderReport { verdict: Verdict::Incomplete, ..HolderReport::skipped(index, "/x") }
}

#[test]
fn who_uses_a_volume_or_a_mount_of_a_container_on_is_told() {
    let mut core = node();
    core.observe(at(10 * MS, detached(&volume(), 70)));
    let (emitted, _) = take(&mut core);
    let [first] = &emitted[..] else { panic!("{emitted:?}") };
    assert_eq!((first.kind, first.holders.as_ref()), (Kind::MountDetached, None));
    core.observe(at(11 * MS, detached(&shm(), 71)));
    core.observe(at(12 * MS, detached("/mnt/x", 72)));
    assert_eq!(take(&mut core).0, [], "what a runtime detaches for a container is no news");
    core.observe(at(1_010 * MS, Fact::Tick));
    assert_eq!(take(&mut core), (Vec::new(), Vec::new()));
    core.observe(at(1_011 * MS, Fact::Tick));
    let (id, mounts) = looked_for(&take(&mut core).1);
    let meant: Vec<(u64, &str)> = mounts.iter().map(|mount| (mount.meant.id, mount.path.as_str())).collect();
    assert_eq!(meant, [(70, volume().as_str()), (71, shm().as_str())], "another one is nobody's");

    let saved = serde_json::to_string(&core.save().unwrap()).unwrap();
    let mut core = Core::restore(core.settings().clone(), serde_json::from_str(&saved).unwrap()).unwrap();
    core.observe(at(1_100 * MS, Fact::DetachedUsers { id, reports: vec![used(0), used(1)] }));
    let (emitted, _) = take(&mut core);
    let told: Vec<_> = emitted.iter().map(|event| (event.kind, event.severity, event.completes)).collect();
    let kind = (Kind::MountDetached, Severity::Notice);
    assert_eq!(told, [(kind.0, kind.1, Some(first.seq)), (kind.0, kind.1, None)]);
    let words = ", or what was mounted on it, detached by umount (pid 28997), and is still held by glusterfs (pid 94549)";
    for (event, subject) in emitted.iter().zip(["volume cam-pv-50g", &shm()]) {
        assert!(event.message.starts_with(subject) && event.message.contains(words), "{}", event.message);
    }
    let container = emitted[1].target.as_ref().and_then(|target| target.container.as_ref());
    assert_eq!(container.map(|container| container.id.as_str()), Some(ID));
}

#[test]
fn of_what_nobody_uses_there_is_no_more_to_tell_and_looks_are_ten_seconds_apart() {
    let mut core = node();
    core.observe(at(10 * MS, detached(&shm(), 71)));
    core.observe(at(2_000 * MS, Fact::Tick));
    let (id, _) = looked_for(&take(&mut core).1);
    core.observe(at(2_001 * MS, detached(&shm(), 73)));
    core.observe(at(2_100 * MS, Fact::DetachedUsers { id: id + 7, reports: vec![used(0)] }));
    core.observe(at(2_100 * MS, Fact::DetachedUsers { id, reports: vec![unused(0)] }));
    core.observe(at(12_099 * MS, Fact::Tick));
    assert_eq!(take(&mut core), (Vec::new(), Vec::new()));
    core.observe(at(12_100 * MS, Fact::Tick));
    let (_, mounts) = looked_for(&take(&mut core).1);
    assert_eq!(mounts[0].meant.id, 73);
}

#[test]
fn where_the_kernel_does_not_show_the_mount_nobody_is_looked_for() {
    let mut core = node();
    let Fact::Umount(mut attempt) = detached(&volume(), 70) else { unreachable!() };
    attempt.origin.as_mut().unwrap().target = None;
    core.observe(at(10 * MS, Fact::Umount(attempt)));
    take(&mut core);
    core.observe(at(60_000 * MS, Fact::Tick));
    let (_, requests) = take(&mut core);
    assert!(!requests.iter().any(|request| matches!(request, Request::DetachedUsers { .. })), "{requests:?}");
}
