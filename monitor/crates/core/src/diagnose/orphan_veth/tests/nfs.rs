//! Mounts of NFS with a client that has an address of the namespace.

use super::*;

/// A network namespace of a user, and one of another pod.
const USERS: NsInum = ETCD + 7;
const OTHER: NsInum = ETCD + 8;

fn nfs(tgid: u32, comm: &str, path: &str) -> Holder {
    Holder {
        path: Some(path.into()),
        source: Some("filer:/srv".into()),
        possible: true,
        mntns: Some(if tgid == 0 { MNTNS } else { MNTNS + 1 }),
        cgroup: Some("/system.slice/agent.service".into()).filter(|_| tgid != 0),
        ..keeper(tgid, comm, Access::Nfs)
    }
}

/// A node on which the pod is gone and its device is left, with these keepers.
fn left(keepers: Vec<Holder>) -> TestNode {
    let mut node = started(node(CALI), vec![etcd_sandbox()]);
    let namespaces =
        vec![KubeletNamespace { mntns: MNTNS, roots: vec!["/k".into()], of_kubelet: false, pid: None }];
    node.observe(Fact::Kubelet(KubeletFacts { namespaces }));
    node.peers.insert(END, found(keepers));
    exit(&mut node);
    node.run_for(70 * S);
    node
}

#[test]
fn it_is_likely_held_by_a_mount_of_nfs_that_has_its_address() {
    let held = |words: &str| format!("net:[4026532253], {words}");
    for (keepers, words) in [
        (vec![nfs(0, "", "/mnt")], "likely held by the NFS mount filer:/srv at /mnt"),
        (
            vec![keeper(77, "tcpdump", Access::Fd), nfs(78, "agent", "/data")],
            "held by tcpdump (pid 77) with an open file and likely the NFS mount filer:/srv at /data in the mount \
             namespace of agent (pid 78)",
        ),
        (
            vec![nfs(0, "", "/a"), nfs(0, "", "/b"), nfs(0, "", "/c")],
            "likely held by the NFS mount filer:/srv at /a and the NFS mount filer:/srv at /b and 1 more",
        ),
    ] {
        let node = left(keepers);
        let incident = &open(&node)[0];
        assert_eq!(incident.confidence, Confidence::Likely);
        assert!(incident.summary.ends_with(&held(words)), "{}", incident.summary);
    }
}

#[test]
fn a_mount_of_nfs_can_be_unmounted_unless_a_kubelet_or_a_container_has_it() {
    let in_pod = format!("/kubepods/besteffort/pod{CAM_UID}/{}", "d".repeat(64));
    let in_pod = Holder { cgroup: Some(in_pod), ..nfs(79, "nginx", "/data") };
    let elsewhere = Holder { mntns: Some(MNTNS + 1), ..nfs(0, "", "/mnt") };
    for (keeper, command) in [
        (nfs(0, "", "/mnt"), Some("umount /mnt")),
        (nfs(78, "agent", "/data"), Some("nsenter -t 78 -m umount /data")),
        // Where the kubelet, a pod or a container of kevtmon has it.
        (nfs(0, "", "/k/plugins/x/globalmount"), None),
        (nfs(78, "agent", "/kubelet/plugins/kubernetes.io/csi/x/globalmount"), None),
        (in_pod, None),
        (elsewhere, None),
    ] {
        let node = left(vec![keeper]);
        let advice = &open(&node)[0].advice;
        let commands: Vec<_> = advice.iter().skip(1).map(|step| step.command.as_str()).collect();
        assert_eq!(commands, Vec::from_iter(command));
    }
}

#[test]
fn only_an_address_that_no_other_namespace_has_tells_which_one_a_client_was_made_in() {
    let address = |netns, last: u8| {
        let address = std::net::Ipv4Addr::new(10, 244, 3, last).into();
        AddressFacts { netns, ifindex: 2, address, prefix_len: 32 }
    };
    let mut node = node(CALI);
    node.tables.get_mut(&ETCD).unwrap().addresses.extend((1..=3).map(|last| address(ETCD, last)));
    let users = NetnsSnapshot { foreign_userns: true, ..NetnsSnapshot::empty(USERS) };
    for (netns, snapshot, last) in [(USERS, users, 2), (OTHER, NetnsSnapshot::empty(OTHER), 3)] {
        node.tables.insert(netns, NetnsSnapshot { addresses: vec![address(netns, last)], ..snapshot });
    }
    let mut node = started(node, vec![etcd_sandbox()]);
    exit(&mut node);
    node.run_for(70 * S);
    let asked = node.requests.iter().find_map(|request| match request {
        Request::VethPeers { links } => links.first(),
        _ => None,
    });
    let known = [1, 2].map(|last| address(ETCD, last).address);
    assert_eq!(asked.map(|link| link.addresses.as_slice()), Some(&known[..]));
}
