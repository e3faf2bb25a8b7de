//! Lines as kubelets of several versions, Calico's plugin and the kernel write them.

use super::*;

const ID: &str = "94feeebc95fb1894feeebc95fb1894feeebc95fb1894feeebc95fb1894feeebc";

fn refusal(line: &str) -> (RbdRefusal, String) {
    let Recognised { says, text } = of_program(line).unwrap();
    let LogSays::RbdRefused(refusal) = says else { panic!("{says:?}") };
    (refusal, text)
}

#[test]
fn a_refused_image_is_found_in_the_words_of_each_version() {
    for (line, pool, namespace, image, vague, text) in [
        (
            "E0305 20:21:27.123456    1893 nestedpendingoperations.go:262] Operation for \"\\\"kubernetes.io/rbd/[10.47.136.2:6789]:\
             index-api-image\\\"\" failed. Error: MountVolume.SetUp failed: rbd: image index-api-image is locked by other nodes",
            None,
            None,
            "index-api-image",
            false,
            "rbd: image index-api-image is locked by other nodes",
        ),
        (
            "E0305 rbd_util.go:300] rbd: failed to lock image index (maybe locked by other nodes), error exit status 22",
            None,
            None,
            "index",
            true,
            "rbd: failed to lock image index (maybe locked by other nodes)",
        ),
        (
            "Warning FailedMount MountVolume.WaitForAttach failed for volume \"pv\" : rbd image kube/index is still being used",
            Some("kube"),
            None,
            "index",
            false,
            "rbd image kube/index is still being used",
        ),
        (
            "GRPC error: rpc error: code = Internal desc = rbd image kube/team-a/csi-vol-1 is still being used",
            Some("kube"),
            Some("team-a"),
            "csi-vol-1",
            false,
            "rbd image kube/team-a/csi-vol-1 is still being used",
        ),
    ] {
        let (found, quoted) = refusal(line);
        let owned = |name: Option<&str>| name.map(str::to_owned);
        assert_eq!((found.pool, found.namespace), (owned(pool), owned(namespace)), "{line}");
        assert_eq!((found.image.as_str(), found.vague, found.held_by), (image, vague, None), "{line}");
        assert_eq!(quoted, text);
    }
}

#[test]
fn the_client_that_has_it_is_told_if_the_line_goes_on_with_it() {
    let held_by = |rest: &str| refusal(&format!("rbd image kube/index is still being used{rest}")).0.held_by;
    for address in ["10.47.136.60:0/1504107565", "[2001:db8::7]:0/7"] {
        let told = format!(", output: Watchers:\\n\\twatcher={address} client.24128 cookie=1");
        assert_eq!(held_by(&told).as_deref(), Some(address));
    }
    for rest in
        ["", " watcher=", " watcher=somewhere", " watcher=10.0.0.1", " watcher=10.0.0.1:0/x", " watcher=/"]
    {
        assert_eq!(held_by(rest), None, "{rest}");
    }
}

#[test]
fn an_image_that_cannot_be_deleted_is_refused_to_nobody() {
    let refused = "rbd image kube/index is still being used";
    assert!(of_program(refused).is_some());
    let line =
        format!("{refused}, rbd output: Watchers:\\n\\twatcher=10.47.136.60:0/7 client.24128 cookie=1");
    assert_eq!(of_program(&line), None);
}

#[test]
fn what_could_not_be_the_name_of_an_image_is_none() {
    let long = "x".repeat(256);
    for name in ["", "a b", "a/b/c/d", "/b", "a/", "a//b", "a\tb", "a\u{202e}b", "a\"b", &long] {
        let line = format!("rbd image {name} is still being used");
        assert_eq!(of_program(&line), None, "{line}");
    }
    for line in [
        "",
        "rbd image ",
        "rbd image kube/index was used",
        "umount: /var/lib/kubelet/pods/x: target is busy",
        "umount: /mnt: 目标忙",
        "rbd: image index is locked",
    ] {
        assert_eq!(of_program(line), None, "{line}");
    }
}

fn missing(line: &str) -> (Option<String>, Option<(String, String)>, String) {
    let Recognised { says, text } = of_program(line).unwrap();
    let LogSays::EndpointMissing { sandbox, pod } = says else { panic!("{says:?}") };
    (sandbox, pod, text)
}

#[test]
fn an_endpoint_that_is_missing_is_told_with_its_sandbox_or_its_pod() {
    let etcd = Some(("lijiaob".to_owned(), "etcd1-0".to_owned()));
    let said = "resource does not exist: WorkloadEndpoint(node=slave-197, orchestrator=k8s, workload=lijiaob.etcd1-0, name=eth0)";
    let line = format!(
        "E0305 20:00:18.7 1893 remote_runtime.go:115] StopPodSandbox \"{ID}\" from runtime service failed: rpc error: code = Unknown \
         desc = NetworkPlugin cni failed to teardown pod \"etcd1-0_lijiaob\" network: {said}\" key=secret"
    );
    assert_eq!(missing(&line), (Some(ID.to_owned()), etcd.clone(), said.to_owned()));
    let line =
        "failed to teardown pod \"etcd1-0_lijiaob\" network: resource does not exist: WorkloadEndpoint";
    assert_eq!(missing(line), (None, etcd, "resource does not exist: WorkloadEndpoint".to_owned()));
    let bare = "resource does not exist: WorkloadEndpoint";
    assert_eq!(missing(bare), (None, None, bare.to_owned()));
}

#[test]
fn the_kernel_is_heard_of_hung_tasks_tables_and_thin_devices() {
    let says = |line: &str| of_kernel(line).map(|found| found.says);
    let hung = |comm: &str, tid| Some(LogSays::HungTask { comm: comm.into(), tid });
    assert_eq!(says("INFO: task umount:4711 blocked for more than 120 seconds."), hung("umount", 4711));
    assert_eq!(says("INFO: task a:b:7 blocked in I/O wait for more than 120 seconds."), hung("a:b", 7));
    for (table, ipv6) in [("arp_cache", false), ("ndisc_cache", true)] {
        let line = format!("neighbour: {table}: neighbor table overflow!");
        assert_eq!(says(&line), Some(LogSays::NeighborOverflow { ipv6 }), "{line}");
    }
    let thin = "device-mapper: thin: Deletion of thin device 65 failed.";
    assert_eq!(of_kernel(thin), Some(Recognised { says: LogSays::ThinDeletion, text: thin.into() }));
    for line in [
        "",
        "INFO: task ",
        "INFO: task umount blocked ",
        "INFO: task umount:x blocked ",
        "eth0: link up",
        "neighbour: x_cache: neighbor table overflow!",
        "x[7]: segfault at 0 ip 0 sp 0 error 4 in neighbour: arp_cache: neighbor table overflow![400000+1000]",
        "neighbour: arp_[7]: segfault at 0 ip 0 sp 0 error 4 in x: neighbor table overflow![400000+1000]",
    ] {
        assert_eq!(says(line), None, "{line}");
    }
}

#[test]
fn the_kernel_is_heard_of_devices_that_are_not_freed_by_whole_lines() {
    let says = |line: &str| match of_kernel(line)?.says {
        LogSays::DeviceNotFreed { ifname } => Some(ifname),
        _ => None,
    };
    for (line, ifname) in [
        ("unregister_netdevice: waiting for lo to become free. Usage count = 1", "lo"),
        ("unregister_netdevice: waiting for veth2ab7221 to become free. Usage count = 2", "veth2ab7221"),
        ("unregister_netdevice: waiting for eth0.7 to become free. Usage count = -1", "eth0.7"),
    ] {
        assert_eq!(says(line).as_deref(), Some(ifname), "{line}");
    }
    for line in [
        "unregister_netdevice: waiting for lo to become free. Usage count = ",
        "unregister_netdevice: waiting for lo to become free. Usage count = 1[7]: segfault at 0",
        "unregister_netdevice: waiting for  to become free. Usage count = 1",
        "x: unregister_netdevice: waiting for lo to become free. Usage count = 1",
    ] {
        assert_eq!(of_kernel(line), None, "{line}");
    }
}

#[test]
fn why_a_plugin_did_not_remove_a_network_is_told_with_the_sandbox_or_the_pod() {
    let found = |line: &str| match of_program(line)? {
        Recognised { says: LogSays::NetworkNotRemoved { sandbox, pod }, text } => Some((sandbox, pod, text)),
        _ => None,
    };
    let id = || Some(ID.to_owned());
    let line = format!(
        "E0812 18:35:51.567809  518652 pod_workers.go:965] \"Error syncing pod, skipping\" err=\"failed to \\\"KillPodSandbox\\\" \
         for \\\"u\\\" with KillPodSandboxError: \\\"rpc error: code = Unknown desc = failed to destroy network for sandbox \
         \\\\\\\"{ID}\\\\\\\": plugin type=\\\\\\\"calico\\\\\\\" failed (delete): error getting ClusterInformation: connection \
         is unauthorized: Unauthorized token=s3cr3t"
    );
    let why = "error getting ClusterInformation: connection is unauthorized";
    assert_eq!(found(&line), Some((id(), None, why.to_owned())));
    let line = format!(
        "E0821 18:37:24.896277   10990 cni.go:366] Error deleting lijiaob_etcd1-0/{ID} from network calico/k8s-pod-network: \
         failed to Statfs \"/proc/16707/ns/net\": no such file or directory"
    );
    assert_eq!(found(&line), Some((id(), None, "failed to Statfs \"/proc/16707/ns/net".to_owned())));
    let why = "plugin's netns and netns from CNI_NETNS should not be the same";
    let line = format!("NetworkPlugin cni failed to teardown pod \"etcd1-0_lijiaob\" network: {why}");
    let etcd = Some(("lijiaob".to_owned(), "etcd1-0".to_owned()));
    assert_eq!(found(&line), Some((None, etcd, why.to_owned())));
    for line in [
        format!("failed to setup network for sandbox \"{ID}\": connection is unauthorized: Unauthorized"),
        format!(
            "failed to destroy network for sandbox \"{ID}\": plugin type=\"bridge\" failed (delete): timed out"
        ),
        format!(
            "failed to destroy network for sandbox \"{ID}\": failed to Statfs {} /ns/net",
            "x".repeat(40)
        ),
        format!("connection is unauthorized: failed to destroy network for sandbox \"{ID}\""),
    ] {
        assert_eq!(of_program(&line), None, "{line}");
    }
}

#[test]
fn the_kernel_is_heard_of_servers_of_ceph_and_of_its_images_by_whole_lines() {
    let says = |line: &str| match of_kernel(line)?.says {
        LogSays::CephServer(line) => Some((line.server, line.is_back)),
        LogSays::RbdDevice { device } => Some((device, false)),
        _ => None,
    };
    for (line, server, is_back) in [
        ("libceph: mon0 10.47.136.2:6789 session lost, hunting for new mon", "mon", false),
        ("libceph: mon2 (1)10.72.36.245:40083 session lost, hunting for new mon", "mon", false),
        ("libceph: mon1 (1)[fd00::9]:6789 session established", "mon", true),
        ("libceph: osd3 down", "osd3", false),
        ("libceph: osd3 up", "osd3", true),
        ("libceph (5c948341-c030-4996-b888-f032577d97b0 e42): osd3 down", "osd3", false),
        ("ceph: mds0 hung", "mds0", false),
        ("ceph: [5c948341-c030-4996-b888-f032577d97b0 24128]: mds0 came back", "mds0", true),
        ("ceph: mds0 caps stale", "mds0", false),
        ("ceph: mds0 caps renewed", "mds0", true),
        ("rbd: rbd0: encountered watch error: -107", "rbd0", false),
        ("rbd: rbd12: breaking header lock owned by client24128", "rbd12", false),
    ] {
        assert_eq!(says(line), Some((server.to_owned(), is_back)), "{line}");
    }
    for line in [
        // A server closes what is idle, too.
        "libceph: osd3 (1)10.47.136.2:6801 socket closed (con state OPEN)",
        "libceph: osd3 weight 0x0 (out)",
        "libceph: osd3 down again",
        "libceph: osd down",
        "libceph: 3 down",
        "libceph: [x y]: osd3 down",
        "libcephx: osd3 down",
        "x: libceph: osd3 down",
        "libceph: mon0 session established",
        "ceph: mds0 caps still stale",
        "rbd: rbd0: added with size 0x40000000",
        "rbd: rbd0: encountered watch error: -x",
        "rbd: sda: encountered watch error: -107",
        "rbd: rbd0: breaking header lock owned by client",
    ] {
        assert_eq!(of_kernel(line), None, "{line}");
    }
}

#[test]
fn the_kernel_is_heard_of_servers_of_nfs_by_whole_lines() {
    let says = |line: &str| match of_kernel(line)?.says {
        LogSays::NfsServer(line) => Some((line.server, line.says, line.lockd)),
        _ => None,
    };
    for (line, server, said, lockd) in [
        ("nfs: server nas1 not responding, still trying", "nas1", NfsSays::Waiting, false),
        ("nfs: server fd00::9 not responding, timed out", "fd00::9", NfsSays::TimedOut, false),
        ("nfs: server 10.0.0.9 OK", "10.0.0.9", NfsSays::Answers, false),
        ("lockd: server nas1.x not responding, still trying", "nas1.x", NfsSays::Waiting, true),
        ("lockd: server nas1 OK", "nas1", NfsSays::Answers, true),
    ] {
        assert_eq!(says(line), Some((server.to_owned(), said, lockd)), "{line}");
    }
    let name = "x".repeat(NAME_MAX);
    assert!(says(&format!("nfs: server {name} OK")).is_some());
    for line in [
        "nfs: server nas1 OK.",
        "nfs: server  OK",
        "nfs: server nas 1 OK",
        "nfs: server OK",
        "nfs: server nas1 not responding",
        "nfs: server nas1 not responding, still trying again",
        "x: nfs: server nas1 OK",
        "smb: server nas1 OK",
        "nfs: server nas\u{202e}1 OK",
        &format!("nfs: server {name}x OK"),
    ] {
        assert_eq!(of_kernel(line), None, "{line}");
    }
}

#[test]
fn what_is_kept_is_short_and_shows() {
    let line = format!("INFO: task umount:7 blocked \u{1b}[31m{}", "x".repeat(1000));
    let text = of_kernel(&line).unwrap().text;
    assert_eq!(text.chars().count(), TEXT_MAX);
    assert!(!text.contains('\u{1b}'));
}

/// Numbers that look like chance and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap()
    }
}

#[test]
fn no_text_is_too_strange_and_what_is_found_is_bounded() {
    let pieces = [
        "rbd: image ", "rbd image ", " is locked by other nodes", " is still being used",
        "rbd: failed to lock image ", " (maybe locked by other nodes)", MISSING, "workload=", "watcher=",
        "INFO: task ", " blocked ", "nfs: server ", " OK", "/", ".", ":", "[", "]", "_", "目标忙",
        "\u{202e}", "\0", "\"", "\\", "7", "é", ID,
    ];
    let (mut numbers, mut found) = (Numbers(7), 0);
    for _ in 0..20_000 {
        let count = 1 + numbers.next() % 8;
        let line: String = (0..count).map(|_| pieces[numbers.next() % pieces.len()]).collect();
        for recognised in of_program(&line).into_iter().chain(of_kernel(&line)) {
            found += 1;
            assert!(recognised.text.chars().count() <= TEXT_MAX, "{line:?}");
            assert!(!recognised.text.contains(is_hidden), "{line:?}");
        }
    }
    assert!(found > 1000, "{found}");
}

#[test]
fn a_kubelet_is_heard_of_sandboxes_that_it_lacks_volumes_that_stay_and_hashes_that_changed() {
    let found = |line: &str| of_program(line).map(|found| (found.says, found.text));
    let lacks = format!("no PodsandBox found with Id '{ID}'");
    let line = format!(
        "F0305 server.go:274] failed to run Kubelet: failed to build map of initial containers from runtime: {lacks} key=secret"
    );
    assert_eq!(found(&line), Some((LogSays::SandboxMissing { sandbox: ID.into() }, lacks)));

    let uid = "5c948341-c030-4996-b888-f032577d97b0";
    let says = || LogSays::TeardownFailed { pod_uid: uid.into() };
    let plain = format!(
        "E0305 nestedpendingoperations.go:262] UnmountVolume.TearDown failed for volume \"data\" (UniqueName: \
         \"kubernetes.io/glusterfs/{uid}-data\") pod \"{uid}\" (UID: \"{uid}\") : umount: 目标忙"
    );
    assert_eq!(found(&plain), Some((says(), "UnmountVolume.TearDown failed for volume \"data".to_owned())));
    let escaped = format!("err=\"{}\"", plain.replace('"', "\\\""));
    assert_eq!(
        found(&escaped),
        Some((says(), "UnmountVolume.TearDown failed for volume \\\"data".to_owned()))
    );

    let changed = "Container spec hash changed (1559107639 vs 1428860573)";
    let line = format!(
        "Container \"app\" ({{\"docker\" \"{ID}\"}}) of pod web: {changed}.. Container will be killed"
    );
    assert_eq!(found(&line), Some((LogSays::SpecHashChanged, changed.to_owned())));

    for line in [
        "no PodsandBox found with Id ''",
        "no PodsandBox found with Id 'd0831a42'",
        "UnmountVolume.TearDown failed for volume \"data\" pod \"someone\"",
        "UnmountVolume.TearDown failed for volume ",
        "Container spec hash changed (1 vs x)",
        "Container spec hash changed (1 vs 2",
    ] {
        assert_eq!(found(line), None, "{line}");
    }
}
