//! Unmounts below root directories that are, or are not, those of a kubelet.

use super::*;

const PATH: &str =
    "/data/kubelet/pods/5c948341-c030-4996-b888-f032577d97b0/volumes/kubernetes.io~glusterfs/pv";
/// The mount namespace of the host, and of the task of these tests.
const HOST_MNTNS: NsInum = 2;

fn attempt(mntns: NsInum, errno: Option<u16>) -> Fact {
    Fact::Umount(Box::new(UmountAttempt {
        syscall: MountSyscall::Umount2,
        actor: TaskRef { key: key(), tid: 1, comm: "umount".into(), context: None },
        mntns,
        path: PATH.into(),
        origin: None,
        flags: 0,
        errno,
        second: None,
    }))
}

fn kubelets(roots: &[&str]) -> Fact {
    Fact::Kubelet(KubeletFacts {
        namespaces: vec![KubeletNamespace {
            mntns: HOST_MNTNS,
            roots: roots.iter().map(|root| (*root).to_owned()).collect(),
            of_kubelet: false,
            pid: None,
        }],
    })
}

#[test]
fn advice_leads_through_the_kubelet_that_runs_now() {
    let of = |pid| {
        let roots = vec!["/data/kubelet".to_owned()];
        let host = KubeletNamespace { mntns: 1, roots, of_kubelet: false, pid: None };
        let own = KubeletNamespace { mntns: HOST_MNTNS, of_kubelet: true, pid: Some(pid), ..host.clone() };
        Fact::Kubelet(KubeletFacts { namespaces: vec![host, own] })
    };
    let advised = |core: &mut Core| {
        let incidents = mount::take(core).0.into_iter().filter_map(|event| event.incident);
        let steps = incidents.flat_map(|incident| incident.advice).map(|step| step.command);
        steps.filter(|command| command.starts_with("nsenter")).collect::<Vec<_>>()
    };
    let mut core = settled();
    core.observe(at(5, of(7)));
    core.observe(at(6, task("/system.slice/kubelet.service")));
    core.observe(at(10, attempt(HOST_MNTNS, Some(16))));
    let Fact::Holders(mut report) = mount::report(1) else { unreachable!() };
    report.path = PATH.into();
    report.mount.as_mut().unwrap().mountpoint = PATH.into();
    core.observe(at(11, Fact::Holders(report)));
    let through = |pid: u32| format!("nsenter -t {pid} -m umount --lazy {PATH}");
    assert_eq!(advised(&mut core), [through(7)]);
    core.observe(at(20, of(7)));
    assert!(advised(&mut core).is_empty());
    core.observe(at(30, of(8)));
    core.observe(at(2_000 * MS, Fact::Tick));
    assert_eq!(advised(&mut core), [through(8)]);
}

fn looked() -> Core {
    let mut core = settled();
    core.observe(at(5, task("/system.slice/kubelet.service")));
    core.observe(at(6, kubelets(&["/var/lib/kubelet"])));
    requests(&mut core);
    core
}

fn volumes(core: &mut Core) -> Vec<bool> {
    let mounts = events(core).into_iter().filter_map(|event| event.mount);
    mounts.map(|mount| mount.volume.is_some()).collect()
}

#[test]
fn an_unmount_below_an_unknown_root_awaits_the_lookup_of_a_kubelet_that_has_just_started() {
    let mut core = looked();
    core.observe(at(10, attempt(HOST_MNTNS, Some(16))));
    core.observe(at(11, attempt(HOST_MNTNS, None)));
    assert_eq!(requests(&mut core), [Request::Kubelet]);
    core.observe(at(12, kubelets(&["/var/lib/kubelet", "/data/kubelet"])));
    let requested = requests(&mut core);
    let [Request::Holders { id, .. }] = requested[..] else { panic!("{requested:?}") };
    core.observe(at(13, Fact::Holders(Box::new(HolderReport::skipped(id, PATH)))));
    let (mut emitted, mut asked) = (Vec::new(), Vec::new());
    for output in core.take_output() {
        match output {
            Output::Event(event) => emitted.extend(event.mount.filter(|_| event.incident.is_none())),
            Output::Request(Request::Holders { id, .. }) => asked.push(id),
            Output::Request(_) => {}
        }
    }
    assert!(matches!(&emitted[..], [mount] if mount.volume.is_some()), "{emitted:?}");
    let gone =
        HolderReport { verdict: Verdict::NotAMount, complete: true, ..HolderReport::skipped(asked[0], PATH) };
    core.observe(at(14, Fact::Holders(Box::new(gone))));
    assert_eq!(volumes(&mut core), [true]);
}

#[test]
fn a_path_that_no_kubelet_has_is_no_volume_and_is_looked_up_at_most_once_in_ten_seconds() {
    let mut core = looked();
    core.observe(at(10, attempt(HOST_MNTNS, Some(16))));
    assert_eq!(requests(&mut core), [Request::Kubelet]);
    core.observe(at(12, kubelets(&["/var/lib/kubelet"])));
    core.observe(at(13, attempt(HOST_MNTNS, Some(16))));
    let requested = requests(&mut core);
    assert!(matches!(requested[..], [Request::Holders { .. }]), "{requested:?}");
    core.observe(at(10_000 * MS, Fact::Tick));
    assert_eq!(volumes(&mut core), [false, false]);
}

#[test]
fn each_unknown_root_directory_is_looked_up_and_an_endless_number_of_them_is_not() {
    let mut core = looked();
    let of = |root: usize| match attempt(HOST_MNTNS, Some(16)) {
        Fact::Umount(attempt) => {
            Fact::Umount(Box::new(UmountAttempt { path: format!("/{root}{PATH}"), ..*attempt }))
        }
        fact => fact,
    };
    let mut lookups = 0;
    for root in 0..100 {
        core.observe(at(10, of(root)));
        core.observe(at(10, kubelets(&["/var/lib/kubelet"])));
        lookups += requests(&mut core).iter().filter(|request| **request == Request::Kubelet).count();
    }
    assert_eq!(lookups, 32);
    core.observe(at(10_010 * MS, of(0)));
    assert!(requests(&mut core).contains(&Request::Kubelet), "the interval is over");
}

#[test]
fn a_lookup_that_is_not_answered_delays_the_event_for_a_while() {
    let mut core = looked();
    core.observe(at(10, attempt(HOST_MNTNS, Some(16))));
    let deadline = core.deadline().unwrap();
    assert!(deadline <= 5_001 * MS, "{deadline}");
    assert_eq!(requests(&mut core), [Request::Kubelet]);
    core.observe(at(5_001 * MS, Fact::Tick));
    assert!(requests(&mut core).iter().any(|request| matches!(request, Request::Holders { .. })));
}

#[test]
fn a_path_in_another_mount_namespace_is_that_of_its_container_and_never_of_a_pod() {
    let mut core = settled();
    core.observe(at(5, task("/system.slice/x.service")));
    core.observe(at(6, kubelets(&["/data/kubelet"])));
    requests(&mut core);
    // The namespace of the container, and one of nobody.
    for (now, mntns) in [(10, 8), (11, 9)] {
        core.observe(at(now, attempt(mntns, Some(16))));
    }
    core.observe(at(12, kubelets(&["/data/kubelet"])));
    core.observe(at(10_000 * MS, Fact::Tick));
    let emitted: Vec<Event> = events(&mut core);
    let [inside, elsewhere] = &emitted[..] else { panic!("{emitted:?}") };
    assert!(emitted.iter().all(|event| event.mount.as_ref().unwrap().volume.is_none()));
    assert_eq!(inside.target.as_ref().unwrap().container.as_ref().unwrap().id, ID);
    assert_eq!(elsewhere.target, None);
}

#[test]
fn a_busy_volume_names_its_pod_even_where_no_runtime_knows_it() {
    let mut core = core();
    let path = "/var/lib/kubelet/pods/5c948341-c030-4996-b888-f032577d97b0/volumes/kubernetes.io~glusterfs/cam-pv-50g";
    let Fact::Umount(attempt) = attempt(HOST_MNTNS, Some(16)) else { unreachable!() };
    core.observe(at(10, Fact::Umount(Box::new(UmountAttempt { path: path.into(), ..*attempt.clone() }))));
    core.observe(at(11, Fact::Holders(Box::new(HolderReport::skipped(1, path)))));
    let mut emitted = events(&mut core);
    core.observe(at(
        12,
        Fact::Umount(Box::new(UmountAttempt { path: path.into(), errno: None, ..*attempt })),
    ));
    let requested = requests(&mut core);
    let [Request::Holders { id, .. }] = requested[..] else { panic!("{requested:?}") };
    let gone =
        HolderReport { verdict: Verdict::NotAMount, complete: true, ..HolderReport::skipped(id, path) };
    core.observe(at(13, Fact::Holders(Box::new(gone))));
    emitted.extend(events(&mut core));
    assert_eq!(emitted[0].target.as_ref().unwrap().pod.as_ref().unwrap().uid, &path[22..58]);
    assert_eq!(emitted[0].mount.as_ref().unwrap().volume.as_ref().unwrap().plugin, "kubernetes.io/glusterfs");
    assert_eq!(
        emitted[1].message,
        "volume cam-pv-50g of pod 5c948341-c030-4996-b888-f032577d97b0 unmounted by umount (pid 28997), after one refused attempt"
    );
}
